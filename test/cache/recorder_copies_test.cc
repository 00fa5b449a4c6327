// Copies and sets of the recorder on either runtime: values that follow each run, and sizes that become 0.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "recorder_support.h"

namespace graphcache::test {
namespace {

TEST_F(RecorderTest, CopiesFollowEachRun) {
  std::vector<float> a(kSize), b(kSize);
  for (int i = 0; i < kSize; ++i) {
    a[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
    b[static_cast<std::size_t>(i)] = static_cast<float>(-i - 1);
  }
  DeviceBuffer<float> first(a), second(b), other(kSize);
  DeviceBuffer<float>* const sources[] = {&first, &second};
  DeviceBuffer<float>* const targets[] = {&data, &other};
  using Step = std::array<int, 3>;
  const Step steps[] = {{0, 0, 100}, {0, 0, 100}, {1, 0, 100}, {1, 1, 100}, {0, 1, 10}, {0, 0, 0},
                        {1, 1, 0},   {1, 1, 50},  {0, 0, 0},   {0, 0, 0},   {0, 0, 3},  {1, 0, 100}};
  std::vector<float> expected_content[2] = {std::vector<float>(kSize), std::vector<float>(kSize)};
  int run = 0;
  for (const auto& [source, target, count] : steps) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    ASSERT_TRUE(by_graph(cache.run(key("k"), stream, params(targets[target]->get(), sources[source]->get(), bytes),
                                   [&](Recorder& rec, Slot<float*> dst, Slot<float*> src, Slot<std::size_t> size) {
                                     rec.memcpy(dst, src, size);
                                   })))
        << run;
    const auto& from = source == 0 ? a : b;
    auto& to = expected_content[target];
    std::copy(from.begin(), from.begin() + count, to.begin());
    EXPECT_EQ(data.read(), expected_content[0]) << "run " << run;
    EXPECT_EQ(other.read(), expected_content[1]) << "run " << run;
    ++run;
  }
}

// The driver refuses an executable with a set of freed memory, and may crash at a copy. So a key that gets an
// executable again must not bring the memory of earlier runs into it.
TEST_F(RecorderTest, MemoryOfEarlierRunsMayBeFreed) {
  PinnedBuffer<float> on_host(kSize);
  const auto run = [&](Cache& in, int which, float* memory, float v, bool by_values) {
    const auto bias = static_cast<float>(100 * which);
    const Key of = key("freed", which, by_values);
    if (!by_values) {
      return in.run(of, stream, params(memory, v), [&, bias](Recorder& rec, Slot<float*> to, Slot<float> add_to) {
        rec.memset(to, 0, data.bytes());
        rec.launch(add, {kGrid, kBlock}, to, kSize, add_to);
        rec.memcpy(data.get(), to, data.bytes());
        rec.memcpy(on_host.get(), to, data.bytes());
        rec.launch(add, {kGrid, kBlock}, data.get(), kSize, bias);
      });
    }
    return in.run(of, stream, values(memory, v), [&, bias](cudaStream_t on, float* to, float add_to) {
      CUDA_OK(cudaMemsetAsync(to, 0, data.bytes(), on));
      CUDA_OK(launch(add, kGrid, kBlock, on, to, kSize, add_to));
      CUDA_OK(cudaMemcpyAsync(data.get(), to, data.bytes(), cudaMemcpyDeviceToDevice, on));
      CUDA_OK(cudaMemcpyAsync(on_host.get(), to, data.bytes(), cudaMemcpyDeviceToHost, on));
      return launch(add, kGrid, kBlock, on, data.get(), kSize, bias);
    });
  };
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdates, Sharing::kTable}) {
    for (const bool by_values : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(sharing) << by_values);
      Cache small(forced(sharing, {.max_executables = 1}));
      for (int i = 0; i < 32; ++i) {
        const int which = i < 16 ? i % 2 : i / 4 % 2;  // Switches, then hits, too.
        DeviceBuffer<float> memory(kSize);
        const auto v = static_cast<float>(2 + (by_values && i < 16 ? i : i / 3));
        EXPECT_SUCCESS(run(small, which, memory.get(), v, by_values));
        EXPECT_EQ(data.read(), std::vector<float>(kSize, v + static_cast<float>(100 * which))) << i;
        EXPECT_EQ(on_host.read(), std::vector<float>(kSize, v)) << i;
      }
      EXPECT_EQ(small.stats().outcome(Outcome::kEager), 0u);
      EXPECT_EQ(small.stats().captures, by_values ? small.stats().value_captures + 2 : 2u);
    }
  }
}

