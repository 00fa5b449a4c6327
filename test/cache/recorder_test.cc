// The recorder on either runtime: values that follow each run, and calls that fail.
#include "graphcache/recorder.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "recorder_support.h"

namespace graphcache::test {
namespace {

// ---- Kernel arguments -----------------------------------------------------------------------------------------------

TEST_F(RecorderTest, ArgumentsFollowEachRunBitByBit) {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {
      1.5f,     1.5f,         0.0f, -0.0f, -0.0f, quiet, quiet, from_bits(0x7fc12345), from_bits(0xffc00000),
      infinity, from_bits(1), 1.5f};
  std::uint32_t before = 0;
  int run = 0;
  for (const float value : values) {
    EXPECT_TRUE(ran(run, bits(value) != before, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v);
    }));
    for (const float element : data.read()) ASSERT_EQ(bits(element), bits(value)) << "run " << run;
    before = bits(value);
    ++run;
  }
}

TEST_F(RecorderTest, ManyParametersEachAtItsPlaceAndOneWhileTheOthersStay) {
  DeviceBuffer<double> out(10), other(10);
  for (int i = 0; i < 5; ++i) {
    const DeviceBuffer<double>& to = i % 2 == 0 ? out : other;
    const auto a = static_cast<char>(i);
    const double b = 1.25 * i, j = -2.5 * i;
    const auto c = static_cast<short>(-7 * i);
    const float d = 0.5f * static_cast<float>(i), h = 8.0f * static_cast<float>(i);
    const long long e = 1'000'000'007LL * i;
    const auto f = static_cast<unsigned char>(200 + i);
    const int g = -123456 * i;
    const auto k = static_cast<unsigned short>(65000 + i);
    EXPECT_TRUE(ran(i, true, params(to.get(), a, b, c, d, e, f, g, h, k, j),
                    [&](Recorder& rec, Slot<double*> p, Slot<char> sa, Slot<double> sb, Slot<short> sc, Slot<float> sd,
                        Slot<long long> se, Slot<unsigned char> sf, Slot<int> sg, Slot<float> sh,
                        Slot<unsigned short> sk, Slot<double> sj) {
                      rec.launch(many, {1, 32}, p, sa, sb, sc, sd, se, sf, sg, sh, sk, sj);
                    }));
    EXPECT_EQ(to.read(),
              (std::vector<double>{static_cast<double>(a), b, static_cast<double>(c), d, static_cast<double>(e),
                                   static_cast<double>(f), static_cast<double>(g), h, static_cast<double>(k), j}));
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_SUCCESS(cache.run(key("one"), stream, params(i), [&](Recorder& rec, Slot<int> g) {
      rec.launch(many, {1, 1}, out.get(), 'a', 2.0, 3, 4.0f, 5, 6, g, 8.0f, 9, 10.0);
    }));
    EXPECT_EQ(out.read(), (std::vector<double>{97, 2, 3, 4, 5, 6, static_cast<double>(i), 8, 9, 10}));
  }
}

TEST_F(RecorderTest, StructuresFollowEachRun) {
  DeviceBuffer<Mixed> out(1);
  for (int i = 0; i < 4; ++i) {
    Mixed value;
    std::memset(&value, 0, sizeof(value));  // includes the padding, which is compared
    value.letter = static_cast<char>('a' + i / 2);
    value.real = 0.1 * (i / 2);
    value.small = static_cast<short>(-i / 2);
    for (int n = 0; n < 3; ++n) value.numbers[n] = 100 * (i / 2) + n;
    value.last = static_cast<unsigned char>(255 - i / 2);
    EXPECT_TRUE(ran(i, i % 2 == 0, params(value), [&](Recorder& rec, Slot<Mixed> v) {
      rec.launch(copy_struct, {1, 1}, out.get(), v);
    }));
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
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(n), [&](Recorder& rec, Slot<int> s) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, s);  // int to float
      rec.launch(record_launch, {s, s}, shape.get());           // int to dim3
      rec.memset(bytes.get(), s, s);                            // int to size_t
    }));
    EXPECT_EQ(data.read(), std::vector<float>(kSize, static_cast<float>(n)));
    EXPECT_EQ(shape.read(), (std::vector<int>{n, 1, 1, n, 1, 1}));
    const std::vector<float> set = bytes.read();
    const auto* at = reinterpret_cast<const unsigned char*>(set.data());
    EXPECT_EQ(at[n - 1], n);
    EXPECT_EQ(at[n], n == 40 ? 0 : at[n]);
  }
}

TEST_F(RecorderTest, ConversionsOfEqualResultAndUnusedSlotsChangeNothing) {
  for (int i = 0; i < 4; ++i) {
    const double value = 1 + i * 1e-12;  // equal as float
    EXPECT_TRUE(ran(i, false, params(value, i), [&](Recorder& rec, Slot<double> v, Slot<int>) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    }));
    EXPECT_EQ(data.first(), static_cast<float>(i + 1));
  }
  EXPECT_EQ(cache.stats().patched_nodes, 0u);
}

TEST_F(RecorderTest, OneSlotInManyNodesAndManySlotsInOne) {
  for (int i = 0; i < 4; ++i) {
    const auto v = static_cast<float>(i);
    EXPECT_TRUE(ran(i, true, params(v, i, 5), [&](Recorder& rec, Slot<float> a, Slot<int>, Slot<int> unchanged) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, a);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, a);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, unchanged);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, a);
    }));
    EXPECT_EQ(data.first(), 3 * v + 5);
    EXPECT_EQ(cache.stats().patched_nodes, 3u * static_cast<unsigned>(i));
  }
}

