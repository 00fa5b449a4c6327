// How a cache leaves the thread, the device and the last-error slot, and where it destroys what. On hostrt.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "accounting_support.h"
#include "cuda/compat.h"

namespace graphcache::test {
namespace {

TEST_F(AccountingTest, DestructionsAreMadeWithTheCaptureModeRelaxed) {
  Cache cache;
  ASSERT_SUCCESS(run_add(cache, key("k")));
  const Counts calls = calls_of([&] { cache.clear(); });
  expect_calls(calls, {"cudaGraphExecDestroy", "cudaGraphDestroy"}, {});
  EXPECT_EQ(calls.at("cudaThreadExchangeStreamCaptureMode"), 8u);  // and for the waits before and after
}

TEST_F(AccountingTest, NothingIsDestroyedInsideACapture) {
  for (const bool ends : {false, true}) {
    SCOPED_TRACE(ends ? "a cache that ends" : "a cache that is cleared");
    Cache cache;
    auto second = std::make_unique<Cache>();
    ASSERT_SUCCESS(run_add(*second, key("k")));
    Counts inside;
    in_fn = [&] { inside = calls_of([&] { ends ? second.reset() : second->clear(); }); };
    ASSERT_SUCCESS(run_add(cache, key("outer")));
    in_fn = nullptr;
    expect_calls(inside, {}, {"cudaGraphExecDestroy", "cudaGraphDestroy"});
    if (!ends) {
      second->clear();
      EXPECT_EQ(hostrt::ledger().executables, 1u);
    }
    cache.clear();  // A later call of another cache takes over what an ended one has left.
    expect_no_graphs();
  }
}

TEST_F(AccountingTest, PerThreadStreamIsThatOfTheCurrentDevice) {
  hostrt::set_device_count(2);
  Cache cache({.device = 0});
  int calls = 0;
  const auto run = [&] {
    return cache.run(key("k"), cudaStreamPerThread, [&](cudaStream_t s) {
      ++calls;
      return launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
    });
  };
  CUDA_OK(cudaSetDevice(1));
  EXPECT_FAILURE(kInvalidArgument, run());
  EXPECT_EQ(calls, 0);
  CUDA_OK(cudaSetDevice(0));
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  cache.erase(key("k"));
  CUDA_OK(cudaSetDevice(1));
  EXPECT_FAILURE(kInvalidArgument, run());  // however often the handle was checked before
  EXPECT_EQ(calls, 1);
  CUDA_OK(cudaSetDevice(0));
}

// The handle means a stream of the device that `fn` has made current. Work there would run only once.
TEST_F(AccountingTest, FnMayForkToThePerThreadStreamOfAnotherDeviceAndMustNotMistakeItForItsOwn) {
  hostrt::set_device_count(2);
  Cache cache({.device = 0});
  const auto run = [&](const char* label, bool forks) {
    return cache.run(key(label), cudaStreamPerThread, params(1.0f), [&](Recorder& rec, Slot<float> value) {
      Event forked;
      CUDA_OK(cudaEventRecord(forked, rec.stream()));
      CUDA_OK(cudaSetDevice(1));
      Event joined;
      if (forks) {
        CUDA_OK(cudaStreamWaitEvent(cudaStreamPerThread, forked, 0));
      }
      rec.launch(add, {kGrid, kBlock}, data->get(), kSize, value);
      if (forks) {
        CUDA_OK(cudaEventRecord(joined, cudaStreamPerThread));
      }
      CUDA_OK(cudaSetDevice(0));
      if (forks) {
        CUDA_OK(cudaStreamWaitEvent(rec.stream(), joined, 0));
      }
      rec.launch(add, {kGrid, kBlock}, data->get(), kSize, value);
    });
  };
  const absl::StatusOr<Outcome> lost = run("not forked", false);
  EXPECT_FAILURE(kInvalidArgument, lost);
  const std::string message(lost.status().message());
  EXPECT_NE(message.find("fn has made another device current"), std::string::npos) << message;
  EXPECT_EQ(data->first(), 0);
  EXPECT_RUN(kInstantiated, run("forked", true));
  EXPECT_EQ(data->first(), 2);
  EXPECT_RUN(kReplayed, run("forked", true));
  EXPECT_EQ(data->first(), 4);
}

// The state of one thread's stream does not show that of another's.
TEST_F(AccountingTest, ExecutableInFlightOnAnotherThreadsDefaultStreamIsNotDestroyed) {
  Cache cache(unshared(1));
  ASSERT_SUCCESS(run_add(cache, key(0), cudaStreamPerThread));
  hostrt::hold(cudaStreamPerThread);
  EXPECT_RUN(kReplayed, run_add(cache, key(0), cudaStreamPerThread));
  hostrt::reset_calls();
  std::thread([&] {
    for (int i = 1; i < 4; ++i) {
      EXPECT_RUN(kInstantiated, run_add(cache, key(i), cudaStreamPerThread));
      CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
    }
    EXPECT_SUCCESS(run_add(cache, key(3), cudaStreamPerThread));
  }).join();
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 2u);  // those of keys 1 and 2
  CUDA_OK(hostrt::release(cudaStreamPerThread));
  for (int i = 0; i < 2; ++i) ASSERT_SUCCESS(run_add(cache, key(4), cudaStreamPerThread));
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 3u);  // that of key 3 waits for a stream that no longer exists
}

