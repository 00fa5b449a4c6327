// Keys whose `fn` returns a graph. The results of their kernels are compared with a reference.
#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache_support.h"
#include "graph_support.h"
#include "listeners.h"

namespace graphcache::test {
namespace {

constexpr char kAdd[] = "graphcache::test::add";

class OwnGraphTest : public CacheTest {
 protected:
  cudaGraph_t captured(const std::function<void(cudaStream_t)>& enqueue) { return capture_graph(stream, enqueue); }
  // `nodes` launches, of which the first adds `value` and the others add nothing.
  void launch_adds(cudaStream_t on, float value, int nodes, unsigned blocks) {
    for (int i = 0; i < nodes; ++i) {
      CUDA_OK(launch(add, dim3(blocks), kBlock, on, data.get(), kSize, i == 0 ? value : 0.0f));
    }
  }
  cudaGraph_t adding(float value, int nodes = 3, unsigned blocks = 2) {
    return captured([&](cudaStream_t on) { launch_adds(on, value, nodes, blocks); });
  }
  // Built by hand: p = 2 * p + value, in two nodes.
  cudaGraph_t doubling(float value) {
    const cudaGraph_t graph = new_graph();
    const auto first = add_kernel(graph, nullptr, axpy, kGrid, kBlock, data.get(), data.get(), kSize, 1.0f);
    add_kernel(graph, first, add, kGrid, kBlock, data.get(), kSize, value);
    return graph;
  }
  // A graph that CUDA cannot clone: it allocates memory, uses it to add 8, and frees it.
  cudaGraph_t allocating() {
    return captured([&](cudaStream_t on) {
      void* memory = nullptr;
      CUDA_OK(cudaMallocAsync(&memory, kSize * sizeof(float), on));
      CUDA_OK(launch(fill, kGrid, kBlock, on, static_cast<float*>(memory), kSize, 4.0f));
      CUDA_OK(launch(axpy, kGrid, kBlock, on, data.get(), static_cast<const float*>(memory), kSize, 2.0f));
      CUDA_OK(cudaFreeAsync(memory, on));
    });
  }
  // It hands out its memory: each launch of one executable would hand out the same again.
  cudaGraph_t handing_out(void** memory) {
    return captured([&](cudaStream_t on) {
      CUDA_OK(cudaMallocAsync(memory, 64, on));
      CUDA_OK(add_one(on));
    });
  }
  // An fn that counts its calls.
  template <class Fn>
  auto counting(const Fn& fn) {
    return [this, fn] {
      ++calls;
      return fn();
    };
  }
  // An fn that gives away a graph which adds `value`.
  auto gives(float value, int nodes = 3, unsigned blocks = 2) {
    return counting([=, this] { return given(adding(value, nodes, blocks)); });
  }
  // The same where each of the nodes adds the value of the run.
  auto gives_bound(int nodes = 3, unsigned blocks = 2) {
    return counting([=, this] { return given(adding(0, nodes, blocks), {bind(kAdd, 2, 0)}); });
  }
  absl::StatusOr<Outcome> run_own(Cache& cache, cudaStream_t on, const Key& key, float value, int nodes = 3,
                                  unsigned blocks = 2) {
    return cache.run(key, on, gives(value, nodes, blocks));
  }
  absl::StatusOr<Outcome> run_own(Cache& cache, const Key& key, float value, int nodes = 3, unsigned blocks = 2) {
    return run_own(cache, stream, key, value, nodes, blocks);
  }
  absl::StatusOr<Outcome> run_bound(Cache& cache, const Key& key, float value, int nodes = 3, unsigned blocks = 2) {
    return cache.run(key, stream, params(value), gives_bound(nodes, blocks));
  }
  static EntryInfo entry_of(const Cache& cache, const Key& key) {
    for (const EntryInfo& entry : cache.entries()) {
      if (entry.key == key) return entry;
    }
    ADD_FAILURE() << "there is no entry of " << key.to_string();
    return {};
  }
};

// ---- Runs -----------------------------------------------------------------------------------------------------------

TEST_F(OwnGraphTest, AGraphIsReplayedWhenItsOriginalIsGone) {
  for (const bool by_hand : {false, true}) {
    SCOPED_TRACE(by_hand ? "built by hand" : "captured");
    reset_sum();
    Cache cache;
    calls = 0;
    float wanted = 0;
    const auto run = [&](cudaGraph_t graph) {
      wanted = by_hand ? 2 * wanted + 5 : wanted + 3;
      return cache.run(key("k"), stream, counting([&] { return Graph{.graph = graph}; }));
    };
    {
      const Kept graph(by_hand ? doubling(5) : adding(3));
      EXPECT_RUN(kInstantiated, run(graph));
    }
    expect_sum(wanted);
    EXPECT_TRUE(cache.contains(key("k")));
    EXPECT_FALSE(cache.run(key("other"), stream, [] { return Graph(); }).ok());
    for (int i = 0; i < 4; ++i) {
      EXPECT_RUN(kReplayed, run(nullptr));
      expect_sum(wanted);
    }
    EXPECT_EQ(calls, 1);
    stats = cache.stats();
    EXPECT_EQ(stats.captures, 1u);
    EXPECT_EQ(stats.live_templates, 1u);
    EXPECT_EQ(stats.instantiations, 1u);
    EXPECT_EQ(stats.outcome(Outcome::kReplayed), 4u);
    const EntryInfo entry = entry_of(cache, key("k"));
    EXPECT_EQ(entry.outcomes[static_cast<std::size_t>(Outcome::kReplayed)], 4u);
    EXPECT_EQ(entry.nodes, by_hand ? 2u : 3u);
  }
}

Kept* graph_of_function = nullptr;
Graph by_function() { return {.graph = *graph_of_function}; }

// Every form that `fn` may have.
TEST_F(OwnGraphTest, AnyCallableMayReturnIt) {
  Kept graph(adding(1));
  graph_of_function = &graph;
  struct Functor {
    cudaGraph_t graph;
    absl::StatusOr<Graph> operator()() const { return Graph{.graph = graph}; }
  };
  const std::function<Graph()> function = [&] { return Graph{.graph = graph}; };
  const std::function<absl::StatusOr<Graph>()> or_status = [&] { return Graph{.graph = graph}; };
  auto changes_itself = [&, count = 0]() mutable { return ++count, Graph{.graph = graph}; };
  Cache cache;
  for (const Outcome wanted : {Outcome::kInstantiated, Outcome::kReplayed}) {
    EXPECT_TRUE(did(wanted, cache.run(key("function"), stream, by_function)));
    EXPECT_TRUE(did(wanted, cache.run(key("pointer"), stream, &by_function)));
    EXPECT_TRUE(did(wanted, cache.run(key("functor"), stream, Functor{graph})));
    EXPECT_TRUE(did(wanted, cache.run(key("std"), stream, function)));
    EXPECT_TRUE(did(wanted, cache.run(key("std of status"), stream, or_status)));
    // It has the signature of the std::function, so the function can be told from others.
    EXPECT_TRUE(did(wanted, cache.run(key("pointer in std"), stream, std::function<Graph()>(&by_function))));
    EXPECT_TRUE(did(wanted, cache.run(key("ref"), stream, std::ref(changes_itself))));
    CUDA_OK(cudaStreamSynchronize(stream));  // The next run is on another stream.
    EXPECT_TRUE(did(wanted, cache.run(key("default stream"), [&] { return Graph{.graph = graph}; })));
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_TRUE(did(wanted, cache.run(key("params"), params(1.0f), [&] { return Graph{.graph = graph}; })));
    CUDA_OK(cudaDeviceSynchronize());
  }
  expect_sum(18);
  const std::function<Graph()> empty;
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("std"), stream, empty));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("pointer"), stream, static_cast<Graph (*)()>(nullptr)));
}

