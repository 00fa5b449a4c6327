// The recorder on either runtime: what follows each run, and what its calls refuse.
#include "graphcache/recorder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr int kSize = 100;
constexpr dim3 kGrid(2), kBlock(64);

std::uint32_t bits(float value) {
  std::uint32_t result = 0;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

float from_bits(std::uint32_t bits) {
  float result = 0;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

class RecorderTest : public StreamTest {
 protected:
  // What a run is expected to do: the first captures, a later one patches if its values changed.
  static Outcome expected(int run, bool changed) {
    return run == 0 ? Outcome::kInstantiated : changed ? Outcome::kPatched : Outcome::kReplayed;
  }

  Cache cache;
  DeviceBuffer<float> data{kSize};
};

// ---- Kernel arguments -----------------------------------------------------------------------------------------------

TEST_F(RecorderTest, ArgumentsFollowEachRunBitByBit) {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {1.5f,
                          1.5f,
                          0.0f,
                          -0.0f,
                          -0.0f,
                          quiet,
                          quiet,
                          from_bits(0x7fc12345),
                          from_bits(0xffc00000),
                          std::numeric_limits<float>::infinity(),
                          from_bits(1),
                          1.5f};
  std::uint32_t before = 0;
  int run = 0;
  for (const float value : values) {
    const auto outcome = cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v);
    });
    EXPECT_TRUE(did(expected(run, bits(value) != before), outcome)) << "run " << run;
    for (const float element : data.read()) ASSERT_EQ(bits(element), bits(value)) << "run " << run;
    before = bits(value);
    ++run;
  }
}

TEST_F(RecorderTest, PointersFollowEachRun) {
  DeviceBuffer<float> other(kSize), in(std::vector<float>(kSize, 3));
  DeviceBuffer<float>* const outs[] = {&data, &other, &other, &data};
  for (int i = 0; i < 4; ++i) {
    float* const out = outs[i]->get();
    const float factor = static_cast<float>(i + 1);
    const auto outcome = cache.run(
        key("k"), stream, params(out, in.get(), factor),
        [&](Recorder& rec, Slot<float*> o, Slot<float*> from, Slot<float> f) {
          rec.launch(scale, {kGrid, kBlock}, o, from, kSize, f);  // float* where the kernel takes const float*.
        });
    EXPECT_TRUE(did(expected(i, true), outcome));
    EXPECT_EQ(outs[i]->read(), std::vector<float>(kSize, 3 * factor));
  }
}

TEST_F(RecorderTest, ManyParametersEachAtItsPlace) {
  DeviceBuffer<double> out(10);
  for (int i = 0; i < 5; ++i) {
    const auto a = static_cast<char>(i), last = static_cast<char>(-i);
    const double b = 1.25 * i, j = -2.5 * i;
    const auto c = static_cast<short>(-7 * i);
    const float d = 0.5f * static_cast<float>(i), h = 8.0f * static_cast<float>(i);
    const long long e = 1'000'000'007LL * i;
    const auto f = static_cast<unsigned char>(200 + i);
    const int g = -123456 * i;
    const auto k = static_cast<unsigned short>(65000 + i);
    (void)last;
    const auto outcome =
        cache.run(key("k"), stream, params(a, b, c, d, e, f, g, h, k, j),
                  [&](Recorder& rec, Slot<char> sa, Slot<double> sb, Slot<short> sc, Slot<float> sd, Slot<long long> se,
                      Slot<unsigned char> sf, Slot<int> sg, Slot<float> sh, Slot<unsigned short> sk, Slot<double> sj) {
                    rec.launch(many, {1, 32}, out.get(), sa, sb, sc, sd, se, sf, sg, sh, sk, sj);
                  });
    EXPECT_TRUE(did(expected(i, true), outcome));
    EXPECT_EQ(out.read(),
              (std::vector<double>{static_cast<double>(a), b, static_cast<double>(c), d, static_cast<double>(e),
                                   static_cast<double>(f), static_cast<double>(g), h, static_cast<double>(k), j}));
  }
}

TEST_F(RecorderTest, OneOfManyParametersFollowsWhileTheOthersStay) {
  DeviceBuffer<double> out(10);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(cache
                    .run(key("k"), stream, params(i),
                         [&](Recorder& rec, Slot<int> g) {
                           rec.launch(many, {1, 1}, out.get(), 'a', 2.0, 3, 4.0f, 5, 6, g, 8.0f, 9, 10.0);
                         })
                    .ok());
    EXPECT_EQ(out.read(), (std::vector<double>{97, 2, 3, 4, 5, 6, static_cast<double>(i), 8, 9, 10}));
  }
}

