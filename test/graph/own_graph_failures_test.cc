// Keys of own graphs with failing calls and with launches in flight, and what they leave alive. On hostrt.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "cache_support.h"
#include "failing_calls.h"
#include "graph_support.h"
#include "graphcache/hostrt.h"

namespace graphcache::test {
namespace {

constexpr char kNameOfAdd[] = "graphcache::test::add";

// The runtime's name of the second one is that of a kernel in an anonymous namespace, which begins with a parenthesis.
void add_in_namespace(float* p, int n, float v) { add(p, n, v); }
const bool registered = hostrt::internal::register_kernel("_ZN12_GLOBAL__N_13addEPfif", add_in_namespace);

class OwnGraphFailuresTest : public CacheTest {
 protected:
  void SetUp() override { hostrt::reset_calls(); }
  void TearDown() override {
    hostrt::clear_failures();
    CacheTest::TearDown();
  }
  // Launches of which the first adds `value` and the others add nothing. Built by hand, so that a failing call is one
  // of the library's.
  cudaGraph_t adding(float value, int nodes = 8, unsigned blocks = 2) {
    const cudaGraph_t graph = new_graph();
    cudaGraphNode_t last = nullptr;
    for (int i = 0; i < nodes; ++i) {
      last = add_kernel(graph, last, add, blocks, kBlock, data.get(), kSize, i == 0 ? value : 0.0f);
    }
    return graph;
  }
  // What a graph adds now.
  float added_by(cudaGraph_t graph) {
    const float before = data.first();
    launch_once(graph, stream);
    return data.first() - before;
  }
  // An owner that checks, when it is released, whether work of the stream is in flight.
  std::shared_ptr<void> owner() {
    return {&released, [this](void*) {
              ++released;
              EXPECT_NE(cudaStreamQuery(stream), cudaErrorNotReady) << "released with a launch in flight";
            }};
  }
  absl::StatusOr<Outcome> run_own(Cache& cache, const Key& of, float value, unsigned blocks = 2, int nodes = 8) {
    return cache.run(of, stream, [&] {
      ++calls;
      return given(adding(value, nodes, blocks), {}, owner());
    });
  }
  // A run of the program's graph with 100 as the value of the argument.
  absl::StatusOr<Outcome> run_bound(Cache& cache, cudaGraph_t graph, const BoundArgument& bound) {
    return cache.run(key("k"), stream, params(100.0f), [&] { return Graph{.graph = graph, .bound = {bound}}; });
  }
  // A key of another stream, which is captured.
  absl::StatusOr<Outcome> run_elsewhere(Cache& cache, const char* label = "other") {
    return cache.run(key(label), elsewhere, [&](cudaStream_t on) { return add_one(on); });
  }
  // The number of owners that were released, once the launches are over and the library has noticed it.
  int released_by(Cache& cache) {
    CUDA_OK(hostrt::release(stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    settle(cache);
    return released;
  }

  const Stream elsewhere;
  const hostrt::Ledger before = hostrt::ledger();  // A test that loses the context leaves objects behind.
  int released = 0;
};

// ---- Owners of launches in flight -----------------------------------------------------------------------------------

// Later runs that are no hits release it, or a call that destroys.
TEST_F(OwnGraphFailuresTest, AnOwnerWaitsForALaunchInFlight) {
  for (const bool by_runs : {false, true}) {
    SCOPED_TRACE(by_runs);
    released = 0;
    Cache cache;
    hostrt::hold(stream);
    EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 1));
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    EXPECT_TRUE(cache.erase(key("k")));
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);  // erase() has waited for a short time only.
    // Neither is it released by other runs as long as the launch is in flight.
    EXPECT_RUN(kInstantiated, run_elsewhere(cache));
    EXPECT_FALSE(cache.erase(key("k")));
    EXPECT_EQ(released, 0);
    if (by_runs) {
      CUDA_OK(hostrt::release(stream));
      for (const char* const label : {"first", "second"}) EXPECT_RUN(kInstantiated, run_elsewhere(cache, label));
      EXPECT_EQ(released, 1);
    }
    EXPECT_EQ(released_by(cache), 1);
  }
  expect_sum(6);
}

TEST_F(OwnGraphFailuresTest, ClearAndTheEndOfTheCacheWaitForALaunchInFlight) {
  {
    Cache cache;
    hostrt::hold(stream);
    EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 1));
    cache.clear();
    EXPECT_EQ(released, 1);
    hostrt::hold(stream);
    EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 10));
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  }
  EXPECT_EQ(released, 2);
  expect_sum(11);
}

