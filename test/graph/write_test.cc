// Values that a run writes to device memory of the caller's (Recorder::write), on either runtime.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "graph_support.h"

namespace graphcache::test {
namespace {

class WriteTest : public StreamTest {
 protected:
  // factor * data[i] + value, only for the first element: `blend_in` reads nothing else.
  static unsigned blended(unsigned was, int factor, int value) {
    return static_cast<unsigned>(factor) * was + static_cast<unsigned>(value);
  }
};

// Three readers take the value, by the recorder and by other means. One node is patched.
TEST_F(WriteTest, TheValueFollowsEachRunByOnePatch) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    force(patching);
    Cache cache;
    DeviceBuffer<float> out(3), value(1);
    const std::array<Outcome, 4> wanted = {Outcome::kInstantiated, Outcome::kPatched, Outcome::kReplayed,
                                           Outcome::kPatched};
    const float values[] = {2, 3, 3, -1.5f};
    for (int run = 0; run < 4; ++run) {
      EXPECT_TRUE(did(wanted[run], cache.run(key("k"), stream, params(values[run]), [&](Recorder& rec, Slot<float> v) {
        rec.write(value.get(), v);
        rec.launch(scale, {1, 1}, out.get(), value.get(), 1, 2.0f);
        CUDA_OK(launch(scale, dim3(1), dim3(1), rec.stream(), out.get() + 1, value.get(), 1, 3.0f));
        CUDA_OK(cudaMemcpyAsync(out.get() + 2, value.get(), sizeof(float), cudaMemcpyDeviceToDevice, rec.stream()));
      })));
      EXPECT_EQ(out.read(), (std::vector<float>{2 * values[run], 3 * values[run], values[run]})) << "run " << run;
      EXPECT_EQ(value.first(), values[run]);
    }
    EXPECT_EQ(cache.stats().patched_nodes, 2u);
    EXPECT_EQ(cache.stats().refused_device_updates, 0u);
  }
}

// A write comes behind the earlier work of its stream and before the later work, wherever it is recorded.
TEST_F(WriteTest, WritesAreInStreamOrder) {
  for (const int executables : {0, 8}) {
    SCOPED_TRACE(executables);
    Cache cache({.max_executables = executables});
    DeviceBuffer<int> value(1), seen(3);
    for (int run = 1; run < 4; ++run) {
      value.write({-run});
      ASSERT_SUCCESS(cache.run(key("k"), stream, params(run, 10 * run), [&](Recorder& rec, Slot<int> a, Slot<int> b) {
        rec.memcpy(seen.get(), value.get(), sizeof(int));
        rec.write(value.get(), a);
        rec.memcpy(seen.get() + 1, value.get(), sizeof(int));
        rec.write(value.get(), b);
        rec.memcpy(seen.get() + 2, value.get(), sizeof(int));
      }));
      EXPECT_EQ(seen.read(), (std::vector<int>{-run, run, 10 * run}));
    }
    EXPECT_EQ(cache.stats().outcome(Outcome::kPatched), executables == 0 ? 0u : 2u);
  }
}

// ---- Devices --------------------------------------------------------------------------------------------------------

// The memory should be memory of the cache's device. A write to that of another one either fails or writes the value.
TEST_F(WriteTest, AForkOfAnotherDeviceFailsOrWritesTheValue) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  OtherDevice<float> other(1);
  for (const int executables : {0, 8}) {
    for (const int current : {0, 1}) {
      Cache cache({.max_executables = executables});
      for (const float value : {2.0f, 3.0f}) {
        other.memory().write({-1});
        const auto outcome = cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
          other.fork(rec.stream(), [&](cudaStream_t forked) {
            CUDA_OK(cudaSetDevice(current));
            rec.on(forked).write(other.memory().get(), v);
          });
        });
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(other.memory().first(), outcome.ok() ? value : -1) << outcome.status();
      }
    }
  }
}

TEST_F(WriteTest, AnotherDeviceMayBeCurrent) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  DeviceBuffer<float> twice(1), value(1);
  for (const int executables : {0, 8}) {
    Cache cache({.max_executables = executables});
    for (const float v : {2.0f, 3.0f, -1.5f}) {
      ASSERT_SUCCESS(cache.run(key("k"), stream, params(v), [&](Recorder& rec, Slot<float> slot) {
        CUDA_OK(cudaSetDevice(1));
        rec.write(value.get(), slot);
        rec.launch(scale, {1, 1}, twice.get(), value.get(), 1, 2.0f);
        CUDA_OK(cudaSetDevice(0));
      }));
      EXPECT_EQ(twice.first(), 2 * v);
    }
    EXPECT_EQ(cache.stats().outcome(Outcome::kPatched), executables == 0 ? 0u : 2u);
  }
}

