// Values that kernels read through pointers (Recorder::on_device), on either runtime.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

class OnDeviceTest : public StreamTest {
 protected:
  // factor * data[i] + value, only for the first element: `blend_in` reads nothing else.
  static unsigned blended(unsigned was, int factor, int value) {
    return static_cast<unsigned>(factor) * was + static_cast<unsigned>(value);
  }
};

// Three kernels read the value, by the recorder and by other means. One node is patched.
TEST_F(OnDeviceTest, ValueFollowsEachRunByOnePatch) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    Options options;
    force(patching);
    Cache cache(options);
    DeviceBuffer<float> value_of(3);
    const std::array<Outcome, 4> wanted = {Outcome::kInstantiated, Outcome::kPatched, Outcome::kReplayed,
                                           Outcome::kPatched};
    const float values[] = {2, 3, 3, -1.5f};
    for (int run = 0; run < 4; ++run) {
      EXPECT_TRUE(did(wanted[run], cache.run(key("k"), stream, params(values[run]), [&](Recorder& rec, Slot<float> v) {
        const float* const value = rec.on_device(v);
        rec.launch(scale, {1, 1}, value_of.get(), value, 1, 2.0f);
        CUDA_OK(launch(scale, dim3(1), dim3(1), rec.stream(), value_of.get() + 1, value, 1, 3.0f));
        CUDA_OK(cudaMemcpyAsync(value_of.get() + 2, value, sizeof(float), cudaMemcpyDeviceToDevice, rec.stream()));
      })));
      EXPECT_EQ(value_of.read(), (std::vector<float>{2 * values[run], 3 * values[run], values[run]})) << "run " << run;
    }
    EXPECT_EQ(cache.stats().patched_nodes, 2u);
    EXPECT_EQ(cache.stats().refused_device_updates, 0u);
  }
}

// The memory belongs to the cache's device, and kernels of other devices must not write to it.
TEST_F(OnDeviceTest, StreamsOfAnotherDeviceAreRefusedInEveryRun) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  OtherDevice<float> other(1);
  for (const int executables : {0, 8}) {
    for (const int current : {0, 1}) {
      Options options;
      options.max_executables = executables;
      Cache cache(options);
      for (int run = 0; run < 2; ++run) {
        const auto outcome = cache.run(key("k"), stream, params(2.0f), [&](Recorder& rec, Slot<float> v) {
          other.fork(rec.stream(), [&](cudaStream_t forked) {
            CUDA_OK(cudaSetDevice(current));
            EXPECT_EQ(rec.on(forked).on_device(v), nullptr);
          });
        });
        EXPECT_FAILURE(kInvalidArgument, outcome);
        EXPECT_TRUE(mentions(outcome.status(), "another device")) << outcome.status();
      }
    }
  }
}

TEST_F(OnDeviceTest, AnotherDeviceMayBeCurrent) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  DeviceBuffer<float> twice(1);
  for (const int executables : {0, 8}) {
    Options options;
    options.max_executables = executables;
    Cache cache(options);
    for (const float value : {2.0f, 3.0f, -1.5f}) {
      const auto outcome = cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
        CUDA_OK(cudaSetDevice(1));
        rec.launch(scale, {1, 1}, twice.get(), rec.on_device(v), 1, 2.0f);
        CUDA_OK(cudaSetDevice(0));
      });
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_EQ(twice.first(), 2 * value);
    }
    EXPECT_EQ(cache.stats().outcome(Outcome::kPatched), executables == 0 ? 0u : 2u);
  }
}

// A launch in flight keeps its value.
TEST_F(OnDeviceTest, ThousandsOfRunsInFlightEachWithItsOwn) {
  Cache cache;
  DeviceBuffer<int> data(1, 1);
  unsigned wanted = 1;
  std::mt19937 random(7);
  for (int run = 0; run < 5000; ++run) {
    const int value = static_cast<int>(random() % 1000);
    const auto outcome = cache.run(key("k", run % 3), stream, params(value), [&](Recorder& rec, Slot<int> v) {
      rec.launch(blend_in, {1, 1}, data.get(), rec.on_device(v), 1, 3);
    });
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    wanted = blended(wanted, 3, value);
  }
  EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
}

