// Which threads wait for which in a cache, and per-thread state, on either runtime.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "threads_support.h"

namespace graphcache::test {
namespace {

TEST_F(ThreadsTest, NoOtherCallWaitsForACapture) {
  for (const bool erases : {false, true}) {
    SCOPED_TRACE(erases ? "and its key is erased" : "");
    Cache cache(unshared());
    for (int i = 0; i < 3; ++i) lane(i).sum.write(std::vector<float>(kSize));
    ASSERT_SUCCESS(run_add(cache, key("warm"), lane(0), 1));
    std::atomic<bool> inside{false}, others_done{false};
    in_threads(2, [&](int i) {
      if (i == 0) {
        EXPECT_SUCCESS(cache.run(key("slow"), lane(1).stream, [&](cudaStream_t on) {
          inside = true;
          EXPECT_TRUE(comes_true(others_done));
          return launch(add, kGrid, kBlock, on, lane(1).sum.get(), kSize, 1.0f);
        }));
      } else {
        EXPECT_TRUE(comes_true(inside));
        EXPECT_RUN(kReplayed, run_add(cache, key("warm"), lane(0), 1));  // a hit
        EXPECT_RUN(kPatched, run_add(cache, key("warm"), lane(0), 2));
        EXPECT_RUN(kInstantiated, run_add(cache, key("cold"), lane(2), 3));  // a miss
        EXPECT_TRUE(cache.erase(key("cold")));                               // a call that looks at all entries
        EXPECT_FALSE(cache.contains(key("slow")));
        EXPECT_EQ(cache.entries().size(), 2u);
        EXPECT_EQ(cache.stats().captures, 2u);
        if (erases) {
          EXPECT_TRUE(cache.erase(key("slow")));
          cache.clear();
          EXPECT_TRUE(cache.entries().empty());
        }
        others_done = true;
      }
    });
    EXPECT_EQ(lane(0).sum.first(), 4.0f);
    EXPECT_EQ(lane(1).sum.first(), 1.0f);
    EXPECT_EQ(lane(2).sum.first(), 3.0f);
    EXPECT_EQ(cache.contains(key("slow")), !erases);
  }
}

// A capture in global mode forbids unsafe calls to every thread, and such a call breaks it.
TEST_F(ThreadsTest, RunsDoNotBreakAnotherThreadsCaptureInGlobalMode) {
  float sum = 0;
  for (const ForcedOptions& options :
       std::initializer_list<ForcedOptions>{unshared(1), renting(), Options{.max_executables = 1}}) {
    const bool shared = options.share != Share::kNever;
    SCOPED_TRACE(testing::Message() << "share " << static_cast<int>(options.share));
    Cache cache(options.again());
    ASSERT_SUCCESS(run_add(cache, key("first"), lane(0), 1));
    CUDA_OK(cudaStreamBeginCapture(lane(1).stream, cudaStreamCaptureModeGlobal));
    std::thread([&] {
      EXPECT_RUN(kReplayed, run_add(cache, key("first"), lane(0), 1));
      EXPECT_RUN(kPatched, run_add(cache, key("first"), lane(0), 2));
      EXPECT_TRUE(did(shared ? Outcome::kUpdated : Outcome::kInstantiated,
                      run_add(cache, key("second"), lane(0), 3)));  // evicts, or takes over
      EXPECT_TRUE(did(shared ? Outcome::kSwitched : Outcome::kRestored, run_add(cache, key("first"), lane(0), 4)));
      cache.clear();
    }).join();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(lane(1).stream, &graph), cudaSuccess);
    if (graph != nullptr) {
      CUDA_OK(cudaGraphDestroy(graph));
    }
    cudaGetLastError();
    sum += 1 + 1 + 2 + 3 + 4;
    EXPECT_EQ(lane(0).sum.first(), sum);
  }
}

TEST_F(ThreadsTest, EagerRunsOfOneKeyDoNotWaitForEachOther) {
  Cache cache({.capture_after = 1000});
  Gate both(2);
  in_threads(2, [&](int i) {
    EXPECT_SUCCESS(cache.run(key("k"), lane(i).stream, [&](cudaStream_t on) {
      both.pass();  // each is inside fn while the other one is
      return launch(add, kGrid, kBlock, on, lane(i).sum.get(), kSize, 1.0f);
    }));
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(lane(i).sum.first(), 1.0f);
}

TEST_F(ThreadsTest, KeyErasedWhileThreadsWaitForItIsRunByEach) {
  Cache cache;
  std::atomic<bool> inside{false}, erased{false};
  std::atomic<int> waiting{0};
  const auto run = [&](Lane& mine) {
    return cache.run(key("k"), mine.stream, params(mine.sum.get()), [&](Recorder& rec, Slot<float*> p) {
      if (!inside.exchange(true)) {
        EXPECT_TRUE(comes_true(erased));
      }
      rec.launch(add, {kGrid, kBlock}, p, kSize, 1);
    });
  };
  in_threads(6, [&](int i) {
    if (i == 5) {
      EXPECT_TRUE(comes_true(inside));
      while (waiting < 5) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_TRUE(cache.erase(key("k")));
      erased = true;
      return;
    }
    ++waiting;
    EXPECT_SUCCESS(run(lane(i)));
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(lane(i).sum.first(), 1.0f) << i;
  EXPECT_SUCCESS(run(lane(0)));
  EXPECT_RUN(kReplayed, run(lane(0)));
  cache.clear();
  EXPECT_EQ(cache.stats().live_executables, 0u);
}

TEST_F(ThreadsTest, ThreadsHaveTheirOwnPerThreadStreams) {
  Cache cache;
  run_in_threads(
      count(), 20,
      [&](int i, int) {
        return cache.run(key("k"), cudaStreamPerThread, params(lane(i).sum.get()), [](Recorder& rec, Slot<float*> p) {
          rec.launch(add, {kGrid, kBlock}, p, kSize, 1);
        });
      },
      [](int, int) { return 1.0f; });
}

// A thread that has not called the runtime yet has no context, which driver functions need.
TEST_F(ThreadsTest, FirstCallOfAThreadMayBeAHitWithNewValues) {
  Cache cache;
  ASSERT_SUCCESS(run_add(cache, key("k"), lane(0), 1));
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    std::thread([&] { EXPECT_SUCCESS(run_add(cache, key("k"), lane(0), value)); }).join();
  }
  EXPECT_EQ(lane(0).sum.first(), 7.0f);
  EXPECT_EQ(cache.stats().outcome(Outcome::kPatched), 2u);
}

TEST_F(ThreadsTest, CachesOfADeviceAreMadeOnce) {
  std::vector<Cache*> caches(static_cast<std::size_t>(count()));
  in_threads(count(), [&](int i) { caches[static_cast<std::size_t>(i)] = &cache_for(0); });
  for (Cache* cache : caches) EXPECT_EQ(cache, caches[0]);
}

}  // namespace
}  // namespace graphcache::test