// Also with work that is enqueued directly, inside of fn and between the runs.
TEST_F(RecorderTest, LaunchesInTheOrderOfTheCalls) {
  DeviceBuffer<int> log(21), count(1);
  const auto enqueue = [&](cudaStream_t on, int value) {
    CUDA_OK(launch(append, 1, 1, on, log.get(), count.get(), value));
  };
  std::vector<int> wanted;
  for (const int v : {0, 10, 20}) {
    enqueue(stream, -v);
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(v), [&](Recorder& rec, Slot<int> slot) {
      enqueue(rec.stream(), 1);
      rec.launch(append, {1, 1}, log.get(), count.get(), slot);
      rec.launch(append, {1, 1}, log.get(), count.get(), 3);
      rec.launch(append, {1, 1}, log.get(), count.get(), slot);
      enqueue(rec.stream(), 5);
    }));
    enqueue(stream, v + 6);
    wanted.insert(wanted.end(), {-v, 1, v, 3, v, 5, v + 6});
  }
  EXPECT_EQ(log.read(), wanted);
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

// ---- The shape of a launch ------------------------------------------------------------------------------------------

TEST_F(RecorderTest, GridBlockAndThreadsThatRunFollowEachRun) {
  DeviceBuffer<int> shape(6), counter(1);
  const std::pair<dim3, dim3> shapes[] = {{dim3(1), dim3(32)},      {dim3(7, 3, 2), dim3(4, 5, 6)},
                                          {dim3(7, 3, 2), dim3(8)}, {dim3(1000, 1, 5), dim3(8)},
                                          {dim3(1), dim3(1024)},    {dim3(1), dim3(32)},
                                          {dim3(9), dim3(32)},      {dim3(2), dim3(32)}};
  int run = 0;
  unsigned threads = 0;
  for (const auto& [grid, block] : shapes) {
    EXPECT_TRUE(ran(run++, true, params(grid, block), [&](Recorder& rec, Slot<dim3> g, Slot<dim3> b) {
      rec.launch(record_launch, {g, b}, shape.get());
      rec.launch(count_threads, {g, b}, counter.get());
    }));
    const auto all = [](const dim3& a, const dim3& b) {
      return std::vector<int>{static_cast<int>(a.x), static_cast<int>(a.y), static_cast<int>(a.z),
                              static_cast<int>(b.x), static_cast<int>(b.y), static_cast<int>(b.z)};
    };
    EXPECT_EQ(shape.read(), all(grid, block));
    threads += grid.x * grid.y * grid.z * block.x * block.y * block.z;
    EXPECT_EQ(counter.first(), static_cast<int>(threads));
  }
}

TEST_F(RecorderTest, SharedBytesFollowEachRun) {
  int run = 0;
  for (const std::size_t shared : {std::size_t{0}, std::size_t{1024}, std::size_t{1024}, std::size_t{0}}) {
    EXPECT_TRUE(ran(run, run != 2, params(shared), [&](Recorder& rec, Slot<std::size_t> bytes) {
      rec.launch(add, {kGrid, kBlock, bytes}, data.get(), kSize, 1);
    }));
    EXPECT_EQ(data.first(), static_cast<float>(++run));
  }
}

TEST_F(RecorderTest, TakesALaunchConfig) {
  DeviceBuffer<int> shape(6);
  LaunchConfig config;
  config.grid = dim3(3, 2);
  config.block = dim3(16, 4);
  config.shared_bytes = 256;
  ASSERT_SUCCESS(
      cache.run(key("k", config), stream, [&](Recorder& rec) { rec.launch(record_launch, config, shape.get()); }));
  EXPECT_EQ(shape.read(), (std::vector<int>{3, 2, 1, 16, 4, 1}));
}

TEST_F(RecorderTest, ShapeThatTheRuntimeRefusesFailsThatRunAndNoOther) {
  const auto run = [&](unsigned grid, unsigned block, std::size_t shared) {
    return cache.run(key("my label"), stream, params(grid, block, shared),
                     [&](Recorder& rec, Slot<unsigned> g, Slot<unsigned> b, Slot<std::size_t> bytes) {
                       rec.launch(add, {g, b, bytes}, data.get(), kSize, 1);
                     });
  };
  const auto expect_refused = [&](cudaError_t error, const absl::StatusOr<Outcome>& outcome) {
    ASSERT_FALSE(outcome.ok()) << to_string(*outcome);
    EXPECT_EQ(cuda_error(outcome.status()), error) << outcome.status();
    EXPECT_TRUE(mentions_all(outcome.status(), {"cudaLaunchKernel", "my label"}));
    EXPECT_FALSE(is_capturing(stream));
    CUDA_OK(cudaPeekAtLastError());
  };
  expect_refused(kBadShape, run(0, 64, 0));  // in the first run
  float sum = 0;
  for (const auto& [grid, block, shared] :
       {std::tuple(0u, 64u, std::size_t{0}), std::tuple(2u, 0u, std::size_t{0}), std::tuple(2u, 2048u, std::size_t{0}),
        std::tuple(2u, 64u, std::size_t{1} << 30)}) {
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(run(2, 64, 0).ok());
      EXPECT_EQ(data.read(), std::vector<float>(kSize, ++sum));
    }
    expect_refused(shared == 0 ? kBadShape : cudaErrorInvalidValue, run(grid, block, shared));  // in a patch
    EXPECT_EQ(data.read(), std::vector<float>(kSize, sum));
  }
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(run(2, 64, 0).ok());
  EXPECT_RUN(kReplayed, run(2, 64, 0));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, sum + 41));
}

}  // namespace
}  // namespace graphcache::test