template <std::size_t kBytes>
struct Sized {
  unsigned char bytes[kBytes];
};

template <std::size_t kBytes>
void expect_to_follow(Cache& cache, cudaStream_t stream) {
  DeviceBuffer<unsigned char> read(kBytes + 1);
  for (int run = 0; run < 3; ++run) {
    read.write(std::vector<unsigned char>(kBytes + 1, 0xee));
    Sized<kBytes> value;
    for (std::size_t i = 0; i < kBytes; ++i) value.bytes[i] = static_cast<unsigned char>(17 * run + i);
    const auto outcome =
        cache.run(key("sized", static_cast<int>(kBytes)), stream, params(value),
                  [&](Recorder& rec, Slot<Sized<kBytes>> v) { rec.memcpy(read.get(), rec.on_device(v), kBytes); });
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    std::vector<unsigned char> wanted(value.bytes, value.bytes + kBytes);
    wanted.push_back(0xee);
    EXPECT_EQ(read.read(), wanted) << kBytes << " bytes, run " << run;
  }
}

TEST_F(OnDeviceTest, ValuesOfAllSizes) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    Options options;
    force(patching);
    Cache cache(options);
    expect_to_follow<1>(cache, stream);
    expect_to_follow<4>(cache, stream);
    expect_to_follow<15>(cache, stream);
    expect_to_follow<16>(cache, stream);
    expect_to_follow<17>(cache, stream);
    expect_to_follow<100>(cache, stream);
    expect_to_follow<256>(cache, stream);
  }
}

// Each call returns its own memory: for two values, and for one value twice, on two branches.
TEST_F(OnDeviceTest, SeveralValuesAndBranches) {
  Cache cache;
  Stream side;
  Event fork, join;
  DeviceBuffer<int> data(3);
  for (int run = 1; run < 4; ++run) {
    const auto outcome =
        cache.run(key("k"), stream, params(10 * run, 100 * run), [&](Recorder& rec, Slot<int> a, Slot<int> b) {
          CUDA_OK(cudaEventRecord(fork, rec.stream()));
          CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
          const Recorder on_side = rec.on(side);
          const int* const first = rec.on_device(a);
          const int* const second = rec.on_device(b);
          Recorder other = on_side;
          const int* const third = other.on_device(a);
          EXPECT_NE(first, third);
          rec.memcpy(data.get(), first, sizeof(int));
          rec.memcpy(data.get() + 1, second, sizeof(int));
          other.memcpy(data.get() + 2, third, sizeof(int));
          CUDA_OK(cudaEventRecord(join, side));
          CUDA_OK(cudaStreamWaitEvent(rec.stream(), join, 0));
        });
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(data.read(), (std::vector<int>{10 * run, 100 * run, 10 * run}));
  }
  EXPECT_EQ(cache.stats().patched_nodes, 6u);
}

TEST_F(OnDeviceTest, EagerRunsReadTheirOwn) {
  Options options;
  options.max_executables = 0;
  Cache cache(options);
  DeviceBuffer<int> data(1, 1);
  unsigned wanted = 1;
  for (int run = 0; run < 100; ++run) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, params(run), [&](Recorder& rec, Slot<int> v) {
      rec.launch(blend_in, {1, 1}, data.get(), rec.on_device(v), 1, 5);
    }));
    wanted = blended(wanted, 5, run);
  }
  EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
}

// A warm-up captures without running, so nothing is written before the first run.
TEST_F(OnDeviceTest, WarmedKeyHasTheRunsValue) {
  Cache cache;
  DeviceBuffer<int> data(1, 1);
  const auto fn = [&](Recorder& rec, Slot<int> v) { rec.launch(blend_in, {1, 1}, data.get(), rec.on_device(v), 1, 5); };
  EXPECT_TRUE(cache.warm(key("k"), stream, params(7), fn).ok());
  EXPECT_EQ(data.first(), 1);
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, params(8), fn));
  EXPECT_EQ(static_cast<unsigned>(data.first()), blended(1, 5, 8));
}