// The executable that was launched has another key by now, so the state of the key that is erased does not show the
// launch. A parameter table was made by its first key, and the others write their sets into it.
TEST_F(OwnGraphFailuresTest, AnOwnerWaitsForTheLaunchOfAnExecutableThatASiblingHas) {
  const struct {
    const char* name;
    Sharing sharing;
    bool captures_the_second, erases_the_first;
  } cases[] = {{"by updates", Sharing::kUpdates, false, true},
               {"by updates, with a captured key", Sharing::kUpdates, true, true},
               {"by a table", Sharing::kTable, false, false},
               {"by a table, which the erased key made", Sharing::kTable, false, true}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    reset_sum();
    released = 0;
    Cache cache(forced(one.sharing, 1));
    float sum = 0;
    const auto run = [&](bool is_first) {
      sum += is_first ? 1 : 10;
      if (is_first) return run_own(cache, key("first"), 1);
      if (!one.captures_the_second) return run_own(cache, key("second"), 10, 5);
      return cache.run(key("second"), stream, [&](cudaStream_t on) {
        for (int i = 0; i < 8; ++i) CUDA_OK(launch(add, dim3(5), kBlock, on, data.get(), kSize, i == 0 ? 10.0f : 0.0f));
      });
    };
    EXPECT_RUN(kInstantiated, run(true));
    EXPECT_RUN(kUpdated, run(false));
    EXPECT_RUN(kSwitched, run(true));
    if (!one.erases_the_first) {
      EXPECT_RUN(kSwitched, run(false));
    }
    EXPECT_EQ(cache.stats().set_switches > 0, one.sharing == Sharing::kTable);
    hostrt::hold(stream);
    EXPECT_RUN(kReplayed, run(one.erases_the_first));
    EXPECT_RUN(kSwitched, run(!one.erases_the_first));
    EXPECT_TRUE(cache.erase(key(one.erases_the_first ? "first" : "second")));
    if (one.sharing == Sharing::kUpdates) {
      EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
      EXPECT_EQ(released, 0);
      EXPECT_RUN(kReplayed, run(false));
    }
    if (cudaStreamQuery(stream) == cudaErrorNotReady) {
      EXPECT_EQ(released, 0);
    }
    EXPECT_EQ(released_by(cache), 1);
    EXPECT_RUN(kReplayed, run(!one.erases_the_first));
    expect_sum(sum);
  }
}

// An executable that was evicted while its launch was in flight, and whose template was dropped.
TEST_F(OwnGraphFailuresTest, AnOwnerOfADroppedTemplateWaitsForTheLaunch) {
  Cache cache(without_templates(1));
  hostrt::hold(stream);
  EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 1));
  EXPECT_RUN(kInstantiated, run_elsewhere(cache));
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(released, 0);
  EXPECT_EQ(released_by(cache), 1);
  expect_sum(2);
}

TEST_F(OwnGraphFailuresTest, AnOwnerOfADirectRunWaitsForTheLaunch) {
  for (const int max_executables : {0, 1}) {
    reset_sum();
    released = 0;
    Cache cache(unshared(max_executables));
    if (max_executables == 1) {
      EXPECT_RUN(kInstantiated, run_add(cache, key("pinned")));
      EXPECT_TRUE(cache.pin(key("pinned")));
    }
    hostrt::hold(stream);
    for (int i = 0; i < 3; ++i) EXPECT_RUN(kEager, run_own(cache, key("k"), 10));
    cache.erase(key("k"));
    EXPECT_EQ(released, 0);
    EXPECT_EQ(released_by(cache), 3);
    expect_sum(static_cast<float>(30 + max_executables));
  }
}

