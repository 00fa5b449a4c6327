// Slots that an updater node writes on the device (Patching::kDeviceUpdated), on either runtime.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "sharing_support.h"

namespace graphcache::test {
namespace {

constexpr int kSize = 64;
constexpr dim3 kBlock(64);

class DeviceUpdatedTest : public StreamTest {
 protected:
  static Options options(int max_executables = 64) {
    return forced(Patching::kDeviceUpdated, unshared(max_executables));
  }

  Cache cache{options()};
};

// 150 nodes, more than one block of the updater serves, each with two slots of its own and one shared slot.
TEST_F(DeviceUpdatedTest, EveryNodeHasItsValuesOfEachRun) {
  constexpr int kNodes = 150;
  DeviceBuffer<float> data(kNodes * kSize);
  std::array<Outcome, 4> wanted = {Outcome::kInstantiated, Outcome::kPatched, Outcome::kReplayed, Outcome::kPatched};
  const float values[] = {2, 3, 3, -1.5f};
  float* const base = data.get();
  for (int run = 0; run < 4; ++run) {
    EXPECT_TRUE(did(wanted[run], cache.run(key("k"), stream, params(values[run]), [&](Recorder& rec, Slot<float> v) {
      for (int i = 0; i < kNodes; ++i) {
        if (i % 2 == 0) {
          rec.launch(fill, {1, kBlock}, base + i * kSize, kSize, v);
        } else {
          rec.launch(scale, {1, kBlock}, base + i * kSize, base + (i - 1) * kSize, kSize, v);
        }
      }
    })));
    const std::vector<float> got = data.read();
    for (int i = 0; i < kNodes * kSize; ++i) {
      const float factor = values[run];
      ASSERT_EQ(got[i], i / kSize % 2 == 0 ? factor : factor * factor) << "run " << run << ", element " << i;
    }
  }
  EXPECT_EQ(cache.stats().refused_device_updates, 0u);
  EXPECT_EQ(cache.stats().patched_nodes, 2u * kNodes);
}

// Grids, conversions, pointers and structures; and slots that only the host can set: a block, a copy, a set.
TEST_F(DeviceUpdatedTest, AllKindsOfSlotsFollowEachRun) {
  DeviceBuffer<int> shape(6), count(1);
  DeviceBuffer<float> a(kSize), b(kSize), copied(kSize);
  DeviceBuffer<Mixed> mixed(1);
  for (int run = 0; run < 5; ++run) {
    const unsigned grid = static_cast<unsigned>(run % 3 + 1);
    const unsigned block = static_cast<unsigned>(32 * (run % 2 + 1));
    float* const out = run % 2 == 0 ? a.get() : b.get();
    const Mixed value{static_cast<char>('a' + run), 0.5 * run, static_cast<short>(run), {run, 2, 3}, 7};
    CUDA_OK(cudaMemsetAsync(count.get(), 0, sizeof(int), stream));
    const auto outcome =
        cache.run(key("k"), stream, params(grid, block, run, out, value),
                  [&](Recorder& rec, Slot<unsigned> g, Slot<unsigned> t, Slot<int> v, Slot<float*> o, Slot<Mixed> m) {
                    rec.launch(count_threads, {g, 32}, count.get());
                    rec.launch(record_launch, {g, t}, shape.get());
                    rec.launch(fill, {1, kBlock}, o, kSize, v);  // an int where the kernel takes a float
                    rec.launch(copy_struct, {1, 1}, mixed.get(), m);
                    rec.memcpy(copied.get(), o, copied.bytes());
                  });
    EXPECT_TRUE(did(run == 0 ? Outcome::kInstantiated : Outcome::kPatched, outcome)) << "run " << run;
    EXPECT_EQ(count.first(), static_cast<int>(32 * grid));
    EXPECT_EQ(shape.read(), (std::vector<int>{static_cast<int>(grid), 1, 1, static_cast<int>(block), 1, 1}));
    EXPECT_EQ(copied.read(), std::vector<float>(kSize, static_cast<float>(run)));
    EXPECT_EQ(mixed.first().letter, value.letter);
    EXPECT_EQ(mixed.first().real, value.real);
    EXPECT_EQ(mixed.first().numbers[0], run);
  }
  EXPECT_EQ(cache.stats().refused_device_updates, 0u);
}

// A launch in flight keeps its values.
TEST_F(DeviceUpdatedTest, ThousandsOfRunsInFlightEachWithItsOwn) {
  constexpr int kRuns = 5000, kNodes = 20;
  DeviceBuffer<int> data(kSize, 1);
  std::vector<int> wanted(kSize, 1);
  std::mt19937 random(7);
  for (int run = 0; run < kRuns; ++run) {
    const int factor = static_cast<int>(random() % 7), addend = static_cast<int>(random() % 100);
    const auto outcome =
        cache.run(key("k"), stream, params(factor, addend), [&](Recorder& rec, Slot<int> f, Slot<int> add) {
          for (int i = 0; i < kNodes; ++i) rec.launch(blend, {1, kBlock}, data.get(), kSize, f, add);
        });
    ASSERT_SUCCESS(outcome);
    for (int i = 0; i < kNodes; ++i) blend_here(wanted.data(), kSize, factor, addend);
  }
  EXPECT_EQ(data.read(), wanted);
}

// Sharing is tested in shared_table_test.cc.
TEST_F(DeviceUpdatedTest, KeysOfOneShapeEachHaveTheirOwnAndEvictedOnesAreRestored) {
  DeviceBuffer<float> data(kSize);
  for (const int executables : {64, 1}) {
    Cache some(options(executables));
    for (int run = 0; run < 15; ++run) {
      const float value = static_cast<float>(run);
      const Outcome again = executables == 1 ? Outcome::kRestored : Outcome::kPatched;
      EXPECT_TRUE(did(run < 5 ? Outcome::kInstantiated : again,
                      some.run(key("k", run % 5), stream, params(value), [&](Recorder& rec, Slot<float> v) {
                        rec.launch(fill, {1, kBlock}, data.get(), kSize, v);
                        rec.launch(add, {1, kBlock}, data.get(), kSize, v);
                      })));
      EXPECT_EQ(data.read(), std::vector<float>(kSize, 2 * value)) << executables << ", run " << run;
    }
    EXPECT_EQ(some.stats().captures, 5u);
    EXPECT_EQ(some.stats().families, 0u);
  }
}

// Nothing else runs on the streams of their last launches, so uploads show when these are over. On a GPU the context
// could be lost if they were destroyed too soon behind these, and hostrt reports it.
TEST_F(DeviceUpdatedTest, EvictedKeysOfUnusedStreamsAreDestroyedBehindTheirUploads) {
  constexpr int kKeys = 60;
  DeviceBuffer<float> data(2 * kKeys * kSize);
  for (const int executables : {1, 16}) {
    Cache small(options(executables));
    std::vector<Stream> streams(kKeys);
    for (int i = 0; i < kKeys; ++i) {
      Stream& own = streams[static_cast<std::size_t>(i)];
      Stream beside;
      const float value = static_cast<float>(executables + i);
      float* const first = data.get() + 2 * i * kSize;
      EXPECT_RUN(kInstantiated, small.run(key("k", i), own, params(value), [&](Recorder& rec, Slot<float> v) {
        let_follow(beside, rec.stream());
        rec.launch(fill, {1, kBlock}, first, kSize, v);
        rec.on(beside).launch(fill, {1, kBlock}, first + kSize, kSize, v);
        let_follow(rec.stream(), beside);
      }));
      if (i % 2 == 0) {
        CUDA_OK(cudaStreamSynchronize(own));
      }
    }
    CUDA_OK(cudaDeviceSynchronize());
    for (int i = 0; i < kKeys; ++i) EXPECT_TRUE(small.erase(key("k", i)));
    const std::vector<float> got = data.read();
    for (int i = 0; i < 2 * kKeys * kSize; ++i) {
      ASSERT_EQ(got[i], static_cast<float>(executables + i / (2 * kSize))) << "element " << i;
    }
  }
}

TEST_F(DeviceUpdatedTest, AGridThatNoDeviceTakesFailsItsRunAlone) {
  DeviceBuffer<int> count(1);
  const auto run = [&](unsigned grid) {
    return cache.run(key("k"), stream, params(grid), [&](Recorder& rec, Slot<unsigned> g) {
      rec.launch(count_threads, {g, 32}, count.get());
    });
  };
  EXPECT_RUN(kInstantiated, run(2));
  EXPECT_EQ(run(0).ok(), false);
  count.write({0});
  EXPECT_SUCCESS(run(3));
  EXPECT_EQ(count.first(), 96);
}

// Graphs of one to three branches that wait for each other, with slot nodes anywhere: at the begin, after others, on
// some of the branches.
TEST_F(DeviceUpdatedTest, NodesWithSlotsMayStandAnywhere) {
  constexpr int kGraphs = 200, kStreams = 3;
  struct Step {
    int stream;
    int factor;
    bool has_slot;
    int waits_for;  // another stream, or none
  };
  const Stream sides[kStreams - 1];
  DeviceBuffer<int> data(kStreams * kSize);
  std::mt19937 random(5);
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  for (int graph = 0; graph < kGraphs; ++graph) {
    const int streams = 1 + draw(kStreams), before = draw(8), odds = 1 + draw(3);
    std::vector<Step> steps;
    for (int i = 0; i < before + 8; ++i) {
      const int from = draw(3) == 0 ? draw(streams) : -1;
      steps.push_back({draw(streams), 1 + draw(9), i >= before && draw(odds) == 0, from});
    }
    steps.back().has_slot = true;
    const auto enqueue = [&](Recorder& rec, Slot<int> slot) {
      cudaStream_t streams_of[kStreams] = {rec.stream(), sides[0], sides[1]};
      const auto follow = [&](int first, int then) { let_follow(streams_of[then], streams_of[first]); };
      const auto region = [&](int of) { return data.get() + of * kSize; };
      if (graph % 2 == 0) rec.launch(blend, {1, kBlock}, region(0), kSize, 1, 0);
      for (int i = 1; i < streams; ++i) follow(0, i);
      for (const Step& step : steps) {
        if (step.waits_for >= 0 && step.waits_for != step.stream) follow(step.waits_for, step.stream);
        Recorder on = rec.on(streams_of[step.stream]);
        if (step.has_slot) {
          on.launch(blend, {1, kBlock}, region(step.stream), kSize, step.factor, slot);
        } else {
          on.launch(blend, {1, kBlock}, region(step.stream), kSize, step.factor, 3);
        }
      }
      for (int i = 1; i < streams; ++i) follow(i, 0);
    };
    data.write(std::vector<int>(kStreams * kSize, 1));
    std::vector<int> wanted(kStreams * kSize, 1);
    for (int run = 0; run < 4; ++run) {
      const int value = run == 3 ? 2 : run;
      ASSERT_SUCCESS(cache.run(key("k", graph), stream, params(value), enqueue));
      if (graph % 2 == 0) blend_here(wanted.data(), kSize, 1, 0);
      for (const Step& step : steps) {
        blend_here(&wanted[step.stream * kSize], kSize, step.factor, step.has_slot ? value : 3);
      }
      ASSERT_EQ(data.read(), wanted) << "graph " << graph << ", run " << run;
    }
  }
  EXPECT_EQ(cache.stats().refused_device_updates, 0u);
}

}  // namespace
}  // namespace graphcache::test