TEST_F(RecorderTest, StructuresFollowEachRun) {
  DeviceBuffer<Mixed> out(1);
  for (int i = 0; i < 4; ++i) {
    Mixed value;
    std::memset(&value, 0, sizeof(value));  // The padding too: it is compared.
    value.letter = static_cast<char>('a' + i / 2);
    value.real = 0.1 * (i / 2);
    value.small = static_cast<short>(-i / 2);
    for (int n = 0; n < 3; ++n) value.numbers[n] = 100 * (i / 2) + n;
    value.last = static_cast<unsigned char>(255 - i / 2);
    const auto outcome = cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<Mixed> v) {
      rec.launch(copy_struct, {1, 1}, out.get(), v);
    });
    EXPECT_TRUE(did(expected(i, i % 2 == 0), outcome));
    const Mixed got = out.first();
    EXPECT_EQ(got.letter, value.letter);
    EXPECT_EQ(got.real, value.real);
    EXPECT_EQ(got.small, value.small);
    for (int n = 0; n < 3; ++n) EXPECT_EQ(got.numbers[n], value.numbers[n]);
    EXPECT_EQ(got.last, value.last);
  }
}

TEST_F(RecorderTest, SlotsConvertAsArgumentsDo) {
  DeviceBuffer<int> shape(6);
  DeviceBuffer<float> bytes(kSize);
  for (const int n : {3, 5, 5, 40}) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(n),
                         [&](Recorder& rec, Slot<int> s) {
                           rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, s);  // int to float
                           rec.launch(record_launch, {s, s}, shape.get());           // int to dim3
                           rec.memset(bytes.get(), s, s);                            // int to size_t
                         })
                    .ok());
    EXPECT_EQ(data.read(), std::vector<float>(kSize, static_cast<float>(n)));
    EXPECT_EQ(shape.read(), (std::vector<int>{n, 1, 1, n, 1, 1}));
    const std::vector<float> set = bytes.read();
    const auto* at = reinterpret_cast<const unsigned char*>(set.data());
    EXPECT_EQ(at[n - 1], n);
    EXPECT_EQ(at[n], n == 40 ? 0 : at[n]);
  }
}

TEST_F(RecorderTest, ConversionsOfEqualResultChangeNothing) {
  DeviceBuffer<float> out(kSize);
  for (const double value : {1.0, 1.0 + 1e-12}) {  // Equal as float.
    EXPECT_TRUE(cache
                    .run(key("k"), stream, params(value),
                         [&](Recorder& rec, Slot<double> v) {
                           rec.launch(fill, {kGrid, kBlock}, out.get(), kSize, v);
                         })
                    .ok());
    EXPECT_EQ(out.first(), 1.0f);
  }
  EXPECT_EQ(cache.stats().outcome(Outcome::kReplayed), 1u);
  EXPECT_EQ(cache.stats().patched_nodes, 0u);
}

TEST_F(RecorderTest, UnusedSlotChangesNothing) {
  for (int i = 0; i < 4; ++i) {
    const auto outcome = cache.run(key("k"), stream, params(i, 1.0f), [&](Recorder& rec, Slot<int>, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    });
    EXPECT_TRUE(did(expected(i, false), outcome));
  }
  EXPECT_EQ(data.first(), 4.0f);
}

TEST_F(RecorderTest, OneSlotInManyNodesAndManySlotsInOne) {
  for (int i = 0; i < 4; ++i) {
    const auto v = static_cast<float>(i);
    const auto outcome =
        cache.run(key("k"), stream, params(v, i, 5), [&](Recorder& rec, Slot<float> a, Slot<int>, Slot<int> unchanged) {
          rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, a);
          rec.launch(add, {kGrid, kBlock}, data.get(), kSize, a);
          rec.launch(add, {kGrid, kBlock}, data.get(), kSize, unchanged);
          rec.launch(add, {kGrid, kBlock}, data.get(), kSize, a);
        });
    EXPECT_TRUE(did(expected(i, true), outcome));
    EXPECT_EQ(data.first(), 3 * v + 5);
    EXPECT_EQ(cache.stats().patched_nodes, 3u * static_cast<unsigned>(i));
  }
}

