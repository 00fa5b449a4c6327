// Many threads on one cache, on either runtime: their effects on each other's results. Device memory is read only after
// the threads have joined, because a synchronization in one thread breaks a capture in another (facts, rule 4).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "size.h"
#include "threads_support.h"

namespace graphcache::test {
namespace {

TEST_F(ThreadsTest, ManyThreadsCaptureAColdKeyOnceAndRestoreOneOnce) {
  for (const bool is_cold : {true, false}) {
    SCOPED_TRACE(is_cold ? "cold" : "without its executable");
    Cache evicting(unshared(1));
    ASSERT_SUCCESS(run_add(evicting, key("k"), lane(0), 0));
    for (int repetition = 1; repetition <= 5; ++repetition) {
      Cache fresh;
      Cache& cache = is_cold ? fresh : evicting;
      ASSERT_SUCCESS(run_add(evicting, key("other"), lane(0), 0));
      for (const auto& each : lanes) each->sum.write(std::vector<float>(kSize));
      const Stats before = cache.stats();
      const int called = calls;
      std::atomic<int> made{0}, failed{0};
      in_threads(count(), [&](int i) {
        const auto outcome = run_add(cache, key("k"), lane(i), static_cast<float>(i + 1));
        if (!outcome.ok()) ++failed;
        if (outcome.ok() && *outcome == (is_cold ? Outcome::kInstantiated : Outcome::kRestored)) ++made;
      });
      EXPECT_EQ(failed, 0);
      EXPECT_EQ(made, 1);
      EXPECT_EQ(calls - called, is_cold ? 1 : 0);
      const Stats change = cache.stats() - before;
      EXPECT_EQ(change.captures, is_cold ? 1u : 0u);
      EXPECT_EQ(change.instantiations, 1u);
      EXPECT_EQ(change.runs(), static_cast<unsigned>(count()));
      for (int i = 0; i < count(); ++i) EXPECT_EQ(lane(i).sum.first(), static_cast<float>(i + 1)) << i;
    }
  }
}

TEST_F(ThreadsTest, ColdKeyThatCannotBeCapturedRunsInEveryThread) {
  for (const bool breaks : {true, false}) {
    SCOPED_TRACE(breaks ? "fn breaks the capture" : "fn throws under capture");
    Cache cache;
    run_in_threads(
        count(), 6,
        [&](int i, int) {
          Lane& mine = lane(i);
          return cache.run(key("k"), mine.stream, params(mine.sum.get()), [&](Recorder& rec, Slot<float*> p) {
            const cudaError_t error = breaks ? cudaStreamSynchronize(rec.stream()) : cudaSuccess;
            if (error != cudaSuccess) return error;
            rec.launch(add, {kGrid, kBlock}, p, kSize, 1);
            if (!breaks && is_capturing(rec.stream())) throw std::runtime_error("not under capture");
            return cudaSuccess;
          });
        },
        [](int, int) { return 1.0f; });
    EXPECT_EQ(cache.stats().outcome(Outcome::kEager), static_cast<unsigned>(6 * count()));
  }
}

TEST_F(ThreadsTest, ColdKeyWhoseFnThrowsInOneThreadIsRunInTheOthers) {
  Cache cache;
  std::atomic<int> thrown{0}, done{0};
  std::atomic<bool> is_taken{false};
  in_threads(count(), [&](int i) {
    Lane& mine = lane(i);
    bool throws = false;  // In both calls of fn by one thread.
    try {
      const auto outcome = cache.run(key("k"), mine.stream, params(mine.sum.get()), [&](Recorder& rec, Slot<float*> p) {
        throws = throws || !is_taken.exchange(true);
        if (throws) throw 7;
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

TEST_F(ThreadsTest, FewExecutablesForManyKeysAndThreadsLoseNothing) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kAuto, Sharing::kUpdatesAcross}) {
    for (const int max_templates : {512, 3, 0}) {
      SCOPED_TRACE(testing::Message() << "sharing " << static_cast<int>(sharing) << ", " << max_templates
                                      << " templates");
      Cache cache(forced(sharing, {.max_executables = 2, .max_templates = max_templates}));
      constexpr int kRuns = 100;
      constexpr int kKeys = 5;
      // The graph of a key also adds 1000 times its number as a constant.
      const auto which = [](int i, int n) { return n * (i + 1) / 3 % kKeys; };
      run_in_threads(
          count(), kRuns,
          [&](int i, int n) {
            const int number = which(i, n);
            return run_add_two(cache, key("k", number), lane(i), static_cast<float>(n % 7), 1000.0f * number);
          },
          [&](int i, int n) { return static_cast<float>(n % 7) + 1000.0f * which(i, n); });
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
    Cache cache(forced(sharing, {.max_executables = 3, .max_templates = 4}));
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
        if (i == kRunners) {
          cache.erase(key("k", 1));
          cache.erase_if([](const Key& each) { return each == key("k", 4) || each == key("k", 5); });
        }
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
    expect_empty(cache);
  }
}

TEST_F(ThreadsTest, EntriesThatStayAreReportedOnceWhileOthersAreAddedAndErased) {
  // All but a few keys are cold.
  Cache cache(forced(Sharing::kNever, {.max_executables = 1, .max_templates = 4, .capture_after = 1}));
  constexpr int kStay = 500, kCome = 1500;
  for (int n = 0; n < kStay; ++n) ASSERT_SUCCESS(run_add(cache, key("stays", n), lane(0), 1));
  std::atomic<bool> running{true};
  in_threads(2, [&](int i) {
    if (i == 1) {
      for (int n = 0; n < kCome; ++n) {
        EXPECT_SUCCESS(run_add(cache, key("comes", n), lane(1), 1));
        if (n % 3 == 0) cache.erase(key("comes", n / 2));
      }
      running = false;
      return;
    }
    while (running) {
      std::set<std::string> keys;
      int stays = 0;
      for (const EntryInfo& entry : cache.entries()) {
        EXPECT_TRUE(keys.insert(entry.key.to_string()).second) << entry.key.to_string();
        stays += entry.label == "stays";
        EXPECT_EQ(entry.last_use_order, keys.size() - 1);
      }
      EXPECT_EQ(stays, kStay);
    }
  });
}

// A family's one executable passes from thread to thread: each must launch its own graph with its own values.
TEST_F(ThreadsTest, OneExecutableServesSiblingsOfAllThreads) {
  for (const int max_executables : {1, 64}) {
    Cache cache(forced(Sharing::kUpdatesAcross, {.max_executables = max_executables}));
    constexpr int kRuns = 100;
    calls = 0;
    run_in_threads(
        count(), kRuns,
        [&](int i, int n) { return run_add_two(cache, key(i), lane(i), static_cast<float>(n % 5), 100.0f * (i + 1)); },
        [](int i, int n) { return static_cast<float>(n % 5) + 100.0f * (i + 1); });
    const Stats stats = cache.stats();
    EXPECT_EQ(stats.runs(), static_cast<unsigned>(count() * kRuns));
    EXPECT_LE(stats.live_executables, static_cast<unsigned>(max_executables));
    if (max_executables == 64) {
      EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);  // there was room for a second one if the first was in use
      EXPECT_EQ(calls, count());
    }
    // The graphs that threads have read depend on the entries in use. Another key finds none in use.
    EXPECT_LE(stats.families, 1u);
    ASSERT_SUCCESS(run_add_two(cache, key(count()), lane(0), 1.0f, 100.0f));
    EXPECT_EQ(cache.stats().families, 1u);
  }
}

// Keys take executables from each other, and a thread destroys what another's key has lost while that key runs again.
// Their graphs are clones of one another. Two threads must not write to one at the same time (fact 35): a GPU would
// crash, and hostrt reports a misuse if it observes it.
TEST_F(ThreadsTest, RelativesAreMadeAndDestroyedByAllThreads) {
  const struct {
    Sharing sharing;
    Patching patching;
  } ways[] = {
      {Sharing::kNever, Patching::kPerNode},          // executables of one graph
      {Sharing::kNever, Patching::kDeviceUpdated},    // clones of one graph with an executable each
      {Sharing::kUpdatesAcross, Patching::kPerNode},  // clones of the base of a sibling's executable
      {Sharing::kTable, Patching::kDeviceUpdated},    // both kinds of clones
  };
  for (const auto& [sharing, patching] : ways) {
    SCOPED_TRACE(testing::Message() << "sharing " << static_cast<int>(sharing) << ", patching "
                                    << static_cast<int>(patching));
    Cache cache(forced(patching, forced(sharing, {.max_executables = 3, .max_templates = 4})));
    constexpr int kRuns = 50;
    constexpr int kNodes = 50;
    run_in_threads(
        count(), kRuns,
        [&](int i, int n) {
          Lane& mine = lane(i);
          return cache.run(key(n * (i + 1) % 5), mine.stream, params(mine.sum.get()),
                           [](Recorder& rec, Slot<float*> p) {
                             for (int node = 0; node < kNodes; ++node) rec.launch(add, {kGrid, kBlock}, p, kSize, 1);
                           });
        },
        [](int, int) { return static_cast<float>(kNodes); });
  }
}

// CUDA allows a graph that allocates one executable. So a key that comes back waits until its former executable is
// gone, also if another thread has taken that to destroy it.
cudaError_t add_and_allocate(cudaStream_t on, float* sum) {
  void* memory = nullptr;
  (void)cudaMallocAsync(&memory, 64, on);
  (void)launch(add, kGrid, kBlock, on, sum, kSize, 1.0f);
  return cudaFreeAsync(memory, on);
}

// Holds up the thread that is about to destroy an executable of this key.
class Slow : public Listener {
 public:
  explicit Slow(Key of) : key_(std::move(of)) {}
  absl::Status begin(const CacheEvent& event) override {
    if (event.kind == EventKind::kDestroyExecutable && event.key == key_ && !is_in_hand.exchange(true)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return absl::OkStatus();
  }
  std::atomic<bool> is_in_hand{false};

 private:
  const Key key_;
};

TEST_F(ThreadsTest, AGraphOfOneExecutableIsRestoredWhenAnotherThreadHasDestroyedIt) {
  const auto slow = std::make_shared<Slow>(key("allocates"));
  Cache cache(forced(Sharing::kNever, {.max_executables = 1, .listeners = {slow}}));
  const auto run = [&] {
    return cache.run(key("allocates"), lane(0).stream,
                     [&](cudaStream_t on) { return add_and_allocate(on, lane(0).sum.get()); });
  };
  EXPECT_RUN(kInstantiated, run());
  CUDA_OK(cudaStreamSynchronize(lane(0).stream));
  EXPECT_RUN(kInstantiated, run_add(cache, key("evicts"), lane(1), 1.0f));
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    // The first one may find that the executable's upload is not over.
    for (int i = 0; i < 10'000 && !slow->is_in_hand; ++i) cache.erase(key("a key that was never run"));
    is_over = true;
  });
  while (!slow->is_in_hand && !is_over) std::this_thread::yield();
  EXPECT_TRUE(slow->is_in_hand);
  EXPECT_RUN(kRestored, run());
  other.join();
  EXPECT_EQ(lane(0).sum.first(), 2.0f);
}

TEST_F(ThreadsTest, AGraphOfOneExecutableIsRestoredWhileOtherThreadsDestroyIt) {
  Cache cache(forced(Sharing::kNever, {.max_executables = 1, .max_templates = 16}));
  const int runs = by_size(300, 3000, 20000);
  std::atomic<bool> ended{false};
  std::atomic<int> failed{0};
  in_threads(2, [&](int i) {
    Lane& mine = lane(i);
    if (i == 1) {
      for (int n = 0; !ended; ++n) {
        failed += run_add(cache, key("evicts", n % 3), mine, 1.0f).ok() ? 0 : 1;
      }
      return;
    }
    const auto allocates = [&](cudaStream_t on) { return add_and_allocate(on, mine.sum.get()); };
    for (int n = 0; n < runs; ++n) {
      failed += cache.run(key("allocates"), mine.stream, allocates).ok() ? 0 : 1;
      failed += n % 4 != 0 || cache.warm(key("allocates"), mine.stream, allocates).ok() ? 0 : 1;
    }
    ended = true;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(cache.stats().eager(EagerReason::kRefused), 0u);
  EXPECT_EQ(lane(0).sum.first(), static_cast<float>(runs));
}

}  // namespace
}  // namespace graphcache::test
