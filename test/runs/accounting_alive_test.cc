// What a cache leaves alive in the runtime, and when it destroys what is no longer needed. On hostrt, which counts
// this.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "accounting_support.h"
#include "graph/template.h"

namespace graphcache::test {
namespace {

TEST_F(AccountingTest, EvictionDestroysBeforeAnythingIsInstantiated) {
  Cache cache(forced(Sharing::kNever, {.max_executables = 2, .max_templates = 0}));
  ASSERT_SUCCESS(run_add(cache, key("a")));
  ASSERT_SUCCESS(run_add(cache, key("b")));
  std::vector<std::size_t> alive;
  in_fn = [&] { alive.push_back(hostrt::ledger().executables); };
  // This failure lets fn see what is alive at that time.
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorNotSupported, 2);
  EXPECT_RUN(kEager, run_add(cache, key("c")));
  EXPECT_EQ(alive, (std::vector<std::size_t>{2, 1}));
  in_fn = nullptr;
  for (int i = 0; i < 10; ++i) {
    ASSERT_SUCCESS(run_add(cache, key(i)));
    EXPECT_LE(hostrt::ledger().executables, 2u);
    EXPECT_EQ(hostrt::ledger().graphs, hostrt::ledger().executables);
  }
}

TEST_F(AccountingTest, EvictionKeepsTheGraphAndRestoringMakesNoCapture) {
  Cache cache(unshared(2));
  for (int i = 0; i < 5; ++i) {
    ASSERT_SUCCESS(run_add(cache, key(i)));
    EXPECT_LE(hostrt::ledger().executables, 2u);
    EXPECT_EQ(hostrt::ledger().graphs, static_cast<std::size_t>(i + 1));
  }
  const Counts calls = calls_of([&] { EXPECT_RUN(kRestored, run_add(cache, key(0))); });
  expect_calls(calls, {"cudaGraphInstantiate", "cudaGraphLaunch", "cudaGraphExecDestroy"},
               {"cudaStreamBeginCapture", "cudaGraphClone", "cudaGraphDestroy", "cudaGraphExecUpdate",
                "cudaGraphExecKernelNodeSetParams", "cudaGraphKernelNodeGetParams"});
  EXPECT_EQ(hostrt::ledger().executables, 2u);
  EXPECT_EQ(hostrt::ledger().graphs, 5u);
}

TEST_F(AccountingTest, SwitchMakesNoExecutableAndNoCapture) {
  Cache cache(renting());
  ASSERT_SUCCESS(run_mixed(cache, key("a"), {1, 2, 4, 8, 16, 32, 64}));
  EXPECT_RUN(kUpdated, run_mixed(cache, key("b"), {1, 2, 4, 8, 16, 32, 64}));
  const hostrt::Ledger before = hostrt::ledger();
  EXPECT_EQ(before.executables, 1u);
  EXPECT_EQ(before.graphs, 3u);  // two templates, and the graph that the executable was instantiated from
  for (int i = 0; i < 10; ++i) {
    const Counts calls = calls_of([&] {
      EXPECT_RUN(kSwitched, run_mixed(cache, key(i % 2 == 0 ? "a" : "b"), {1, 2, 4, 8, 16, 32, 64}));
    });
    expect_calls(calls, {"cudaGraphLaunch"},
                 {"cudaStreamBeginCapture", "cudaGraphInstantiate", "cudaGraphClone", "cudaGraphDestroy",
                  "cudaGraphExecDestroy", "cudaEventCreateWithFlags", "cudaStreamSynchronize"});
    EXPECT_EQ(hostrt::ledger(), before);
  }
  cache.clear();
  expect_no_graphs();
}

// Work in flight must not be affected when its executable is brought over to a sibling or evicted.
TEST_F(AccountingTest, WorkInFlightIsLeftAloneBySwitchesEvictionsAndRestores) {
  for (const ForcedOptions& options : std::initializer_list<ForcedOptions>{renting(), unshared(1)}) {
    data->write(std::vector<float>(kSize, 0));
    {
      Cache cache(options.again());
      const auto run = [&](float factor) {  // data = factor * data + factor, so that the order of runs matters
        return cache.run(key(static_cast<int>(factor)), *stream, [&, factor](cudaStream_t s) {
          (void)launch(scale, kGrid, kBlock, s, data->get(), data->get(), kSize, factor);
          return launch(add, kGrid, kBlock, s, data->get(), kSize, factor);
        });
      };
      for (const float factor : {1.0f, 2.0f, 3.0f}) ASSERT_SUCCESS(run(factor));  // 1, 4, 15
      hostrt::hold(*stream);
      for (const float factor : {1.0f, 2.0f, 3.0f, 2.0f}) ASSERT_SUCCESS(run(factor));
      EXPECT_EQ(cache.stats().captures, 3u);
      EXPECT_EQ(cache.stats().live_executables, 1u);
      CUDA_OK(hostrt::release(*stream));
      EXPECT_EQ(data->first(), 2 * (3 * (2 * (15 + 1) + 2) + 3) + 2.0f);
    }
    expect_no_graphs();
  }
}

// Destroying it might wait for work that this thread has yet to launch.
TEST_F(AccountingTest, WorkInFlightOfOneCacheIsNotDestroyedByRunsOfAnother) {
  constexpr int kKeys = 12;
  Cache first(unshared(1)), second(unshared(1));
  Stream other;
  hostrt::hold(*stream);
  for (int i = 0; i < kKeys; ++i) ASSERT_SUCCESS(run_add(first, key(i)));
  const std::size_t of_first = hostrt::ledger().executables;
  EXPECT_GT(of_first, 2u);  // evicted executables wait for the stream
  for (int i = 0; i < kKeys; ++i) ASSERT_SUCCESS(run_add(second, key(i), other));
  EXPECT_GE(hostrt::ledger().executables, of_first + 1);
  CUDA_OK(cudaStreamSynchronize(other));
  EXPECT_TRUE(second.erase(key(kKeys - 1)));
  EXPECT_EQ(hostrt::ledger().executables, of_first);
  CUDA_OK(hostrt::release(*stream));
  first.clear();
  EXPECT_EQ(hostrt::ledger().executables, 0u);
  EXPECT_EQ(data->first(), 2.0f * kKeys);
}

// Otherwise a thread of the real driver crashes. hostrt reports a misuse.
TEST_F(AccountingTest, ExecutablesWithHostFunctionsAreNotDestroyedInFlight) {
  constexpr int kKeys = 12;
  static int calls = 0;
  calls = 0;
  const auto run = [&](Cache& cache, int number, cudaStream_t on) {
    return cache.run(key(number), on, [&](cudaStream_t s) {
      return cudaLaunchHostFunc(
          s, [](void* count) { ++*static_cast<int*>(count); }, &calls);
    });
  };
  {
    Cache cache(unshared(1));
    Stream busy;
    hostrt::hold(busy);
    for (int i = 0; i < kKeys; ++i) EXPECT_RUN(kInstantiated, run(cache, i, busy));
    EXPECT_EQ(hostrt::ledger().executables, static_cast<std::size_t>(kKeys));
    // More than the number that may wait for their stream.
    for (int i = 0; i < kKeys; ++i) EXPECT_RUN(kRestored, run(cache, i, *stream));
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    EXPECT_TRUE(cache.erase(key(0)));
    EXPECT_EQ(calls, kKeys);
    CUDA_OK(hostrt::release(busy));
    EXPECT_EQ(calls, 2 * kKeys);
    hostrt::hold(*stream);
    EXPECT_RUN(kRestored, run(cache, 1, *stream));
  }
  EXPECT_EQ(calls, 2 * kKeys + 1);
  expect_no_graphs();
}

// No later run uses their streams.
TEST_F(AccountingTest, ExecutablesWhoseStreamIsGoneAreDestroyed) {
  constexpr int kKeys = 12, kMayWait = 8;
  Cache cache(unshared(1));
  for (int i = 0; i < kKeys; ++i) ASSERT_SUCCESS(run_add(cache, key(i), Stream()));
  for (int i = 0; i < kKeys; ++i) EXPECT_RUN(kRestored, run_add(cache, key(i)));
  EXPECT_LE(hostrt::ledger().executables, kMayWait + 2u);
  EXPECT_EQ(data->first(), 2.0f * kKeys);
}

// The runtime gives handles of destroyed streams to new ones. Work of the old stream may still be in flight.
TEST_F(AccountingTest, AStreamWithTheHandleOfOneThatIsGoneIsAnother) {
  hostrt::set_stream_reuse(true);
  static int calls = 0;
  calls = 0;
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> kept = owner;
  {
    Cache cache(unshared(1));
    const auto run = [&](int number, cudaStream_t on) {
      return cache.run(key(number), on, [&](Recorder& rec) {
        if (owner != nullptr) rec.keep(std::exchange(owner, nullptr));
        rec.launch(add, {kGrid, kBlock}, data->get(), kSize, 1.0f);
        return cudaLaunchHostFunc(
            rec.stream(), [](void*) { ++calls; }, nullptr);
      });
    };
    Stream busy;
    hostrt::hold(busy);
    cudaEvent_t behind = nullptr;
    CUDA_OK(cudaEventCreateWithFlags(&behind, cudaEventDisableTiming));
    CUDA_OK(cudaEventRecord(behind, busy));
    cudaStream_t gone = nullptr, again = nullptr;
    CUDA_OK(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamWaitEvent(gone, behind, 0));
    EXPECT_RUN(kInstantiated, run(0, gone));
    CUDA_OK(cudaStreamDestroy(gone));
    CUDA_OK(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking));
    ASSERT_EQ(again, gone);
    for (int i = 1; i < 6; ++i) {
      ASSERT_SUCCESS(run(i, again));
      CUDA_OK(cudaStreamSynchronize(again));
    }
    EXPECT_TRUE(cache.erase(key(0)));
    EXPECT_EQ(calls, 5);
    EXPECT_FALSE(kept.expired()) << "its launch is in flight";
    CUDA_OK(hostrt::release(busy));
    EXPECT_EQ(calls, 6);
    ASSERT_SUCCESS(run(6, again));
    cache.clear();
    EXPECT_TRUE(kept.expired());
    CUDA_OK(cudaEventDestroy(behind));
    CUDA_OK(cudaStreamDestroy(again));
  }
  EXPECT_EQ(data->first(), 7.0f);
  expect_no_graphs();
}