// No run uses their stream while they are in flight, so their events are recorded behind uploads.
TEST_F(AccountingTest, ExecutablesInFlightOnStreamsThatNobodyUsesAreNotDestroyed) {
  constexpr int kKeys = 20;
  Cache cache(unshared(kKeys));
  Stream busy;
  hostrt::hold(busy);
  for (int i = 0; i < kKeys; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key(i), busy));
  hostrt::reset_calls();
  for (int i = 0; i < 2 * kKeys; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key("another", i)));
  EXPECT_GT(hostrt::calls("cudaGraphUpload"), 0u);
  // Those of the stream in use are destroyed.
  EXPECT_LE(hostrt::calls("cudaGraphExecDestroy"), static_cast<std::uint64_t>(kKeys));
  EXPECT_GE(hostrt::ledger().executables, 2u * kKeys);
  CUDA_OK(hostrt::release(busy));
  EXPECT_EQ(data->first(), 3.0f * kKeys);
}

TEST_F(AccountingTest, ExecutablesInFlightAreNotDestroyedHoweverManyTheyAre) {
  Cache cache(unshared(1));
  hostrt::hold(*stream);
  constexpr int kMany = 100;
  hostrt::reset_calls();
  for (int i = 0; i < kMany; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key(i)));
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 0u);
  CUDA_OK(hostrt::release(*stream));
  EXPECT_EQ(data->first(), kMany);
  EXPECT_RUN(kInstantiated, run_add(cache, key("next")));
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 4u);  // a bounded number for one run
}