// ---- Launches in flight ---------------------------------------------------------------------------------------------

// Launches of one stream follow each other, so each reads the value of its own run. So do direct runs.
TEST_F(WriteTest, ThousandsOfRunsInFlightEachWithItsOwnValue) {
  const struct {
    Patching patching;
    int executables;
  } cases[] = {{Patching::kPerNode, 64}, {Patching::kDeviceUpdated, 64}, {Patching::kPerNode, 0}};
  for (const auto& [patching, executables] : cases) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(patching) << ", " << executables);
    force(patching);
    Cache cache({.max_executables = executables});
    DeviceBuffer<int> data(1, 1), memory(1);
    unsigned wanted = 1;
    std::mt19937 random(7);
    for (int run = 0; run < 3000; ++run) {
      const int value = static_cast<int>(random() % 1000);
      ASSERT_SUCCESS(cache.run(key("k", run % 3), stream, params(value), [&](Recorder& rec, Slot<int> v) {
        rec.write(memory.get(), v);
        rec.launch(blend_in, {1, 1}, data.get(), memory.get(), 1, 3);
      }));
      wanted = blended(wanted, 3, value);
    }
    EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
    EXPECT_EQ(cache.stats().outcome(Outcome::kEager), executables == 0 ? 3000u : 0u);
  }
}

// ---- Sizes and types ------------------------------------------------------------------------------------------------

template <std::size_t kBytes>
struct Sized {
  unsigned char bytes[kBytes];
};

// The memory is at `at` of a buffer, whose other bytes stay.
template <std::size_t kBytes>
void expect_exact(Cache& cache, cudaStream_t stream, std::size_t at) {
  constexpr std::size_t kAll = 600;
  DeviceBuffer<unsigned char> memory(kAll);
  static_assert(alignof(Sized<kBytes>) == 1);
  for (int run = 0; run < 3; ++run) {
    std::vector<unsigned char> wanted(kAll, 0xee);
    memory.write(wanted);
    Sized<kBytes> value;
    for (std::size_t i = 0; i < kBytes; ++i) value.bytes[i] = static_cast<unsigned char>(17 * run + 3 * i + 1);
    ASSERT_SUCCESS(cache.run(key("sized", static_cast<int>(kBytes), static_cast<int>(at)), stream, params(value),
                             [&](Recorder& rec, Slot<Sized<kBytes>> v) {
                               rec.write(reinterpret_cast<Sized<kBytes>*>(memory.get() + at), v);
                             }));
    std::memcpy(wanted.data() + at, value.bytes, kBytes);
    EXPECT_EQ(memory.read(), wanted) << kBytes << " bytes at " << at << ", run " << run;
  }
}

template <std::size_t... kSizes>
void expect_all_exact(Cache& cache, cudaStream_t stream, std::size_t at, std::index_sequence<kSizes...>) {
  (expect_exact<kSizes>(cache, stream, at), ...);
}

// All sizes around those at which another kernel or another wide store might be chosen, at odd addresses as well.
TEST_F(WriteTest, WritesExactlyTheBytesOfTheValueAtAnyAddress) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    for (const int executables : {0, 64}) {
      force(patching);
      Cache cache({.max_executables = executables});
      for (const std::size_t at : {0u, 1u, 3u, 7u, 13u, 128u}) {
        expect_all_exact(cache, stream, at,
                         std::index_sequence<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 31, 32, 33,
                                             63, 65, 100, 127, 129, 255, 256>());
      }
    }
  }
}

