// Many threads on one cache, on either runtime. Device memory is read only after the threads have joined: a
// synchronization in one thread breaks a capture in another (facts, rule 4).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

// For what is not about siblings: keys of one topology have an executable each.
Options unshared(int max_executables = Options().max_executables) {
  Options options;
  options.max_executables = max_executables;
  options.sharing = Sharing::kNever;
  return options;
}

constexpr int kSize = 32;
constexpr dim3 kGrid(1), kBlock(32);

// Lets threads through once all of them are there.
class Gate {
 public:
  explicit Gate(int count) : missing_(count) {}
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) return arrived_.notify_all();
    arrived_.wait(lock, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  int missing_;
};

// Calls work(0) ... work(count - 1), each in a thread of its own, all at once, and waits for them.
void in_threads(int count, const std::function<void(int)>& work) {
  Gate gate(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      gate.pass();
      work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A stream and the memory that its work sums up in, one of each for a thread.
struct Lane {
  Stream stream;
  DeviceBuffer<float> sum{kSize};
};

class ThreadsTest : public testing::Test {
 protected:
  explicit ThreadsTest(int count = 16) {
    for (int i = 0; i < count; ++i) lanes.push_back(std::make_unique<Lane>());
  }
  void TearDown() override {
    for (const auto& lane : lanes) EXPECT_FALSE(is_capturing(lane->stream));
    CUDA_OK(cudaPeekAtLastError());
  }
  int count() const { return static_cast<int>(lanes.size()); }
  Lane& lane(int i) { return *lanes[static_cast<std::size_t>(i)]; }

  // Adds `value` to the lane's sum through the slots of `key`'s graph.
  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& which, Lane& lane, float value) {
    return cache.run(which, lane.stream, params(lane.sum.get(), value),
                     [&](Recorder& rec, Slot<float*> p, Slot<float> v) {
                       ++calls;
                       rec.launch(add, {kGrid, kBlock}, p, kSize, v);
                     });
  }

  // Adds `constant`, which is the key's, as well.
  absl::StatusOr<Outcome> run_add_two(Cache& cache, const Key& which, Lane& lane, float value, float constant) {
    return cache.run(which, lane.stream, params(lane.sum.get(), value),
                     [&, constant](Recorder& rec, Slot<float*> p, Slot<float> v) {
                       ++calls;
                       rec.launch(add, {kGrid, kBlock}, p, kSize, v);
                       rec.launch(add, {kGrid, kBlock}, p, kSize, constant);
                     });
  }

  std::vector<std::unique_ptr<Lane>> lanes;
  std::atomic<int> calls{0};
};

TEST_F(ThreadsTest, ColdKeyIsCapturedOnce) {
  for (int repetition = 1; repetition <= 5; ++repetition) {
    Cache cache;
    calls = 0;
    std::atomic<int> instantiated{0}, failed{0};
    in_threads(count(), [&](int i) {
      const auto outcome = run_add(cache, key("k"), lane(i), static_cast<float>(i + 1));
      if (!outcome.ok()) ++failed;
      if (outcome.ok() && *outcome == Outcome::kInstantiated) ++instantiated;
    });
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(instantiated, 1);
    EXPECT_EQ(cache.stats().captures, 1u);
    EXPECT_EQ(cache.stats().runs(), static_cast<unsigned>(count()));
    for (int i = 0; i < count(); ++i) EXPECT_EQ(lane(i).sum.first(), static_cast<float>(repetition * (i + 1))) << i;
  }
}

TEST_F(ThreadsTest, ColdKeyWhoseCaptureBreaksRunsInEveryThread) {
  Cache cache;
  std::atomic<int> failed{0};
  in_threads(count(), [&](int i) {
    Lane& mine = lane(i);
    const auto outcome = cache.run(key("k"), mine.stream, params(mine.sum.get()), [&](Recorder& rec, Slot<float*> p) {
      if (const cudaError_t error = cudaStreamSynchronize(rec.stream()); error != cudaSuccess) return error;
      rec.launch(add, {kGrid, kBlock}, p, kSize, 1);
      return cudaSuccess;
    });
    if (!outcome.ok() || *outcome != Outcome::kEager) ++failed;
  });
  EXPECT_EQ(failed, 0);
  for (int i = 0; i < count(); ++i) EXPECT_EQ(lane(i).sum.first(), 1.0f) << i;
  EXPECT_EQ(cache.stats().outcome(Outcome::kEager), static_cast<unsigned>(count()));
}

TEST_F(ThreadsTest, ColdKeyWhoseFnThrowsInOneThreadIsRunInTheOthers) {
  Cache cache;
  std::atomic<int> thrown{0}, done{0}, first{0};
  in_threads(count(), [&](int i) {
    Lane& mine = lane(i);
    try {
      const auto outcome = cache.run(key("k"), mine.stream, params(mine.sum.get()), [&](Recorder& rec, Slot<float*> p) {
        if (first++ == 0) throw 7;
        rec.launch(add, {kGrid, kBlock}, p, kSize, 1);
      });
      if (outcome.ok()) ++done;
    } catch (int) {
      ++thrown;
    }
  });
  EXPECT_EQ(thrown, 1);
  EXPECT_EQ(done, count() - 1);
  float sum = 0;
  for (int i = 0; i < count(); ++i) sum += lane(i).sum.first();
  EXPECT_EQ(sum, static_cast<float>(count() - 1));
}

TEST_F(ThreadsTest, ChangingValuesOfOneKeyReachTheRightRuns) {
  Cache cache;
  constexpr int kRuns = 200;
  std::atomic<int> failed{0};
  in_threads(count(), [&](int i) {
    for (int n = 1; n <= kRuns; ++n) {
      if (!run_add(cache, key("k"), lane(i), static_cast<float>(i * n % 11)).ok()) ++failed;
    }
  });
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(calls, 1);
  for (int i = 0; i < count(); ++i) {
    float sum = 0;
    for (int n = 1; n <= kRuns; ++n) sum += static_cast<float>(i * n % 11);
    EXPECT_EQ(lane(i).sum.read(), std::vector<float>(kSize, sum)) << i;
  }
  EXPECT_EQ(cache.stats().runs(), static_cast<unsigned>(count() * kRuns));
  EXPECT_EQ(cache.stats().live_executables, 1u);
}

TEST_F(ThreadsTest, FewExecutablesForManyKeysAndThreadsLoseNothing) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kAuto, Sharing::kAlways}) {
    for (const int max_templates : {512, 3, 0}) {
      SCOPED_TRACE(testing::Message() << "sharing " << static_cast<int>(sharing) << ", " << max_templates
                                      << " templates");
      Options options;
      options.max_executables = 2;
      options.max_templates = max_templates;
      options.sharing = sharing;
      Cache cache(options);
      constexpr int kRuns = 100;
      constexpr int kKeys = 5;
      std::atomic<int> failed{0};
      for (int i = 0; i < count(); ++i) lane(i).sum.write(std::vector<float>(kSize));
      in_threads(count(), [&](int i) {
        for (int n = 1; n <= kRuns; ++n) {
          const int which = (n * (i + 1) / 3) % kKeys;  // Its graph adds 1000 times as much as a constant.
          if (!run_add_two(cache, key("k", which), lane(i), static_cast<float>(n % 7), 1000.0f * which).ok()) ++failed;
        }
      });
      EXPECT_EQ(failed, 0);
      for (int i = 0; i < count(); ++i) {
        float sum = 0;
        for (int n = 1; n <= kRuns; ++n) sum += static_cast<float>(n % 7) + 1000.0f * ((n * (i + 1) / 3) % kKeys);
        EXPECT_EQ(lane(i).sum.read(), std::vector<float>(kSize, sum)) << i;
      }
      const Stats stats = cache.stats();
      EXPECT_EQ(stats.runs(), static_cast<unsigned>(count() * kRuns));
      EXPECT_EQ(stats.failed, 0u);
      EXPECT_LE(stats.live_executables, 2u);
      if (sharing == Sharing::kNever) {
        EXPECT_GT(stats.evictions, 0u);
        EXPECT_EQ(stats.updates, 0u);
        EXPECT_EQ(stats.families, 0u);
      }
      EXPECT_EQ(stats.instantiations, stats.outcome(Outcome::kInstantiated) + stats.outcome(Outcome::kRestored));
      EXPECT_EQ(stats.live_templates, stats.captures - stats.forgotten);
      if (max_templates >= kKeys) {
        EXPECT_EQ(stats.captures, static_cast<unsigned>(kKeys));
        EXPECT_EQ(stats.forgotten, 0u);
      }
    }
  }
}

