// Which keys share executables, on either runtime: nodes that differ between keys, and other families.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "sharing_support.h"

namespace graphcache::test {
namespace {

// ---- Nodes that differ ----------------------------------------------------------------------------------------------

constexpr int kVariants = 8;

// One kernel node that differs for each variant; `v` in all but two.
template <class V>
void launch_variant(Recorder& rec, int variant, int* p, V v) {
  switch (variant) {
    case 0:
      return rec.launch(blend, {2, 32}, p, 128, v, 5);
    case 1:
      return rec.launch(blend_otherwise, {2, 32}, p, 128, v, 5);
    case 2:
      return rec.launch(blend, {2, 64}, p, 128, v, 5);
    case 3:
      return rec.launch(blend, {2, 32, 2048}, p, 128, v, 5);
    case 4:
      return rec.launch(record_shared_bytes, {1, 32, 768}, p);  // fixed
    case 5:
      return rec.launch(many, {1, 1}, reinterpret_cast<double*>(p), 'a', v, 3, 4.0f, 5, 6, 7, 8.0f, 9, 10.0);
    case 6:
      return rec.launch(blend_in, {1, 64}, p, p + 64, 64, v);
    default:
      return rec.launch(record_launch, {dim3(3, 2, 1), dim3(4, 2, 2)}, p);  // fixed
  }
}

TEST_F(SharingTest, OtherKernelsBlocksAndSharedBytesInOnePlace) {
  for (const bool follows_slot : {false, true}) {
    SCOPED_TRACE(testing::Message() << "slot " << follows_slot);
    use(at_most(1));
    const auto run_variant = [&](int variant, int value) {
      return run(key("k", variant), params(value), [&, variant](Recorder& rec, Slot<int> v) {
        rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
        follows_slot ? launch_variant(rec, variant, at(0), v) : launch_variant(rec, variant, at(0), 9);
        rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
      });
    };
    std::set<int> known;
    int last = -1, last_value = 9;
    for (int from = 0; from < kVariants; ++from) {
      for (int to = 0; to < kVariants; ++to) {
        for (const int variant : {from, to}) {
          const int value = follows_slot ? 1 + 10 * from + to : 9;
          const bool holds = !follows_slot || value == last_value || variant == 4 || variant == 7;
          const Outcome wanted = known.empty()           ? Outcome::kInstantiated
                                 : !known.count(variant) ? Outcome::kUpdated
                                 : variant != last       ? Outcome::kSwitched
                                 : holds                 ? Outcome::kReplayed
                                                         : Outcome::kPatched;
          EXPECT_TRUE(did(wanted, run_variant(variant, value))) << from << " to " << to;
          known.insert(variant);
          last = variant;
          last_value = value;
        }
      }
    }
    EXPECT_EQ(calls, static_cast<unsigned>(kVariants));
    EXPECT_EQ(cache->stats().refused_updates, 0u);
    EXPECT_GT(updates(), 0u);
    EXPECT_EQ(families(*cache).size(), 1u);
  }
}

// One sibling's node follows a slot, and the other's is as captured; in both directions.
TEST_F(SharingTest, SlotNodesAndFixedNodesInOnePlace) {
  enum Which { kKernel, kCopy, kSet };
  for (const Which which : {kKernel, kCopy, kSet}) {
    for (const bool slot_is_first : {true, false}) {
      for (const int padding : {0, 30}) {
        SCOPED_TRACE(testing::Message() << "node " << which << ", slot first " << slot_is_first << ", padding "
                                        << padding);
        use(at_most(1));
        // The size in bytes is a slot as well, if there is one.
        const auto run_slot = [&](int value, int size) {
          return run(key("slot"), params(value, size), [&, which](Recorder& rec, Slot<int> v, Slot<int> bytes) {
            rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
            if (which == kKernel) rec.launch(blend, {2, 64}, at(0), 128, v, bytes);
            if (which == kCopy) rec.memcpy(at(0), at(512), bytes);
            if (which == kSet) rec.memset(at(0), v, bytes);
            rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
            pad(rec, padding);
          });
        };
        const auto run_fixed = [&](int other) {
          return run(key("fixed", other), [&, which, other](Recorder& rec) {
            rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
            if (which == kKernel) {
              CUDA_OK(launch(blend, 2, 32, rec.stream(), at(0), 128, 70 + other, 7));
            }
            if (which == kCopy) rec.memcpy(at(4 + 4 * other), at(640), 256);
            if (which == kSet) {
              CUDA_OK(cudaMemsetAsync(at(0), 70 + other, 200, rec.stream()));
            }
            rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
            pad(rec, padding);
          });
        };
        if (slot_is_first) {
          EXPECT_RUN(kInstantiated, run_slot(1, 64));
          EXPECT_RUN(kUpdated, run_fixed(0));
        } else {
          EXPECT_RUN(kInstantiated, run_fixed(0));
          EXPECT_RUN(kUpdated, run_slot(1, 64));
        }
        for (const int size : {64, 0, 128, 0, 64}) {
          SCOPED_TRACE(testing::Message() << "size " << size);
          ASSERT_SUCCESS(run_slot(1, size));
          EXPECT_RUN(kPatched, run_slot(2, size + 4));
          ASSERT_SUCCESS(run_slot(1, size));  // a node of 0 bytes is disabled
          ASSERT_SUCCESS(run_fixed(1));
          EXPECT_RUN(kReplayed, run_fixed(1));
          EXPECT_RUN(kSwitched, run_fixed(0));
          EXPECT_RUN(kSwitched, run_slot(1, size));
          EXPECT_RUN(kReplayed, run_slot(1, size));
        }
        EXPECT_EQ(calls, 3u);
        EXPECT_EQ(cache->stats().refused_updates, 0u);
        EXPECT_EQ(families(*cache).size(), 1u);
        EXPECT_EQ(cache->stats().instantiations, 1u);
      }
    }
  }
}

void add_one(void* number) { ++*static_cast<int*>(number); }
void add_ten(void* number) { *static_cast<int*>(number) += 10; }

TEST_F(SharingTest, SetsCopiesAndHostFunctionsThatDiffer) {
  static int numbers[2];
  const std::function<void(cudaStream_t)> sets[] = {
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 64, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 2, 64, s)); },      // another value
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(100), 1, 64, s)); },    // another address
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(100), 3, 256, s)); }};  // another width
  const std::function<void(cudaStream_t)> copies[] = {
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(512), 64, cudaMemcpyDeviceToDevice, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(64), at(512), 64, cudaMemcpyDeviceToDevice, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(600), 64, cudaMemcpyDeviceToDevice, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(8), at(700), 256, cudaMemcpyDeviceToDevice, s)); }};
  const std::function<void(cudaStream_t)> calls_of_host[] = {
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_one, &numbers[0])); },
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_one, &numbers[1])); },
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_ten, &numbers[0])); },
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_ten, &numbers[1])); }};
  const std::function<void(cudaStream_t)>* const all[] = {sets, copies, calls_of_host};
  for (const int kind : {0, 1, 2}) {
    for (const int padding : {0, 30}) {
      SCOPED_TRACE(testing::Message() << "kind " << kind << ", padding " << padding);
      use(at_most(1));
      std::set<int> known;
      int last = -1;
      std::uint64_t switches = 0;
      for (const int which : {0, 1, 2, 3, 2, 1, 0, 2, 0, 3, 1, 3, 0, 0}) {
        const auto enqueue = [&, kind, which](Recorder& rec) {
          rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
          all[kind][which](rec.stream());
          rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
          pad(rec, padding);
        };
        numbers[0] = numbers[1] = 0;
        const Outcome wanted = known.empty()         ? Outcome::kInstantiated
                               : !known.count(which) ? Outcome::kUpdated
                               : which == last       ? Outcome::kReplayed
                                                     : Outcome::kSwitched;
        EXPECT_TRUE(did(wanted, run(key("k", which), enqueue)));
        if (kind == 2) {
          EXPECT_EQ(numbers[which % 2], which < 2 ? 2 : 20);  // directly, and through the cache
          EXPECT_EQ(numbers[1 - which % 2], 0);
        }
        switches += wanted == Outcome::kUpdated || wanted == Outcome::kSwitched ? 1 : 0;
        known.insert(which);
        last = which;
      }
      expect({.calls = 4, .captures = 4, .instantiations = 1, .updates = switches});
    }
  }
}