// An executable that warm() has made holds the values of warm() in some nodes, and those of the capture in others.
TEST_F(RecorderTest, ARunBehindAWarmWithOtherValuesHasItsOwn) {
  Cache small(unshared(1));
  const auto fn = [&](Recorder& rec, Slot<int> byte, Slot<int> n) {
    rec.memset(data.get(), byte, n);
    rec.launch(add, {kGrid, kBlock}, data.get(), n, 1);
  };
  const auto run = [&](const char* which, int byte, int n) {
    return small.run(key(which), stream, params(byte, n), fn);
  };
  EXPECT_RUN(kInstantiated, run("a", 0, 64));
  EXPECT_RUN(kInstantiated, run("b", 0, 8));
  EXPECT_TRUE(small.erase(key("b")));
  EXPECT_SUCCESS(small.warm(key("a"), stream, params(1, 32), fn));
  EXPECT_EQ(small.stats().captures, 2u);
  data.write(std::vector<float>(kSize, 5));
  EXPECT_SUCCESS(run("a", 0, 64));
  std::vector<float> wanted(kSize, 5);
  std::fill_n(wanted.begin(), 16, 0.0f);
  for (int i = 0; i < 64; ++i) wanted[static_cast<std::size_t>(i)] += 1;
  EXPECT_EQ(data.read(), wanted);
}

TEST_F(RecorderTest, CopiesFromAndToTheHostFollowEachRun) {
  std::vector<float> from[2] = {std::vector<float>(kSize, 5), std::vector<float>(kSize, 6)};
  std::vector<float> to[2] = {std::vector<float>(kSize), std::vector<float>(kSize)};
  for (int i = 0; i < 4; ++i) {
    const float* const source = from[i % 2].data();
    float* const target = to[i / 2].data();
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(source, target),
                             [&](Recorder& rec, Slot<const float*> in, Slot<float*> out) {
                               rec.memcpy(data.get(), in, data.bytes(), cudaMemcpyHostToDevice);
                               rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
                               rec.memcpy(out, data.get(), data.bytes(), cudaMemcpyDeviceToHost);
                             }));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(to[i / 2], std::vector<float>(kSize, static_cast<float>(6 + i % 2)));
  }
}

TEST_F(RecorderTest, SetsFollowEachRun) {
  DeviceBuffer<unsigned char> first(64), second(64);
  DeviceBuffer<unsigned char>* const buffers[] = {&first, &second};
  using Step = std::array<int, 3>;
  const Step steps[] = {{0, 1, 64}, {0, 1, 64},  {0, 2, 64}, {1, 2, 64}, {1, 300, 10}, {0, 7, 0},
                        {0, 8, 0},  {0, -1, 33}, {1, 9, 0},  {1, 9, 1},  {0, 0, 64}};
  std::vector<unsigned char> content[2] = {std::vector<unsigned char>(64), std::vector<unsigned char>(64)};
  int run = 0;
  for (const auto& [target, value, bytes] : steps) {
    ASSERT_TRUE(by_graph(cache.run(
        key("k"), stream, params(buffers[target]->get(), value, bytes),
        [&](Recorder& rec, Slot<unsigned char*> dst, Slot<int> v, Slot<int> size) { rec.memset(dst, v, size); })))
        << run;
    std::fill_n(content[target].begin(), bytes, static_cast<unsigned char>(value));
    EXPECT_EQ(first.read(), content[0]) << "run " << run;
    EXPECT_EQ(second.read(), content[1]) << "run " << run;
    ++run;
  }
}

TEST_F(RecorderTest, ConstantCopiesAndSetsAreRecorded) {
  DeviceBuffer<float> other(kSize);
  for (int i = 0; i < 3; ++i) {
    EXPECT_SUCCESS(cache.run(key("k"), stream, [&](Recorder& rec) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
      rec.memcpy(other.get(), data.get(), data.bytes(), cudaMemcpyDeviceToDevice);
      rec.memset(other.get(), 0, 10 * sizeof(float));
      rec.memcpy(other.get(), data.get(), 0);
      rec.memset(other.get(), 1, 0);
    }));
  }
  std::vector<float> wanted(kSize, 3);
  std::fill_n(wanted.begin(), 10, 0.0f);
  EXPECT_EQ(other.read(), wanted);
  EXPECT_EQ(cache.stats().outcome(Outcome::kReplayed), 2u);
  EXPECT_EQ(cache.entries()[0].slot_nodes, 0u);
}