// Waiting is not allowed there, so the end of the capture's run releases the owner, behind its launch.
TEST_F(OwnGraphFailuresTest, AnOwnerOutlivesACacheThatEndsInsideACapture) {
  std::optional<Cache> inner(std::in_place);
  hostrt::hold(stream);
  EXPECT_RUN(kInstantiated, run_own(*inner, key("k"), 1));
  EXPECT_RUN(kReplayed, run_own(*inner, key("k"), 1));
  Cache outer;
  EXPECT_RUN(kInstantiated, outer.run(key("outer"), elsewhere, [&](cudaStream_t on) {
    inner.reset();
    EXPECT_EQ(released, 0);
    return add_one(on);
  }));
  EXPECT_EQ(released, 1);
  expect_sum(3);
}

// An owner's destructor may call the cache, so no lock of the cache is held, and no capture is under way.
TEST_F(OwnGraphFailuresTest, AnOwnerIsReleasedOutsideCapturesAndWithoutALock) {
  Cache cache(unshared(1));
  bool is_capturing_now = false;
  int runs = 0;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&] {
      const auto at_the_end = [&](void*) {
        EXPECT_FALSE(is_capturing_now);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const Stream other;
        EXPECT_SUCCESS(cache.run(key("of the owner"), other, [&](cudaStream_t on) { return add_one(on); }));
        ++runs;
      };
      return given(adding(1), {}, {&cache, at_the_end});
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), elsewhere, [&](cudaStream_t on) {
    is_capturing_now = true;
    EXPECT_TRUE(cache.erase(key("k")));
    cache.clear();
    is_capturing_now = false;
    return add_one(on);
  }));
  settle(cache);
  EXPECT_EQ(runs, 1);
  expect_sum(3);
}

// The owner's context is lost, so nothing uses it any more.
TEST_F(OwnGraphFailuresTest, AnOwnerIsReleasedWhenTheContextIsLost) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_own(cache, key("k"), 1));
  CUDA_OK(cudaStreamSynchronize(stream));
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(run_own(cache, key("k"), 1).status()), cudaErrorIllegalAddress);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(cuda_error(run_own(cache, key("k"), 1).status()), cudaErrorIllegalAddress);
  EXPECT_EQ(calls, 1);
  hostrt::clear_failures();
  cudaGetLastError();
  expect_sum(1);
}

