// Consequences of single failures among siblings: how they share what is left.
#include <gtest/gtest.h>

#include <string>

#include "faults.h"

namespace graphcache::test {
namespace {

void record_cluster(int* out) { *out = static_cast<int>(hostrt::cluster_dim().x); }
GRAPHCACHE_HOST_KERNEL(record_cluster)

class FailuresSiblingsTest : public FaultsTest {};

TEST_F(FailuresSiblingsTest, RefusedUpdateLeavesTheSiblingAloneAndIsNotTriedAgain) {
  for (const int max_executables : {64, 1}) {
    hostrt::reset();
    World world(renting(max_executables));
    EXPECT_RUN(kInstantiated, world.run(kLarge, 1));
    hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
    EXPECT_RUN(kInstantiated, world.run(kSmall, 2));
    EXPECT_EQ(world.cache->stats().refused_updates, 1u);
    EXPECT_EQ(world.cache->stats().updates, 0u);
    EXPECT_EQ(world.cache->stats().families, 1u);
    expect_usable(world);
    hostrt::reset_calls();
    EXPECT_TRUE(did(max_executables == 1 ? Outcome::kRestored : Outcome::kPatched, world.run(kLarge, 3)));
    EXPECT_TRUE(did(max_executables == 1 ? Outcome::kRestored : Outcome::kPatched, world.run(kSmall, 4)));
    EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 0u);
    EXPECT_EQ(world.calls, 2);
    world.expect_runs({{kLarge, 1}, {kSmall, 2}, {kLarge, 3}, {kSmall, 4}});
    expect_usable(world);
  }
}

TEST_F(FailuresSiblingsTest, RefusedUpdateBetweenTwoStreamsIsNotTriedAgain) {
  Cache cache({.max_executables = 1});
  Stream streams[2];
  DeviceBuffer<int> memory(128);
  const auto run = [&](unsigned which) {
    return cache.run(key("k", which), streams[which], [&, which](Recorder& rec) {
      rec.launch(blend, {1 + which, 32}, memory.get(), 128, 3, 4);
    });
  };
  EXPECT_RUN(kInstantiated, run(0));
  hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_EQ(cache.stats().refused_updates, 1u);
  EXPECT_EQ(cache.stats().evictions, 1u);
  hostrt::reset_calls();
  EXPECT_RUN(kRestored, run(0));
  EXPECT_RUN(kRestored, run(1));
  EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 0u);
}

// The key shares nothing from then on, so that it does not destroy executables again and again.
TEST_F(FailuresSiblingsTest, UpdateThatRunsOutOfMemoryIsNoRefusalAndIsNotTriedAgain) {
  for (const int max_executables : {64, 1}) {
    hostrt::reset();
    World world(renting(max_executables));
    EXPECT_RUN(kInstantiated, world.run(kLarge, 1));
    hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorMemoryAllocation);
    EXPECT_RUN(kInstantiated, world.run(kSmall, 2));
    const Stats stats = world.cache->stats();
    EXPECT_EQ(stats.refused_updates, 0u);
    EXPECT_EQ(stats.updates, 0u);
    EXPECT_EQ(stats.live_executables, 1u) << "the sibling's is in doubt";
    const EntryInfo entry = world.cache->entries().at(0);
    EXPECT_EQ(entry.refusal, "");
    EXPECT_EQ(entry.executable_lost, Loss::kFailed);
    EXPECT_NE(entry.error.find("cudaGraphExecUpdate: cudaErrorMemoryAllocation"), std::string::npos) << entry.error;
    hostrt::reset_calls();
    EXPECT_RUN(kRestored, world.run(kLarge, 3));
    EXPECT_TRUE(did(max_executables == 1 ? Outcome::kRestored : Outcome::kPatched, world.run(kSmall, 4)));
    EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 0u);
    EXPECT_EQ(world.calls, 2);
    world.expect_runs({{kLarge, 1}, {kSmall, 2}, {kLarge, 3}, {kSmall, 4}});
    expect_usable(world);
  }
}

