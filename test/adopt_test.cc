// Adopted graphs. The results of their kernels are compared with a reference.
#include "graphcache/adopt.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "graphcache/observe.h"
#include "kernels.h"
#include "launch.h"
#include "listeners.h"
#include "support.h"

namespace graphcache::test {
namespace {

// A graph that this object destroys.
class OwnGraph {
 public:
  explicit OwnGraph(cudaGraph_t graph) : graph_(graph) {}
  OwnGraph(OwnGraph&& other) noexcept : graph_(other.give_away()) {}
  ~OwnGraph() {
    if (graph_ == nullptr) return;
    CUDA_OK(cudaGraphDestroy(graph_));
  }
  operator cudaGraph_t() const { return graph_; }  // NOLINT(google-explicit-constructor)
  cudaGraph_t give_away() { return std::exchange(graph_, nullptr); }
  std::vector<cudaGraphNode_t> nodes() const {
    std::size_t count = 0;
    CUDA_OK(cudaGraphGetNodes(graph_, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    CUDA_OK(cudaGraphGetNodes(graph_, nodes.data(), &count));
    return nodes;
  }

 private:
  cudaGraph_t graph_;
};

class AdoptTest : public CacheTest {
 protected:
  OwnGraph captured(const std::function<void(cudaStream_t)>& enqueue) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue(stream);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    return OwnGraph(graph);
  }
  // `nodes` launches, of which the first adds `value` and the others add nothing.
  OwnGraph adding(float value, int nodes = 3, unsigned blocks = 2) {
    return captured([&](cudaStream_t on) {
      for (int i = 0; i < nodes; ++i) {
        CUDA_OK(launch(add, dim3(blocks), kBlock, on, data.get(), kSize, i == 0 ? value : 0.0f));
      }
    });
  }
  // Built by hand: p = 2 * p + value, in two nodes.
  OwnGraph doubling(float value) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    float* p = data.get();
    int n = kSize;
    float factor = 1;
    void* of_axpy[] = {&p, &p, &n, &factor};
    void* of_add[] = {&p, &n, &value};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void*>(axpy);
    params.gridDim = kGrid;
    params.blockDim = kBlock;
    params.kernelParams = of_axpy;
    cudaGraphNode_t first = nullptr, second = nullptr;
    CUDA_OK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &params));
    params.func = reinterpret_cast<void*>(add);
    params.kernelParams = of_add;
    CUDA_OK(cudaGraphAddKernelNode(&second, graph, &first, 1, &params));
    return OwnGraph(graph);
  }
  absl::Status adopt_adding(Cache& cache, const Key& key, float value) { return cache.adopt(key, adding(value)); }
  static EntryInfo entry_of(const Cache& cache, const Key& key) {
    for (const EntryInfo& entry : cache.entries()) {
      if (entry.key == key) return entry;
    }
    ADD_FAILURE() << "there is no entry of " << key.to_string();
    return {};
  }
};

// ---- Runs -----------------------------------------------------------------------------------------------------------

TEST_F(AdoptTest, ACapturedGraphIsReplayedWhenItsOriginalIsGone) {
  Cache cache;
  EXPECT_TRUE(adopt_adding(cache, key("k"), 3).ok());
  EXPECT_TRUE(cache.contains(key("k")));
  expect_sum(0);
  EXPECT_RUN(kRestored, cache.run(key("k"), stream));
  for (int i = 2; i <= 5; ++i) {
    EXPECT_RUN(kReplayed, cache.run(key("k"), stream));
    expect_sum(3.0f * static_cast<float>(i));
  }
  stats = cache.stats();
  EXPECT_EQ(stats.captures, 1u);
  EXPECT_EQ(stats.live_templates, 1u);
  EXPECT_EQ(stats.instantiations, 1u);
  const EntryInfo entry = entry_of(cache, key("k"));
  EXPECT_TRUE(entry.adopted);
  EXPECT_EQ(entry.nodes, 3u);
  EXPECT_TRUE(says(explain(cache, key("k")), "Its graph was adopted"));
}

TEST_F(AdoptTest, AGraphThatWasBuiltByHandIsReplayed) {
  Cache cache;
  const OwnGraph graph = doubling(5);
  EXPECT_TRUE(cache.adopt(key("k"), graph).ok());
  float wanted = 0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(cache.run(key("k"), stream).ok());
    wanted = 2 * wanted + 5;
    expect_sum(wanted);
  }
}

TEST_F(AdoptTest, AStepReplaysIt) {
  Cache cache;
  EXPECT_TRUE(adopt_adding(cache, key("k"), 2).ok());
  auto step = cache.prepare(key("k"), adopted);
  EXPECT_RUN(kRestored, step.run(stream));
  for (int i = 0; i < 4; ++i) EXPECT_RUN(kReplayed, step.run(stream));
  expect_sum(10);
}

TEST_F(AdoptTest, WarmMakesItReady) {
  Cache cache;
  EXPECT_TRUE(adopt_adding(cache, key("k"), 2).ok());
  EXPECT_TRUE(cache.warm(key("k"), stream, adopted).ok());
  EXPECT_EQ(cache.stats().live_executables, 1u);
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream));
  expect_sum(2);
}