// Threads run one key on a held stream, erase it, and run it again with another owner. No owner goes before its launch
// is over.
TEST_F(OwnGraphFailuresTest, OwnersOfAKeyThatIsErasedAndRunAgainOutliveTheirLaunches) {
  constexpr int kRounds = 300;
  Cache cache;
  std::atomic<int> early{0}, live{0};
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<bool> is_over{false};
    hostrt::hold(stream);
    const auto run = [&] {
      EXPECT_SUCCESS(cache.run(key("k"), stream, [&] {
        ++live;
        const auto at_the_end = [&](void*) {
          early += is_over ? 0 : 1;
          --live;
        };
        return given(adding(1, 1), {}, {&live, at_the_end});
      }));
    };
    run();
    std::atomic<int> ready{0};
    in_threads(2, [&](int thread) {
      for (++ready; ready < 2;) std::this_thread::yield();
      if (thread == 0) return run();
      for (volatile int i = 0; i < round * 7 % 400;) i = i + 1;
      cache.erase(key("k"));
    });
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    is_over = true;
    CUDA_OK(hostrt::release(stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    cache.clear();
    EXPECT_EQ(live, 0);
  }
  EXPECT_EQ(early, 0);
  expect_sum(2 * kRounds);
}

// ---- What stays alive -----------------------------------------------------------------------------------------------

// A key that is erased while another thread runs it again leaves nothing behind, in any state of its budget.
TEST_F(OwnGraphFailuresTest, RunsThatMeetEraseLeaveNothingBehind) {
  for (const bool gives_away : {false, true}) {
    std::atomic<int> live{0};
    Cache cache({.max_device_bytes = 1 << 20, .max_templates = 2});
    std::atomic<bool> done{false};
    std::thread eraser([&] {
      while (!done) cache.erase(key("k"));
    });
    in_threads(2, [&](int t) {
      const Stream own;
      for (int i = 0; i < 300; ++i) {
        std::optional<Kept> kept;
        EXPECT_SUCCESS(cache.run(key("k"), own, [&] {
          const cudaGraph_t graph = adding(0, (i + t) % 2 == 0 ? 1 : 60);
          if (!gives_away) kept.emplace(graph);
          return Graph{.graph = graph, .owner = counted_owner(live), .give_away = gives_away};
        }));
      }
      CUDA_OK(cudaStreamSynchronize(own));
    });
    done = true;
    eraser.join();
    cache.clear();
    EXPECT_EQ(live, 0);
    // The budget is as at the beginning: a later key gets its executable, and keeps it.
    EXPECT_EQ(cache.stats().estimated_device_bytes, 0u);
    EXPECT_EQ(cache.stats().live_templates, 0u);
    EXPECT_RUN(kInstantiated, run_add(cache, key("later")));
    EXPECT_RUN(kReplayed, run_add(cache, key("later")));
    cache.clear();
    EXPECT_EQ(hostrt::ledger().graphs, before.graphs);
    EXPECT_EQ(hostrt::ledger().executables, before.executables);
  }
  expect_sum(4);
}

TEST_F(OwnGraphFailuresTest, ADisabledCacheKeepsNoExecutables) {
  Cache cache(unshared(0));
  for (int i = 0; i < 50; ++i) {
    EXPECT_RUN(kEager, run_own(cache, key("k"), 1));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_LE(hostrt::ledger().executables, before.executables + 1);
    EXPECT_LE(hostrt::ledger().graphs, before.graphs + 1);
  }
  expect_sum(50);
}

// Each direct run makes an executable, and destroys earlier ones whose launches are over.
TEST_F(OwnGraphFailuresTest, DirectRunsInABackOffStayWithinTheLimit) {
  Cache cache(without_templates(4));
  std::size_t most = 0;
  int runs = 0;
  for (int failures = 0; failures < 9; ++failures) {
    hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorInvalidValue);  // That of the kept executable.
    for (int i = 0; i < 1 + (1 << failures); ++i) {
      const auto outcome = run_own(cache, key("k"), 1);
      EXPECT_TRUE(outcome.ok()) << outcome.status();
      ++runs;
      CUDA_OK(cudaStreamSynchronize(stream));
      most = std::max(most, hostrt::ledger().executables - before.executables);
      if (*outcome == Outcome::kEager) {
        EXPECT_EQ(cache.stats().live_templates, 0u);
      }
    }
  }
  EXPECT_LE(most, 4u);
  EXPECT_GT(cache.stats().eager(EagerReason::kBackoff), 100u);
  expect_sum(static_cast<float>(runs));
}

// Where launches are not over, at most 8 executables wait. A run beyond that waits for the oldest ones.
TEST_F(OwnGraphFailuresTest, DirectRunsOnABusyStreamWaitForOlderLaunches) {
  for (const bool backs_off : {false, true}) {
    reset_sum();
    Cache cache(unshared(backs_off ? 4 : 0));
    const auto run = [&](float value) { return cache.run(key("k"), stream, [&] { return given(adding(value)); }); };
    const auto in_back_off = [&] { return cache.stats().eager(EagerReason::kBackoff); };
    if (backs_off) {  // Its next 32 runs are direct.
      for (int wanted = 1; wanted <= 32; wanted *= 2) {
        hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorInvalidValue);
        EXPECT_RUN(kEager, run(0));
        if (wanted == 32) break;
        for (int i = 0; i < wanted; ++i) EXPECT_RUN(kEager, run(0));
      }
    }
    settle(cache);
    EXPECT_EQ(hostrt::ledger().executables, before.executables);
    const std::uint64_t earlier = in_back_off();
    int waited = 0;
    for (int i = 0; i < 30; ++i) {
      // A wait for the held stream ends the hold.
      if (cudaStreamQuery(stream) == cudaSuccess) hostrt::hold(stream);
      EXPECT_RUN(kEager, run(1));
      waited += cudaStreamQuery(stream) == cudaSuccess ? 1 : 0;
      EXPECT_LE(hostrt::ledger().executables, before.executables + 8 + 1);
    }
    EXPECT_EQ(in_back_off() - earlier, backs_off ? 30u : 0u);
    EXPECT_GE(waited, 2);
    EXPECT_LE(waited, 4);
    EXPECT_EQ(released_by(cache), 0);
    EXPECT_EQ(hostrt::ledger().executables, before.executables);
    expect_sum(30);
  }
}