TEST_F(OwnGraphTest, AStepReplaysIt) {
  Cache cache;
  auto step = cache.prepare(key("k"), gives(2));
  for (int i = 1; i <= 5; ++i) {
    EXPECT_TRUE(did(i == 1 ? Outcome::kInstantiated : Outcome::kReplayed, step.run(stream)));
    expect_sum(2.0f * static_cast<float>(i));
  }
  EXPECT_EQ(calls, 1);
  auto bound = cache.prepare(key("bound"), gives_bound());
  EXPECT_RUN(kInstantiated, bound.run(stream, params(1.0f)));
  EXPECT_RUN(kReplayed, bound.run(stream, params(1.0f)));
  EXPECT_RUN(kPatched, bound.run(stream, params(5.0f)));
  expect_sum(10 + 3 * 7);
  EXPECT_EQ(cache.stats().captures, 2u);
  EXPECT_EQ(cache.stats().live_templates, 2u);
  EXPECT_EQ(cache.stats().instantiations, 2u);
}

TEST_F(OwnGraphTest, WarmMakesItReady) {
  Cache cache;
  EXPECT_TRUE(cache.warm(key("k"), stream, params(1.0f), gives_bound()).ok());
  expect_sum(0);
  EXPECT_EQ(cache.stats().live_executables, 1u);
  EXPECT_RUN(kReplayed, run_bound(cache, key("k"), 1));
  EXPECT_RUN(kPatched, run_bound(cache, key("k"), 2));
  expect_sum(9);
  EXPECT_EQ(calls, 1);
  // An error of fn is one of warm().
  const absl::Status failed =
      cache.warm(key("label"), stream, []() -> absl::StatusOr<Graph> { return absl::AbortedError("no graph today"); });
  EXPECT_ERROR(kAborted, failed, "no graph today", "(\"label\")");
  EXPECT_FAILURE(kInvalidArgument, cache.warm(key("label"), stream, [] { return Graph(); }));
  EXPECT_FALSE(cache.contains(key("label")));
}

// warm() evicts nothing, so the key gets only its template.
TEST_F(OwnGraphTest, WarmWithoutRoomKeepsTheGraph) {
  Cache cache(unshared(1));
  EXPECT_RUN(kInstantiated, run_add(cache, key("first")));
  calls = 0;
  EXPECT_TRUE(cache.warm(key("k"), stream, gives(10)).ok());
  EXPECT_TRUE(cache.contains(key("k")));
  EXPECT_RUN(kRestored, run_own(cache, key("k"), 10));
  EXPECT_EQ(calls, 1);
  expect_sum(11);
}

TEST_F(OwnGraphTest, RunsOnAllStreamsShareItsOneGraph) {
  Cache cache(unshared());
  const Stream other;
  EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 2));
  for (const cudaStream_t on : {static_cast<cudaStream_t>(other), static_cast<cudaStream_t>(stream), cudaStreamLegacy,
                                cudaStreamPerThread, static_cast<cudaStream_t>(nullptr)}) {
    for (int i = 0; i < 2; ++i) EXPECT_RUN(kReplayed, run_own(cache, on, key("k"), 2));
  }
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(cache.entries().size(), 1u);
  expect_sum(22);
}

// One of them may be captured.
TEST_F(OwnGraphTest, KeysOfOneTopologyShareAnExecutable) {
  for (const int captured_one : {0, 1, 3}) {
    SCOPED_TRACE(captured_one);
    reset_sum();
    calls = 0;
    Cache cache(renting(1));
    const auto run = [&](int i) {
      const auto value = static_cast<float>(i);
      const auto blocks = static_cast<unsigned>(1 + i);
      if (i != captured_one) return run_own(cache, key("k", i), value, 8, blocks);
      return cache.run(key("k", i), stream, [&](cudaStream_t on) { launch_adds(on, value, 8, blocks); });
    };
    EXPECT_RUN(kInstantiated, run(1));
    EXPECT_RUN(kUpdated, run(2));
    EXPECT_RUN(kUpdated, run(3));
    float sum = 1 + 2 + 3;
    expect_sum(sum);
    for (int round = 0; round < 3; ++round) {
      for (int i = 1; i <= 3; ++i) {
        EXPECT_RUN(kSwitched, run(i));
        sum += static_cast<float>(i);
        expect_sum(sum);
      }
    }
    for (const int i : {1, 2}) EXPECT_EQ(entry_of(cache, key("k", i)).family, entry_of(cache, key("k", 3)).family);
    EXPECT_EQ(cache.stats().live_executables, 1u);
    EXPECT_EQ(cache.stats().instantiations, 1u);
    EXPECT_EQ(calls, captured_one == 0 ? 3 : 2);
  }
}

// Nothing follows the two nodes. The second key's graph had a node behind the first one.
TEST_F(OwnGraphTest, KeysShareWhateverTheirGraphsHadBefore) {
  reset_sum();
  DeviceBuffer<float> other(kSize);
  other.write(std::vector<float>(kSize));
  Cache cache(renting(1));
  float sum = 0;
  for (int i = 0; i < 6; ++i) {
    const auto value = static_cast<float>(3 + i);
    EXPECT_SUCCESS(cache.run(key("k", i % 2), stream, params(value), [&] {
      const cudaGraph_t graph = new_graph();
      const auto first = add_kernel(graph, nullptr, add, kGrid, kBlock, data.get(), kSize, 0.0f);
      add_kernel(graph, nullptr, add, kGrid, kBlock, other.get(), kSize, 1.0f);
      cudaGraphNode_t gone = nullptr;
      if (i % 2 == 1) {
        CUDA_OK(cudaGraphAddEmptyNode(&gone, graph, &first, 1));
        CUDA_OK(cudaGraphDestroyNode(gone));
      }
      return given(graph, {bind(first, 2, 0)});
    }));
    expect_sum(sum += value);
    EXPECT_EQ(other.read(), std::vector<float>(kSize, static_cast<float>(1 + i)));
  }
  EXPECT_EQ(cache.stats().instantiations, 1u);
}

// Captured keys and keys of own graphs share an executable by updates or by a parameter table, or have slots that the
// device writes.
TEST_F(OwnGraphTest, KeysWithSlotsShareAndAreUpdatedByTheDevice) {
  const struct {
    Sharing sharing;
    Patching patching;
    int max_executables;
  } cases[] = {{Sharing::kUpdates, Patching::kAuto, 1},
               {Sharing::kTable, Patching::kDeviceUpdated, 2},
               {Sharing::kNever, Patching::kDeviceUpdated, 2}};
  for (const auto& one : cases) {
    SCOPED_TRACE(static_cast<int>(one.sharing));
    reset_sum();
    calls = 0;
    force(one.patching);
    Cache cache(forced(one.sharing, one.max_executables));
    const auto captured_key = [&](float value) {
      return cache.run(key("captured"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
        for (int i = 0; i < 4; ++i) rec.launch(add, {dim3(9), kBlock}, data.get(), kSize, v);
      });
    };
    float sum = 0;
    for (int i = 0; i < 24; ++i) {
      const auto value = static_cast<float>(1 + i / 3);
      const int number = i % 4;
      EXPECT_SUCCESS(number == 3 ? captured_key(value)
                                 : run_bound(cache, key("k", number), value, 4, static_cast<unsigned>(2 + number)));
      sum += 4 * value;
      expect_sum(sum);
    }
    stats = cache.stats();
    EXPECT_EQ(stats.set_switches > 10, one.sharing == Sharing::kTable) << to_string(stats);
    EXPECT_EQ(stats.instantiations == 1, one.sharing == Sharing::kUpdates) << to_string(stats);
    EXPECT_EQ(stats.refused_device_updates, 0u);
    EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
    EXPECT_EQ(calls, 3);
  }
}