TEST_F(AccountingTest, EraseClearAndDestructionLeaveNothing) {
  for (const bool shares : {false, true}) {
    for (const int end : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << "shares " << shares << ", end " << end);
      {
        Cache cache(shares ? renting() : unshared());
        for (int i = 0; i < 3; ++i) ASSERT_SUCCESS(run_add(cache, key(i)));
        EXPECT_EQ(hostrt::ledger().executables, shares ? 1u : 3u);
        if (end == 0) {
          EXPECT_TRUE(cache.erase(key(2)));  // if they share, the key that has the executable
          EXPECT_EQ(hostrt::ledger().executables, shares ? 0u : 2u);
          EXPECT_EQ(hostrt::ledger().graphs, 2u);
          for (int i = 0; i < 2; ++i) EXPECT_TRUE(cache.erase(key(i)));
        }
        if (end == 1) cache.clear();
        if (end != 2) expect_no_graphs();
      }
      expect_no_graphs();
    }
  }
}

// What is in flight stays until it is complete. erase() leaves it to later runs; clear() and the destructor wait.
TEST_F(AccountingTest, ClearAndDestructionLeaveNothingThatIsInFlight) {
  {
    Cache cache(unshared());
    for (int i = 0; i < 3; ++i) ASSERT_SUCCESS(run_add(cache, key(i)));
    hostrt::hold(*stream);
    for (int i = 0; i < 3; ++i) ASSERT_SUCCESS(run_add(cache, key(i)));
    EXPECT_TRUE(cache.erase(key(1)));
    EXPECT_EQ(hostrt::ledger().executables, 3u);
    cache.clear();
    expect_no_graphs();
    hostrt::hold(*stream);
    ASSERT_SUCCESS(run_add(cache, key(3)));
  }
  expect_no_graphs();
  EXPECT_EQ(hostrt::ledger().streams, empty.streams);
  EXPECT_EQ(data->first(), 7.0f);
}

