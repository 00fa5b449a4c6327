// Objects that graphs keep alive, when calls fail, work is late or threads meet. On hostrt.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/failing_calls.h"
#include "keep_support.h"
#include "runs/threads_support.h"

namespace graphcache::test {
namespace {

class KeepFailuresTest : public testing::Test {
  FreshHostrt fresh_;
};

constexpr Sharing kSharings[] = {Sharing::kNever, Sharing::kUpdates, Sharing::kTable};

// ---- Errors ---------------------------------------------------------------------------------------------------------

TEST_F(KeepFailuresTest, AFatalErrorReleasesEverythingByTheEndOfTheCache) {
  for (const char* const function : {"cudaGraphLaunch", "cudaGraphInstantiate", "cudaStreamEndCapture"}) {
    for (const bool clears : {false, true}) {
      hostrt::reset();
      Stream stream;
      Keeping keeping(stream);
      std::optional<Cache> cache(forced(Sharing::kNever, 2));
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(keeping.run(*cache, key("k", i), i).ok());
      EXPECT_EQ(keeping.alive, 3);
      hostrt::fail_call(function, 1, cudaErrorIllegalAddress);
      const absl::StatusOr<Outcome> outcome = keeping.run(*cache, key("new"), 5);
      EXPECT_EQ(cuda_error(outcome.status()), cudaErrorIllegalAddress) << function << ": " << outcome.status();
      hostrt::clear_failures();
      EXPECT_FALSE(keeping.run(*cache, key("k", 0), 0).ok());
      if (clears) {
        cache->clear();
        EXPECT_EQ(keeping.alive, 0) << function;
      }
      cache.reset();
      EXPECT_EQ(keeping.alive, 0) << function;
      EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    }
  }
}

// Each call of a sequence fails, once or from then on. Kept objects then live at least as long as their key's work is
// in flight, and are gone when the cache is.
TEST_F(KeepFailuresTest, NoFailedCallLosesOrLeaksAnObject) {
  for (const Sharing sharing : kSharings) {
    const ForcedOptions options = forced(sharing, 1);
    const auto operate = [&](const std::function<void()>& arm) {
      hostrt::reset();
      Stream stream;
      Keeping keeping(stream);
      std::optional<Cache> cache(options.again());
      bool all_ok = true;
      const auto run = [&](int i) { all_ok = keeping.run(*cache, key("k", i), i).ok() && all_ok; };
      for (const int i : {0, 1, 0}) run(i);
      arm();
      for (const int i : {2, 0, 1, 1}) run(i);
      cache->erase(key("k", 1));
      run(1);
      hostrt::clear_failures();
      (void)cudaGetLastError();
      const int recorded = static_cast<int>(cache->stats().live_templates);
      EXPECT_GE(keeping.alive, recorded);
      settle(*cache);
      EXPECT_LE(keeping.alive, recorded + 1) << "the first key of a table may be erased";
      if (all_ok) {
        keeping.expect_number();
      }
      cache.reset();
      EXPECT_EQ(keeping.alive, 0);
      EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
      return hostrt::call_counts();
    };
    const std::map<std::string, std::uint64_t> counts = operate([] { hostrt::reset_calls(); });
    for (const auto& [function, count] : counts) {
      if (function.find("Destroy") != std::string::npos || function.find("Free") != std::string::npos) continue;
      for (std::uint64_t nth = 1; nth <= std::min<std::uint64_t>(count, 12); ++nth) {
        for (const int times : {1, -1}) {
          SCOPED_TRACE(function + " fails at call " + std::to_string(nth) + (times == 1 ? "" : " and on"));
          operate([&, of = function] {
            hostrt::fail_call(of.c_str(), static_cast<int>(nth), cudaErrorMemoryAllocation, times);
          });
        }
      }
    }
  }
}

TEST_F(KeepFailuresTest, AnUpdateThatFailsKeepsWhatBothNeed) {
  Stream stream;
  Keeping keeping(stream);
  Cache cache(forced(Sharing::kUpdates, 1));
  const auto run = [&](int i) { EXPECT_TRUE(keeping.run(cache, key("k", i), i).ok()); };
  run(0);
  run(1);
  hostrt::hold(stream);
  run(1);
  hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  run(0);
  EXPECT_TRUE(cache.erase(key("k", 1)));
  erase_nothing(cache);
  EXPECT_EQ(keeping.alive, 2);
  release(stream, keeping, cache);
  EXPECT_EQ(keeping.alive, 1);
}

// ---- Work in flight -------------------------------------------------------------------------------------------------

// The data of a host function, which shows when it is used after its end.
struct CountedDatum {
  explicit CountedDatum(int the_value) : value(the_value) { ++alive; }
  ~CountedDatum() {
    value = -1000;
    --alive;
  }
  CountedDatum(const CountedDatum&) = delete;
  std::atomic<int> value;
  unsigned* total = nullptr;
  inline static std::atomic<int> alive{0};
};
void add_datum(void* of) {
  const CountedDatum& datum = *static_cast<const CountedDatum*>(of);
  *datum.total = 3 * *datum.total + static_cast<unsigned>(datum.value.load());
}

// Random runs, erasures and ends of caches, with work that runs late and in any order. Each host function must find its
// data as it was.
TEST_F(KeepFailuresTest, LateWorkFindsWhatWasKeptForIt) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    hostrt::reset();
    hostrt::defer(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](unsigned bound) { return static_cast<int>(random() % bound); };
    Options options;
    options.max_executables = 1 + below(3);
    if (below(2) == 0) options.max_templates = below(3);
    if (below(4) == 0) options.capture_after = 1;
    force(&options, kSharings[below(2)]);  // A table holds no host functions.
    const ForcedOptions again = options;
    std::vector<CountedDatum*> last;
    {
      constexpr int kStreams = 2;
      Stream streams[kStreams];
      unsigned* totals = nullptr;
      CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&totals), kStreams * sizeof(unsigned)));
      unsigned wanted[kStreams] = {1, 1};
      totals[0] = totals[1] = 1;
      std::optional<Cache> cache(again.again());
      for (int step = 0; step < 150; ++step) {
        const int what = below(40);
        const int which = below(5), on = below(kStreams);
        if (what == 0) {
          cache->erase(key("k", which, on));
        } else if (what == 1) {
          cache->clear();
        } else if (what == 2) {
          cache.reset();
          cache.emplace(again.again());
        } else if (what == 3) {
          CUDA_OK(cudaStreamSynchronize(streams[on]));
          EXPECT_EQ(totals[on], wanted[on]) << "seed " << seed << ", step " << step;
        } else {
          ASSERT_SUCCESS(cache->run(key("k", which, on), streams[on], [&, which, on](Recorder& rec) {
            for (int i = 0; i <= which % 2; ++i) {
              auto datum = std::make_shared<CountedDatum>(which + i);
              datum->total = &totals[on];
              rec.keep(datum);
              CUDA_OK(cudaLaunchHostFunc(rec.stream(), add_datum, datum.get()));
              // Direct work has nobody who keeps its data.
              if (!is_capturing(rec.stream())) {
                CUDA_OK(cudaStreamSynchronize(rec.stream()));
              }
            }
          }));
          for (int i = 0; i <= which % 2; ++i) wanted[on] = 3 * wanted[on] + static_cast<unsigned>(which + i);
        }
      }
      CUDA_OK(cudaDeviceSynchronize());
      EXPECT_EQ(totals[0], wanted[0]) << "seed " << seed;
      EXPECT_EQ(totals[1], wanted[1]) << "seed " << seed;
      // What is dropped waits for few runs.
      const int recorded = static_cast<int>(cache->stats().live_templates);
      settle(*cache);
      EXPECT_LE(CountedDatum::alive, 2 * recorded) << "seed " << seed;
      cache.reset();
      EXPECT_EQ(CountedDatum::alive, 0) << "seed " << seed;
      CUDA_OK(cudaFreeHost(totals));
    }
    if (HasFailure()) return;
  }
}