TEST_F(AdoptTest, OnTheLegacyAndThePerThreadStream) {
  Cache cache;
  EXPECT_TRUE(adopt_adding(cache, key("k"), 2).ok());
  for (const cudaStream_t on : {cudaStreamLegacy, cudaStreamPerThread, static_cast<cudaStream_t>(nullptr)}) {
    EXPECT_TRUE(cache.run(key("k"), on).ok());
    CUDA_OK(cudaDeviceSynchronize());
  }
  expect_sum(6);
}

TEST_F(AdoptTest, KeysOfOneTopologyShareAnExecutable) {
  Cache cache(renting(1));
  for (int i = 1; i <= 3; ++i) {
    const OwnGraph graph = adding(static_cast<float>(i), 8, static_cast<unsigned>(1 + i));
    EXPECT_TRUE(cache.adopt(key("k", i), graph).ok());
  }
  EXPECT_RUN(kRestored, cache.run(key("k", 1), stream));
  float sum = 1;
  for (int round = 0; round < 3; ++round) {
    for (int i = 3; i >= 1; --i) {
      EXPECT_RUN(kSwitched, cache.run(key("k", i), stream));
      sum += static_cast<float>(i);
      expect_sum(sum);
    }
  }
  EXPECT_EQ(entry_of(cache, key("k", 2)).family, entry_of(cache, key("k", 3)).family);
  EXPECT_EQ(cache.stats().instantiations, 1u);
}

// The first miss of an adopted key has no capture, so a sibling's executable is switched and not updated.
TEST_F(AdoptTest, AKeyThatWasCapturedAndOneThatWasAdoptedShare) {
  Cache cache(renting(1));
  EXPECT_RUN(kInstantiated, cache.run(key("captured"), stream, [&](cudaStream_t on) {
    for (int i = 0; i < 8; ++i) CUDA_OK(launch(add, dim3(2), kBlock, on, data.get(), kSize, i == 0 ? 10.0f : 0.0f));
  }));
  const OwnGraph graph = adding(1, 8, 5);
  EXPECT_TRUE(cache.adopt(key("adopted"), graph).ok());
  EXPECT_RUN(kSwitched, cache.run(key("adopted"), stream));
  expect_sum(11);
  EXPECT_EQ(cache.stats().live_executables, 1u);
}

TEST_F(AdoptTest, EvictedKeysAreRestored) {
  Cache cache(unshared(2));
  for (int i = 1; i <= 4; ++i) EXPECT_TRUE(adopt_adding(cache, key("k", i), static_cast<float>(i)).ok());
  float sum = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 1; i <= 4; ++i) {
      EXPECT_RUN(kRestored, cache.run(key("k", i), stream));
      sum += static_cast<float>(i);
    }
    expect_sum(sum);
  }
  EXPECT_GT(cache.stats().evictions, 10u);
}

TEST_F(AdoptTest, TheirTemplatesStay) {
  Options options = unshared(1);
  options.max_templates = 1;
  Cache cache(options);
  for (int i = 1; i <= 4; ++i) EXPECT_TRUE(adopt_adding(cache, key("k", i), static_cast<float>(i)).ok());
  for (int i = 0; i < 3; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key("captured", i)));
  EXPECT_EQ(cache.stats().forgotten, 2u);
  for (int i = 1; i <= 4; ++i) EXPECT_TRUE(cache.run(key("k", i), stream).ok());
  expect_sum(3 + 1 + 2 + 3 + 4);
  EXPECT_EQ(cache.stats().live_templates, 4u + 1);
}

TEST_F(AdoptTest, RunsOnSeveralStreamsShareItsOneGraph) {
  Cache cache(unshared());
  EXPECT_TRUE(adopt_adding(cache, key("k"), 2).ok());
  const Stream other;
  EXPECT_RUN(kRestored, cache.run(key("k"), stream));
  for (const cudaStream_t on : {static_cast<cudaStream_t>(other), static_cast<cudaStream_t>(stream)}) {
    for (int i = 0; i < 2; ++i) EXPECT_RUN(kReplayed, cache.run(key("k"), on));
  }
  EXPECT_EQ(cache.entries().size(), 1u);
  expect_sum(10);
}

// Captured and adopted keys of one topology share an executable with a parameter table, or have slots that the device
// writes.
TEST_F(AdoptTest, TheDeviceMayUpdateThem) {
  for (const bool with_table : {true, false}) {
    data.write(std::vector<float>(kSize, 0));
    Options options = renting(2);
    force(&options, with_table ? Sharing::kTable : Sharing::kNever);
    force(Patching::kDeviceUpdated);
    Cache cache(options);
    const auto captured_key = [&](float value) {
      return cache.run(key("captured"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
        for (int i = 0; i < 4; ++i) rec.launch(add, {dim3(9), kBlock}, data.get(), kSize, v);
      });
    };
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(cache
                      .adopt(key("k", i), adding(0, 4, static_cast<unsigned>(2 + i)), params(1.0f),
                             {.bound = {bind("graphcache::test::add", 2, 0)}})
                      .ok());
    }
    float sum = 0;
    for (int i = 0; i < 24; ++i) {
      const auto value = static_cast<float>(1 + i / 3);
      EXPECT_TRUE((i % 4 == 3 ? captured_key(value) : cache.run(key("k", i % 4), stream, params(value), adopted)).ok());
      sum += 4 * value;
      expect_sum(sum);
    }
    stats = cache.stats();
    EXPECT_EQ(stats.set_switches > 10, with_table) << to_string(stats);
    EXPECT_EQ(stats.refused_device_updates, 0u);
    EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
  }
}