TEST_F(OwnGraphTest, ReportsHaveIt) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 1));
  EXPECT_EQ(cache.graph(key("k"))->nodes.size(), 3u);
  EXPECT_TRUE(says(explain(cache, key("k")), "It has an executable"));
  EXPECT_TRUE(says(to_string(entry_of(cache, key("k"))), "live"));
  EXPECT_RUN(kInstantiated, run_bound(cache, key("bound"), 1));
  const absl::StatusOr<GraphInfo> info = cache.graph(key("bound"));
  ASSERT_TRUE(info.ok()) << info.status();
  for (const GraphNode& node : info->nodes) {
    EXPECT_FALSE(node.arguments[1].is_slot);
    EXPECT_TRUE(node.arguments[2].is_slot);
  }
}

// ---- The place ------------------------------------------------------------------------------------------------------

// One key with two graphs has two entries, and neither ever runs the other's.
TEST_F(OwnGraphTest, EachPlaceHasItsGraph) {
  Cache cache;
  const auto ones = [&] { return cache.run(key("k"), stream, [&] { return Graph{adding(1), {}, nullptr, true}; }); };
  const auto tens = [&] { return cache.run(key("k"), stream, [&] { return Graph{adding(10), {}, nullptr, true}; }); };
  const auto hundreds = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) { return add_value(on, 100); });
  };
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    const Outcome wanted = i == 0 ? Outcome::kInstantiated : Outcome::kReplayed;
    EXPECT_TRUE(did(wanted, ones()));
    expect_sum(sum += 1);
    EXPECT_TRUE(did(wanted, tens()));
    expect_sum(sum += 10);
    EXPECT_TRUE(did(wanted, hundreds()));
    expect_sum(sum += 100);
  }
  EXPECT_EQ(cache.entries().size(), 3u);
  EXPECT_EQ(cache.graph(key("k"))->nodes.size(), 1u);  // That of the entry used last.
  EXPECT_RUN(kReplayed, ones());
  EXPECT_EQ(cache.graph(key("k"))->nodes.size(), 3u);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_TRUE(cache.entries().empty());
  EXPECT_RUN(kInstantiated, tens());
  expect_sum(sum + 11);
}

// Values of other types make another place.
TEST_F(OwnGraphTest, ValuesOfOtherTypesHaveAnotherEntry) {
  Cache cache;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, gives(1)));
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, params(2.0f), gives(1)));
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, params(2), gives(1)));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, params(2.0f), gives(1)));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(cache.entries().size(), 3u);
  expect_sum(4);
}

// ---- Templates ------------------------------------------------------------------------------------------------------

// Executables count as well, so the limit holds for the larger of both numbers.
TEST_F(OwnGraphTest, ThereAreNeverMoreTemplatesThanTheLimit) {
  for (const int max_executables : {1, 3}) {
    for (const int max_templates : {0, 1, 2, 5}) {
      for (const bool shares : {true, false}) {
        SCOPED_TRACE(std::to_string(max_executables) + ", " + std::to_string(max_templates));
        reset_sum();
        const Options options = {.max_executables = max_executables, .max_templates = max_templates};
        Cache cache(shares ? renting(options) : unshared(options));
        float sum = 0;
        for (int i = 0; i < 60; ++i) {
          const int number = i * i % 7;
          const auto value = static_cast<float>(1 + number);
          const auto outcome = number % 3 == 0   ? run_add(cache, key("captured", number))
                               : number % 3 == 1 ? run_own(cache, key("own", number), value, 1 + number)
                                                 : run_bound(cache, key("bound", number), value, 8);
          EXPECT_TRUE(outcome.ok()) << outcome.status();
          sum += number % 3 == 0 ? 1 : number % 3 == 1 ? value : 8 * value;
          stats = cache.stats();
          EXPECT_LE(stats.live_executables, static_cast<std::uint64_t>(max_executables));
          EXPECT_LE(stats.live_templates, std::max(stats.live_executables, static_cast<std::uint64_t>(max_templates)));
        }
        expect_sum(sum);
        cache.clear();
        EXPECT_EQ(cache.stats().live_templates, 0u);
        EXPECT_EQ(cache.stats().estimated_device_bytes, 0u);
      }
    }
  }
}

TEST_F(OwnGraphTest, APinKeepsExecutableAndTemplateAndAKeyWithoutRoomRunsNevertheless) {
  for (const bool keeps_templates : {true, false}) {
    SCOPED_TRACE(keeps_templates);
    reset_sum();
    calls = 0;
    Cache cache(keeps_templates ? unshared(1) : without_templates(1));
    EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 1));
    EXPECT_TRUE(cache.pin(key("k")));
    for (int i = 0; i < 3; ++i) EXPECT_RUN(kEager, run_own(cache, key("other"), 10));
    EXPECT_EQ(calls, 1 + 3);
    EXPECT_EQ(cache.stats().eager(EagerReason::kBudget), 3u);
    EXPECT_EQ(cache.stats().live_executables, 1u);
    EXPECT_EQ(cache.stats().live_templates, 1u);
    EXPECT_FALSE(cache.contains(key("other")));
    EXPECT_EQ(entry_of(cache, key("other")).eager_reason, EagerReason::kBudget);
    EXPECT_RUN(kReplayed, run_own(cache, key("k"), 1));
    EXPECT_TRUE(cache.unpin(key("k")));
    EXPECT_RUN(kInstantiated, run_own(cache, key("other"), 10));
    EXPECT_TRUE(did(keeps_templates ? Outcome::kRestored : Outcome::kInstantiated, run_own(cache, key("k"), 1)));
    EXPECT_EQ(calls, keeps_templates ? 5 : 6);
    expect_sum(3 + 40);
  }
}

// ---- Where there is no executable -----------------------------------------------------------------------------------

// A graph that alone needs more device memory than the limit, which shows only once there is a graph; and a disabled
// cache.
TEST_F(OwnGraphTest, AGraphThatIsTooLargeAndOneOfADisabledCacheRunDirectly) {
  const struct {
    Options options;
    EagerReason reason;
    int nodes;
  } cases[] = {{{.max_device_bytes = 1000, .max_templates = 0}, EagerReason::kBudget, 30},
               {{.max_device_bytes = 1000, .max_templates = 10}, EagerReason::kBudget, 30},
               {{.max_executables = 0}, EagerReason::kDisabled, 3}};
  for (const auto& [options, reason, nodes] : cases) {
    SCOPED_TRACE(testing::Message() << to_string(reason) << ", " << options.max_templates);
    reset_sum();
    calls = 0;
    Cache cache(unshared(options));
    for (int i = 1; i <= 3; ++i) {
      EXPECT_RUN(kEager, run_bound(cache, key("k"), static_cast<float>(i), nodes));
      EXPECT_LE(cache.stats().live_templates, static_cast<std::uint64_t>(options.max_templates));
    }
    EXPECT_EQ(cache.stats().eager(reason), 3u);
    EXPECT_EQ(cache.stats().live_executables, 0u);
    EXPECT_EQ(cache.stats().estimated_device_bytes, 0u);
    expect_sum(static_cast<float>(nodes * (1 + 2 + 3)));
    if (reason == EagerReason::kDisabled) {
      EXPECT_EQ(calls, 3);
      EXPECT_EQ(cache.stats().instantiations, 3u);
      EXPECT_GT(cache.stats().instantiate_time.count(), 0);
      EXPECT_TRUE(cache.entries().empty());
    }
  }
}