// Only an owner has to outlive the launches of an executable that another key has by now.
TEST_F(OwnGraphFailuresTest, ASwitchWithoutOwnersWaitsForNothing) {
  Cache cache(renting(1));
  const auto run = [&](int i) {
    return cache.run(key("k", i), stream, [&] { return given(adding(1, 8, static_cast<unsigned>(2 + i))); });
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run(i % 2).ok());
  hostrt::reset_calls();
  for (int i = 0; i < 10; ++i) EXPECT_RUN(kSwitched, run(i % 2));
  EXPECT_EQ(hostrt::calls("cudaEventRecord"), 0u);
  EXPECT_EQ(hostrt::calls("cudaEventCreateWithFlags"), 0u);
  expect_sum(14);
}

// With max_templates = 0 only keys with an executable keep a template.
TEST_F(OwnGraphFailuresTest, ADirectRunKeepsNoTemplateBeyondTheLimit) {
  Cache cache(without_templates(1));
  for (const char* const call : {"cudaGraphInstantiate", "cudaGraphLaunch"}) {
    for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorMemoryAllocation}) {
      SCOPED_TRACE(std::string(call) + ": " + cudaGetErrorName(error));
      const Key of = key(call, static_cast<int>(error));
      hostrt::fail_call(call, 1, error, error == cudaErrorMemoryAllocation && call[9] == 'I' ? 2 : 1);
      EXPECT_RUN(kEager, run_own(cache, of, 1));
      hostrt::clear_failures();
      EXPECT_EQ(cache.stats().live_templates, 0u);
      EXPECT_FALSE(cache.contains(of));
      EXPECT_RUN(kEager, run_own(cache, of, 1));  // In the back-off.
      EXPECT_EQ(cache.stats().live_templates, 0u);
      EXPECT_RUN(kInstantiated, run_own(cache, of, 1));
      EXPECT_TRUE(cache.erase(of));
    }
  }
  expect_sum(4 * 3);
}

// ---- Failing calls --------------------------------------------------------------------------------------------------

// Each call of a first run fails in turn. A graph that is not given away is the caller's, and does what it did.
TEST_F(OwnGraphFailuresTest, AnyCallOfAFirstRunMayFail) {
  // The failure of the last two leaves objects behind, whatever the caller does.
  std::set<std::string> spared = kRestoring;
  spared.insert({"cudaGraphDestroy", "cudaGraphExecDestroy"});
  const auto test = [&](const FailingCall& call, bool gives_away, int max_executables, cudaError_t error,
                        int how_often) {
    SCOPED_TRACE(call.to_string() + (how_often == 1 ? ": " : " and on: ") + cudaGetErrorName(error) +
                 (gives_away ? ", given away, " : ", ") + std::to_string(max_executables));
    reset_sum();
    std::optional<Cache> cache(std::in_place, unshared(max_executables));
    std::optional<Kept> kept(adding(7, 3));
    bool is_armed = true;
    calls = released = 0;
    const auto run = [&](float value) {
      return cache->run(key("my label"), stream, params(value), [&] {
        hostrt::clear_failures();
        const cudaGraph_t graph = gives_away ? adding(7, 3) : static_cast<cudaGraph_t>(*kept);
        ++calls;
        if (is_armed) call.arm(error, how_often);
        return Graph{.graph = graph, .bound = {bind(kNameOfAdd, 2, 0)}, .owner = owner(), .give_away = gives_away};
      });
    };
    call.begin();
    const absl::Status done = run(2).status();
    is_armed = false;
    call.end();
    cudaGetLastError();
    EXPECT_LE(calls, 2);
    EXPECT_TRUE(done.ok() || mentions(done, "my label")) << done;
    float sum = done.ok() ? 6 : 0;
    expect_sum(sum);
    EXPECT_SUCCESS(run(4));
    expect_sum(sum += 12);
    EXPECT_EQ(added_by(*kept), 7.0f);
    sum += 7;
    kept.reset();
    cache.reset();
    EXPECT_EQ(released, calls);
    EXPECT_EQ(hostrt::ledger().graphs, before.graphs);
    EXPECT_EQ(hostrt::ledger().executables, before.executables);
    expect_sum(sum);
  };
  for (const bool gives_away : {false, true}) {
    for (const int max_executables : {0, 4}) {
      for (const cudaError_t error : {cudaErrorUnknown, cudaErrorNotSupported, cudaErrorMemoryAllocation}) {
        for (const int how_often : {1, -1}) {
          for_each_call([&](const FailingCall& call) { test(call, gives_away, max_executables, error, how_often); },
                        spared);
        }
      }
    }
  }
}