TEST_F(RecorderTest, ValuesInFlightAreNotChangedByLaterRuns) {
  DeviceBuffer<int> log(1000), count(1);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(i),
                         [&](Recorder& rec, Slot<int> value) {
                           rec.launch(append, {1, 1}, log.get(), count.get(), value);
                         })
                    .ok());
  }
  const std::vector<int> all = log.read();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(all[static_cast<std::size_t>(i)], i);
}

TEST_F(RecorderTest, LaunchesInTheOrderOfTheCalls) {
  DeviceBuffer<int> log(16), count(1);
  for (int i = 0; i < 3; ++i) {
    count.write({0});
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(10 * i),
                         [&](Recorder& rec, Slot<int> v) {
                           CUDA_OK(launch(append, 1, 1, rec.stream(), log.get(), count.get(), 1));
                           rec.launch(append, {1, 1}, log.get(), count.get(), v);
                           rec.launch(append, {1, 1}, log.get(), count.get(), 3);
                           rec.launch(append, {1, 1}, log.get(), count.get(), v);
                           CUDA_OK(launch(append, 1, 1, rec.stream(), log.get(), count.get(), 5));
                         })
                    .ok());
    std::vector<int> all = log.read();
    all.resize(5);
    EXPECT_EQ(all, (std::vector<int>{1, 10 * i, 3, 10 * i, 5}));
  }
}

// ---- The shape of a launch ------------------------------------------------------------------------------------------

TEST_F(RecorderTest, GridAndBlockFollowEachRun) {
  DeviceBuffer<int> shape(6);
  const std::pair<dim3, dim3> shapes[] = {{dim3(1), dim3(32)},      {dim3(7, 3, 2), dim3(4, 5, 6)},
                                          {dim3(7, 3, 2), dim3(8)}, {dim3(1000, 1, 5), dim3(8)},
                                          {dim3(1), dim3(1024)},    {dim3(1), dim3(32)}};
  int run = 0;
  for (const auto& [grid, block] : shapes) {
    const auto outcome =
        cache.run(key("k"), stream, params(grid, block), [&](Recorder& rec, Slot<dim3> g, Slot<dim3> b) {
          rec.launch(record_launch, {g, b}, shape.get());
        });
    EXPECT_TRUE(did(expected(run++, true), outcome));
    const auto all = [](const dim3& a, const dim3& b) {
      return std::vector<int>{static_cast<int>(a.x), static_cast<int>(a.y), static_cast<int>(a.z),
                              static_cast<int>(b.x), static_cast<int>(b.y), static_cast<int>(b.z)};
    };
    EXPECT_EQ(shape.read(), all(grid, block));
  }
}

TEST_F(RecorderTest, ThreadsThatRunFollowTheGrid) {
  DeviceBuffer<int> counter(1);
  int sum = 0;
  for (const unsigned blocks : {1u, 9u, 2u}) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(blocks),
                         [&](Recorder& rec, Slot<unsigned> grid) {
                           rec.launch(count_threads, {grid, 32}, counter.get());
                         })
                    .ok());
    EXPECT_EQ(counter.first(), sum += 32 * static_cast<int>(blocks));
  }
}

TEST_F(RecorderTest, SharedBytesFollowEachRun) {
  int run = 0;
  for (const std::size_t shared : {std::size_t{0}, std::size_t{1024}, std::size_t{1024}, std::size_t{0}}) {
    const auto outcome = cache.run(key("k"), stream, params(shared), [&](Recorder& rec, Slot<std::size_t> bytes) {
      rec.launch(add, {kGrid, kBlock, bytes}, data.get(), kSize, 1);
    });
    EXPECT_TRUE(did(expected(run, run != 2), outcome)) << run;
    EXPECT_EQ(data.first(), static_cast<float>(++run));
  }
}

TEST_F(RecorderTest, TakesALaunchConfig) {
  DeviceBuffer<int> shape(6);
  LaunchConfig config;
  config.grid = dim3(3, 2);
  config.block = dim3(16, 4);
  config.shared_bytes = 256;
  ASSERT_TRUE(
      cache.run(key("k", config), stream, [&](Recorder& rec) { rec.launch(record_launch, config, shape.get()); }).ok());
  EXPECT_EQ(shape.read(), (std::vector<int>{3, 2, 1, 16, 4, 1}));
}