TEST_F(OwnGraphTest, ADisabledCacheLeavesTheProgramItsGraph) {
  Cache cache(unshared(0));
  const Kept graph(adding(7));
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&] { return Graph{.graph = graph}; }));
  CUDA_OK(cudaStreamSynchronize(stream));  // The next one changes the same data on another stream.
  EXPECT_RUN(kEager, cache.run(key("k"), cudaStreamLegacy, [&] { return Graph{.graph = graph}; }));
  CUDA_OK(cudaDeviceSynchronize());
  expect_sum(14);
}

TEST_F(OwnGraphTest, TheFirstRunsMayBeDirect) {
  Cache cache(unshared({.capture_after = 2}));
  for (int i = 0; i < 2; ++i) EXPECT_RUN(kEager, run_own(cache, key("k"), 1));
  EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureAfter), 2u);
  EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 1));
  EXPECT_RUN(kReplayed, run_own(cache, key("k"), 1));
  EXPECT_EQ(calls, 3);
  expect_sum(4);
}

TEST_F(OwnGraphTest, AGraphThatHandsOutMemoryRunsDirectly) {
  std::vector<void*> handed_out;
  Cache cache;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager,
               cache.run(key("k"), stream, counting([&] { return given(handing_out(&handed_out.emplace_back())); })));
    CUDA_OK(cudaFreeAsync(handed_out.back(), stream));
    expect_sum(static_cast<float>(i));
  }
  EXPECT_EQ(calls, 4);  // The first graph showed what it does.
  EXPECT_EQ(cache.stats().eager(EagerReason::kHandsOutMemory), 3u);
  EXPECT_EQ(entry_of(cache, key("k")).eager_reason, EagerReason::kHandsOutMemory);
  EXPECT_EQ(cache.stats().live_templates, 0u);
  EXPECT_TRUE(absl::IsNotFound(cache.graph(key("k")).status()));
}

TEST_F(OwnGraphTest, AGraphThatHandsOutMemoryMayFailTheRunInstead) {
  Cache cache(called_once());
  void* memory = nullptr;
  const auto failed = cache.run(key("k"), stream, counting([&] { return given(handing_out(&memory)); }));
  EXPECT_ERROR(kFailedPrecondition, failed, "hands out memory");
  EXPECT_EQ(calls, 1);
  expect_sum(0);
}

TEST_F(OwnGraphTest, AnFnThatRunsItsOwnKeyGetsAnError) {
  Cache cache;
  const std::function<absl::StatusOr<Outcome>()> run_key = [&] {
    return cache.run(key("k"), stream, counting([&] {
                       if (calls == 1) {
                         EXPECT_ERROR(kFailedPrecondition, run_key(), "inside its own run", "(\"k\")");
                       }
                       return given(adding(1));
                     }));
  };
  EXPECT_RUN(kInstantiated, run_key());
  EXPECT_RUN(kReplayed, run_key());
  EXPECT_EQ(calls, 1);
  expect_sum(2);
}

TEST_F(OwnGraphTest, VerifyModeLeavesThemAlone) {
  Cache cache({.verify_every = 1});
  EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 2));
  for (int i = 0; i < 3; ++i) EXPECT_RUN(kReplayed, run_own(cache, key("k"), 1000));
  expect_sum(8);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(cache.stats().verified, 0u);
  EXPECT_EQ(cache.stats().stale, 0u);
}

// ---- Slots ----------------------------------------------------------------------------------------------------------

TEST_F(OwnGraphTest, ABoundArgumentFollowsEachRun) {
  Cache cache;
  const Kept graph(adding(7, 3));
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, params(value),
                     [&] { return Graph{.graph = graph, .bound = {bind(nodes_of(graph)[0], 2, 0)}}; });
  };
  EXPECT_RUN(kInstantiated, run(2));
  expect_sum(2);
  EXPECT_RUN(kReplayed, run(2));
  expect_sum(4);
  EXPECT_RUN(kPatched, run(5));
  expect_sum(9);
  EXPECT_RUN(kPatched, run(-1));
  expect_sum(8);
  EXPECT_EQ(cache.stats().patched_nodes, 2u);
  EXPECT_EQ(entry_of(cache, key("k")).slot_nodes, 1u);
  launch_once(graph, stream);
  expect_sum(15);  // The program's graph is unchanged.
}

// As libraries do whose kernels take one structure.
TEST_F(OwnGraphTest, AnArgumentOfNodesThatWereGivenOneBufferFollowsEachRun) {
  const auto packed = [&] {
    struct {
      float* data;
      int size;
      float value;
    } arguments = {data.get(), kSize, 2.0f};
    std::size_t bytes = sizeof arguments;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void*>(add);
    params.gridDim = kGrid;
    params.blockDim = kBlock;
    params.extra = extra;
    const cudaGraph_t graph = new_graph();
    cudaGraphNode_t node = nullptr;
    CUDA_OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    return given(graph, {bind(kAdd, 0, 0)});
  };
  Cache cache;
  const DeviceBuffer<float> other(kSize);
  for (float* const to : {data.get(), other.get(), data.get()}) {
    ASSERT_SUCCESS(cache.run(key("packed"), stream, params(to), packed));
  }
  EXPECT_EQ(other.read(), std::vector<float>(kSize, 2));
  expect_sum(4);
  EXPECT_EQ(cache.stats().instantiations, 1u);
}

TEST_F(OwnGraphTest, ANameMeansAllKernelsThatHaveIt) {
  DeviceBuffer<float> other(kSize);
  const Kept graph(captured([&](cudaStream_t on) {
    CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
    CUDA_OK(launch(axpy, kGrid, kBlock, on, data.get(), other.get(), kSize, 2.0f));
    CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
  }));
  Cache cache;
  EXPECT_TRUE(cache.warm(key("r"), stream, [&] { return Graph{.graph = graph}; }).ok());
  const absl::StatusOr<GraphInfo> info = cache.graph(key("r"));
  ASSERT_TRUE(info.ok()) << info.status();
  const auto name = [&](std::size_t node) { return info->nodes[node].name.substr(std::string("kernel ").size()); };
  other.write(std::vector<float>(kSize, 10));
  DeviceBuffer<float> another(kSize, 100);
  float sum = 0;
  for (int i = 0; i < 6; ++i) {
    const float value = static_cast<float>(i), factor = static_cast<float>(2 + i % 3);
    const float* const from = i % 2 == 0 ? other.get() : another.get();
    EXPECT_SUCCESS(cache.run(key("k"), stream, params(value, from, factor), [&] {
      return Graph{
          .graph = graph,
          .bound = {bind("kernel " + name(0), 2, 0), bind("graphcache::test::axpy", 1, 1), bind(name(1), 3, 2)}};
    }));
    sum += 2 * value + factor * (i % 2 == 0 ? 10.0f : 100.0f);
    expect_sum(sum);
  }
  EXPECT_EQ(entry_of(cache, key("k")).slot_nodes, 3u);
}