// The second of the two nodes cannot be set. The first one has its value by then, but only in the cache's clone.
TEST_F(OwnGraphFailuresTest, AFailedRunLeavesTheProgramsGraphAsItWas) {
  const Kept graph(adding(5, 2));
  Cache cache;
  const auto run = [&] { return run_bound(cache, graph, bind(kNameOfAdd, 2, 0)); };
  for (int nth = 1; nth <= 2; ++nth) {
    hostrt::fail_call("cudaGraphKernelNodeSetParams", nth, cudaErrorInvalidValue);
    EXPECT_EQ(cuda_error(run().status()), cudaErrorInvalidValue);
    hostrt::clear_failures();
    EXPECT_EQ(added_by(graph), 5.0f);
  }
  cudaGetLastError();
  EXPECT_RUN(kInstantiated, run());
  expect_sum(10 + 200);
  EXPECT_EQ(added_by(graph), 5.0f);
}

// Each call of a miss that borrows from a sibling fails in turn. The run launches in another way, or returns an error
// and does nothing.
TEST_F(OwnGraphFailuresTest, AnyCallOfARunThatBorrowsMayFail) {
  for_each_call([&](const FailingCall& call) {
    for (const int how_often : {1, -1}) {
      SCOPED_TRACE(call.to_string() + (how_often == 1 ? "" : " and on"));
      reset_sum();
      Cache cache(renting(1));
      EXPECT_SUCCESS(run_own(cache, key("other"), 10, 4));
      EXPECT_TRUE(cache.contains(key("other")));
      bool is_armed = true;
      const auto run = [&] {
        return cache.run(key("my label"), stream, [&] {
          hostrt::clear_failures();
          const cudaGraph_t graph = adding(1, 8, 3);
          if (is_armed) call.arm(cudaErrorUnknown, how_often);
          return given(graph, {}, owner());
        });
      };
      CUDA_OK(cudaStreamSynchronize(stream));
      call.begin();
      const absl::Status done = run().status();
      is_armed = false;
      call.end();
      EXPECT_TRUE(done.ok() || mentions(done, "my label")) << done;
      const float sum = done.ok() ? 11 : 10;
      expect_sum(sum);
      for (int i = 0; i < 3; ++i) {
        EXPECT_SUCCESS(run());
        EXPECT_SUCCESS(run_own(cache, key("other"), 10, 4));
      }
      expect_sum(sum + 33);
      cudaGetLastError();
    }
  });
}

// The same for a hit, which has a graph already and calls no fn unless it has to run directly.
TEST_F(OwnGraphFailuresTest, AnyCallOfAHitMayFail) {
  for_each_call([&](const FailingCall& call) {
    SCOPED_TRACE(call.to_string());
    reset_sum();
    Cache cache(unshared(1));
    const auto run = [&](float value) {
      return cache.run(key("my label"), stream, params(value), [&] {
        ++calls;
        return given(adding(0, 3), {bind(kNameOfAdd, 2, 0)}, owner());
      });
    };
    EXPECT_RUN(kInstantiated, run(1));
    EXPECT_RUN(kInstantiated, run_add(cache, key("other")));  // So the hit makes an executable from the template.
    CUDA_OK(cudaStreamSynchronize(stream));
    call.begin();
    call.arm();
    const absl::Status done = run(2).status();
    call.end();
    cudaGetLastError();
    EXPECT_TRUE(done.ok() || mentions(done, "my label")) << done;
    const float sum = 3 + 1 + (done.ok() ? 6 : 0);
    expect_sum(sum);
    for (int i = 0; i < 2; ++i) EXPECT_SUCCESS(run(4));
    expect_sum(sum + 24);
  });
}