TEST_F(RecorderTest, ShapeThatTheRuntimeRefusesFailsThatRunAndNoOther) {
  const auto run = [&](unsigned grid, unsigned block, std::size_t shared) {
    return cache.run(key("my label"), stream, params(grid, block, shared),
                     [&](Recorder& rec, Slot<unsigned> g, Slot<unsigned> b, Slot<std::size_t> bytes) {
                       rec.launch(add, {g, b, bytes}, data.get(), kSize, 1);
                     });
  };
  const auto expect_refused = [&](const absl::StatusOr<Outcome>& outcome) {
    ASSERT_FALSE(outcome.ok()) << to_string(*outcome);
    EXPECT_EQ(cuda_error(outcome.status()), cudaErrorInvalidValue) << outcome.status();
    EXPECT_TRUE(mentions(outcome.status(), "cudaLaunchKernel")) << outcome.status();
    EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
    EXPECT_FALSE(is_capturing(stream));
    CUDA_OK(cudaPeekAtLastError());
  };
  expect_refused(run(0, 64, 0));  // As the first run,
  float sum = 0;
  for (const auto& [grid, block, shared] :
       {std::tuple(0u, 64u, std::size_t{0}), std::tuple(2u, 0u, std::size_t{0}), std::tuple(2u, 2048u, std::size_t{0}),
        std::tuple(2u, 64u, std::size_t{1} << 30)}) {
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(run(2, 64, 0).ok());
      EXPECT_EQ(data.read(), std::vector<float>(kSize, ++sum));
    }
    expect_refused(run(grid, block, shared));  // and as a patch.
    EXPECT_EQ(data.read(), std::vector<float>(kSize, sum));
  }
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(run(2, 64, 0).ok());
  EXPECT_RUN(kReplayed, run(2, 64, 0));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, sum + 41));
}

// ---- Copies and sets ------------------------------------------------------------------------------------------------

TEST_F(RecorderTest, CopiesFollowEachRun) {
  std::vector<float> a(kSize), b(kSize);
  for (int i = 0; i < kSize; ++i) {
    a[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
    b[static_cast<std::size_t>(i)] = static_cast<float>(-i - 1);
  }
  DeviceBuffer<float> first(a), second(b), other(kSize);
  DeviceBuffer<float>* const sources[] = {&first, &second};
  DeviceBuffer<float>* const targets[] = {&data, &other};
  struct Step {
    int source, target, count;
  };
  const Step steps[] = {{0, 0, 100}, {0, 0, 100}, {1, 0, 100}, {1, 1, 100}, {0, 1, 10}, {0, 0, 0},
                        {1, 1, 0},   {1, 1, 50},  {0, 0, 0},   {0, 0, 0},   {0, 0, 3},  {1, 0, 100}};
  std::vector<float> expected_content[2] = {std::vector<float>(kSize), std::vector<float>(kSize)};
  int run = 0;
  for (const Step& step : steps) {
    const std::size_t bytes = static_cast<std::size_t>(step.count) * sizeof(float);
    const auto outcome = cache.run(
        key("k"), stream, params(targets[step.target]->get(), sources[step.source]->get(), bytes),
        [&](Recorder& rec, Slot<float*> dst, Slot<float*> src, Slot<std::size_t> size) { rec.memcpy(dst, src, size); });
    ASSERT_TRUE(outcome.ok()) << run << ": " << outcome.status();
    EXPECT_NE(*outcome, Outcome::kEager) << run;
    const auto& from = step.source == 0 ? a : b;
    auto& to = expected_content[step.target];
    std::copy(from.begin(), from.begin() + step.count, to.begin());
    EXPECT_EQ(data.read(), expected_content[0]) << "run " << run;
    EXPECT_EQ(other.read(), expected_content[1]) << "run " << run;
    ++run;
  }
}

TEST_F(RecorderTest, CopiesFromAndToTheHostFollowEachRun) {
  std::vector<float> from[2] = {std::vector<float>(kSize, 5), std::vector<float>(kSize, 6)};
  std::vector<float> to[2] = {std::vector<float>(kSize), std::vector<float>(kSize)};
  for (int i = 0; i < 4; ++i) {
    const float* const source = from[i % 2].data();
    float* const target = to[i / 2].data();
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(source, target),
                         [&](Recorder& rec, Slot<const float*> in, Slot<float*> out) {
                           rec.memcpy(data.get(), in, data.bytes(), cudaMemcpyHostToDevice);
                           rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
                           rec.memcpy(out, data.get(), data.bytes(), cudaMemcpyDeviceToHost);
                         })
                    .ok());
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(to[i / 2], std::vector<float>(kSize, static_cast<float>(6 + i % 2)));
  }
}