// A key whose bound node launches another kernel must not get the executable, in whose node it would set only the
// arguments.
TEST_F(OwnGraphTest, ABoundNodeRunsItsOwnKernel) {
  DeviceBuffer<int> numbers(1);
  const auto graph = [&](const Key& of, int padding) {
    const cudaGraph_t made = captured([&](cudaStream_t on) {
      for (int i = 0; i < padding; ++i) CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
      const auto kernel = of == key("blend") ? blend : blend_otherwise;
      CUDA_OK(launch(kernel, dim3(1), dim3(1), on, numbers.get(), 1, 10, 0));
    });
    return given(made, {bind("graphcache::test::" + std::string(of.label()), 3, 0)});
  };
  for (const int padding : {0, 39}) {
    for (const Sharing sharing :
         {Sharing::kAuto, Sharing::kNever, Sharing::kUpdates, Sharing::kUpdatesAcross, Sharing::kTable}) {
      for (const int max_executables : {1, 64}) {
        SCOPED_TRACE(std::to_string(padding) + ", " + std::to_string(static_cast<int>(sharing)));
        Cache cache(forced(sharing, max_executables));
        for (int i = 0; i < 4; ++i) {
          for (const bool blends : {true, false}) {
            const Key of = key(blends ? "blend" : "blend_otherwise");
            const int value = 3 + i;
            numbers.write({4});
            EXPECT_TRUE(cache.run(of, stream, params(value), [&] { return graph(of, padding); }).ok());
            EXPECT_EQ(numbers.first(), blends ? 10 * 4 + value : (4 ^ 10) * 5 - value);
          }
        }
      }
    }
  }
}

TEST_F(OwnGraphTest, WhatCannotBeBoundIsNamed) {
  const Kept graph(captured([&](cudaStream_t on) {
    CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
    CUDA_OK(cudaMemsetAsync(data.get(), 0, 4, on));
  }));
  const Kept foreign(adding(1));
  auto owner = std::make_shared<int>(1);
  const auto nodes = nodes_of(graph);
  const struct {
    BoundArgument bound;
    const char* text;
  } cases[] = {{bind(nodes[0], 3, 0), "has no argument 3: it has 3"},
               {bind(nodes[0], -1, 0), "has no argument -1"},
               {bind(nodes[0], 0, 0), "argument 0 has 8 bytes, and value 0 has 4"},
               {bind(nodes[0], 2, 1), "there is no value 1: params has 1"},
               {bind(nodes[0], 2, -1), "there is no value -1"},
               {bind(nodes[1], 0, 0), "node 1, set, is no kernel"},
               {bind(nodes_of(foreign)[0], 2, 0), "not one of the graph's own"},
               {bind(cudaGraphNode_t(), 2, 0), "names neither a node nor a kernel"},
               {bind("", 2, 0), "names neither a node nor a kernel"},
               {bind("gemm", 2, 0), "no kernel is called gemm: the graph has graphcache::test::add"},
               {bind("graphcache::test::ad", 2, 0), "no kernel is called graphcache::test::ad"}};
  Cache cache;
  const auto run = [&](const std::vector<BoundArgument>& bound) {
    return cache.run(key("k"), stream, params(1.0f),
                     counting([&] { return Graph{.graph = graph, .bound = bound, .owner = owner}; }));
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    calls = 0;
    EXPECT_ERROR(kInvalidArgument, run({one.bound}), one.text, "Graph::bound[0]", "(\"k\")");
    EXPECT_FALSE(cache.contains(key("k")));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(owner.use_count(), 1);  // Released before the run returns.
  }
  const auto twice = run({bind(nodes[0], 2, 0), bind(kAdd, 2, 0)});
  EXPECT_ERROR(kInvalidArgument, twice, "Graph::bound[1]: node 0", "bound twice");
  expect_sum(0);
  // The failures have left the graph as it was, and the key can be run at once.
  EXPECT_RUN(kInstantiated, run({bind(nodes[0], 2, 0)}));
  EXPECT_EQ(data.read()[1], 1.0f);
}

// ---- Owners ---------------------------------------------------------------------------------------------------------

// Memory of the graph that its owner frees.
class OwnGraphOwnerTest : public OwnGraphTest {
 protected:
  // A graph that copies from the owner's memory, which contains 7s, and adds 350.
  Graph with_memory(unsigned blocks = 2) {
    auto memory = std::make_shared<DeviceBuffer<float>>(kSize, 7.0f);
    const cudaGraph_t graph = captured([&](cudaStream_t on) {
      for (int i = 0; i < 50; ++i) {
        CUDA_OK(launch(axpy, dim3(blocks), kBlock, on, data.get(), memory->get(), kSize, 1.0f));
      }
    });
    const auto at_the_end = [this, memory](void*) mutable {
      memory->write(std::vector<float>(kSize, -1000));  // A later reader would get wrong values.
      memory = nullptr;
      ++released;
    };
    return given(graph, {}, {memory.get(), at_the_end});
  }
  absl::StatusOr<Outcome> run(Cache& cache, const Key& of, unsigned blocks = 2) {
    return cache.run(of, stream, counting([&] { return with_memory(blocks); }));
  }

  // The number of owners that were released, once the cache has noticed that launches are over.
  int released_by(Cache& cache) const {
    settle(cache);
    return released;
  }

  int released = 0;
};

TEST_F(OwnGraphOwnerTest, OutlivesTheExecutable) {
  Cache cache(unshared(1));
  EXPECT_RUN(kInstantiated, run(cache, key("k")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  EXPECT_EQ(released_by(cache), 0);
  EXPECT_RUN(kRestored, run(cache, key("k")));
  expect_sum(2 * 350 + 1);
  EXPECT_RUN(kRestored, run_add(cache, key("other")));
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released_by(cache), 1);
  expect_sum(2 * 350 + 2);
}

// Without a template the next run calls fn again, so the first owner may go.
TEST_F(OwnGraphOwnerTest, IsReleasedWithTheTemplateWhichIsMadeAgain) {
  for (const bool captures_other : {false, true}) {
    SCOPED_TRACE(captures_other);
    reset_sum();
    calls = released = 0;
    Cache cache(unshared({.max_executables = 1, .max_templates = 1}));
    const auto run_other = [&] {
      return captures_other ? run_add(cache, key("other")) : run_own(cache, key("other"), 1);
    };
    for (int i = 1; i <= 3; ++i) {
      EXPECT_RUN(kInstantiated, run(cache, key("k")));
      EXPECT_EQ(released, i - 1);
      EXPECT_RUN(kInstantiated, run_other());
      EXPECT_RUN(kReplayed, run_other());
      EXPECT_FALSE(cache.contains(key("k")));
      EXPECT_EQ(released_by(cache), i);
      EXPECT_EQ(calls, 2 * i);
      expect_sum(static_cast<float>((350 + 2) * i));
    }
    EXPECT_EQ(cache.stats().forgotten, 5u);
    EXPECT_EQ(cache.stats().live_templates, 1u);
    EXPECT_TRUE(says(explain(cache, key("k")), "more templates than Options::max_templates (1)"));
  }
}

TEST_F(OwnGraphOwnerTest, IsReleasedWithOthersThatShare) {
  Cache cache(renting(1));
  EXPECT_RUN(kInstantiated, run(cache, key("a")));
  EXPECT_RUN(kUpdated, run(cache, key("b"), 3));
  EXPECT_TRUE(cache.erase(key("a")));
  EXPECT_EQ(released_by(cache), 1);
  EXPECT_RUN(kReplayed, run(cache, key("b"), 3));
  EXPECT_EQ(released, 1);
  EXPECT_TRUE(cache.erase(key("b")));
  EXPECT_EQ(released_by(cache), 2);
  expect_sum(3 * 350);
}

TEST_F(OwnGraphOwnerTest, IsReleasedByEraseByClearAndByTheEndOfTheCache) {
  {
    Cache cache;
    for (int i = 0; i < 3; ++i) EXPECT_SUCCESS(run(cache, key("k")));
    expect_sum(3 * 350);
    EXPECT_EQ(released, 0);
    EXPECT_TRUE(cache.erase(key("k")));
    EXPECT_EQ(released_by(cache), 1);
    expect_sum(3 * 350);
    for (int i = 0; i < 3; ++i) EXPECT_SUCCESS(run(cache, key("k", i)));
    EXPECT_EQ(released, 1);
    cache.clear();
    EXPECT_EQ(released, 4);
    EXPECT_RUN(kInstantiated, run(cache, key("k")));
  }
  EXPECT_EQ(released, 5);
  expect_sum(7 * 350);
}

// No executable is kept, so the owner goes as soon as its one launch is over.
TEST_F(OwnGraphOwnerTest, IsReleasedAfterADirectRun) {
  Cache cache(unshared(0));
  for (int i = 1; i <= 5; ++i) {
    EXPECT_RUN(kEager, run(cache, key("k")));
    EXPECT_EQ(released_by(cache), i);
  }
  expect_sum(5 * 350);
}

// A run of the key is under way when it is erased. No run waits behind its own launch, so a later one releases it.
TEST_F(OwnGraphOwnerTest, IsReleasedByALaterRunIfOneWasUnderWay) {
  std::atomic<bool> is_erased{false}, is_running{false};
  const auto listener = std::make_shared<Functions>();
  listener->wanted.launches = true;
  listener->on_begin = [&](const CacheEvent& event) {
    if (event.kind == EventKind::kLaunch && event.key == key("k")) {
      is_running = true;
      while (!is_erased) std::this_thread::yield();
    }
    return absl::OkStatus();
  };
  Cache cache({.listeners = {listener}});
  std::thread runner([&] { EXPECT_RUN(kInstantiated, run(cache, key("k"))); });
  while (!is_running) std::this_thread::yield();
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released, 0);
  is_erased = true;
  runner.join();
  expect_sum(350);
  EXPECT_EQ(released_by(cache), 1);
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  expect_sum(350 + 1);
}

