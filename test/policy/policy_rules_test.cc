// The rules of the policy one by one: sharing, pins, budgets, ways of sharing, refused updates. On hostrt.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "kernels.h"
#include "policy_work.h"

namespace graphcache::test {
namespace {

// Device-updated executables are evicted last, so half of the budget is for others, and all of a small budget.
TEST_F(PolicyTest, HalfOfTheBudgetIsPatchedByTheHost) {
  constexpr unsigned kNodes = 40;  // with this many slots the device writes them by default
  Stream stream;
  DeviceBuffer<float> data(1);
  float wanted = 0;
  const auto calls_of_patch = [&](Cache& cache, int which) {
    std::uint64_t before = 0;
    for (const float value : {1.0f, 2.0f}) {
      before = hostrt::calls("cudaGraphExecKernelNodeSetParams");
      const auto outcome = cache.run(key("k", which), stream, params(value), [&](Recorder& rec, Slot<float> v) {
        for (unsigned i = 0; i < kNodes; ++i) rec.launch(add, {1, 1}, data.get(), 1, v);
      });
      EXPECT_SUCCESS(outcome);
      wanted += static_cast<float>(kNodes) * value;
    }
    return hostrt::calls("cudaGraphExecKernelNodeSetParams") - before;
  };
  for (const int budget : {7, 16}) {
    Options options = at_most(budget, Sharing::kNever);
    options.share = Share::kWhenFull;
    Cache cache(options);
    const int by_device = budget == 16 ? 8 : 0;
    for (int which = 0; which < budget + 6; ++which) {
      EXPECT_EQ(calls_of_patch(cache, which), which < by_device ? 1u : kNodes) << which;
    }
    const std::uint64_t before = cache.stats().instantiations;
    for (int round = 0; round < 8; ++round) {
      for (const int which : {2, 3, budget + 4, budget + 5}) {
        EXPECT_EQ(calls_of_patch(cache, which), which < by_device ? 1u : kNodes) << which;
      }
    }
    EXPECT_EQ(cache.stats().instantiations - before, by_device != 0 ? 0u : 2u);  // 2 and 3 were evicted, or not
  }
  EXPECT_EQ(data.first(), wanted);
}

TEST_F(PolicyTest, KeysRunDirectlyAndKeepTheirTemplatesWhileAllIsPinned) {
  const std::vector<Spec> f = family(Profile::kValues, 2, 2);
  for (const auto& [other, back] : {std::pair(lone(3), Outcome::kRestored), std::pair(f[1], Outcome::kSwitched)}) {
    Bench<> bench(at_most(1));
    ASSERT_SUCCESS(bench.go(other));
    ASSERT_SUCCESS(bench.go(f[0]));
    bench.cache.pin(f[0].key);
    bench.calls = 0;
    EXPECT_RUN(kEager, bench.go(other));
    EXPECT_RUN(kEager, bench.go(other));
    EXPECT_RUN(kEager, bench.go(lone(4)));  // not captured, because it could not be instantiated
    EXPECT_EQ(bench.calls, 3);
    EXPECT_EQ(bench.cache.stats().eager(EagerReason::kBudget), 3u);
    EXPECT_EQ(bench.cache.stats().captures, 2u);
    EXPECT_TRUE(bench.cache.contains(other.key));
    EXPECT_FALSE(bench.cache.contains(lone(4).key));
    EXPECT_RUN(kReplayed, bench.go(f[0]));
    bench.cache.unpin(f[0].key);
    EXPECT_TRUE(did(back, bench.go(other)));
    EXPECT_EQ(bench.calls, 3);
  }
}

TEST_F(PolicyTest, PinnedKeyNeitherRentsNorLends) {
  const std::vector<Spec> f = family(Profile::kValues, 3, 2);
  Bench<> bench;
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_RUN(kUpdated, bench.go(f[1]));
  EXPECT_TRUE(bench.cache.pin(f[0].key));
  EXPECT_RUN(kRestored, bench.go(f[0]));  // gets its own executable at once
  EXPECT_RUN(kReplayed, bench.go(f[1]));
  EXPECT_RUN(kUpdated, bench.go(f[2]));  // cannot borrow from the pinned key
  EXPECT_RUN(kReplayed, bench.go(f[0]));
  bench.cache.pin(f[2].key);  // keeps the executable that it has borrowed
  EXPECT_RUN(kRestored, bench.go(f[1]));
  EXPECT_RUN(kReplayed, bench.go(f[2]));
  EXPECT_EQ(bench.cache.stats().live_executables, 3u);
  EXPECT_TRUE(bench.cache.unpin(f[0].key));
  EXPECT_FALSE(entry_of(bench, f[0]).pinned);
}

// ---- Budgets and sharing --------------------------------------------------------------------------------------------

TEST_F(PolicyTest, KeyTooBigForTheBudgetRunsDirectlyAndIsCapturedOnce) {
  const std::size_t bytes = 2 * estimated_device_bytes(3);
  Bench<> bench({.max_device_bytes = bytes});
  const Spec big = lone(60);
  ASSERT_GT(estimated_device_bytes(60), bytes);
  ASSERT_SUCCESS(bench.go(lone(3)));
  bench.calls = 0;
  for (int i = 0; i < 4; ++i) EXPECT_RUN(kEager, bench.go(big));
  EXPECT_EQ(bench.calls, 5);
  const Stats stats = bench.cache.stats();
  EXPECT_EQ(stats.captures, 2u);
  EXPECT_EQ(stats.eager(EagerReason::kBudget), 4u);
  EXPECT_EQ(stats.evictions, 0u);
  EXPECT_SUCCESS(bench.warm(big));
  EXPECT_FALSE(entry_of(bench, big).live);
  EXPECT_RUN(kReplayed, bench.go(lone(3)));
}

TEST_F(PolicyTest, AlwaysSharingFamilyHasOneExecutable) {
  const std::vector<Spec> f = family(Profile::kGrids, 5, 3);
  Bench<> bench(at_most(64, Sharing::kUpdatesAcross));
  for (const Spec& which : f) EXPECT_SUCCESS(bench.warm(which));
  EXPECT_EQ(bench.cache.stats().instantiations, 1u);
  Random random(3);
  for (int i = 0; i < 200; ++i) ASSERT_SUCCESS(bench.go(f[static_cast<std::size_t>(random.below(5))]));
  const Stats stats = bench.cache.stats();
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(stats.live_executables, 1u);
  EXPECT_EQ(stats.families, 1u);
  EXPECT_EQ(stats.outcome(Outcome::kSwitched) + stats.outcome(Outcome::kReplayed), 200u);
  EXPECT_RUN(kInstantiated, bench.go(lone(1)));
  EXPECT_EQ(bench.cache.stats().families, 1u) << "no other key has the shape of that one";
}

// ---- Which graphs are read ------------------------------------------------------------------------------------------

// Number of nodes that were read for a signature.
std::uint64_t nodes_read() { return hostrt::calls("cudaGraphNodeGetDependencies"); }

TEST_F(PolicyTest, GraphIsReadOnceAnotherKeyHasItsShape) {
  const std::vector<Spec> f = family(Profile::kGrids, 3, 4);
  Bench<> bench(at_most(8));
  hostrt::reset_calls();
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_RUN(kInstantiated, bench.go(lone(3)));
  EXPECT_RUN(kReplayed, bench.go(f[0]));
  EXPECT_EQ(nodes_read(), 0u);
  EXPECT_EQ(hostrt::calls("cudaGraphKernelNodeGetParams"), 0u);
  EXPECT_EQ(hostrt::calls("cudaGraphKernelNodeGetAttribute"), 0u);
  EXPECT_EQ(bench.cache.stats().families, 0u);
  EXPECT_EQ(entry_of(bench, f[0]).family, 0u);

  EXPECT_RUN(kUpdated, bench.go(f[1]));
  EXPECT_EQ(nodes_read(), 8u) << "its own, and those of the first key, whose executable is alive";
  EXPECT_EQ(entry_of(bench, f[0]).family, entry_of(bench, f[1]).family);
  EXPECT_NE(entry_of(bench, f[0]).family, 0u);
  EXPECT_RUN(kUpdated, bench.go(f[2]));
  EXPECT_EQ(nodes_read(), 12u);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(did(Outcome::kSwitched, bench.go(f[static_cast<std::size_t>(i % 3)])));
  EXPECT_EQ(nodes_read(), 12u);
  EXPECT_EQ(bench.cache.stats().families, 1u);
}

// Whatever the number of keys, a run reads its own graph and one other.
TEST_F(PolicyTest, NothingIsReadWhileThereIsRoomAndTwoGraphsWhenThereIsNone) {
  constexpr std::size_t kNodes = 40;
  const std::vector<Spec> f = family(Profile::kGrids, 20, kNodes);
  Bench<> bench({.max_executables = 8});
  hostrt::reset_calls();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 8; ++i) EXPECT_SUCCESS(bench.go(f[static_cast<std::size_t>(i)]));
  }
  EXPECT_EQ(nodes_read(), 0u);
  EXPECT_EQ(bench.cache.stats().outcome(Outcome::kReplayed), 16u);
  for (int i = 8; i < 20; ++i) {
    const std::uint64_t before = bench.cache.stats().instantiations;
    hostrt::reset_calls();
    EXPECT_SUCCESS(bench.go(f[static_cast<std::size_t>(i)]));
    EXPECT_LE(nodes_read(), 2 * kNodes) << i;
    EXPECT_LE(bench.cache.stats().instantiations - before, 1u) << i;
  }
}