TEST_F(AdoptTest, AnEntrySaysThatItIsAdopted) {
  Cache cache;
  EXPECT_TRUE(adopt_adding(cache, key("k"), 1).ok());
  EXPECT_TRUE(says(to_string(entry_of(cache, key("k"))), ", adopted"));
  EXPECT_EQ(cache.graph(key("k"))->nodes.size(), 3u);
  EXPECT_TRUE(says(explain(cache, key("k")), "It has a template and no executable"));
  // The key at another place of the program, with values of other types.
  EXPECT_FALSE(cache.run(key("k"), stream, params(2), adopted).ok());
  const std::string text = explain(cache, key("k"));
  const auto at_another = text.find("At another place"), of_adopted = text.find("Its graph was adopted");
  EXPECT_TRUE(says(text, "Its graph was adopted"));
  EXPECT_TRUE(of_adopted == 0 || text[at_another + std::string("At another place of the program:\n").size()] == 'I')
      << text;
}

// ---- Where there is no executable -----------------------------------------------------------------------------------

TEST_F(AdoptTest, AKeyWithoutRoomRunsNevertheless) {
  Cache cache(unshared(1));
  EXPECT_RUN(kInstantiated, run_add(cache, key("pinned")));
  EXPECT_TRUE(cache.pin(key("pinned")));
  EXPECT_TRUE(adopt_adding(cache, key("k"), 10).ok());
  for (int i = 0; i < 3; ++i) EXPECT_RUN(kEager, cache.run(key("k"), stream));
  EXPECT_EQ(cache.stats().eager(EagerReason::kBudget), 3u);
  EXPECT_EQ(cache.stats().live_executables, 1u);
  expect_sum(31);
  cache.unpin(key("pinned"));
  EXPECT_RUN(kRestored, cache.run(key("k"), stream));
  expect_sum(41);
}

TEST_F(AdoptTest, ADisabledCacheRunsThem) {
  Cache cache(unshared(0));
  EXPECT_TRUE(cache.adopt(key("k"), adding(1), params(2.0f), {.bound = {bind("graphcache::test::add", 2, 0)}}).ok());
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, params(static_cast<float>(i)), adopted));
  }
  EXPECT_EQ(cache.stats().eager(EagerReason::kDisabled), 3u);
  expect_sum(3 * (1 + 2 + 3));
  EXPECT_EQ(cache.stats().live_executables, 0u);
}

TEST_F(AdoptTest, VerifyModeLeavesThemAlone) {
  Options options;
  options.verify_every = 1;
  Cache cache(options);
  EXPECT_TRUE(adopt_adding(cache, key("k"), 2).ok());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(cache.run(key("k"), stream).ok());
  expect_sum(8);
  EXPECT_EQ(cache.stats().verified, 0u);
}

// ---- Slots ----------------------------------------------------------------------------------------------------------

TEST_F(AdoptTest, ABoundArgumentFollowsEachRun) {
  Cache cache;
  const OwnGraph graph = adding(7, 3);
  EXPECT_TRUE(cache.adopt(key("k"), graph, params(2.0f), {.bound = {bind(graph.nodes()[0], 2, 0)}}).ok());
  EXPECT_RUN(kRestored, cache.run(key("k"), stream, params(2.0f), adopted));
  expect_sum(2);
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, params(2.0f), adopted));
  expect_sum(4);
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, params(5.0f), adopted));
  expect_sum(9);
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, params(-1.0f), adopted));
  expect_sum(8);
  EXPECT_EQ(cache.stats().patched_nodes, 2u);
  EXPECT_EQ(entry_of(cache, key("k")).slot_nodes, 1u);
  // The adopted graph is unchanged.
  cudaGraphExec_t original = nullptr;
  CUDA_OK(cudaGraphInstantiate(&original, graph, 0));
  CUDA_OK(cudaGraphLaunch(original, stream));
  expect_sum(15);
  CUDA_OK(cudaGraphExecDestroy(original));
}