TEST_F(OwnGraphOwnerTest, MayDestroyTheGraph) {
  Cache cache(renting(1));
  const auto run_it = [&](int i) {
    return cache.run(key("k", i), stream, [&] {
      const cudaGraph_t graph = adding(1, 8, static_cast<unsigned>(2 + i));
      return Graph{.graph = graph, .owner = std::make_shared<Kept>(graph)};
    });
  };
  EXPECT_RUN(kInstantiated, run_it(0));
  EXPECT_RUN(kUpdated, run_it(1));
  EXPECT_TRUE(cache.erase(key("k", 0)));  // Its graph is the base of the other key's executable.
  EXPECT_RUN(kReplayed, run_it(1));
  expect_sum(3);
}

TEST_F(OwnGraphOwnerTest, MayCallTheCache) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  bool had_other = false;
  const auto with = [&](std::function<void()> at_the_end, bool is_good = true) {
    return [&, at_the_end = std::move(at_the_end), is_good] {
      return given(is_good ? adding(1) : nullptr, {}, {&cache, [at_the_end](void*) { at_the_end(); }});
    };
  };
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, with([&] {
                                        had_other = cache.contains(key("other")) && cache.stats().captures == 2;
                                        EXPECT_RUN(kReplayed, run_add(cache, key("other")));
                                      })));
  expect_sum(2);
  EXPECT_TRUE(cache.erase(key("k")));
  settle(cache);
  EXPECT_TRUE(had_other);
  // Also the owner of a graph that is refused. By then the key is not in use any more.
  bool ran = false;
  EXPECT_FAILURE(kInvalidArgument,
                 cache.run(key("refused"), stream,
                           with([&] { ran = run_own(cache, key("refused"), 1).ok() && cache.erase(key("refused")); },
                                /*is_good=*/false)));
  EXPECT_TRUE(ran);
  expect_sum(4);
}

// Each thread runs its own graph, while others destroy the clones of earlier runs.
TEST_F(OwnGraphOwnerTest, ThreadsThatRunAndErase) {
  constexpr int kThreads = 4, kRounds = 100;
  Cache cache(renting(2));
  std::atomic<int> live{0};
  std::vector<cudaGraph_t> graphs;
  for (int i = 0; i < kThreads; ++i) graphs.push_back(adding(0, 4, static_cast<unsigned>(2 + i)));
  in_threads(kThreads, [&](int i) {
    const Stream own;
    const Kept graph(graphs[static_cast<std::size_t>(i)]);
    for (int round = 0; round < kRounds; ++round) {
      for (int run = 0; run < 3; ++run) {
        EXPECT_SUCCESS(
            cache.run(key("k", i), own, [&] { return Graph{.graph = graph, .owner = counted_owner(live)}; }));
      }
      EXPECT_TRUE(cache.erase(key("k", i)));
    }
    CUDA_OK(cudaStreamSynchronize(own));
  });
  settle(cache);
  EXPECT_EQ(live, 0);
  expect_sum(0);
}

// Threads run two graphs for one key, each from its own place, while others erase the key. Each run adds what its own
// graph adds, and keys that share executables with it are not disturbed.
TEST_F(OwnGraphOwnerTest, TwoGraphsForOneKeyMeetErase) {
  constexpr int kRounds = 150;
  Cache cache(renting(3));
  std::atomic<bool> done{false};
  std::atomic<int> live{0};
  std::atomic<int> failures{0};
  const auto graph = [&](const DeviceBuffer<int>& cell, cudaStream_t on, int nodes, int value) {
    const auto enqueue = [&](cudaStream_t s) {
      for (int i = 0; i < nodes; ++i) CUDA_OK(launch(blend, dim3(1), dim3(1), s, cell.get(), 1, 1, i == 0 ? value : 0));
    };
    return given(capture_graph(on, enqueue), {}, counted_owner(live));
  };
  const auto run_rounds = [&](const DeviceBuffer<int>& cell, const auto& run) {
    const Stream own;
    int wanted = 0;
    for (int i = 0; i < kRounds; ++i) {
      const auto outcome = run(cell, own, &wanted, i);
      failures += outcome.ok() ? 0 : 1;
      int found = -1;
      CUDA_OK(cudaMemcpyAsync(&found, cell.get(), sizeof found, cudaMemcpyDeviceToHost, own));
      CUDA_OK(cudaStreamSynchronize(own));
      if (found != wanted) ++failures;
    }
  };
  // One key, and two places. Each place is of one thread, so its graph may use that thread's memory.
  const auto first = [&](const DeviceBuffer<int>& cell, cudaStream_t on, int* wanted, int) {
    *wanted += 1;
    return cache.run(key("k"), on, [&] { return graph(cell, on, 2, 1); });
  };
  const auto second = [&](const DeviceBuffer<int>& cell, cudaStream_t on, int* wanted, int) {
    *wanted += 10;
    return cache.run(key("k"), on, [&] { return graph(cell, on, 40, 10); });
  };
  const auto others = [&](const DeviceBuffer<int>& cell, cudaStream_t on, int* wanted, int i) {
    *wanted += 100 + i % 4;
    return cache.run(key("m", i % 3 == 0, i % 4), on, [&](cudaStream_t s) {
      const int nodes = i % 3 == 0 ? 2 : 40;
      for (int n = 0; n < nodes; ++n) {
        CUDA_OK(launch(blend, dim3(1), dim3(1), s, cell.get(), 1, 1, n == 0 ? 100 + i % 4 : 0));
      }
    });
  };
  // Made here, because a buffer waits for the device, which would break captures of the threads.
  const DeviceBuffer<int> cells[] = {DeviceBuffer<int>(1), DeviceBuffer<int>(1), DeviceBuffer<int>(1)};
  std::thread eraser([&] {
    while (!done) {
      cache.erase(key("k"));
      std::this_thread::yield();
    }
  });
  in_threads(3, [&](int i) {
    if (i == 0) run_rounds(cells[0], first);
    if (i == 1) run_rounds(cells[1], second);
    if (i == 2) run_rounds(cells[2], others);
  });
  done = true;
  eraser.join();
  EXPECT_EQ(failures, 0);
  cache.clear();
  EXPECT_EQ(live, 0);
  stats = cache.stats();
  EXPECT_EQ(stats.live_executables, 0u);
  EXPECT_EQ(stats.live_templates, 0u);
  EXPECT_EQ(stats.estimated_device_bytes, 0u);
}