TEST_F(PolicyTest, FirstRunOfALoneKeyMakesTwoCallsMoreANodeThanTheRawCalls) {
  Stream stream;
  DeviceBuffer<float> data(1);
  Cache cache;
  const auto calls_of_first_run = [&](int nodes) {
    hostrt::reset_calls();
    const auto outcome = cache.run(key("k", nodes), stream, [&](cudaStream_t s) {
      for (int i = 0; i < nodes; ++i) CUDA_OK(launch(add, 1, 1, s, data.get(), 1, 1.0f));
    });
    EXPECT_RUN(kInstantiated, outcome);
    EXPECT_EQ(hostrt::calls("cudaLaunchKernel"), static_cast<std::uint64_t>(nodes));
    EXPECT_EQ(hostrt::calls("cudaGraphNodeGetType"), static_cast<std::uint64_t>(nodes));
    EXPECT_EQ(hostrt::calls("cudaGraphNodeGetDependentNodes"), static_cast<std::uint64_t>(nodes));
    EXPECT_EQ(hostrt::calls("cudaGraphUpload") + hostrt::calls("cudaGraphClone"), 0u);
    return hostrt::calls();
  };
  calls_of_first_run(1);
  const std::uint64_t of_two = calls_of_first_run(2);
  EXPECT_EQ(calls_of_first_run(40) - of_two, 3u * 38);
  EXPECT_LE(of_two, 3u * 2 + 32) << "as many whatever the nodes";
}