// CUDA refuses the graph whenever it is instantiated. fn is called for the template and for the direct run, whose error
// is the run's.
TEST_F(OwnGraphFailuresTest, AGraphThatIsRefusedFailsTheRun) {
  Cache cache;
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorInvalidValue, -1);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(cuda_error(run_own(cache, key("k"), 1).status()), cudaErrorInvalidValue);
    EXPECT_FALSE(cache.contains(key("k")));
    EXPECT_EQ(released, calls);
  }
  hostrt::clear_failures();
  cudaGetLastError();
  EXPECT_EQ(hostrt::ledger().graphs, before.graphs);
  while (run_own(cache, key("k"), 0).value() == Outcome::kEager) continue;
  EXPECT_RUN(kReplayed, run_own(cache, key("k"), 0));
  expect_sum(0);
}

// A device that lacks memory refuses once more after everything that waits was destroyed.
TEST_F(OwnGraphFailuresTest, ADirectRunRetriesWhenMemoryRunsOut) {
  Cache cache(unshared(0));
  hostrt::hold(stream);
  EXPECT_RUN(kEager, run_own(cache, key("k"), 1));
  EXPECT_EQ(hostrt::ledger().executables, before.executables + 1);
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
  EXPECT_RUN(kEager, run_own(cache, key("k"), 1));
  EXPECT_GE(released, 1);
  EXPECT_EQ(calls, 2);
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation, 2);
  EXPECT_EQ(cuda_error(run_own(cache, key("k"), 1).status()), cudaErrorMemoryAllocation);
  cudaGetLastError();
  expect_sum(2);
}

TEST_F(OwnGraphFailuresTest, ACudaErrorThatFnLeavesBehindDestroysTheGraph) {
  for (const int max_executables : {0, 4}) {
    for (const bool gives_away : {false, true}) {
      SCOPED_TRACE(std::to_string(max_executables) + (gives_away ? ", given away" : ""));
      Cache cache(unshared(max_executables));
      std::optional<Kept> kept;
      const auto failed = cache.run(key("k"), stream, [&] {
        const cudaGraph_t graph = adding(1);
        if (!gives_away) kept.emplace(graph);
        (void)cudaSetDevice(1000);
        return Graph{.graph = graph, .owner = owner(), .give_away = gives_away};
      });
      EXPECT_EQ(cuda_error(failed.status()), cudaErrorInvalidDevice) << failed.status();
      EXPECT_EQ(hostrt::ledger().graphs, before.graphs + (gives_away ? 0 : 1));
      cudaGetLastError();
    }
  }
  EXPECT_EQ(released, 4);
  expect_sum(0);
}

// What the owner's destructor does may need a run of the key by another thread, because the run that failed has
// unlocked it.
TEST_F(OwnGraphFailuresTest, AnOwnerMayWaitForARunOfItsKeyAfterAnyFailureOfFn) {
  std::function<absl::StatusOr<Outcome>()> run_again;
  for (const bool leaves_error : {false, true}) {
    SCOPED_TRACE(leaves_error);
    Cache cache;
    std::thread other;
    std::atomic<bool> ran{false};
    bool ran_in_time = false;
    bool is_good = false;
    const auto run = [&] {
      return cache.run(key("k"), stream, [&] {
        if (is_good) return given(adding(1));
        const auto at_the_end = [&](void*) {
          is_good = true;
          other = std::thread([&] {
            EXPECT_RUN(kInstantiated, run_again());
            ran = true;
          });
          const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
          while (!ran && std::chrono::steady_clock::now() < until) std::this_thread::yield();
          ran_in_time = ran;
        };
        if (leaves_error) (void)cudaSetDevice(1000);
        return given(leaves_error ? adding(1) : nullptr, {}, {&cache, at_the_end});
      });
    };
    run_again = run;
    EXPECT_FALSE(run().ok());
    EXPECT_TRUE(ran_in_time);
    other.join();
    cudaGetLastError();
  }
  expect_sum(2);
}