// ---- Other families -------------------------------------------------------------------------------------------------

TEST_F(SharingTest, GraphsOfOtherTopologyTypesOrKindsAreNoSiblings) {
  Stream side;
  const PinnedBuffer<int> memory_of_host(16, 5);
  int* const pinned = memory_of_host.get();
  const auto step = [&](cudaStream_t s, int index) { CUDA_OK(launch(blend, 1, 32, s, at(index), 32, 3, 4)); };
  // Three kernels, where the second and third are consecutive or parallel.
  const auto forked = [&](cudaStream_t s, bool parallel) {
    step(s, 0);
    let_follow(side, s);
    step(side, 32);
    if (!parallel) let_follow(s, side);
    step(s, 64);
    let_follow(s, side);
    step(s, 0);
  };
  const std::vector<std::pair<const char*, std::function<void(cudaStream_t)>>> all = {
      {"one kernel", [&](cudaStream_t s) { step(s, 0); }},
      {"two kernels", [&](cudaStream_t s) { step(s, 0), step(s, 0); }},
      {"set", [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 64, s)); }},
      {"copy inside the device",
       [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(100), 64, cudaMemcpyDeviceToDevice, s)); }},
      {"copy of the default kind",
       [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(100), 64, cudaMemcpyDefault, s)); }},
      {"copy from the host",
       [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), pinned, 64, cudaMemcpyHostToDevice, s)); }},
      {"copy to the host",
       [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(pinned, at(0), 64, cudaMemcpyDeviceToHost, s)); }},
      {"host function", [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_one, pinned)); }},
      {"side by side", [&](cudaStream_t s) { forked(s, true); }},
      {"one behind the other", [&](cudaStream_t s) { forked(s, false); }},
  };
  use(at_most(static_cast<int>(all.size())));
  const auto expect_each = [&](const char* name, Outcome wanted) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(all[i].first);
      EXPECT_TRUE(did(wanted, run(key(name, i), [&, i](Recorder& rec) { all[i].second(rec.stream()); })));
    }
  };
  for (const Outcome wanted : {Outcome::kInstantiated, Outcome::kReplayed}) expect_each("k", wanted);
  expect({.calls = all.size(), .captures = all.size(), .instantiations = all.size()});
  // Each has exactly one sibling.
  expect_each("twin", Outcome::kUpdated);
  const std::set<std::uint64_t> found = families(*cache);
  EXPECT_EQ(found.size(), all.size());
  EXPECT_EQ(found.count(0), 0u);
  EXPECT_EQ(cache->stats().families, all.size());

  // One is evicted for the other, and restored without a sibling.
  use(at_most(1));
  for (const Outcome wanted : {Outcome::kInstantiated, Outcome::kRestored}) expect_each("k", wanted);
  EXPECT_EQ(cache->stats().evictions, 2 * all.size() - 1);
  expect({.calls = all.size(), .captures = all.size(), .instantiations = 2 * all.size()});
}