TEST_F(PolicyTest, FirstKeyThatHasLostItsExecutableIsReadFromItsTemplate) {
  const std::vector<Spec> f = family(Profile::kGrids, 2, 4);
  Bench<> bench(at_most(1));
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_RUN(kInstantiated, bench.go(lone(3)));
  hostrt::reset_calls();
  EXPECT_RUN(kInstantiated, bench.go(f[1]));
  EXPECT_EQ(nodes_read(), 0u) << "nobody like it has an executable";
  EXPECT_RUN(kSwitched, bench.go(f[0]));
  EXPECT_EQ(nodes_read(), 8u);
  EXPECT_RUN(kSwitched, bench.go(f[1]));
  EXPECT_EQ(nodes_read(), 8u);
}

TEST_F(PolicyTest, EachKeyIsReadOnTheStreamThatItRunsOn) {
  const std::vector<Spec> f = family(Profile::kGrids, 3, 4);
  Bench<> bench(at_most(8));
  EXPECT_RUN(kInstantiated, bench.go(f[0], {}, 1));
  EXPECT_RUN(kInstantiated, bench.go(f[1], {}, 0));
  EXPECT_NE(entry_of(bench, f[0]).family, entry_of(bench, f[1]).family);
  EXPECT_EQ(bench.cache.stats().families, 2u);
  EXPECT_RUN(kUpdated, bench.go(f[2], {}, 1));
  EXPECT_EQ(entry_of(bench, f[2]).family, entry_of(bench, f[0]).family);
}

// The run of the first key records `fn` again and holds its entry while another thread runs the second one.
TEST_F(PolicyTest, FirstKeyThatIsInUseIsReadByTheThird) {
  const std::vector<Spec> f = family(Profile::kGrids, 3, 4);
  Bench<> bench(forced(Sharing::kUpdates, {.max_executables = 8, .verify_every = 1}));
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  std::uint64_t read = 0;
  bool is_first = true;
  bench.in_fn = [&] {
    if (!std::exchange(is_first, false)) return;
    std::thread([&] {
      const std::uint64_t before = nodes_read();
      EXPECT_RUN(kInstantiated, bench.go(f[1], {}, 1));
      read = nodes_read() - before;
    }).join();
  };
  EXPECT_RUN(kReplayed, bench.run(f[0]));
  apply(f[0].nodes, {}, &bench.wanted);
  EXPECT_TRUE(bench.right());
  EXPECT_EQ(read, 8u) << "its own nodes alone, for verify mode and for its family";
  EXPECT_EQ(entry_of(bench, f[0]).family, 0u);
  EXPECT_RUN(kUpdated, bench.go(f[2]));
  EXPECT_EQ(entry_of(bench, f[2]).family, entry_of(bench, f[0]).family);
  EXPECT_NE(entry_of(bench, f[1]).family, 0u);
  EXPECT_NE(entry_of(bench, f[1]).family, entry_of(bench, f[0]).family) << "of another stream";
}

TEST_F(PolicyTest, ErasedKeyIsNotRead) {
  const std::vector<Spec> f = family(Profile::kGrids, 2, 4);
  Bench<> bench(at_most(8));
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_TRUE(bench.cache.erase(f[0].key));
  hostrt::reset_calls();
  EXPECT_RUN(kInstantiated, bench.go(f[1]));
  EXPECT_EQ(nodes_read(), 0u);
  EXPECT_RUN(kUpdated, bench.go(f[0]));
  EXPECT_EQ(nodes_read(), 8u);
}

}  // namespace
}  // namespace graphcache::test