TEST_F(OwnGraphFailuresTest, AContextThatIsLostIsRemembered) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_own(cache, key("before"), 1));
  CUDA_OK(cudaStreamSynchronize(stream));
  const std::uint64_t number = cache.entries().front().id;
  const Kept graph(adding(1));
  const auto run = [&](const char* label) {
    return cache.run(key(label), stream, [&] {
      ++calls;
      return Graph{.graph = graph};
    });
  };
  hostrt::fail_call("cudaGraphClone", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(run("k").status()), cudaErrorIllegalAddress);
  const int called = calls;
  const absl::Status later = run("my label").status();
  EXPECT_EQ(cuda_error(later), cudaErrorIllegalAddress) << later;
  EXPECT_TRUE(mentions(later, "my label")) << later;
  EXPECT_EQ(calls, called);
  EXPECT_EQ(cuda_error(run_own(cache, key("before"), 1).status()), cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.graph(number).status()), cudaErrorIllegalAddress);
  hostrt::clear_failures();
  cudaGetLastError();
  expect_sum(1);
}

// A fatal error that fn itself leaves behind.
TEST_F(OwnGraphFailuresTest, AContextThatFnLosesIsRemembered) {
  for (const int max_executables : {0, 4}) {
    Cache cache(unshared(max_executables));
    const auto run = [&] {
      return cache.run(key("k"), stream, [&] {
        ++calls;
        const cudaGraph_t graph = adding(1);
        hostrt::fail_call("cudaMalloc", 1, cudaErrorIllegalAddress);
        void* memory = nullptr;
        (void)cudaMalloc(&memory, 1);
        return Graph{.graph = graph};
      });
    };
    calls = 0;
    EXPECT_EQ(cuda_error(run().status()), cudaErrorIllegalAddress);
    EXPECT_EQ(cuda_error(run().status()), cudaErrorIllegalAddress);
    EXPECT_EQ(calls, 1);
    hostrt::clear_failures();
    cudaGetLastError();
  }
  expect_sum(0);
}

// ---- Bindings -------------------------------------------------------------------------------------------------------

// The readable name of such a kernel begins with a parenthesis, as if an empty name went before its parameters.
TEST_F(OwnGraphFailuresTest, AnEmptyNameBindsNothingInAnAnonymousNamespace) {
  EXPECT_TRUE(registered);
  const Kept graph(new_graph());
  add_kernel(graph, nullptr, add_in_namespace, kGrid, kBlock, data.get(), kSize, 1.0f);
  Cache cache;
  for (const BoundArgument& bound : {bind(cudaGraphNode_t(), 2, 0), bind("", 2, 0), bind("kernel ", 2, 0),
                                     bind("void ", 2, 0), bind("kernel void ", 2, 0)}) {
    EXPECT_FAILURE(kInvalidArgument, run_bound(cache, graph, bound));
    cache.erase(key("k"));
  }
  expect_sum(0);
  EXPECT_RUN(kInstantiated, run_bound(cache, graph, bind("(anonymous namespace)::add", 2, 0)));
  expect_sum(100);
}

// Where the driver reports no names, nodes can be bound by their handles only.
TEST_F(OwnGraphFailuresTest, AKernelWithoutANameIsBoundByItsNode) {
  const Kept graph(adding(1, 1));
  Cache cache;
  hostrt::fail_call("cudaFuncGetName", 1, cudaErrorUnknown, -1);
  EXPECT_ERROR(kInvalidArgument, run_bound(cache, graph, bind(kNameOfAdd, 2, 0)), "bind by nodes");
  EXPECT_RUN(kInstantiated, run_bound(cache, graph, bind(nodes_of(graph)[0], 2, 0)));
  expect_sum(100);
}

// ---- Inside other runs ----------------------------------------------------------------------------------------------

// The inner run fails, so the outer run does not keep a graph that lacks it.
TEST_F(OwnGraphFailuresTest, AFailureInsideAnotherRunsFnIsNotLost) {
  Cache cache;
  bool fails = true;
  const auto run = [&] {
    return cache.run(key("outer"), stream, [&](cudaStream_t on) -> absl::Status {
      CUDA_OK(add_one(on));
      const auto inner = cache.run(key("inner"), on, [&]() -> absl::StatusOr<Graph> {
        if (fails) return absl::AbortedError("no graph");
        return given(adding(10));
      });
      return inner.status();
    });
  };
  EXPECT_FAILURE(kAborted, run());
  CUDA_OK(cudaStreamSynchronize(stream));
  const float begun = data.first();  // What fn enqueued directly before it failed.
  EXPECT_LE(begun, 1.0f);
  fails = false;
  EXPECT_RUN(kEager, run());
  expect_sum(begun + 11);
}

}  // namespace
}  // namespace graphcache::test