// A set or copy of 0 bytes keeps the order of its neighbours; a disabled set does not (docs/semantics.md).
TEST_F(RecorderTest, WorkAroundASetOrCopyOfNoBytesStaysInOrder) {
  constexpr int kSize = 128;
  DeviceBuffer<float> data(kSize, 1.0f), other(kSize);
  Cache cache;
  const auto run = [&](std::size_t bytes) {
    return cache.run(key("k"), stream, params(bytes), [&](Recorder& rec, Slot<std::size_t> size) {
      for (int i = 0; i < 4; ++i) {
        rec.launch(add, {2, 64}, data.get(), kSize, 1.0f);
        i % 2 == 0 ? rec.memset(other.get(), 0, size) : rec.memcpy(other.get(), data.get(), size);
        rec.launch(scale, {2, 64}, data.get(), data.get(), kSize, 0.5f);
      }
    });
  };
  // x becomes (x + 1) / 2, so 1 stays 1, and any other order changes it.
  EXPECT_RUN(kInstantiated, run(64));
  for (int i = 0; i < 300; ++i) {
    EXPECT_RUN(kPatched, run(0));
    EXPECT_RUN(kReplayed, run(0));
    ASSERT_EQ(data.read(), std::vector<float>(kSize, 1.0f));
    EXPECT_RUN(kPatched, run(64));
  }
}

TEST_F(RecorderTest, CopiesOfEveryKindMayBecomeEmpty) {
  constexpr std::size_t kBytes = 64;
  const PinnedBuffer<char> of_host(2 * kBytes);
  char* const pinned = of_host.get();
  std::vector<char> pageable(2 * kBytes, 3);
  DeviceBuffer<char> from(kBytes, 5), to(kBytes);
  struct Case {
    void* dst;
    const void* src;
    cudaMemcpyKind kind;
  };
  const Case cases[] = {
      {to.get(), from.get(), cudaMemcpyDeviceToDevice},
      {to.get(), from.get(), cudaMemcpyDefault},
      {to.get(), pinned, cudaMemcpyHostToDevice},
      {to.get(), pageable.data(), cudaMemcpyHostToDevice},
      {to.get(), pinned, cudaMemcpyDefault},
      {pinned, from.get(), cudaMemcpyDeviceToHost},
      {pinned, from.get(), cudaMemcpyDefault},
      {pinned + kBytes, pinned, cudaMemcpyHostToHost},
  };
  int number = 0;
  for (const Case& one : cases) {
    SCOPED_TRACE(number);
    const auto run = [&](std::size_t bytes) {
      const auto outcome = cache.run(key("k", number), stream, params(bytes, one.src),
                                     [&](Recorder& rec, Slot<std::size_t> size, Slot<const void*> slot) {
                                       // As a constant, pageable memory would make the key run directly.
                                       const Arg<const void*> src = one.src == pageable.data()
                                                                        ? Arg<const void*>(slot)
                                                                        : Arg<const void*>(one.src);
                                       rec.memcpy(one.dst, src, size, one.kind);
                                     });
      CUDA_OK(cudaStreamSynchronize(stream));
      return outcome;
    };
    const bool to_host = one.dst == pinned || one.dst == pinned + kBytes;
    const auto first_of_target = [&] { return to_host ? *static_cast<char*>(one.dst) : to.read()[0]; };
    std::fill_n(pinned, kBytes, 4);
    ASSERT_TRUE(run(kBytes).ok());
    const char copied = first_of_target();
    EXPECT_EQ(copied, one.src == pinned ? 4 : one.src == pageable.data() ? 3 : 5);
    if (to_host) std::fill_n(static_cast<char*>(one.dst), kBytes, 9);
    to.write(std::vector<char>(kBytes, 9));
    EXPECT_RUN(kPatched, run(0));
    EXPECT_RUN(kReplayed, run(0));
    EXPECT_EQ(first_of_target(), 9);
    EXPECT_RUN(kPatched, run(1));
    EXPECT_EQ(first_of_target(), copied);
    ++number;
  }
  cache.clear();
}

// An executable instantiated with a copy of device or managed memory must not be given pageable host memory: CUDA
// accepts the patch or update, and the launch destroys the context (docs/semantics.md).
class PageableCopies : public RecorderTest {
 protected:
  static constexpr int kPageable = 2;
  static constexpr std::size_t kBytes = 64;