TEST_F(AccountingTest, StatsAgreeWithTheLedger) {
  struct Way {
    Sharing sharing;
    int max_templates;
  };
  for (const auto& [sharing, max_templates] :
       {Way{Sharing::kNever, 512}, Way{Sharing::kNever, 4}, Way{Sharing::kNever, 0}, Way{Sharing::kAuto, 5},
        Way{Sharing::kUpdatesAcross, 5}}) {
    SCOPED_TRACE(testing::Message() << "sharing " << static_cast<int>(sharing) << ", " << max_templates
                                    << " templates");
    const bool shares = sharing != Sharing::kNever;
    Cache cache(forced(sharing, {.max_executables = 2, .max_templates = max_templates}));
    for (int i = 0; i < 40; ++i) {
      const int which = i * i % 11;
      const auto fn = [&](cudaStream_t s) {  // three families, of 1 to 3 nodes
        for (int n = 0; n <= which % 3; ++n) {
          (void)launch(add, dim3(1u + static_cast<unsigned>(which)), kBlock, s, data->get(), kSize, 1.0f);
        }
      };
      ASSERT_SUCCESS(cache.run(key(which), *stream, fn));
      const Stats stats = cache.stats();
      const hostrt::Ledger now = hostrt::ledger();
      EXPECT_EQ(stats.live_executables, now.executables);
      EXPECT_LE(stats.live_executables, 2u);
      EXPECT_LE(stats.live_templates, static_cast<std::size_t>(std::max(2, max_templates)));
      EXPECT_EQ(stats.live_templates, stats.captures - stats.forgotten);
      EXPECT_GE(now.graphs, stats.live_templates);
      EXPECT_LE(now.graphs, stats.live_templates + (shares ? stats.live_executables : 0));
      EXPECT_EQ(stats.instantiations, stats.evictions + stats.live_executables);
      std::size_t bytes = 0, live = 0;
      for (const EntryInfo& entry : cache.entries()) {
        bytes += entry.estimated_device_bytes;
        live += entry.live ? 1 : 0;
      }
      EXPECT_EQ(stats.estimated_device_bytes, bytes);
      EXPECT_EQ(stats.live_executables, live);
      EXPECT_EQ(now.executables * estimated_device_bytes(0) + now.executable_nodes * 2600, bytes);
      if (!shares) {
        EXPECT_EQ(stats.families, 0u);
      }
    }
    cache.clear();
    expect_no_graphs();
  }
}