TEST_F(ThreadsTest, EraseClearPinAndReportsWhileOthersRun) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kAuto}) {
    Options options;
    options.max_executables = 3;
    options.max_templates = 4;
    options.sharing = sharing;
    Cache cache(options);
    constexpr int kRuns = 100;
    constexpr int kRunners = 8;
    std::atomic<int> failed{0}, running{kRunners};
    for (int i = 0; i < kRunners; ++i) lane(i).sum.write(std::vector<float>(kSize));
    in_threads(kRunners + 5, [&](int i) {
      if (i < kRunners) {
        for (int n = 1; n <= kRuns; ++n) {
          const int which = (n + i) % 6;
          if (!run_add_two(cache, key("k", which), lane(i), 1, 10.0f * which).ok()) ++failed;
        }
        --running;
        return;
      }
      std::uint64_t last = 0;
      while (running > 0) {
        if (i == kRunners) cache.erase(key("k", 1));
        if (i == kRunners + 1) cache.clear();
        if (i == kRunners + 2) {
          const Stats stats = cache.stats();
          if (stats.runs() < last || stats.live_executables > 3) ++failed;
          last = stats.runs();
        }
        if (i == kRunners + 3) {
          for (const EntryInfo& entry : cache.entries()) {
            if (entry.label != "k") ++failed;
          }
          cache.contains(key("k", 2));
        }
        if (i == kRunners + 4) {
          cache.pin(key("k", 3));
          cache.unpin(key("k", 3));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
    EXPECT_EQ(failed, 0);
    for (int i = 0; i < kRunners; ++i) {
      float sum = kRuns;
      for (int n = 1; n <= kRuns; ++n) sum += 10.0f * ((n + i) % 6);
      EXPECT_EQ(lane(i).sum.read(), std::vector<float>(kSize, sum)) << i;
    }
    const Stats stats = cache.stats();
    EXPECT_EQ(stats.runs(), static_cast<unsigned>(kRunners * kRuns));
    cache.clear();
    EXPECT_EQ(cache.stats().live_executables, 0u);
    EXPECT_EQ(cache.stats().live_templates, 0u);
    EXPECT_EQ(cache.stats().families, 0u);
  }
}

// A family's one executable goes from thread to thread: each must launch its own graph with its own values.
TEST_F(ThreadsTest, OneExecutableServesSiblingsOfAllThreads) {
  for (const int max_executables : {1, 64}) {
    Options options;
    options.max_executables = max_executables;
    options.sharing = Sharing::kAlways;
    Cache cache(options);
    constexpr int kRuns = 100;
    calls = 0;
    std::atomic<int> failed{0};
    for (int i = 0; i < count(); ++i) lane(i).sum.write(std::vector<float>(kSize));
    in_threads(count(), [&](int i) {
      for (int n = 1; n <= kRuns; ++n) {
        if (!run_add_two(cache, key(i), lane(i), static_cast<float>(n % 5), 100.0f * (i + 1)).ok()) ++failed;
      }
    });
    EXPECT_EQ(failed, 0);
    for (int i = 0; i < count(); ++i) {
      float sum = 0;
      for (int n = 1; n <= kRuns; ++n) sum += static_cast<float>(n % 5) + 100.0f * (i + 1);
      EXPECT_EQ(lane(i).sum.read(), std::vector<float>(kSize, sum)) << i;
    }
    const Stats stats = cache.stats();
    EXPECT_EQ(stats.runs(), static_cast<unsigned>(count() * kRuns));
    EXPECT_LE(stats.live_executables, static_cast<unsigned>(max_executables));
    EXPECT_EQ(stats.families, 1u);
    if (max_executables == 64) {
      EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);  // There was room for a second, where the first was in use.
      EXPECT_EQ(calls, count());
    }
  }
}

TEST_F(ThreadsTest, KeyThatLostItsExecutableIsRestoredOnceByManyThreads) {
  Cache cache(unshared(1));
  ASSERT_TRUE(run_add(cache, key("k"), lane(0), 0).ok());
  for (int repetition = 1; repetition <= 5; ++repetition) {
    ASSERT_TRUE(run_add(cache, key("other"), lane(0), 0).ok());
    const Stats before = cache.stats();
    std::atomic<int> restored{0}, failed{0};
    in_threads(count(), [&](int i) {
      const auto outcome = run_add(cache, key("k"), lane(i), static_cast<float>(i + 1));
      if (!outcome.ok()) ++failed;
      if (outcome.ok() && *outcome == Outcome::kRestored) ++restored;
    });
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(restored, 1);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(cache.stats().instantiations, before.instantiations + 1);
    for (int i = 0; i < count(); ++i) EXPECT_EQ(lane(i).sum.first(), static_cast<float>(repetition * (i + 1))) << i;
  }
}

// Waits for `flag`, but not for ever: a test must fail, not hang.
bool comes_true(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flag && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return flag;
}

TEST_F(ThreadsTest, RunsOfAnotherKeyDoNotWaitForACapture) {
  Cache cache(unshared());
  ASSERT_TRUE(run_add(cache, key("warm"), lane(0), 1).ok());
  std::atomic<bool> inside{false}, others_done{false};
  in_threads(2, [&](int i) {
    if (i == 0) {
      EXPECT_TRUE(cache
                      .run(key("slow"), lane(1).stream,
                           [&](cudaStream_t on) {
                             inside = true;
                             EXPECT_TRUE(comes_true(others_done));
                             return launch(add, kGrid, kBlock, on, lane(1).sum.get(), kSize, 1.0f);
                           })
                      .ok());
    } else {
      EXPECT_TRUE(comes_true(inside));
      EXPECT_RUN(kReplayed, run_add(cache, key("warm"), lane(0), 1));  // A hit,
      EXPECT_RUN(kPatched, run_add(cache, key("warm"), lane(0), 2));
      EXPECT_RUN(kInstantiated, run_add(cache, key("cold"), lane(2), 3));  // a miss,
      EXPECT_TRUE(cache.erase(key("cold")));                               // and what looks at all entries.
      EXPECT_FALSE(cache.contains(key("slow")));
      EXPECT_EQ(cache.entries().size(), 2u);
      EXPECT_EQ(cache.stats().captures, 2u);
      others_done = true;
    }
  });
  EXPECT_EQ(lane(0).sum.first(), 4.0f);
  EXPECT_EQ(lane(1).sum.first(), 1.0f);
  EXPECT_EQ(lane(2).sum.first(), 3.0f);
  EXPECT_TRUE(cache.contains(key("slow")));
}

// A capture in global mode forbids unsafe calls to every thread, and breaks by them.
TEST_F(ThreadsTest, RunsDoNotBreakAnotherThreadsCaptureInGlobalMode) {
  for (const bool shared : {false, true}) {
    Cache cache(shared ? Options() : unshared(1));
    ASSERT_TRUE(run_add(cache, key("first"), lane(0), 1).ok());
    CUDA_OK(cudaStreamBeginCapture(lane(1).stream, cudaStreamCaptureModeGlobal));
    std::thread([&] {
      EXPECT_RUN(kReplayed, run_add(cache, key("first"), lane(0), 1));
      EXPECT_RUN(kPatched, run_add(cache, key("first"), lane(0), 2));
      EXPECT_TRUE(did(shared ? Outcome::kUpdated : Outcome::kInstantiated,
                      run_add(cache, key("second"), lane(0), 3)));  // Evicts, or takes over.
      EXPECT_TRUE(did(shared ? Outcome::kSwitched : Outcome::kRestored, run_add(cache, key("first"), lane(0), 4)));
      cache.clear();
    }).join();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(lane(1).stream, &graph), cudaSuccess);
    if (graph != nullptr) {
      CUDA_OK(cudaGraphDestroy(graph));
    }
    cudaGetLastError();
    EXPECT_EQ(lane(0).sum.first(), shared ? 22.0f : 11.0f);
  }
}

TEST_F(ThreadsTest, EagerRunsOfOneKeyDoNotWaitForEachOther) {
  Options options;
  options.capture_after = 1000;
  Cache cache(options);
  Gate both(2);
  in_threads(2, [&](int i) {
    EXPECT_TRUE(cache
                    .run(key("k"), lane(i).stream,
                         [&](cudaStream_t on) {
                           both.pass();  // Each is inside fn while the other is.
                           return launch(add, kGrid, kBlock, on, lane(i).sum.get(), kSize, 1.0f);
                         })
                    .ok());
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(lane(i).sum.first(), 1.0f);
}

TEST_F(ThreadsTest, EraseAndClearDoNotWaitForARun) {
  Cache cache;
  std::atomic<bool> inside{false}, erased{false};
  in_threads(2, [&](int i) {
    if (i == 0) {
      EXPECT_TRUE(cache
                      .run(key("slow"), lane(0).stream,
                           [&](cudaStream_t on) {
                             inside = true;
                             EXPECT_TRUE(comes_true(erased));
                             return launch(add, kGrid, kBlock, on, lane(0).sum.get(), kSize, 1.0f);
                           })
                      .ok());
    } else {
      EXPECT_TRUE(comes_true(inside));
      EXPECT_TRUE(cache.erase(key("slow")));
      cache.clear();
      EXPECT_TRUE(cache.entries().empty());
      erased = true;
    }
  });
  EXPECT_EQ(lane(0).sum.first(), 1.0f);
  EXPECT_FALSE(cache.contains(key("slow")));
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
    EXPECT_TRUE(run(lane(i)).ok());
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(lane(i).sum.first(), 1.0f) << i;
  EXPECT_TRUE(run(lane(0)).ok());
  EXPECT_RUN(kReplayed, run(lane(0)));
  cache.clear();
  EXPECT_EQ(cache.stats().live_executables, 0u);
}

TEST_F(ThreadsTest, ThreadsHaveTheirOwnPerThreadStreams) {
  Cache cache;
  std::atomic<int> failed{0};
  in_threads(count(), [&](int i) {
    Lane& mine = lane(i);
    for (int n = 0; n < 20; ++n) {
      const auto outcome =
          cache.run(key("k"), cudaStreamPerThread, params(mine.sum.get()), [&](Recorder& rec, Slot<float*> p) {
            rec.launch(add, {kGrid, kBlock}, p, kSize, 1);
          });
      if (!outcome.ok()) ++failed;
    }
  });
  EXPECT_EQ(failed, 0);
  for (int i = 0; i < count(); ++i) EXPECT_EQ(lane(i).sum.first(), 20.0f) << i;
}

// A thread that has not called the runtime yet has no context, which driver functions need.
TEST_F(ThreadsTest, FirstCallOfAThreadMayBeAHitWithNewValues) {
  Cache cache;
  ASSERT_TRUE(run_add(cache, key("k"), lane(0), 1).ok());
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    std::thread([&] { EXPECT_TRUE(run_add(cache, key("k"), lane(0), value).ok()); }).join();
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