// A cache that ends in another one's capture leaves launches in flight behind.
TEST_F(KeepFailuresTest, ACacheThatEndsInACaptureReleasesAfterItsLaunches) {
  for (const Sharing sharing : kSharings) {
    hostrt::reset();
    Stream stream, other;
    Keeping keeping(stream);
    Cache cache(forced(Sharing::kNever));
    std::optional<Cache> ends(forced(sharing, 1));
    const auto run = [&](int i) { EXPECT_TRUE(keeping.run(*ends, key("k", i), i).ok()); };
    for (const int i : {0, 1, 0}) run(i);
    hostrt::hold(stream);
    for (const int i : {0, 1}) run(i);
    EXPECT_RUN(kInstantiated, cache.run(key("outer"), other, [&](cudaStream_t on) {
      ends.reset();
      EXPECT_GE(keeping.alive, 1);
      return launch(do_nothing, 1, 1, on);
    }));
    EXPECT_EQ(keeping.alive, 0);
    release(stream, keeping, cache);
  }
}

// The run after many launches that have ended at once destroys only some of what they leave. Its own needs no other
// run.
TEST_F(KeepFailuresTest, WhatALastRunLeavesNeedsNoFurtherOne) {
  Stream stream;
  Keeping keeping(stream);
  Cache cache(forced(Sharing::kUpdates, {.max_executables = 1, .max_templates = 0}));
  const auto run = [&](int i) { ASSERT_TRUE(keeping.run(cache, key("k", i), i).ok()); };
  for (int i = 0; i < 3; ++i) run(i);
  settle(cache);
  hostrt::hold(stream);
  for (int i = 0; i < 9; ++i) run(i % 3);
  CUDA_OK(hostrt::release(stream));
  run(0);
  settle(cache);
  EXPECT_EQ(keeping.alive, 1);
}