TEST_F(AdoptTest, ANameMeansAllKernelsThatHaveIt) {
  DeviceBuffer<float> other(kSize);
  const auto enqueue = [&](cudaStream_t on) {
    CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
    CUDA_OK(launch(axpy, kGrid, kBlock, on, data.get(), other.get(), kSize, 2.0f));
    CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
  };
  Cache cache;
  const OwnGraph graph = captured(enqueue);
  const auto name = [&](int node) {
    Cache reader;
    EXPECT_TRUE(reader.adopt(key("r"), graph).ok());
    return reader.graph(key("r"))->nodes[static_cast<std::size_t>(node)].name.substr(std::string("kernel ").size());
  };
  EXPECT_TRUE(cache
                  .adopt(key("k"), graph, params(3.0f, static_cast<const float*>(other.get()), 1.0f),
                         {.bound = {bind("kernel " + name(0), 2, 0), bind("graphcache::test::axpy", 1, 1),
                                    bind(name(1), 3, 2)}})
                  .ok());
  other.write(std::vector<float>(kSize, 10));
  DeviceBuffer<float> another(kSize, 100);
  float sum = 0;
  for (int i = 0; i < 6; ++i) {
    const float value = static_cast<float>(i), factor = static_cast<float>(2 + i % 3);
    const float* const from = i % 2 == 0 ? other.get() : another.get();
    EXPECT_TRUE(cache.run(key("k"), stream, params(value, from, factor), adopted).ok());
    sum += 2 * value + factor * (i % 2 == 0 ? 10.0f : 100.0f);
    expect_sum(sum);
  }
  EXPECT_EQ(entry_of(cache, key("k")).slot_nodes, 3u);
}

TEST_F(AdoptTest, SiblingsWithSlotsSwitch) {
  Cache cache(renting(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(cache
                    .adopt(key("k", i), adding(0, 8, static_cast<unsigned>(2 + i)), params(1.0f),
                           {.bound = {bind("graphcache::test::add", 2, 0)}})
                    .ok());
  }
  float sum = 0;
  for (int i = 0; i < 12; ++i) {
    const auto value = static_cast<float>(1 + i / 2);
    EXPECT_TRUE(cache.run(key("k", i * 7 % 3), stream, params(value), adopted).ok());
    sum += 8 * value;
    expect_sum(sum);
  }
  EXPECT_EQ(cache.stats().instantiations, 1u);
}

TEST_F(AdoptTest, WhatCannotBeBoundIsNamed) {
  const OwnGraph graph = captured([&](cudaStream_t on) {
    CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
    CUDA_OK(cudaMemsetAsync(data.get(), 0, 4, on));
  });
  const OwnGraph foreign = adding(1);
  const auto nodes = graph.nodes();
  const struct {
    BoundArgument bound;
    const char* text;
  } cases[] = {{bind(nodes[0], 3, 0), "has no argument 3: it has 3"},
               {bind(nodes[0], -1, 0), "has no argument -1"},
               {bind(nodes[0], 0, 0), "argument 0 has 8 bytes, and value 0 has 4"},
               {bind(nodes[0], 2, 1), "there is no value 1: params has 1"},
               {bind(nodes[0], 2, -1), "there is no value -1"},
               {bind(nodes[1], 0, 0), "node 1, set, is no kernel"},
               {bind(foreign.nodes()[0], 2, 0), "not one of the graph's own"},
               {bind("gemm", 2, 0), "no kernel is called gemm"},
               {bind("graphcache::test::ad", 2, 0), "no kernel is called graphcache::test::ad"}};
  Cache cache;
  for (const auto& one : cases) {
    const absl::Status status = cache.adopt(key("k"), graph, params(1.0f), {.bound = {one.bound}});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(mentions(status, one.text)) << status;
    EXPECT_TRUE(mentions(status, "Adoption::bound[0]")) << status;
    EXPECT_TRUE(mentions(status, "(\"k\")")) << status;
    EXPECT_FALSE(cache.contains(key("k")));
  }
  const absl::Status twice = cache.adopt(key("k"), graph, params(1.0f),
                                         {.bound = {bind(nodes[0], 2, 0), bind("graphcache::test::add", 2, 0)}});
  EXPECT_TRUE(mentions(twice, "Adoption::bound[1]: node 0")) << twice;
  EXPECT_TRUE(mentions(twice, "bound twice")) << twice;
  EXPECT_TRUE(cache.adopt(key("k"), graph, params(1.0f), {.bound = {bind(nodes[0], 2, 0)}}).ok());
}

// ---- Owners ---------------------------------------------------------------------------------------------------------

// Memory of the graph that its owner frees.
class AdoptOwnerTest : public AdoptTest {
 protected:
  // A graph that copies from the owner's memory, which contains 7s, and that memory.
  std::pair<OwnGraph, std::shared_ptr<void>> with_memory() {
    auto memory = std::make_shared<DeviceBuffer<float>>(kSize, 7.0f);
    OwnGraph graph = captured([&](cudaStream_t on) {
      for (int i = 0; i < 50; ++i) {
        CUDA_OK(launch(axpy, kGrid, kBlock, on, data.get(), memory->get(), kSize, 1.0f));
      }
    });
    return {std::move(graph), std::shared_ptr<void>(memory.get(), [this, memory](void*) mutable {
              memory->write(std::vector<float>(kSize, -1000));  // a later reader would get wrong values
              memory = nullptr;
              ++released;
            })};
  }

  int released = 0;
};

TEST_F(AdoptOwnerTest, IsReleasedByEraseWhenNothingIsInFlight) {
  Cache cache;
  auto [graph, owner] = with_memory();
  EXPECT_TRUE(cache.adopt(key("k"), graph, {.owner = std::move(owner)}).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(cache.run(key("k"), stream).ok());
  EXPECT_EQ(released, 0);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released, 1);
  expect_sum(3 * 50 * 7);
}

TEST_F(AdoptOwnerTest, OutlivesTheExecutable) {
  Cache cache(unshared(1));
  auto [graph, owner] = with_memory();
  EXPECT_TRUE(cache.adopt(key("k"), graph, {.owner = std::move(owner)}).ok());
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  EXPECT_EQ(released, 0);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released, 1);
  expect_sum(50 * 7 + 1);
}