// ---- Siblings -------------------------------------------------------------------------------------------------------

class SharedOnDeviceTest : public OnDeviceTest {
 protected:
  // Members differ in a constant, and in the address of their value.
  absl::StatusOr<Outcome> run(Cache& cache, int which, int value, cudaStream_t on = nullptr) {
    if (on == nullptr) on = stream;
    return cache.run(key("member", which), on, params(value), [&, which](Recorder& rec, Slot<int> v) {
      const int* const in = rec.on_device(v);
      for (int i = 0; i < 8; ++i) rec.launch(do_nothing, {1, 1});
      rec.launch(blend_in, {1, 1}, data.get(), in, 1, 3 + which);
    });
  }
  void expect_right(Cache& cache, const std::vector<int>& members) {
    int value = 1;
    unsigned wanted = static_cast<unsigned>(data.first());
    for (const int which : members) {
      const auto outcome = run(cache, which, ++value);
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      wanted = blended(wanted, 3 + which, value);
    }
    EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
  }

  DeviceBuffer<int> data{1, 1};
};

TEST_F(SharedOnDeviceTest, MembersShareNothingAndAreCapturedAgainWhenEvicted) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kUpdatesAcross, Sharing::kTable}) {
    Options options;
    options.max_executables = 1;
    force(&options, sharing);
    Cache cache(options);
    expect_right(cache, {0, 1, 2, 0, 1, 2, 2, 1, 0, 0});
    EXPECT_EQ(cache.stats().captures, 8u);
    EXPECT_EQ(cache.stats().instantiations, 8u);
    EXPECT_EQ(cache.stats().outcome(Outcome::kInstantiated), 8u);
    EXPECT_EQ(cache.stats().live_templates, 1u);
    EXPECT_EQ(cache.stats().forgotten, 7u);
    EXPECT_EQ(cache.stats().refused_device_updates, 0u);
  }
}

TEST_F(SharedOnDeviceTest, MembersOfTwoStreamsAreCapturedOnceEach) {
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

// A member's memory is not reused while its launches are in flight, even if the member has been evicted or erased and
// others are captured that need memory of the same size.
TEST_F(SharedOnDeviceTest, MembersEvictedInFlightKeepTheirMemory) {
  for (const Sharing sharing : {Sharing::kUpdatesAcross, Sharing::kTable, Sharing::kNever}) {
    Options options;
    options.max_executables = 1;
    force(&options, sharing);
    std::optional<Cache> cache(options);
    unsigned wanted = static_cast<unsigned>(data.first());
    for (int round = 0; round < 200; ++round) {
      for (const int which : {round % 5, 5 + round % 3, round % 5}) {
        const int value = 10 * round + which;
        const auto outcome = run(*cache, which, value);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        wanted = blended(wanted, 3 + which, value);
      }
      cache->erase(key("member", round % 2 == 0 ? round % 5 : 5 + round % 3));
      if (round % 50 == 49) cache.emplace(options);
    }
    EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
  }
}

// ---- Inside another run ---------------------------------------------------------------------------------------------

// The inner run's values make the outer one eager. Its capture, which had been given memory for them, is dropped.
TEST_F(OnDeviceTest, InnerRunsValuesAreTheRuns) {
  DeviceBuffer<int> data(1, 1);
  Cache outer, inner;
  unsigned wanted = 1;
  for (int i = 0; i < 3; ++i) {
    EXPECT_RUN(kEager, outer.run(key("with values"), stream, [&](cudaStream_t on) {
      return inner
          .run(key("inner"), on, params(i),
               [&](Recorder& rec, Slot<int> v) {
                 rec.launch(blend_in, {1, 1}, data.get(), rec.on_device(v), 1, 3);
               })
          .status();
    }));
    wanted = blended(wanted, 3, i);
    EXPECT_EQ(static_cast<unsigned>(data.first()), wanted);
  }
}

}  // namespace
}  // namespace graphcache::test