TEST_F(KeepFailuresTest, AnObjectOfADroppedTemplateIsReleasedWithoutTheLockOfItsKey) {
  Stream stream;
  Keeping keeping(stream);
  Cache cache(forced(Sharing::kUpdates, {.max_executables = 1, .max_templates = 2}));
  const auto run = [&](int i) { return keeping.run(cache, key("k", i), i).ok(); };
  std::future<bool> again;
  bool is_free = false;
  keeping.at_end = [&] {
    again = std::async(std::launch::async, run, 0);
    is_free = again.wait_for(std::chrono::seconds(1)) == std::future_status::ready;
  };
  EXPECT_TRUE(run(0));
  keeping.at_end = nullptr;
  EXPECT_TRUE(run(1));
  settle(cache);
  EXPECT_EQ(keeping.alive, 2);
  EXPECT_TRUE(run(2));
  settle(cache);
  EXPECT_TRUE(again.get());
  EXPECT_TRUE(is_free);
}

// Many switches while nothing is over: the objects stay, and go together.
TEST_F(KeepFailuresTest, ThousandsOfSwitchesInFlightKeepTheirObjects) {
  for (const Sharing sharing : {Sharing::kUpdates, Sharing::kTable}) {
    hostrt::reset();
    Stream stream;
    Keeping keeping(stream);
    Cache cache(forced(sharing, 1));
    const auto run = [&](int i) { ASSERT_TRUE(keeping.run(cache, key("k", i), i).ok()); };
    for (int i = 0; i < 6; ++i) run(i % 3);
    settle(cache);
    hostrt::hold(stream);
    for (int i = 0; i < 2000; ++i) run(i % 3);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(cache.erase(key("k", i)));
    EXPECT_EQ(keeping.alive, 3);
    release(stream, keeping, cache);
    EXPECT_EQ(keeping.alive, 0);
    EXPECT_EQ(keeping.calls, 3);
  }
}

// ---- Threads --------------------------------------------------------------------------------------------------------

// Destructors call the cache while other threads do.
TEST_F(KeepFailuresTest, DestructorsThatCallTheCacheMeetOtherThreads) {
  Cache cache({.max_executables = 3, .max_templates = 2});
  std::atomic<int> alive{0}, released{0};
  constexpr int kThreads = 4, kRuns = 300;
  // Made and read while no thread captures, because that synchronizes the device.
  DeviceBuffer<int> numbers(kThreads, 1);
  std::array<unsigned, kThreads> wanted;
  wanted.fill(1);
  in_threads(kThreads, [&](int thread) {
    Stream stream;
    int* const number = numbers.get() + thread;
    std::mt19937 random(static_cast<unsigned>(thread));
    for (int run = 0; run < kRuns; ++run) {
      const int i = static_cast<int>(random() % 4);
      EXPECT_SUCCESS(cache.run(key("k", i, thread), stream, [&, i](Recorder& rec) {
        rec.keep(std::make_shared<Thing>(&alive, [&, thread] {  // It may be released when the thread is gone.
          ++released;
          (void)cache.stats();
          (void)cache.entries();
          cache.erase(key("k", released % 4, (thread + 1) % kThreads));
          EXPECT_FALSE(is_capturing(cudaStreamPerThread));
        }));
        rec.launch(blend, {1, 1}, number, 1, 3, i);
      }));
      unsigned& mine = wanted[static_cast<std::size_t>(thread)];
      mine = Keeping::after(mine, i);
      if (random() % 16 == 0) cache.erase(key("k", i, thread));
    }
    CUDA_OK(cudaStreamSynchronize(stream));
  });
  const std::vector<int> got = numbers.read();
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(static_cast<unsigned>(got[i]), wanted[i]);
  EXPECT_GT(released, 50);
  cache.clear();
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace graphcache::test