TEST_F(RecorderTest, SetsFollowEachRun) {
  DeviceBuffer<unsigned char> first(64), second(64);
  DeviceBuffer<unsigned char>* const buffers[] = {&first, &second};
  struct Step {
    int target, value, bytes;
  };
  const Step steps[] = {{0, 1, 64}, {0, 1, 64},  {0, 2, 64}, {1, 2, 64}, {1, 300, 10}, {0, 7, 0},
                        {0, 8, 0},  {0, -1, 33}, {1, 9, 0},  {1, 9, 1},  {0, 0, 64}};
  std::vector<unsigned char> content[2] = {std::vector<unsigned char>(64), std::vector<unsigned char>(64)};
  int run = 0;
  for (const Step& step : steps) {
    const auto outcome = cache.run(key("k"), stream, params(buffers[step.target]->get(), step.value, step.bytes),
                                   [&](Recorder& rec, Slot<unsigned char*> dst, Slot<int> value, Slot<int> bytes) {
                                     rec.memset(dst, value, bytes);
                                   });
    ASSERT_TRUE(outcome.ok()) << run << ": " << outcome.status();
    EXPECT_NE(*outcome, Outcome::kEager) << run;
    std::fill_n(content[step.target].begin(), step.bytes, static_cast<unsigned char>(step.value));
    EXPECT_EQ(first.read(), content[0]) << "run " << run;
    EXPECT_EQ(second.read(), content[1]) << "run " << run;
    ++run;
  }
}

TEST_F(RecorderTest, ConstantCopiesAndSetsAreRecorded) {
  DeviceBuffer<float> other(kSize);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(cache
                    .run(key("k"), stream,
                         [&](Recorder& rec) {
                           rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
                           rec.memcpy(other.get(), data.get(), data.bytes(), cudaMemcpyDeviceToDevice);
                           rec.memset(other.get(), 0, 10 * sizeof(float));
                           rec.memcpy(other.get(), data.get(), 0);
                           rec.memset(other.get(), 1, 0);
                         })
                    .ok());
  }
  std::vector<float> wanted(kSize, 3);
  std::fill_n(wanted.begin(), 10, 0.0f);
  EXPECT_EQ(other.read(), wanted);
  EXPECT_EQ(cache.stats().outcome(Outcome::kReplayed), 2u);
  EXPECT_EQ(cache.entries()[0].slot_nodes, 0u);
}

// A set or copy of no bytes keeps the order of its neighbours: a disabled set does not (docs/semantics.md).
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
  // x becomes (x + 1) / 2: 1 stays 1, and anything out of order does not.
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
  char* pinned = nullptr;
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), 2 * kBytes));
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
      const auto outcome =
          cache.run(key("k", number), stream, params(bytes),
                    [&](Recorder& rec, Slot<std::size_t> size) { rec.memcpy(one.dst, one.src, size, one.kind); });
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
  CUDA_OK(cudaFreeHost(pinned));
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

TEST_F(RecorderTest, CopyThatTheRuntimeRefusesIsReturned) {
  const auto run = [&](float* target) {
    return cache.run(key("my label"), stream, params(target),
                     [&](Recorder& rec, Slot<float*> dst) { rec.memset(dst, 0, sizeof(float)); });
  };
  EXPECT_RUN(kInstantiated, run(data.get()));
  const auto outcome = run(nullptr);
  ASSERT_FALSE(outcome.ok()) << to_string(*outcome);
  EXPECT_NE(cuda_error(outcome.status()), cudaSuccess);
  EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  CUDA_OK(cudaPeekAtLastError());
  EXPECT_TRUE(run(data.get()).ok());
  EXPECT_TRUE(run(data.get()).ok());
  EXPECT_RUN(kReplayed, run(data.get()));
}

// ---- Streams --------------------------------------------------------------------------------------------------------