TEST_F(AdoptOwnerTest, IsReleasedWithOthersThatShare) {
  Cache cache(renting(1));
  auto [first, first_owner] = with_memory();
  auto [second, second_owner] = with_memory();
  EXPECT_TRUE(cache.adopt(key("a"), first, {.owner = std::move(first_owner)}).ok());
  EXPECT_TRUE(cache.adopt(key("b"), second, {.owner = std::move(second_owner)}).ok());
  EXPECT_TRUE(cache.run(key("a"), stream).ok());
  EXPECT_RUN(kSwitched, cache.run(key("b"), stream));
  EXPECT_TRUE(cache.erase(key("a")));
  EXPECT_EQ(released, 1);
  EXPECT_TRUE(cache.run(key("b"), stream).ok());
  EXPECT_TRUE(cache.erase(key("b")));
  EXPECT_EQ(released, 2);
  expect_sum(3 * 50 * 7);
}

TEST_F(AdoptOwnerTest, IsReleasedByClearAndByTheEndOfTheCache) {
  {
    Cache cache;
    for (int i = 0; i < 3; ++i) {
      auto [graph, owner] = with_memory();
      EXPECT_TRUE(cache.adopt(key("k", i), graph, {.owner = std::move(owner)}).ok());
      EXPECT_TRUE(cache.run(key("k", i), stream).ok());
    }
    cache.clear();
    EXPECT_EQ(released, 3);
    auto [graph, owner] = with_memory();
    EXPECT_TRUE(cache.adopt(key("k"), graph, {.owner = std::move(owner)}).ok());
    EXPECT_TRUE(cache.run(key("k"), stream).ok());
  }
  EXPECT_EQ(released, 4);
  expect_sum(4 * 50 * 7);
}

// A run of the key is under way when it is erased. No run waits behind its own launch. The next run that is not a hit
// waits, before it enqueues anything.
TEST_F(AdoptOwnerTest, IsReleasedByALaterRunIfOneWasUnderWay) {
  std::atomic<bool> is_erased{false}, is_running{false};
  Options options;
  const auto listener = std::make_shared<Functions>();
  listener->wanted.launches = true;
  listener->on_begin = [&](const CacheEvent& event) {
    if (event.kind == EventKind::kLaunch && event.key == key("k")) {
      is_running = true;
      while (!is_erased) std::this_thread::yield();
    }
    return absl::OkStatus();
  };
  options.listeners = {listener};
  Cache cache(options);
  auto [graph, owner] = with_memory();
  EXPECT_TRUE(cache.adopt(key("k"), graph, {.owner = std::move(owner)}).ok());
  std::thread runner([&] { EXPECT_RUN(kRestored, cache.run(key("k"), stream)); });
  while (!is_running) std::this_thread::yield();
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released, 0);
  is_erased = true;
  runner.join();
  EXPECT_EQ(released, 0);
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  EXPECT_EQ(released, 1);
  expect_sum(50 * 7 + 1);
}

TEST_F(AdoptOwnerTest, MayDestroyTheGraph) {
  Cache cache(renting(1));
  for (int i = 0; i < 2; ++i) {
    cudaGraph_t graph = adding(1, 8).give_away();
    std::shared_ptr<void> owner(graph, [](void* of) { CUDA_OK(cudaGraphDestroy(static_cast<cudaGraph_t>(of))); });
    EXPECT_TRUE(cache.adopt(key("k", i), graph, {.owner = std::move(owner)}).ok());
  }
  EXPECT_TRUE(cache.run(key("k", 0), stream).ok());
  EXPECT_RUN(kSwitched, cache.run(key("k", 1), stream));
  EXPECT_TRUE(cache.erase(key("k", 0)));  // its graph is the base of the other key's executable
  EXPECT_RUN(kReplayed, cache.run(key("k", 1), stream));
  expect_sum(3);
}

TEST_F(AdoptOwnerTest, MayCallTheCache) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  bool had_other = false;
  std::shared_ptr<void> owner(&cache, [&](void*) {
    had_other = cache.contains(key("other")) && cache.stats().captures == 2;
    EXPECT_RUN(kReplayed, run_add(cache, key("other")));
  });
  EXPECT_TRUE(cache.adopt(key("k"), adding(1), {.owner = std::move(owner)}).ok());
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_TRUE(had_other);
  // Also an owner given with a graph that is refused, and one of the key whose run is under way.
  bool ran = false;
  std::shared_ptr<void> refused(&cache, [&](void*) { ran = run_add(cache, key("other")).ok(); });
  EXPECT_FALSE(cache.adopt(key("other"), nullptr, {.owner = std::move(refused)}).ok());
  EXPECT_TRUE(ran);
  ran = false;
  std::shared_ptr<void> of_empty(&cache, [&](void*) { ran = absl::IsNotFound(cache.run(key("k"), stream).status()); });
  EXPECT_FALSE(cache.adopt(key("k"), nullptr, {.owner = std::move(of_empty)}).ok());
  EXPECT_TRUE(ran);
}