// From the end of the run on it does not count, and waits until the next slow run, as evicted executables do.
TEST_F(AccountingTest, EntryErasedDuringItsRunIsDestroyedByTheNextSlowRun) {
  for (const bool by_another_thread : {false, true}) {
    SCOPED_TRACE(by_another_thread ? "erased by another thread" : "erased by fn");
    Cache cache;
    data->write(std::vector<float>(kSize));
    const auto erase = [&] { cache.erase(key("k")); };
    in_fn = [&] { by_another_thread ? std::thread(erase).join() : erase(); };
    for (int i = 1; i <= 5; ++i) {
      EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
      EXPECT_EQ(cache.stats().live_executables, 0u);
      EXPECT_EQ(cache.stats().live_templates, 0u);
      EXPECT_FALSE(cache.contains(key("k")));
      EXPECT_LE(hostrt::ledger().executables, 1u) << i;
      EXPECT_LE(hostrt::ledger().graphs, 1u) << i;
      EXPECT_EQ(data->first(), static_cast<float>(i));
    }
    in_fn = nullptr;
    EXPECT_SUCCESS(run_add(cache, key("other")));
    EXPECT_EQ(hostrt::ledger().executables, 1u);
    EXPECT_EQ(hostrt::ledger().graphs, 1u);
    cache.clear();
    expect_no_graphs();
  }
}

TEST_F(AccountingTest, ClearAndTheDestructorWaitForTheWorkOfDirectRuns) {
  for (const bool destroys : {false, true}) {
    auto cache = std::make_unique<Cache>(Options{.capture_after = 1});
    static int done;
    done = 0;
    hostrt::hold(*stream);
    EXPECT_RUN(kEager, cache->run(key("k"), *stream, [&](cudaStream_t on) {
      return cudaLaunchHostFunc(
          on, [](void*) { ++done; }, nullptr);
    }));
    EXPECT_EQ(done, 0);
    destroys ? cache.reset() : cache->clear();
    EXPECT_EQ(done, 1) << (destroys ? "destroyed" : "cleared");
    hostrt::release(*stream);
  }
}

}  // namespace
}  // namespace graphcache::test