TEST_F(RecorderTest, ForksAreRecordedAndFollowEachRun) {
  Stream other;
  Event forked, joined;
  DeviceBuffer<float> second(kSize);
  for (int i = 0; i < 4; ++i) {
    const auto v = static_cast<float>(i + 1);
    const auto outcome =
        cache.run(key("k"), stream, params(v, 2 * v), [&](Recorder& rec, Slot<float> a, Slot<float> b) {
          CUDA_OK(cudaEventRecord(forked, rec.stream()));
          CUDA_OK(cudaStreamWaitEvent(other, forked, 0));
          rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, a);
          Recorder branch = rec.on(other);
          EXPECT_EQ(branch.stream(), static_cast<cudaStream_t>(other));
          branch.launch(fill, {kGrid, kBlock}, second.get(), kSize, b);
          branch.launch(add, {kGrid, kBlock}, second.get(), kSize, a);
          CUDA_OK(cudaEventRecord(joined, other));
          CUDA_OK(cudaStreamWaitEvent(rec.stream(), joined, 0));
          rec.launch(axpy, {kGrid, kBlock}, data.get(), second.get(), kSize, b);
        });
    EXPECT_TRUE(did(expected(i, true), outcome));
    EXPECT_EQ(data.read(), std::vector<float>(kSize, v + 3 * v * 2 * v));
    EXPECT_FALSE(is_capturing(other));
  }
}

TEST_F(RecorderTest, StreamThatIsNotForkedIsRefusedAndNothingIsEnqueued) {
  Stream other;
  DeviceBuffer<float> second(kSize);
  const auto run = [&](int what) {
    return cache.run(key("my label", what), stream, params(1.0f), [&, what](Recorder& rec, Slot<float> one) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, one);
      if (what == 0) rec.on(other).launch(add, {kGrid, kBlock}, second.get(), kSize, one);
      if (what == 1) rec.on(other).memset(second.get(), 1, 4);
      if (what == 2) rec.on(other).memcpy(second.get(), data.get(), 4);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, one);
    });
  };
  for (int what = 0; what < 3; ++what) {
    const auto outcome = run(what);
    EXPECT_FAILURE(kInvalidArgument, outcome) << what;
    EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  }
  EXPECT_EQ(data.read(), std::vector<float>(kSize));
  EXPECT_EQ(second.read(), std::vector<float>(kSize));
  EXPECT_RUN(kInstantiated, run(3));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 2));
}

TEST_F(RecorderTest, StreamOfAnotherCaptureIsRefused) {
  Stream other;
  CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, [&](Recorder& rec) {
    rec.on(other).launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
  }));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(other, &graph));
  std::size_t nodes = 7;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 0u);
  CUDA_OK(cudaGraphDestroy(graph));
}

struct First {
  int first = 0;
};
struct Second {
  int second = 0;
};
struct Both : First, Second {};

TEST_F(RecorderTest, PointerToASecondBaseIsMoved) {
  Both both;
  Both* pointer = &both;
  const detail::ArgView to_base = Arg<Second*>(detail::SlotAccess::make<Both*>(1, 0)).view();
  ASSERT_NE(to_base.convert, nullptr);
  Second* base = nullptr;
  to_base.convert(&pointer, &base);
  EXPECT_EQ(base, static_cast<Second*>(&both));
  EXPECT_EQ(Arg<const Both*>(detail::SlotAccess::make<Both*>(1, 0)).view().convert, nullptr);
  EXPECT_EQ(Arg<void*>(detail::SlotAccess::make<Both*>(1, 0)).view().convert, nullptr);
}

// Work on a stream outside of the outer capture would run once and never again on a replay.
TEST_F(RecorderTest, StreamThatIsNotForkedIsRefusedInAnInlinedRunToo) {
  Stream other;
  DeviceBuffer<float> second(kSize);
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_FAILURE(kInvalidArgument, cache.run(key("inner"), on, [&](Recorder& rec) {
      rec.on(other).launch(add, {kGrid, kBlock}, second.get(), kSize, 1);
    }));
    return launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f);
  }));
  EXPECT_EQ(second.read(), std::vector<float>(kSize));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 1));
}