TEST_F(WriteTest, StructuresPointersAndBools) {
  struct Pair {
    const float* in;
    int n;
    float factor;
  };
  for (const int executables : {0, 8}) {
    SCOPED_TRACE(executables);
    Cache cache({.max_executables = executables});
    DeviceBuffer<Pair> pair(1);
    DeviceBuffer<const float*> pointer(1);
    DeviceBuffer<char> flag(3, 9);
    DeviceBuffer<double> number(1);
    DeviceBuffer<Mixed> mixed(2);
    DeviceBuffer<float> first(1, 3), second(1, 4);
    for (int run = 0; run < 4; ++run) {
      const float* const in = run % 2 == 0 ? first.get() : second.get();
      Mixed value = {'x', 0.5 * run, static_cast<short>(run), {run, -run, 7}, 200};
      ASSERT_SUCCESS(cache.run(
          key("k"), stream, params(Pair{in, run, 2}, in, run % 2 == 0, 0.25 * run, value),
          [&](Recorder& rec, Slot<Pair> p, Slot<const float*> q, Slot<bool> b, Slot<double> d, Slot<Mixed> m) {
            rec.write(pair.get(), p);
            rec.write(pointer.get(), q);
            rec.write(reinterpret_cast<bool*>(flag.get() + 1), b);
            rec.write(number.get(), d);
            rec.write(mixed.get() + 1, m);
          }));
      EXPECT_EQ(pair.first().in, in);
      EXPECT_EQ(pair.first().n, run);
      EXPECT_EQ(pair.first().factor, 2);
      EXPECT_EQ(pointer.first(), in);
      EXPECT_EQ(flag.read(), (std::vector<char>{9, run % 2 == 0, 9}));
      EXPECT_EQ(number.first(), 0.25 * run);
      const Mixed got = mixed.read()[1];
      EXPECT_EQ(got.letter, 'x');
      EXPECT_EQ(got.real, 0.5 * run);
      EXPECT_EQ(got.small, run);
      EXPECT_EQ(got.numbers[1], -run);
      EXPECT_EQ(got.last, 200);
    }
  }
}

// For two values, and for one value twice, on two branches.
TEST_F(WriteTest, SeveralValuesAndBranches) {
  for (const int executables : {0, 8}) {
    SCOPED_TRACE(executables);
    Cache cache({.max_executables = executables});
    Stream side;
    DeviceBuffer<int> data(3), values(3);
    for (int run = 1; run < 4; ++run) {
      const auto fn = [&](Recorder& rec, Slot<int> a, Slot<int> b) {
        let_follow(side, rec.stream());
        Recorder other = rec.on(side);
        rec.write(values.get(), a);
        rec.write(values.get() + 1, b);
        other.write(values.get() + 2, a);
        rec.memcpy(data.get(), values.get(), sizeof(int));
        rec.memcpy(data.get() + 1, values.get() + 1, sizeof(int));
        other.memcpy(data.get() + 2, values.get() + 2, sizeof(int));
        let_follow(rec.stream(), side);
      };
      ASSERT_SUCCESS(cache.run(key("k"), stream, params(10 * run, 100 * run), fn));
      EXPECT_EQ(data.read(), (std::vector<int>{10 * run, 100 * run, 10 * run}));
    }
    EXPECT_EQ(cache.stats().patched_nodes, executables == 0 ? 0u : 6u);
  }
}

// ---- Other ways of a run --------------------------------------------------------------------------------------------

// A warm-up captures without running, so nothing is written before the first run.
TEST_F(WriteTest, AWarmedKeyHasTheRunsValue) {
  Cache cache;
  DeviceBuffer<int> data(1, 1), memory(1, -3);
  const auto fn = [&](Recorder& rec, Slot<int> v) {
    rec.write(memory.get(), v);
    rec.launch(blend_in, {1, 1}, data.get(), memory.get(), 1, 5);
  };
  EXPECT_TRUE(cache.warm(key("k"), stream, params(7), fn).ok());
  EXPECT_EQ(data.first(), 1);
  EXPECT_EQ(memory.first(), -3);
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, params(8), fn));
  EXPECT_EQ(static_cast<unsigned>(data.first()), blended(1, 5, 8));
  EXPECT_EQ(memory.first(), 8);
}

// That graph may outlive the cache, and the kernel of the write does not.
TEST_F(WriteTest, AForeignCaptureIsRefused) {
  Cache cache({.inline_in_foreign_capture = true});
  DeviceBuffer<int> memory(1, 3), data(1, 1);
  const auto run = [&](bool writes) {
    return cache.run(key("k", writes), stream, params(8), [&, writes](Recorder& rec, Slot<int> v) {
      if (writes) rec.write(memory.get(), v);
      rec.launch(blend, {1, 1}, data.get(), 1, 3, v);
    });
  };
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_RUN(kInlined, run(false));
  EXPECT_ERROR(kFailedPrecondition, run(true), "Recorder::write");
  launch_captured(stream);
  EXPECT_EQ(memory.first(), 3);
  EXPECT_EQ(data.first(), 3 + 8);
  EXPECT_RUN(kInstantiated, run(true));
  EXPECT_EQ(memory.first(), 8);
}