TEST_F(SharingTest, PrioritiesMakeFamilies) {
  const Priorities priorities;
  if (priorities.least == priorities.greatest) GTEST_SKIP() << "the device knows one priority";
  const StreamOf urgent(cudaStreamNonBlocking, priorities.greatest);
  for (const unsigned long long flags :
       {0ull, static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)}) {
    use(forced(Sharing::kUpdates, {.max_executables = 1, .instantiate_flags = flags}));
    const auto run_at = [&](cudaStream_t on, int number) {
      return run_on(on, key("k", number), Params<>(), [&, number](Recorder& rec) {
        rec.launch(blend, {1, 32}, at(0), 32, 3, number);
      });
    };
    EXPECT_RUN(kInstantiated, run_at(stream, 0));
    EXPECT_RUN(kInstantiated, run_at(urgent, 1));
    EXPECT_RUN(kUpdated, run_at(urgent, 2));
    EXPECT_RUN(kRestored, run_at(stream, 0));
    EXPECT_RUN(kRestored, run_at(stream, 1));  // the graph counts, not the stream
    EXPECT_EQ(families(*cache).size(), 3u);    // key 1 moved to a stream whose priority no other graph has
    EXPECT_EQ(cache->stats().refused_updates, 0u);
  }
  cache.reset();
}

// An update accepts another cluster size and keeps the old one (fact 19).
TEST_F(SharingTest, ClusterSizesMakeFamilies) {
  int major = 0;
  CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < 9) GTEST_SKIP() << "clusters need compute capability 9.0";
  const auto launch_in = [&](cudaStream_t s, unsigned size) {
    CUDA_OK(launch_in_clusters(record_cluster_size, 8, 32, size, s, at(0)));
  };

  // The update that is accepted and not applied.
  cudaGraph_t graphs[2] = {};
  for (const unsigned size : {2u, 4u}) {
    graphs[size / 4] = capture_graph(stream, [&](cudaStream_t s) { launch_in(s, size); });
  }
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaGraphInstantiate(&executable, graphs[0], 0));
  CUDA_OK(cudaGraphLaunch(executable, stream));  // an executable that was never launched takes the new size
  cudaGraphExecUpdateResultInfo info = {};
  CUDA_OK(cudaGraphExecUpdate(executable, graphs[1], &info));
  CUDA_OK(cudaGraphLaunch(executable, stream));
  EXPECT_EQ(memory.first(), 2) << "updates carry cluster sizes now: docs/semantics.md is to be revised";
  CUDA_OK(cudaGraphExecDestroy(executable));
  for (cudaGraph_t graph : graphs) CUDA_OK(cudaGraphDestroy(graph));

  // The signature prevents such updates.
  use(at_most(1, Sharing::kUpdatesAcross));
  const unsigned sizes[] = {2, 4, 0, 8, 2, 0, 4, 8};
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    const unsigned size = sizes[i];
    EXPECT_TRUE(did(i < 4 ? Outcome::kInstantiated : Outcome::kRestored,
                    run(key("k", size), [&, size](Recorder& rec) { launch_in(rec.stream(), size); })));
    EXPECT_EQ(memory.first(), size == 0 ? 1 : static_cast<int>(size));
  }
  EXPECT_EQ(cache->stats().families, 4u);
  expect({.calls = 4, .captures = 4, .instantiations = 8});
}

}  // namespace
}  // namespace graphcache::test