// A patch behind an update fails, so the executable holds the new graph, but not all of the run's values.
TEST_F(FailuresSiblingsTest, ExecutableWhosePatchesBreakOffBehindAnUpdateIsLost) {
  World world(renting());
  EXPECT_RUN(kInstantiated, world.run(kFirst, 1));
  EXPECT_RUN(kUpdated, world.run(kSecond, 2));
  EXPECT_EQ(world.cache->stats().updates, 1u);
  hostrt::fail_call("cudaGraphExecKernelNodeSetParams", 1, cudaErrorUnknown);
  EXPECT_RUN(kEager, world.run(kFirst, 3));
  hostrt::clear_failures();
  EXPECT_EQ(world.cache->stats().updates, 2u);
  EXPECT_TRUE(world.cache->contains(kKey));
  EXPECT_TRUE(world.cache->contains(kOther));
  EXPECT_EQ(world.cache->stats().live_executables, 0u);
  expect_usable(world);
  // With the value that it held before, so that no patch hides an executable that is used on.
  EXPECT_RUN(kRestored, world.run(kSecond, 2));
  EXPECT_TRUE(world.run(kFirst, 3).ok());
  EXPECT_TRUE(world.run(kSecond, 4).ok());
  EXPECT_TRUE(world.run(kFirst, 5).ok());
  EXPECT_EQ(world.calls, 4);  // once more directly, and once for the back-off
  world.expect_runs({{kFirst, 1}, {kSecond, 2}, {kFirst, 3}, {kSecond, 2}, {kFirst, 3}, {kSecond, 4}, {kFirst, 5}});
  expect_usable(world);
}

// The size is set in the graph, before the update.
TEST_F(FailuresSiblingsTest, RefusedValueBeforeAnUpdateLeavesTheSiblingAlone) {
  World world(renting());
  EXPECT_RUN(kInstantiated, world.run(kSmall, 1));
  EXPECT_RUN(kUpdated, world.run(kLarge, 2));
  hostrt::fail_call("cudaGraphMemsetNodeSetParams", 1, cudaErrorInvalidValue);
  EXPECT_RUN(kEager, world.run(kSmall, 3));
  EXPECT_EQ(world.cache->stats().eager(EagerReason::kRefused), 1u);
  EXPECT_EQ(world.cache->stats().live_executables, 1u);
  EXPECT_EQ(world.cache->stats().live_templates, 2u);
  expect_usable(world);
  EXPECT_RUN(kPatched, world.run(kLarge, 4));
  EXPECT_RUN(kEager, world.run(kSmall, 5));
  EXPECT_RUN(kSwitched, world.run(kSmall, 6));
  EXPECT_EQ(world.calls, 4);
  world.expect_runs({{kSmall, 1}, {kLarge, 2}, {kSmall, 3}, {kLarge, 4}, {kSmall, 5}, {kSmall, 6}});
}

// A partly read graph must not count as read, because an update silently ignores some differences.
TEST_F(FailuresSiblingsTest, GraphThatCouldNotBeReadIsNotUpdatedIntoAWrongOne) {
  const auto cluster_of = [](unsigned size, Cache& cache, cudaStream_t stream, int* out) {
    return cache.run(key("cluster", size), stream,
                     [size, out](cudaStream_t on) { return launch_in_clusters(record_cluster, 4, 1, size, on, out); });
  };
  for (const char* function : {"cudaGraphKernelNodeGetAttribute", "cudaGraphKernelNodeGetParams",
                               "cudaFuncGetParamInfo", "cudaGraphNodeGetType", "cudaGraphNodeGetDependencies"}) {
    for (const cudaError_t error : {cudaErrorMemoryAllocation, cudaErrorUnknown}) {
      for (const int times : {1, -1}) {
        for (int nth = 1; nth <= 12; ++nth) {
          SCOPED_TRACE(std::string(function) + " " + std::to_string(nth) + (times == 1 ? "" : " and on"));
          hostrt::reset();
          Cache cache;
          Stream stream;
          DeviceBuffer<int> out(1);
          ASSERT_TRUE(cluster_of(0, cache, stream, out.get()).ok());
          EXPECT_EQ(out.first(), 1);
          hostrt::fail_call(function, nth, error, times);
          ASSERT_TRUE(cluster_of(2, cache, stream, out.get()).ok());
          hostrt::clear_failures();
          EXPECT_EQ(out.first(), 2);
          ASSERT_TRUE(cluster_of(0, cache, stream, out.get()).ok());
          EXPECT_EQ(out.first(), 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace graphcache::test