// The graph of one cache may have writes of another cache, which then ends.
TEST_F(WriteTest, TheCodeOfAnInnerRunsCacheLivesAsLongAsTheOuterGraph) {
  DeviceBuffer<int> memory(1), first(1), second(1);
  Cache outer;
  std::optional<Cache> inner(std::in_place);
  const auto run = [&](int value) {
    return outer.run(key("outer"), stream, params(value), [&](Recorder& rec, Slot<int> v) {
      rec.write(memory.get(), v);
      if (inner) {
        EXPECT_RUN(kInlined, inner->run(key("inner"), rec.stream(),
                                        [&](Recorder& in) { in.memcpy(second.get(), memory.get(), sizeof(int)); }));
      }
      rec.memcpy(first.get(), memory.get(), sizeof(int));
    });
  };
  EXPECT_RUN(kInstantiated, run(4));
  inner.reset();
  EXPECT_RUN(kPatched, run(5));
  EXPECT_EQ(first.first(), 5);
  EXPECT_EQ(second.first(), 5);
}

// ---- Memory that the device cannot access ---------------------------------------------------------------------------

// A kernel that writes there would lose the context.
TEST_F(WriteTest, MemoryThatTheDeviceCannotAccessIsRefused) {
  if (device_reads_all_memory()) GTEST_SKIP() << "this device can access all host memory";
  const auto heap = std::make_unique<int>(5);
  int local = 5;
  static int of_program = 5;
  DeviceBuffer<int> ahead(1, 1);
  for (int* const to : {heap.get(), &local, &of_program, static_cast<int*>(nullptr)}) {
    for (const int executables : {0, 8}) {
      SCOPED_TRACE(testing::Message() << to << ", executables: " << executables);
      Cache cache({.max_executables = executables});
      ahead.write({1});
      const auto run = [&](int* memory) {
        return cache.run(key("k"), stream, params(7), [&](Recorder& rec, Slot<int> v) {
          rec.launch(blend, {1, 1}, ahead.get(), 1, 3, 1);
          rec.write(memory, v);
        });
      };
      const auto around = [&](Recorder& rec) {
        return cache.run(key("inner"), rec.stream(), params(7), [&](Recorder& in, Slot<int> v) { in.write(to, v); })
            .status();
      };
      EXPECT_ERROR(kInvalidArgument, run(to), "Recorder::write: the device cannot access this memory");
      EXPECT_ERROR(kInvalidArgument, cache.run(key("outer"), stream, around), "the device cannot access this memory");
      DeviceBuffer<int> memory(1);
      EXPECT_TRUE(did(executables == 0 ? Outcome::kEager : Outcome::kInstantiated, run(memory.get())));
      EXPECT_EQ(memory.first(), 7);
      EXPECT_EQ(ahead.first(), executables == 0 ? 3 * (3 * 1 + 1) + 1 : 3 * 1 + 1);
    }
  }
  EXPECT_EQ(*heap + local + of_program, 15);
}

TEST_F(WriteTest, ManagedPinnedAndRegisteredMemoryIsWritten) {
  int* managed = nullptr;
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), sizeof(int), cudaMemAttachGlobal));
  std::vector<int> registered(4096);
  CUDA_OK(cudaHostRegister(registered.data(), registered.size() * sizeof(int), cudaHostRegisterDefault));
  PinnedBuffer<int> pinned(1);
  for (int* const to : {managed, registered.data() + 100, pinned.get()}) {
    Cache cache;
    for (const int value : {4, 9}) {
      ASSERT_SUCCESS(cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<int> v) { rec.write(to, v); }));
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(*to, value);
    }
    EXPECT_EQ(cache.stats().captures, 1u);
  }
  CUDA_OK(cudaHostUnregister(registered.data()));
  CUDA_OK(cudaFree(managed));
}

// Before the first launch, CUDA does not know that memory.
TEST_F(WriteTest, MemoryThatTheGraphAllocatesIsWritten) {
  Cache cache;
  DeviceBuffer<int> out(1);
  for (const int value : {4, 9, 12}) {
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<int> v) {
      void* memory = nullptr;
      CUDA_OK(cudaMallocAsync(&memory, 100, rec.stream()));
      rec.write(static_cast<int*>(memory) + 3, v);
      CUDA_OK(cudaMemcpyAsync(out.get(), static_cast<int*>(memory) + 3, sizeof(int), cudaMemcpyDefault, rec.stream()));
      CUDA_OK(cudaFreeAsync(memory, rec.stream()));
    }));
    EXPECT_EQ(out.first(), value);
  }
  EXPECT_EQ(cache.stats().captures, 1u);
}