  // Copies from or to memory of a kind that may be another in each run.
  void copy(Cache& in, const Key& of, int place, bool is_source, int kernels = 1, bool by_values = false) {
    SCOPED_TRACE(testing::Message() << "run " << ++value_ << ", place " << place << ", source " << is_source);
    const std::vector<char> wanted(kBytes, static_cast<char>(value_));
    char* const memory = places_[place];
    if (is_source) {
      CUDA_OK(cudaMemcpy(memory, wanted.data(), kBytes, cudaMemcpyDefault));
      CUDA_OK(cudaDeviceSynchronize());  // cudaMemcpy from pageable memory may return before the copy has arrived.
    } else {
      from_.write(wanted);
    }
    if (by_values) {
      ASSERT_SUCCESS(in.run(of, stream, values(memory), [&](Recorder& rec, char* at) {
        if (place == kPageable && number_++ % 2 == 0) rec.keep(std::shared_ptr<void>(std::make_shared<int>(), at));
        CUDA_OK(cudaMemcpyAsync(is_source ? to_.get() : at, is_source ? at : from_.get(), kBytes, cudaMemcpyDefault,
                                rec.stream()));
        for (int i = 0; i < kernels; ++i) rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1.0f);
      }));
    } else {
      ASSERT_SUCCESS(in.run(of, stream, params(memory), [&](Recorder& rec, Slot<char*> slot) {
        if (is_source) {
          rec.memcpy(to_.get(), slot, kBytes, cudaMemcpyDefault);
        } else {
          rec.memcpy(slot, from_.get(), kBytes, cudaMemcpyDefault);
        }
        for (int i = 0; i < kernels; ++i) rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1.0f);
      }));
    }
    ASSERT_TRUE(cuda_ok(cudaStreamSynchronize(stream)));
    std::vector<char> got(kBytes);
    CUDA_OK(cudaMemcpy(got.data(), is_source ? to_.get() : memory, kBytes, cudaMemcpyDefault));
    EXPECT_EQ(got, wanted);
  }

  int value_ = 0, number_ = 0;
  const PinnedBuffer<char> pinned_{kBytes};
  std::vector<char> pageable_ = std::vector<char>(kBytes);
  DeviceBuffer<char> on_device_{kBytes}, from_{kBytes}, to_{kBytes};
  char* const places_[3] = {on_device_.get(), pinned_.get(), pageable_.data()};
};

TEST_F(PageableCopies, TakeTheDevicesPlace) {
  int number = 0;
  for (const int first : {0, 1, 2}) {
    for (const bool is_source : {true, false}) {
      const Key the_key = key("k", number++);
      for (const int place : {first, kPageable, first, 0, kPageable, kPageable, 1, kPageable, first}) {
        copy(cache, the_key, place, is_source);
      }
    }
  }
  EXPECT_GT(cache.stats().outcome(Outcome::kEager), 0u);
  EXPECT_GT(cache.stats().outcome(Outcome::kPatched), 0u);
  cache.clear();
}

TEST_F(PageableCopies, TakeTheDevicesPlaceInASiblingsExecutable) {
  std::uint32_t random = 1;
  const auto draw = [&](std::uint32_t below) { return (random = random * 1664525 + 1013904223) / 65536 % below; };
  std::uint64_t updates = 0, patches = 0;
  for (int round = 0; round < 24; ++round) {
    for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdates, Sharing::kTable}) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", sharing " << static_cast<int>(sharing));
      Cache small(forced(sharing, {.max_executables = 1}));
      for (int i = 0; i < 40 && !HasFatalFailure(); ++i) {
        const auto which = static_cast<int>(draw(3));  // The third has no sibling, and evicts.
        const bool by_values = draw(3) == 0;
        copy(small, key("k", which, by_values), static_cast<int>(draw(3)), round % 2 == 0, which == 2 ? 2 : 1,
             by_values);
      }
      updates += small.stats().updates;
      patches += small.stats().outcome(Outcome::kPatched);
    }
  }
  EXPECT_GT(updates, 0u);
  EXPECT_GT(patches, 0u);
}

// An explicit kind is a claim by the caller. The replacement for an empty copy depends on the memory itself.
TEST_F(RecorderTest, EmptyCopiesWhoseKindIsNotThatOfTheirMemory) {
  DeviceBuffer<char> from(64, 5), to(64);
  int number = 0;
  for (const cudaMemcpyKind kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToHost}) {
    for (const std::size_t bytes : {64, 0, 32, 0, 64}) {
      to.write(std::vector<char>(64, 9));
      ASSERT_SUCCESS(cache.run(key("k", number), stream, params(bytes), [&](Recorder& rec, Slot<std::size_t> size) {
        rec.memcpy(to.get(), from.get(), size, kind);
      }));
      ASSERT_TRUE(cuda_ok(cudaStreamSynchronize(stream)));
      std::vector<char> wanted(64, 9);
      std::fill_n(wanted.begin(), bytes, 5);
      EXPECT_EQ(to.read(), wanted) << "kind " << kind << ", bytes " << bytes;
    }
    ++number;
  }
}