// A destruction may wait for work in flight, which may depend on what other threads' runs of the key enqueue.
TEST_F(AccountingTest, KeyIsNotLockedWhileItsVictimIsDestroyed) {
  struct Shared {
    std::function<void()> run_elsewhere;
    std::thread other;
    bool met = false;
  };
  Cache cache(unshared(1));
  Shared shared;
  shared.run_elsewhere = [&] { EXPECT_SUCCESS(run_add(cache, key("arrives"))); };
  // Called inside the destruction of the executable, which has the last reference. Checks whether another thread's run
  // reaches a runtime call meanwhile.
  const auto meet = [](void* data) {
    auto& in = *static_cast<Shared*>(data);
    in.other = std::thread([&in] { in.run_elsewhere(); });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (hostrt::threads_inside() < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    in.met = hostrt::threads_inside() == 2;
  };
  cudaUserObject_t object = nullptr;
  CUDA_OK(cudaUserObjectCreate(&object, &shared, meet, 1, cudaUserObjectNoDestructorSync));
  cudaGraph_t graph = nullptr;
  in_fn = [&] {
    if (graph != nullptr) return;
    CaptureInfo info;
    CUDA_OK(capture_info(*stream, &info));
    graph = info.graph;
    CUDA_OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  };
  EXPECT_RUN(kInstantiated, run_add(cache, key("leaves")));
  CUDA_OK(cudaGraphReleaseUserObject(graph, object, 1));
  ASSERT_FALSE(shared.other.joinable());
  for (int i = 0; i < 3 && !shared.other.joinable(); ++i) EXPECT_SUCCESS(run_add(cache, key("arrives")));
  ASSERT_TRUE(shared.other.joinable());
  shared.other.join();
  EXPECT_TRUE(shared.met);
}

TEST_F(AccountingTest, CurrentDeviceIsRestored) {
  hostrt::set_device_count(2);
  CUDA_OK(cudaSetDevice(1));
  {
    Cache cache(forced(Sharing::kUpdates, {.device = 0}));
    const auto run = [&](Outcome outcome, const char* name) {
      EXPECT_TRUE(did(outcome, run_add(cache, key(name)))) << name;
      EXPECT_EQ(current_device(), 1);
    };
    int inside = -1;
    in_fn = [&] { inside = current_device(); };
    run(Outcome::kInstantiated, "k");
    EXPECT_EQ(inside, 0);
    run(Outcome::kReplayed, "k");
    run(Outcome::kUpdated, "sibling");
    run(Outcome::kSwitched, "k");
    EXPECT_TRUE(cache.erase(key("k")));
    run(Outcome::kRestored, "sibling");
    in_fn = [] { throw 7; };
    EXPECT_THROW((void)run_add(cache, key("throws")), int);
    EXPECT_EQ(current_device(), 1);
    in_fn = nullptr;
    EXPECT_RUN(kEager, cache.run(key("eager"), *stream, [&](cudaStream_t s) {
      inside = current_device();
      return cudaStreamSynchronize(s);
    }));
    EXPECT_EQ(inside, 0);
    EXPECT_EQ(current_device(), 1);
    cache.clear();
    EXPECT_EQ(current_device(), 1);
  }
  EXPECT_EQ(current_device(), 1);
  CUDA_OK(cudaSetDevice(0));
  EXPECT_EQ(data->first(), 5.0f);
}

TEST_F(AccountingTest, CacheTakesTheDeviceOfTheFirstRunsStream) {
  hostrt::set_device_count(2);
  CUDA_OK(cudaSetDevice(1));
  Cache cache, by_default_stream;
  EXPECT_EQ(cache.options().device, Options::kCurrentDevice);
  ASSERT_SUCCESS(run_add(cache, key("k")));  // The stream belongs to device 0.
  EXPECT_EQ(cache.options().device, 0);
  EXPECT_EQ(current_device(), 1);
  Stream there;
  for (const char* name : {"k", "cold"}) {
    const auto outcome = run_add(cache, key(name), there);
    EXPECT_FAILURE(kInvalidArgument, outcome);
    EXPECT_TRUE(mentions(outcome.status(), CUDART_VERSION >= 12080 ? "device 1" : "another device"));
  }
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_SUCCESS(by_default_stream.run(key("k"), cudaStreamPerThread, [](cudaStream_t) {}));
  EXPECT_EQ(by_default_stream.options().device, 1);
  CUDA_OK(cudaSetDevice(0));
  EXPECT_FAILURE(kInvalidArgument, run_add(by_default_stream, key("k")));
}

TEST_F(AccountingTest, CachesOfTwoDevicesAreTwo) {
  hostrt::set_device_count(2);
  EXPECT_NE(&cache_for(0), &cache_for(1));
  EXPECT_EQ(cache_for(1).options().device, 1);
  CUDA_OK(cudaSetDevice(1));
  {
    Stream on_1;
    EXPECT_RUN(kInstantiated, run_add(cache_for(1), key("k"), on_1));
    EXPECT_RUN(kReplayed, run_add(cache_for(1), key("k"), on_1));
  }
  CUDA_OK(cudaSetDevice(0));
  cache_for(1).clear();
  expect_no_graphs();
}

// Driver calls do not latch, so the error in the slot is the caller's.
TEST_F(AccountingTest, ErrorInTheSlotStaysThroughARefusedPatch) {
  Cache cache;
  const auto run = [&](int grid) {
    return cache.run(key("k"), *stream, params(grid), [&](Recorder& rec, Slot<int> g) {
      rec.launch(add, {g, kBlock}, data->get(), kSize, 1);
    });
  };
  ASSERT_SUCCESS(run(1));
  EXPECT_EQ(cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  EXPECT_FALSE(run(0).ok());
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
}

// Destroying it waits for work, which may depend on what this thread has yet to launch, so the capture and its launch
// come first.
TEST_F(AccountingTest, ACacheOfAnotherDeviceThatEndsInACaptureIsDestroyedBehindTheRun) {
  constexpr int kKeys = 12;
  hostrt::set_device_count(2);
  Options options = unshared(1);
  options.device = 1;
  CUDA_OK(cudaSetDevice(1));
  auto ended = std::make_unique<Cache>(options);
  {
    Stream there;
    hostrt::hold(there);
    for (int i = 0; i < kKeys; ++i) ASSERT_SUCCESS(run_add(*ended, key(i), there));
    const std::size_t waiting = hostrt::ledger().executables;
    EXPECT_GT(waiting, 2u);
    CUDA_OK(cudaSetDevice(0));
    Cache cache(unshared(1));
    in_fn = [&] {
      ended.reset();
      EXPECT_EQ(hostrt::ledger().executables, waiting);
    };
    ASSERT_SUCCESS(run_add(cache, key("outer")));
    in_fn = nullptr;
    EXPECT_EQ(hostrt::ledger().executables, cache.stats().live_executables);
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(hostrt::release(there));
  }
  CUDA_OK(cudaSetDevice(0));
}

// If a context is lost, none of its objects may be destroyed, and it is unknown which of them belong to it.
TEST_F(AccountingTest, WhatWaitsIsDroppedOnceAnotherCacheIsLost) {
  Cache cache(unshared(1)), lost(unshared(1));
  ASSERT_SUCCESS(run_add(lost, key("k")));
  hostrt::hold(*stream);
  for (int i = 0; i < 6; ++i) ASSERT_SUCCESS(run_add(cache, key(i)));
  EXPECT_GT(hostrt::ledger().executables, 3u);
  CUDA_OK(hostrt::release(*stream));
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorLaunchFailure);
  EXPECT_FALSE(run_add(lost, key("k")).ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  hostrt::clear_failures();
  const Counts calls = calls_of([&] { EXPECT_FALSE(cache.erase(key("another"))); });
  expect_calls(calls, {}, {"cudaGraphExecDestroy", "cudaGraphDestroy"});
}

TEST_F(AccountingTest, StatsTakesNoLongerWithManyKeys) {
#if GRAPHCACHE_STRUCTURE_CHECKS
  GTEST_SKIP() << "each call looks at all entries here";
#endif
  Cache small({.capture_after = 1}), large({.capture_after = 1});
  for (int i = 0; i < 4000; ++i) EXPECT_RUN(kEager, run_add(i == 0 ? small : large, key(i)));
  const auto seconds = [](const Cache& cache) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) (void)cache.stats();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double of_small = 1e9, of_large = 1e9;
  for (int i = 0; i < 5; ++i) {
    of_small = std::min(of_small, seconds(small));
    of_large = std::min(of_large, seconds(large));
  }
  EXPECT_LE(of_large, 3 * of_small);
}

TEST_F(AccountingTest, KeyErasedDuringItsHitIsGoneByTheEndOfTheRun) {
  Cache cache;
  const auto run = [&](float value) {
    return cache.run(key("k"), *stream, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data->get(), kSize, v);
    });
  };
  ASSERT_SUCCESS(run(1));
  std::atomic<bool> stop{false};
  std::thread eraser([&] {
    while (!stop) cache.erase(key("k"));
  });
  for (int i = 0; i < 2000; ++i) ASSERT_SUCCESS(run(static_cast<float>(i)));
  stop = true;
  eraser.join();
  cache.erase(key("k"));
  EXPECT_EQ(cache.stats().live_executables, 0u);
  expect_no_graphs();
}

}  // namespace
}  // namespace graphcache::test