TEST_F(RecorderTest, InlinedRunsRecordThroughTheirRecorder) {
  Stream other;
  Event forked, joined;
  DeviceBuffer<float> second(kSize);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(cache
                    .run(key("outer"), stream,
                         [&](cudaStream_t on) {
                           EXPECT_RUN(kInlined, cache.run(key("inner"), on, [&](Recorder& rec) {
                             rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
                             CUDA_OK(cudaEventRecord(forked, rec.stream()));
                             CUDA_OK(cudaStreamWaitEvent(other, forked, 0));
                             rec.on(other).launch(add, {kGrid, kBlock}, second.get(), kSize, 2);
                             CUDA_OK(cudaEventRecord(joined, other));
                             CUDA_OK(cudaStreamWaitEvent(rec.stream(), joined, 0));
                           }));
                         })
                    .ok());
    EXPECT_EQ(data.first(), static_cast<float>(i));
    EXPECT_EQ(second.first(), static_cast<float>(2 * i));
  }
}

// ---- Slots where they do not belong ---------------------------------------------------------------------------------

TEST_F(RecorderTest, SlotOfAnotherRunIsRefused) {
  std::optional<Slot<float>> kept;
  EXPECT_RUN(kInstantiated, cache.run(key("first"), stream, params(1.0f), [&](Recorder& rec, Slot<float> v) {
    kept = v;
    rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
  }));
  const auto run = [&](Cache& by, bool bad) {
    return by.run(key("my label"), stream, params(10.0f), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      if (bad) rec.launch(add, {kGrid, kBlock}, data.get(), kSize, *kept);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    });
  };
  const auto outcome = run(cache, true);
  EXPECT_FAILURE(kInvalidArgument, outcome);
  EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 1));
  EXPECT_RUN(kInstantiated, run(cache, false));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 21));

  Options options;
  options.max_executables = 0;
  Cache eager(options);
  EXPECT_FAILURE(kInvalidArgument, run(eager, true));
  EXPECT_RUN(kEager, run(eager, false));
}

TEST_F(RecorderTest, SlotOfAnotherRunIsRefusedInCopiesSetsAndShapes) {
  std::optional<Slot<int>> kept;
  std::optional<Slot<float*>> pointer;
  EXPECT_RUN(kInstantiated,
             cache.run(key("first"), stream, params(4, data.get()), [&](Recorder&, Slot<int> v, Slot<float*> p) {
               kept = v;
               pointer = p;
             }));
  for (int what = 0; what < 9; ++what) {
    EXPECT_FAILURE(kInvalidArgument, cache.run(key("second", what), stream, params(4), [&](Recorder& rec, Slot<int>) {
      if (what == 0) rec.memset(data.get(), 1, *kept);
      if (what == 1) rec.memset(data.get(), *kept, 4);
      if (what == 2) rec.memcpy(data.get(), data.get() + 8, *kept);
      if (what == 3) rec.launch(add, {*kept, kBlock}, data.get(), kSize, 1);
      if (what == 4) rec.launch(add, {kGrid, *kept}, data.get(), kSize, 1);
      if (what == 5) rec.launch(add, {kGrid, kBlock, *kept}, data.get(), kSize, 1);
      if (what == 6) rec.memset(*pointer, 1, 4);
      if (what == 7) rec.memcpy(*pointer, data.get() + 8, 4);
      if (what == 8) rec.memcpy(data.get(), *pointer, 4);
    })) << what;
  }
  EXPECT_EQ(data.read(), std::vector<float>(kSize));
}

TEST_F(RecorderTest, FirstFailureIsKept) {
  Stream other;
  const auto outcome = cache.run(key("k"), stream, [&](Recorder& rec) -> cudaError_t {
    rec.on(other).memset(data.get(), 1, 4);
    rec.launch(add, {0, 0}, data.get(), kSize, 1);
    return cudaSuccess;
  });
  EXPECT_FAILURE(kInvalidArgument, outcome);
  EXPECT_TRUE(mentions(outcome.status(), "Recorder::on")) << outcome.status();
  EXPECT_FALSE(is_capturing(stream));
}

TEST_F(RecorderTest, ValuesAreThoseOfTheRunInEagerRunsToo) {
  Options options;
  options.capture_after = 3;
  Cache late(options);
  float sum = 0;
  for (int i = 0; i < 6; ++i) {
    const auto v = static_cast<float>(i + 1);
    const auto outcome = late.run(key("k"), stream, params(v, kBlock), [&](Recorder& rec, Slot<float> a, Slot<dim3> b) {
      rec.launch(add, {kGrid, b}, data.get(), kSize, a);
    });
    EXPECT_TRUE(did(i < 3 ? Outcome::kEager : expected(i - 3, true), outcome));
    EXPECT_EQ(data.first(), sum += v);
  }
}

}  // namespace
}  // namespace graphcache::test