TEST_F(RecorderTest, CopiesAndSetsOnAnotherDeviceMayBecomeEmpty) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  constexpr std::size_t kBytes = 64;
  OtherDevice<char> there(3 * kBytes);
  DeviceBuffer<char> here(kBytes, 5);
  char* const other = there.memory().get();
  const auto run = [&](int value, std::size_t bytes) {
    return cache.run(key("k"), stream, params(value, bytes), [&](Recorder& rec, Slot<int> v, Slot<std::size_t> size) {
      there.fork(rec.stream(), [&](cudaStream_t forked) {
        rec.on(forked).memset(other, v, size);
        rec.on(forked).memcpy(other + kBytes, other, size, cudaMemcpyDeviceToDevice);
        rec.on(forked).memcpy(other + 2 * kBytes, here.get(), size, cudaMemcpyDefault);
      });
    });
  };
  std::vector<char> wanted(3 * kBytes);
  int value = 1;
  for (const std::size_t bytes : {64, 0, 0, 10, 0, 1, 64}) {
    SCOPED_TRACE(testing::Message() << "value " << value << ", bytes " << bytes);
    ASSERT_TRUE(by_graph(run(value, bytes)));
    std::fill_n(wanted.begin(), bytes, static_cast<char>(value));
    std::fill_n(wanted.begin() + kBytes, bytes, static_cast<char>(value));
    std::fill_n(wanted.begin() + 2 * kBytes, bytes, 5);
    EXPECT_EQ(there.memory().read(), wanted);
    ++value;
  }
}

TEST_F(RecorderTest, SizesThatBeginAtZeroAreRightFromTheFirstRunOn) {
  DeviceBuffer<float> other(std::vector<float>(kSize, 4));
  std::vector<float> wanted(kSize);
  bool captured = false;
  for (const int count : {0, 0, 10, 0, 20, 30, 5, 0, 60, 100}) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    const auto outcome = cache.run(key("k"), stream, params(bytes), [&](Recorder& rec, Slot<std::size_t> size) {
      rec.memset(data.get(), 0, size);
      rec.memcpy(data.get(), other.get(), size);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
    });
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    captured = captured || *outcome != Outcome::kEager;
    std::fill_n(wanted.begin(), count, 4.0f);
    for (float& element : wanted) element += 1;
    EXPECT_EQ(data.read(), wanted) << count;
  }
  EXPECT_TRUE(captured);
}

TEST_F(RecorderTest, ANegativeSizeIsAnError) {
  for (const bool is_copy : {true, false}) {
    for (const bool is_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << is_copy << is_first);
      Cache fresh;
      const auto run = [&](int bytes) {
        return fresh.run(key("sizes"), stream, params(bytes), [&](Recorder& rec, Slot<int> size) {
          is_copy ? rec.memcpy(data.get() + 64, data.get(), size) : rec.memset(data.get(), 0, size);
        });
      };
      if (!is_first) {
        EXPECT_RUN(kInstantiated, run(4));
      }
      EXPECT_ERROR(kInvalidArgument, run(-4), "the size is negative");
      EXPECT_SUCCESS(run(8));
    }
  }
}

TEST_F(RecorderTest, CopyThatTheRuntimeRefusesIsReturned) {
  const auto run = [&](float* target) {
    return cache.run(key("my label"), stream, params(target),
                     [&](Recorder& rec, Slot<float*> dst) { rec.memset(dst, 0, sizeof(float)); });
  };
  EXPECT_RUN(kInstantiated, run(data.get()));
  const auto outcome = run(nullptr);
  ASSERT_FALSE(outcome.ok()) << to_string(*outcome);
  EXPECT_EQ(cuda_error(outcome.status()), cudaErrorInvalidValue);
  EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  EXPECT_TRUE(mentions(outcome.status(), "Recorder::memset: the device cannot access this memory")) << outcome.status();
  CUDA_OK(cudaPeekAtLastError());
  EXPECT_TRUE(run(data.get()).ok());
  EXPECT_TRUE(run(data.get()).ok());
  EXPECT_RUN(kReplayed, run(data.get()));
}

}  // namespace
}  // namespace graphcache::test