TEST_F(AdoptOwnerTest, StaysTheCallersIfTheGraphIsRefused) {
  Cache cache;
  auto owner = std::make_shared<int>(1);
  EXPECT_TRUE(absl::IsInvalidArgument(cache.adopt(key("k"), nullptr, {.owner = owner})));
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_TRUE(adopt_adding(cache, key("k"), 1).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(cache.adopt(key("k"), adding(1), {.owner = owner})));
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_F(AdoptOwnerTest, ThreadsThatRunAndEraseAndAdoptAgain) {
  constexpr int kThreads = 4, kRounds = 60;
  Cache cache(renting(2));
  std::atomic<int> live{0};
  std::vector<OwnGraph> graphs;
  for (int i = 0; i < kThreads; ++i) graphs.push_back(adding(0, 4, static_cast<unsigned>(2 + i)));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Stream own;
      for (int round = 0; round < kRounds; ++round) {
        ++live;
        std::shared_ptr<void> owner(&live, [](void* count) { --*static_cast<std::atomic<int>*>(count); });
        EXPECT_TRUE(cache.adopt(key("k", i), graphs[static_cast<std::size_t>(i)], {.owner = std::move(owner)}).ok());
        for (int run = 0; run < 3; ++run) EXPECT_TRUE(cache.run(key("k", i), own).ok());
        EXPECT_TRUE(cache.erase(key("k", i)));
      }
      CUDA_OK(cudaStreamSynchronize(own));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live, 0);
  expect_sum(0);
}

// ---- Graphs that CUDA cannot clone ----------------------------------------------------------------------------------

TEST_F(AdoptTest, AGraphThatAllocatesIsGivenAway) {
  OwnGraph graph = captured([&](cudaStream_t on) {
    void* memory = nullptr;
    CUDA_OK(cudaMallocAsync(&memory, kSize * sizeof(float), on));
    CUDA_OK(launch(fill, kGrid, kBlock, on, static_cast<float*>(memory), kSize, 4.0f));
    CUDA_OK(launch(axpy, kGrid, kBlock, on, data.get(), static_cast<const float*>(memory), kSize, 2.0f));
    CUDA_OK(cudaFreeAsync(memory, on));
  });
  Cache cache(unshared(1));
  EXPECT_TRUE(cache.adopt(key("k"), graph, {.take_graph = true}).ok());
  graph.give_away();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(cache.run(key("k"), stream).ok());
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(cache.run(key("k"), stream).ok());
  expect_sum(6 * 8 + 1);
}

TEST_F(AdoptTest, AGraphThatCannotBeClonedIsRefusedWithAWord) {
  const OwnGraph graph = captured([&](cudaStream_t on) {
    void* memory = nullptr;
    CUDA_OK(cudaMallocAsync(&memory, 64, on));
    CUDA_OK(cudaFreeAsync(memory, on));
    CUDA_OK(add_one(on));
  });
  Cache cache;
  const absl::Status refused = cache.adopt(key("k"), graph);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(mentions(refused, "Adoption::take_graph")) << refused;
  EXPECT_TRUE(mentions(refused, "(\"k\")")) << refused;
  EXPECT_FALSE(cache.contains(key("k")));
  cudaGraphExec_t own = nullptr;
  CUDA_OK(cudaGraphInstantiate(&own, graph, 0));
  CUDA_OK(cudaGraphLaunch(own, stream));
  expect_sum(1);
  CUDA_OK(cudaGraphExecDestroy(own));
}

// Two rounds with a condition that is always true. Each launch adds 5 there, and 1 by a node of its own.
TEST_F(AdoptTest, AGraphWithAConditionIsGivenAway) {
  OwnGraph graph = captured([&](cudaStream_t on) { CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f)); });
  cudaGraphNodeParams params_of_node = {};
  CUDA_OK(cudaGraphConditionalHandleCreate(&params_of_node.conditional.handle, graph, 1, cudaGraphCondAssignDefault));
  params_of_node.type = cudaGraphNodeTypeConditional;
  params_of_node.conditional.type = cudaGraphCondTypeIf;
  params_of_node.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  const cudaGraphNode_t first = graph.nodes()[0];
#if CUDART_VERSION >= 13000
  CUDA_OK(cudaGraphAddNode(&node, graph, &first, nullptr, 1, &params_of_node));
#else
  CUDA_OK(cudaGraphAddNode(&node, graph, &first, 1, &params_of_node));