// ---- Graphs that CUDA cannot clone ----------------------------------------------------------------------------------

TEST_F(OwnGraphTest, AGraphThatAllocatesIsGivenAway) {
  Cache cache(unshared(1));
  const auto run = [&](Cache& in) { return in.run(key("k"), stream, counting([&] { return given(allocating()); })); };
  EXPECT_RUN(kInstantiated, run(cache));
  for (int i = 0; i < 2; ++i) EXPECT_RUN(kReplayed, run(cache));
  EXPECT_EQ(calls, 1);
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  EXPECT_RUN(kRestored, run(cache));
  for (int i = 0; i < 2; ++i) EXPECT_RUN(kReplayed, run(cache));
  expect_sum(6 * 8 + 1);
  // Direct runs.
  Cache disabled(unshared(0));
  for (int i = 7; i <= 10; ++i) {
    EXPECT_RUN(kEager, run(disabled));
    expect_sum(static_cast<float>(8 * i + 1));
  }
}

TEST_F(OwnGraphTest, AGraphThatCannotBeClonedIsRefusedWithAWord) {
  const Kept graph(allocating());
  for (const int max_executables : {0, 1}) {
    SCOPED_TRACE(max_executables);
    Cache cache(unshared(max_executables));
    calls = 0;
    const auto refused = cache.run(key("k"), stream, counting([&] { return Graph{.graph = graph}; }));
    EXPECT_ERROR(kFailedPrecondition, refused, "Graph::give_away", "(\"k\")");
    EXPECT_FALSE(cache.contains(key("k")));
    EXPECT_EQ(calls, 1);
  }
  expect_sum(0);
  launch_once(graph, stream);
  expect_sum(8);
}

// The condition is always true. Each launch adds 5 there, and `value` by a node of its own.
struct Conditional {
  cudaGraph_t graph;
  cudaGraphNode_t first;
};
Conditional with_condition(cudaGraph_t graph, float* p) {
  const cudaGraphNode_t first = nodes_of(graph)[0];
  cudaGraphNodeParams params_of_node = {};
  CUDA_OK(cudaGraphConditionalHandleCreate(&params_of_node.conditional.handle, graph, 1, cudaGraphCondAssignDefault));
  params_of_node.type = cudaGraphNodeTypeConditional;
  params_of_node.conditional.type = cudaGraphCondTypeIf;
  params_of_node.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  CUDA_OK(cudaGraphAddNode(&node, graph, &first, nullptr, 1, &params_of_node));
#else
  CUDA_OK(cudaGraphAddNode(&node, graph, &first, 1, &params_of_node));
#endif
  add_kernel(params_of_node.conditional.phGraph_out[0], nullptr, add, kGrid, kBlock, p, kSize, 5.0f);
  return {graph, first};
}

TEST_F(OwnGraphTest, AGraphWithAConditionIsGivenAway) {
  Cache cache(unshared(1));
  {
    const Kept kept(with_condition(adding(1, 1), data.get()).graph);
    const auto to_clone = cache.run(key("k"), stream, [&] { return Graph{.graph = kept}; });
    EXPECT_ERROR(kFailedPrecondition, to_clone, "Graph::give_away");
  }
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, params(value), counting([&] {
                       const Conditional made = with_condition(adding(1, 1), data.get());
                       return given(made.graph, {bind(made.first, 2, 0)});
                     }));
  };
  EXPECT_RUN(kInstantiated, run(10));
  EXPECT_RUN(kReplayed, run(10));
  EXPECT_RUN(kPatched, run(20));
  expect_sum(15 + 15 + 25);
  EXPECT_EQ(calls, 1);
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));  // Evicts the key, which is then restored.
  EXPECT_RUN(kRestored, run(1));
  EXPECT_EQ(calls, 2);
  expect_sum(55 + 1 + 6);
  EXPECT_EQ(cache.graph(key("k"))->nodes.size(), 2u);
  EXPECT_TRUE(says(explain(cache, key("k")), "It has an executable"));
  // A direct run.
  Cache disabled(unshared(0));
  for (int i = 0; i < 2; ++i) {
    EXPECT_RUN(kEager,
               disabled.run(key("k"), stream, [&] { return given(with_condition(adding(1, 1), data.get()).graph); }));
  }
  expect_sum(62 + 12);
}

TEST_F(OwnGraphTest, AGraphWithAChildGraphHasSlotsBesideIt) {
  const Kept child(adding(5, 2));
  const Kept graph(adding(1, 1));
  const cudaGraphNode_t first = nodes_of(graph)[0];
  cudaGraphNode_t node = nullptr;
  CUDA_OK(cudaGraphAddChildGraphNode(&node, graph, &first, 1, child));
  Cache cache;
  const auto run = [&](const char* label, float value, BoundArgument bound) {
    return cache.run(key(label), stream, params(value),
                     [&] { return Graph{.graph = graph, .bound = {std::move(bound)}}; });
  };
  EXPECT_ERROR(kInvalidArgument, run("c", 1, bind(nodes_of(child)[0], 2, 0)), "not one of the graph's own");
  EXPECT_RUN(kInstantiated, run("k", 10, bind(kAdd, 2, 0)));
  EXPECT_RUN(kPatched, run("k", 20, bind(kAdd, 2, 0)));
  expect_sum(30 + 10);
}

// The program still has an executable of the graph, and CUDA allows only one.
TEST_F(OwnGraphTest, AGraphThatCannotBeInstantiatedTwice) {
  std::vector<cudaGraphExec_t> own;
  Cache cache;
  bool instantiates = true;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&] {
      ++calls;
      const cudaGraph_t graph = allocating();
      if (instantiates) {
        CUDA_OK(cudaGraphInstantiate(&own.emplace_back(), graph, 0));
      }
      return given(graph);
    });
  };
  const absl::Status failed = run().status();
  EXPECT_EQ(cuda_error(failed), cudaErrorNotSupported) << failed;
  EXPECT_TRUE(mentions_all(failed, {"cudaGraphInstantiate", "(\"k\")"}));
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_EQ(calls, 2);  // The second one was for a direct run.
  expect_sum(0);
  for (cudaGraphExec_t executable : own) CUDA_OK(cudaGraphExecDestroy(executable));
  instantiates = false;
  EXPECT_RUN(kEager, run());
  EXPECT_EQ(cache.stats().eager(EagerReason::kBackoff), 1u);
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  expect_sum(3 * 8);
}

// ---- What fn may do -------------------------------------------------------------------------------------------------

TEST_F(OwnGraphTest, FnMaySynchronizeAndCapture) {
  Cache cache;
  const Stream other;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&] {
    CUDA_OK(add_one(stream));
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_FALSE(is_capturing(stream));
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
    EXPECT_EQ(data.first(), 1.0f);
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
    CUDA_OK(launch(add, kGrid, kBlock, other, data.get(), kSize, 10.0f));
    CUDA_OK(cudaStreamEndCapture(other, &graph));
    return Graph{.graph = graph, .give_away = true};
  }));
  expect_sum(11);
}