// ---- Siblings -------------------------------------------------------------------------------------------------------

class SharedWriteTest : public WriteTest {
 protected:
  // Members differ in a constant, and in the address that they write to.
  absl::StatusOr<Outcome> run(Cache& cache, int which, int value, cudaStream_t on = nullptr) {
    if (on == nullptr) on = stream;
    return cache.run(key("member", which), on, params(value), [&, which](Recorder& rec, Slot<int> v) {
      ++calls;
      int* const to = memory.get() + which;
      rec.write(to, v);
      for (int i = 0; i < 8; ++i) rec.launch(do_nothing, {1, 1});
      rec.launch(blend_in, {1, 1}, data.get(), to, 1, 3 + which);
    });
  }
  void expect_right(Cache& cache, const std::vector<int>& members) {
    int value = 1;
    unsigned wanted = static_cast<unsigned>(data.first());
    std::vector<int> written = memory.read();
    for (const int which : members) {
      ASSERT_SUCCESS(run(cache, which, ++value));
      wanted = blended(wanted, 3 + which, value);
      written[static_cast<std::size_t>(which)] = value;
    }
    EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
    EXPECT_EQ(memory.read(), written);
  }

  DeviceBuffer<int> data{1, 1}, memory{16};
  int calls = 0;
};

TEST_F(SharedWriteTest, MembersOfOneExecutableAreNotCapturedAgain) {
  for (const Sharing sharing :
       {Sharing::kAuto, Sharing::kNever, Sharing::kUpdates, Sharing::kUpdatesAcross, Sharing::kTable}) {
    for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(sharing) << ", " << static_cast<int>(patching));
      calls = 0;
      force(patching);
      Cache cache(forced(sharing, 1));
      expect_right(cache, {0, 1, 2, 0, 1, 2, 2, 1, 0, 0});
      const Stats stats = cache.stats();
      EXPECT_EQ(calls, 3);
      EXPECT_EQ(stats.captures, 3u);
      EXPECT_EQ(stats.live_templates, 3u);
      EXPECT_EQ(stats.forgotten, 0u);
      EXPECT_EQ(stats.refused_device_updates, 0u);
      EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
      if (sharing == Sharing::kTable) {
        EXPECT_GT(stats.set_switches, 4u);
      }
      if (sharing == Sharing::kUpdates && patching == Patching::kPerNode) {
        EXPECT_EQ(stats.instantiations, 1u);
      }
    }
  }
}

TEST_F(SharedWriteTest, MembersOfTwoStreamsAreCapturedOnceEach) {
  Cache cache;
  Stream other;
  for (int i = 0; i < 20; ++i) {
    unsigned wanted = static_cast<unsigned>(data.first());
    ASSERT_TRUE(run(cache, i % 2, i, i % 2 == 0 ? stream : other).ok());
    CUDA_OK(cudaStreamSynchronize(i % 2 == 0 ? stream : other));
    EXPECT_EQ(static_cast<unsigned>(data.first()), blended(wanted, 3 + i % 2, i));
  }
  EXPECT_EQ(cache.stats().captures, 2u);
}

// Members are evicted and erased with launches in flight, and the cache ends. All launches still write their own.
TEST_F(SharedWriteTest, MembersEvictedInFlightWriteTheirValues) {
  for (const Sharing sharing : {Sharing::kUpdatesAcross, Sharing::kTable, Sharing::kNever}) {
    SCOPED_TRACE(static_cast<int>(sharing));
    const ForcedOptions options = forced(sharing, 1);
    std::optional<Cache> cache(options.again());
    unsigned wanted = static_cast<unsigned>(data.first());
    for (int round = 0; round < 200; ++round) {
      for (const int which : {round % 5, 5 + round % 3, round % 5}) {
        const int value = 10 * round + which;
        ASSERT_SUCCESS(run(*cache, which, value));
        wanted = blended(wanted, 3 + which, value);
      }
      cache->erase(key("member", round % 2 == 0 ? round % 5 : 5 + round % 3));
      if (round % 50 == 49) cache.emplace(options.again());
    }
    EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
  }
}

}  // namespace
}  // namespace graphcache::test