#endif
  float* p = data.get();
  int n = kSize;
  float value = 5;
  void* arguments[] = {&p, &n, &value};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(add);
  kernel.gridDim = kGrid;
  kernel.blockDim = kBlock;
  kernel.kernelParams = arguments;
  cudaGraphNode_t in_body = nullptr;
  CUDA_OK(cudaGraphAddKernelNode(&in_body, params_of_node.conditional.phGraph_out[0], nullptr, 0, &kernel));

  Cache cache(unshared(1));
  const absl::Status to_clone = cache.adopt(key("k"), graph);
  EXPECT_TRUE(mentions(to_clone, "Adoption::take_graph")) << to_clone;
  EXPECT_TRUE(cache.adopt(key("k"), graph, params(1.0f), {.take_graph = true, .bound = {bind(first, 2, 0)}}).ok());
  graph.give_away();
  for (int i = 1; i <= 3; ++i) EXPECT_TRUE(cache.run(key("k"), stream, params(10.0f), adopted).ok());
  expect_sum(3 * 15);
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));  // evicts the adopted key, which is then restored
  EXPECT_RUN(kRestored, cache.run(key("k"), stream, params(1.0f), adopted));
  expect_sum(3 * 15 + 1 + 6);
  EXPECT_EQ(cache.graph(key("k"))->nodes.size(), 2u);
  EXPECT_TRUE(says(explain(cache, key("k")), "It has an executable"));
}

TEST_F(AdoptTest, AGraphWithAChildGraphHasSlotsBesideIt) {
  const OwnGraph child = adding(5, 2);
  OwnGraph graph = adding(1, 1);
  const cudaGraphNode_t first = graph.nodes()[0];
  cudaGraphNode_t node = nullptr;
  CUDA_OK(cudaGraphAddChildGraphNode(&node, graph, &first, 1, child));
  Cache cache;
  EXPECT_TRUE(cache.adopt(key("k"), graph, params(1.0f), {.bound = {bind("graphcache::test::add", 2, 0)}}).ok());
  const absl::Status of_child = cache.adopt(key("c"), graph, params(1.0f), {.bound = {bind(child.nodes()[0], 2, 0)}});
  EXPECT_TRUE(mentions(of_child, "not one of the graph's own")) << of_child;
  EXPECT_RUN(kRestored, cache.run(key("k"), stream, params(10.0f), adopted));
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, params(20.0f), adopted));
  expect_sum(30 + 10);
}

// The program still has an executable of the graph, and CUDA allows only one.
TEST_F(AdoptTest, AGraphThatCannotBeInstantiatedTwice) {
  OwnGraph graph = captured([&](cudaStream_t on) {
    void* memory = nullptr;
    CUDA_OK(cudaMallocAsync(&memory, 64, on));
    CUDA_OK(cudaFreeAsync(memory, on));
    CUDA_OK(add_one(on));
  });
  cudaGraphExec_t own = nullptr;
  CUDA_OK(cudaGraphInstantiate(&own, graph, 0));
  Cache cache;
  EXPECT_TRUE(cache.adopt(key("k"), graph, {.take_graph = true}).ok());
  graph.give_away();
  const absl::Status failed = cache.run(key("k"), stream).status();
  EXPECT_EQ(cuda_error(failed), cudaErrorNotSupported) << failed;
  EXPECT_TRUE(mentions(failed, "cudaGraphInstantiate")) << failed;
  EXPECT_TRUE(mentions(failed, "(\"k\")")) << failed;
  EXPECT_TRUE(cache.contains(key("k")));
  CUDA_OK(cudaGraphLaunch(own, stream));
  expect_sum(1);
  CUDA_OK(cudaGraphExecDestroy(own));
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream));
  expect_sum(4);
}

// ---- Mistakes -------------------------------------------------------------------------------------------------------

TEST_F(AdoptTest, AGraphOfAnotherDeviceIsRefused) {
  if (device_count() < 2) GTEST_SKIP() << "there is one device";
  OtherDevice<float> other(kSize);
  CUDA_OK(cudaSetDevice(1));
  {
    const Stream on;
    const auto capture_there = [&](const std::function<void()>& enqueue) {
      cudaGraph_t graph = nullptr;
      CUDA_OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
      enqueue();
      CUDA_OK(cudaStreamEndCapture(on, &graph));
      return OwnGraph(graph);
    };
    const OwnGraph kernels =
        capture_there([&] { CUDA_OK(launch(add, kGrid, kBlock, on, other.memory().get(), kSize, 1.0f)); });
    const OwnGraph sets = capture_there([&] { CUDA_OK(cudaMemsetAsync(other.memory().get(), 0, 16, on)); });
    CUDA_OK(cudaSetDevice(0));
    Cache cache;
    for (const cudaGraph_t graph : {static_cast<cudaGraph_t>(kernels), static_cast<cudaGraph_t>(sets)}) {
      const absl::Status refused = cache.adopt(key("k"), graph);
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_TRUE(mentions(refused, "belongs to another device")) << refused;
    }
    CUDA_OK(cudaSetDevice(1));
  }
  CUDA_OK(cudaSetDevice(0));
}

// If an adoption and a capture of one key meet, one of them gets the key. The adoption takes longer and begins first.
TEST_F(AdoptTest, AnAdoptionAndACaptureOfOneKeyMeet) {
  Cache cache;
  const OwnGraph graph = adding(1, 300);
  int captures_won = 0;
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    absl::Status of_adopt;
    std::atomic<bool> begun{false};
    std::thread adopter([&] {
      begun = true;
      of_adopt = cache.adopt(key("k", i), graph);
    });
    while (!begun) std::this_thread::yield();
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i);
    while (std::chrono::steady_clock::now() < until) continue;
    const absl::Status of_run = run_add(cache, key("k", i)).status();
    adopter.join();
    EXPECT_NE(of_adopt.ok(), of_run.ok()) << of_adopt << " and " << of_run;
    captures_won += of_run.ok() ? 1 : 0;
    EXPECT_TRUE(of_run.ok() || absl::IsAlreadyExists(of_run)) << of_run;
    EXPECT_TRUE(of_adopt.ok() || absl::IsAlreadyExists(of_adopt)) << of_adopt;
  }
  expect_sum(static_cast<float>(captures_won));
  stats = cache.stats();
  EXPECT_EQ(stats.captures, stats.live_templates);
}