TEST_F(OwnGraphTest, FnMayRunOtherKeys) {
  Cache cache({.inline_in_foreign_capture = true});
  const auto run = [&] {
    return cache.run(key("outer"), stream, [&] {
      ++calls;
      EXPECT_RUN(kInstantiated, cache.run(key("inner"), stream, [&](cudaStream_t on) { return add_one(on); }));
      EXPECT_FALSE(cache.contains(key("outer")));
      EXPECT_EQ(cache.stats().captures, 1u);
      return given(captured([&](cudaStream_t on) {
        EXPECT_RUN(kInlined, cache.run(key("inlined"), on, [&](cudaStream_t s) { return add_value(s, 10); }));
      }));
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(calls, 1);
  expect_sum(1 + 20);
}

TEST_F(OwnGraphTest, FnMayEraseItsKey) {
  Cache cache;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&] {
      EXPECT_TRUE(cache.erase(key("k")));
      return Graph{.graph = adding(1), .give_away = true};
    }));
    EXPECT_FALSE(cache.contains(key("k")));
    expect_sum(static_cast<float>(i));
  }
}

TEST_F(OwnGraphTest, FnMayLeaveAnotherDevice) {
  if (device_count() < 2) GTEST_SKIP() << "there is one device";
  Cache cache({.device = 0});
  CUDA_OK(cudaSetDevice(1));
  const auto run = [&] {
    return cache.run(key("k"), stream, [&] {
      int device = -1;
      CUDA_OK(cudaGetDevice(&device));
      EXPECT_EQ(device, 0);
      const cudaGraph_t graph = adding(1);
      CUDA_OK(cudaSetDevice(1));
      return Graph{.graph = graph, .give_away = true};
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  int device = -1;
  CUDA_OK(cudaGetDevice(&device));
  EXPECT_EQ(device, 1);
  CUDA_OK(cudaSetDevice(0));
  expect_sum(2);
}

// Several threads run a cold key: one calls fn, and the others wait for its graph.
TEST_F(OwnGraphTest, ThreadsThatMeetCallFnOnce) {
  constexpr int kThreads = 4;
  Cache cache;
  const Kept graph(adding(1));
  std::atomic<int> called{0};
  in_threads(kThreads, [&](int) {
    EXPECT_SUCCESS(cache.run(key("k"), stream, [&] {
      ++called;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return Graph{.graph = graph};
    }));
  });
  EXPECT_EQ(called, 1);
  expect_sum(kThreads);
}

// ---- Mistakes -------------------------------------------------------------------------------------------------------

// A failed call of fn is not repeated in the run, and the next run makes a new one at once. An exception passes
// through.
TEST_F(OwnGraphTest, AFailureOfFnFailsTheRun) {
  enum class Way { kStatus, kErrorOfCuda, kException };
  for (const int max_executables : {0, 4}) {
    for (const Way way : {Way::kStatus, Way::kErrorOfCuda, Way::kException}) {
      SCOPED_TRACE(std::to_string(max_executables) + ", way " + std::to_string(static_cast<int>(way)));
      reset_sum();
      Cache cache(unshared(max_executables));
      calls = 0;
      auto owner = std::make_shared<int>(1);
      bool fails = true;
      const auto run = [&] {
        return cache.run(key("label"), stream, [&]() -> absl::StatusOr<Graph> {
          ++calls;
          if (fails && way == Way::kStatus) return absl::DataLossError("the plan is gone");
          if (fails && way == Way::kException) throw std::runtime_error("on purpose");
          const cudaGraph_t graph = adding(1);
          if (fails) (void)cudaSetDevice(1000);
          return given(graph, {}, owner);
        });
      };
      for (int i = 1; i <= 2; ++i) {
        if (way == Way::kException) {
          EXPECT_THROW(run().IgnoreError(), std::runtime_error);
        } else {
          const absl::Status failed = run().status();
          EXPECT_TRUE(mentions(failed, "(\"label\")")) << failed;
          if (way == Way::kStatus) {
            EXPECT_ERROR(kDataLoss, failed, "the plan is gone");
          } else {
            EXPECT_EQ(cuda_error(failed), cudaErrorInvalidDevice) << failed;
            (void)cudaGetLastError();
          }
        }
        EXPECT_EQ(calls, i);
        EXPECT_EQ(owner.use_count(), 1);
        EXPECT_EQ(cache.stats().failed, static_cast<std::uint64_t>(i));
      }
      expect_sum(0);
      fails = false;
      EXPECT_TRUE(did(max_executables == 0 ? Outcome::kEager : Outcome::kInstantiated, run()));
      EXPECT_EQ(calls, 3);
      expect_sum(1);
    }
  }
}

TEST_F(OwnGraphTest, NoGraphAndAnEmptyOneAreRefused) {
  for (const int max_executables : {0, 4}) {
    SCOPED_TRACE(max_executables);
    Cache cache(unshared(max_executables));
    auto owner = std::make_shared<int>(1);
    const auto none = cache.run(key("k"), stream, [&] { return Graph{.owner = owner}; });
    EXPECT_ERROR(kInvalidArgument, none, "fn returned no graph", "(\"k\")");
    EXPECT_EQ(owner.use_count(), 1);
    const Kept empty(new_graph());
    const auto without_nodes = cache.run(key("k"), stream, [&] { return Graph{.graph = empty, .owner = owner}; });
    EXPECT_ERROR(kInvalidArgument, without_nodes, "no nodes");
    EXPECT_EQ(owner.use_count(), 1);
    EXPECT_FALSE(cache.contains(key("k")));
    EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
    CUDA_OK(cudaPeekAtLastError());
  }
}

TEST_F(OwnGraphTest, InsideARunsFnItMakesThatRunDirect) {
  Cache cache;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      CUDA_OK(add_one(on));
      const auto inner = run_own(cache, on, key("inner"), 10);
      EXPECT_TRUE(inner.ok()) << inner.status();
      return inner.status();
    }));
    expect_sum(static_cast<float>(11 * i));
  }
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(cache.contains(key("outer")));
  EXPECT_TRUE(cache.contains(key("inner")));
  // A key whose outer run is disabled from the start.
  Cache disabled(unshared(0));
  EXPECT_RUN(kEager, disabled.run(key("outer"), stream, [&](cudaStream_t on) {
    CUDA_OK(add_one(on));
    EXPECT_RUN(kEager, run_own(disabled, on, key("inner"), 10));
  }));
  expect_sum(44);
}

TEST_F(OwnGraphTest, InsideAForeignCaptureItIsRefused) {
  for (const bool inlines : {true, false}) {
    reset_sum();
    Cache cache({.inline_in_foreign_capture = inlines});
    calls = 0;
    absl::Status inside;
    const Kept outer(captured([&](cudaStream_t on) {
      CUDA_OK(add_one(on));
      inside = cache.run(key("k"), on, gives(10)).status();
    }));
    EXPECT_EQ(calls, 0);
    EXPECT_NE(static_cast<cudaGraph_t>(outer), nullptr);
    if (inlines) {
      EXPECT_ERROR(kFailedPrecondition, inside, "child graph node");
    } else {
      EXPECT_FALSE(inside.ok());
    }
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, gives(10)));
    expect_sum(10);
    launch_once(outer, stream);
    expect_sum(11);
  }
}

TEST_F(OwnGraphTest, WarmInsideAnFnIsRefused) {
  Cache cache;
  absl::Status inside;
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    inside = cache.warm(key("inner"), on, counting([] { return Graph(); }));
    return add_one(on);
  }));
  EXPECT_FAILURE(kFailedPrecondition, inside);
  EXPECT_EQ(calls, 0);
  expect_sum(1);
}

}  // namespace
}  // namespace graphcache::test