TEST_F(AdoptTest, AnAdoptionDuringACaptureOfTheKeyWins) {
  Cache cache;
  const OwnGraph graph = adding(10);
  const absl::Status of_run = cache
                                  .run(key("k"), stream,
                                       [&](cudaStream_t on) {
                                         std::thread([&] { EXPECT_TRUE(cache.adopt(key("k"), graph).ok()); }).join();
                                         return add_one(on);
                                       })
                                  .status();
  EXPECT_TRUE(absl::IsAlreadyExists(of_run)) << of_run;
  EXPECT_RUN(kRestored, cache.run(key("k"), stream));
  expect_sum(10);
  EXPECT_EQ(cache.stats().capture_failures, 1u);
}

TEST_F(AdoptTest, AKeyHasOneGraph) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("captured")));
  const absl::Status of_captured = adopt_adding(cache, key("captured"), 1);
  EXPECT_TRUE(absl::IsAlreadyExists(of_captured)) << of_captured;
  EXPECT_TRUE(mentions(of_captured, "(\"captured\")")) << of_captured;
  EXPECT_TRUE(adopt_adding(cache, key("adopted"), 10).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(adopt_adding(cache, key("adopted"), 10)));
  const auto run = run_add(cache, key("adopted"));
  EXPECT_TRUE(absl::IsAlreadyExists(run.status())) << run.status();
  EXPECT_TRUE(mentions(run.status(), "adopted graph")) << run.status();
  EXPECT_RUN(kRestored, cache.run(key("adopted"), stream));
  EXPECT_RUN(kReplayed, run_add(cache, key("captured")));
  expect_sum(12);
  EXPECT_TRUE(cache.erase(key("adopted")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("adopted")));
}

TEST_F(AdoptTest, KeysWithoutAnAdoptedGraphAreNotFound) {
  Cache cache;
  const auto unknown = cache.run(key("k"), stream);
  EXPECT_TRUE(absl::IsNotFound(unknown.status())) << unknown.status();
  EXPECT_TRUE(mentions(unknown.status(), "(\"k\")")) << unknown.status();
  EXPECT_TRUE(cache.adopt(key("k"), adding(1), params(2.0f), {.bound = {bind("graphcache::test::add", 2, 0)}}).ok());
  EXPECT_TRUE(absl::IsNotFound(cache.run(key("k"), stream).status()));
  const auto other_types = cache.run(key("k"), stream, params(2), adopted);
  EXPECT_TRUE(absl::IsNotFound(other_types.status())) << other_types.status();
  EXPECT_TRUE(mentions(other_types.status(), "values of these types")) << other_types.status();
  EXPECT_RUN(kRestored, cache.run(key("k"), stream, params(2.0f), adopted));
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_TRUE(absl::IsNotFound(cache.run(key("k"), stream, params(2.0f), adopted).status()));
  expect_sum(6);
}

TEST_F(AdoptTest, NoGraphAndAnEmptyOneAreRefused) {
  Cache cache;
  const absl::Status none = cache.adopt(key("k"), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  EXPECT_TRUE(mentions(none, "(\"k\")")) << none;
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaGraphCreate(&graph, 0));
  const OwnGraph empty(graph);
  const absl::Status without_nodes = cache.adopt(key("k"), empty);
  EXPECT_TRUE(absl::IsInvalidArgument(without_nodes)) << without_nodes;
  EXPECT_TRUE(mentions(without_nodes, "no nodes")) << without_nodes;
}

TEST_F(AdoptTest, InsideARunsFnItMakesThatRunDirect) {
  Cache cache;
  EXPECT_TRUE(adopt_adding(cache, key("inner"), 10).ok());
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      CUDA_OK(add_one(on));
      EXPECT_TRUE(cache.run(key("inner"), on).ok());
    }));
    expect_sum(static_cast<float>(11 * i));
  }
  EXPECT_FALSE(cache.contains(key("outer")));
}

TEST_F(AdoptTest, InsideAForeignCaptureItIsRefused) {
  Options options;
  options.inline_in_foreign_capture = true;
  Cache cache(options);
  EXPECT_TRUE(adopt_adding(cache, key("k"), 10).ok());
  absl::Status inside;
  const OwnGraph outer = captured([&](cudaStream_t on) {
    CUDA_OK(add_one(on));
    inside = cache.run(key("k"), on).status();
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(inside)) << inside;
  EXPECT_TRUE(mentions(inside, "child graph node")) << inside;
  EXPECT_NE(static_cast<cudaGraph_t>(outer), nullptr);
  EXPECT_RUN(kRestored, cache.run(key("k"), stream));
  expect_sum(10);
}

}  // namespace
}  // namespace graphcache::test
