// Keys that share executables, on either runtime: work in flight, evicted siblings, streams and threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "in_threads.h"
#include "sharing_support.h"

namespace graphcache::test {
namespace {

// ---- In flight ------------------------------------------------------------------------------------------------------

// The numbers that runs append, and the expected ones.
struct Log {
  explicit Log(int size) : numbers(static_cast<std::size_t>(size)) {}
  void expect_right() const {
    std::vector<int> all = numbers.read();
    EXPECT_EQ(static_cast<std::size_t>(count.first()), wanted.size());
    all.resize(wanted.size());
    const auto differs = std::mismatch(all.begin(), all.end(), wanted.begin());
    EXPECT_TRUE(differs.first == all.end()) << "from " << differs.first - all.begin() << " of " << all.size();
  }

  Stream stream;
  DeviceBuffer<int> numbers, count{1};
  std::vector<int> wanted;
};

// Siblings 0, 1, ... append the value, then numbers of their own. They differ in a few nodes, or in
// all.
absl::StatusOr<Outcome> run_logged(Cache& cache, Log& log, int which, int value, std::atomic<int>* calls) {
  auto outcome = cache.run(key("logged", which), log.stream, params(value, log.numbers.get(), log.count.get()),
                           [=](Recorder& rec, Slot<int> v, Slot<int*> numbers, Slot<int*> count) {
                             if (calls != nullptr) ++*calls;
                             rec.launch(append, {1, 32}, numbers, count, v);
                             rec.launch(append, {static_cast<unsigned>(1 + which), 32}, numbers, count, 100 + which);
                             for (int i = 0; i < 4; ++i)
                               rec.launch(append, {1, 1}, numbers, count, which < 3 ? i : 10 * which + i);
                             rec.launch(append, {1, 1}, numbers, count, v);
                           });
  if (!outcome.ok()) return outcome;
  log.wanted.insert(log.wanted.end(), {value, 100 + which});
  for (int i = 0; i < 4; ++i) log.wanted.push_back(which < 3 ? i : 10 * which + i);
  log.wanted.push_back(value);
  return outcome;
}

TEST_F(SharingTest, RunsInFlightAreNotChangedBySwitches) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kUpdatesAcross}) {
    use(at_most(2, sharing));
    Log log(7 * 3000);
    std::mt19937 random(1);
    std::atomic<int> called{0};
    for (int i = 0; i < 3000; ++i) {
      ASSERT_SUCCESS(run_logged(*cache, log, static_cast<int>(random() % 6), i / 3, &called));
    }
    log.expect_right();
    const Stats stats = cache->stats();
    EXPECT_EQ(called, 6);
    EXPECT_EQ(stats.captures, 6u);
    EXPECT_EQ(stats.evictions, sharing == Sharing::kAuto ? 1u : 0u) << "for the table";
    EXPECT_EQ(stats.instantiations, sharing == Sharing::kAuto ? 3u : 1u);
    EXPECT_EQ(stats.refused_updates, 0u);
    EXPECT_EQ(stats.hits() + stats.misses(), 3000u);
    EXPECT_GT(stats.outcome(Outcome::kSwitched), 1000u);
  }
}

TEST_F(SharingTest, RunsInFlightOfEightThreads) {
  constexpr int kThreads = 8, kRuns = 1000;
  for (const int max_executables : {2, 12}) {
    use(at_most(max_executables));
    std::vector<std::unique_ptr<Log>> logs;
    for (int i = 0; i < kThreads; ++i) logs.push_back(std::make_unique<Log>(7 * kRuns));
    std::atomic<int> failed{0};
    in_threads(kThreads, [&](int t) {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kRuns; ++i) {
        Log& log = *logs[static_cast<std::size_t>(t)];
        if (!run_logged(*cache, log, static_cast<int>(random() % 6), 1000 * t + i, nullptr).ok()) ++failed;
      }
    });
    EXPECT_EQ(failed, 0);
    for (const auto& log : logs) log->expect_right();
    const Stats stats = cache->stats();
    EXPECT_LE(stats.live_executables, static_cast<unsigned>(max_executables));
    EXPECT_EQ(stats.runs(), static_cast<unsigned>(kThreads * kRuns));
    EXPECT_EQ(stats.failed, 0u);
    EXPECT_EQ(stats.refused_updates, 0u);
    EXPECT_EQ(stats.outcome(Outcome::kEager), stats.eager(EagerReason::kBudget));
    if (max_executables > 6) {
      EXPECT_EQ(stats.captures, 6u);
    }
  }
}

TEST_F(SharingTest, CacheEndsWithSwitchedWorkInFlight) {
  Log log(7 * 400);
  for (const bool clear : {true, false}) {
    use(at_most(1));
    for (int i = 0; i < 200; ++i) ASSERT_SUCCESS(run_logged(*cache, log, i % 3, i, nullptr));
    clear ? cache->clear() : cache.reset();
    if (clear) {
      expect_empty(*cache);
    }
  }
  log.expect_right();
}

// ---- Evicted siblings -----------------------------------------------------------------------------------------------

class LeavingTest : public SharingTest {
 protected:
  absl::StatusOr<Outcome> run_which(int which, int value, const std::function<void()>& in_fn = nullptr) {
    return run(key("k", which), params(value), [&, which](Recorder& rec, Slot<int> v) {
      rec.launch(blend, {static_cast<unsigned>(1 + which), 32}, at(0), 128, v, which);
      if (in_fn && is_capturing(rec.stream())) in_fn();
      rec.launch(blend, {1, 64}, at(64), 64, which, v);
      pad(rec, 10);
    });
  }
};

TEST_F(LeavingTest, KeyOfTheBaseGraphIsErasedWhileASiblingHasItsExecutable) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  EXPECT_RUN(kUpdated, run_which(1, 3));
  EXPECT_RUN(kUpdated, run_which(2, 4));
  EXPECT_TRUE(cache->erase(key("k", 0)));
  EXPECT_RUN(kReplayed, run_which(2, 4));
  EXPECT_RUN(kPatched, run_which(2, 5));
  EXPECT_RUN(kSwitched, run_which(1, 6));
  EXPECT_RUN(kSwitched, run_which(2, 7));
  EXPECT_EQ(cache->stats().live_templates, 2u);
  EXPECT_RUN(kUpdated, run_which(0, 8));
  EXPECT_RUN(kSwitched, run_which(1, 9));
  EXPECT_EQ(calls, 4u);
  EXPECT_EQ(cache->stats().instantiations, 1u);
  EXPECT_EQ(cache->stats().live_templates, 3u);
}

TEST_F(LeavingTest, SiblingErasesItselfTheOtherOrAllInItsFn) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  EXPECT_RUN(kInstantiated, run_which(1, 4, [&] { EXPECT_TRUE(cache->erase(key("k", 1))); }));
  EXPECT_FALSE(cache->contains(key("k", 1)));
  EXPECT_RUN(kRestored, run_which(0, 5));
  EXPECT_RUN(kUpdated, run_which(1, 6));
  EXPECT_RUN(kSwitched, run_which(0, 7));
  EXPECT_RUN(kInstantiated, run_which(2, 4, [&] { EXPECT_TRUE(cache->erase(key("k", 0))); }));
  EXPECT_RUN(kReplayed, run_which(2, 4));
  EXPECT_RUN(kUpdated, run_which(3, 5));
  EXPECT_RUN(kInstantiated, run_which(4, 6, [&] { cache->clear(); }));
  EXPECT_TRUE(cache->entries().empty());
  EXPECT_RUN(kInstantiated, run_which(2, 4));
  EXPECT_EQ(calls, 7u);
}

TEST_F(LeavingTest, SiblingWhoseFnFailsLeavesTheOthersExecutable) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  // A key whose fn enqueues the sibling's first node and ends like this.
  const auto end_by = [&](const char* name, const auto& end) {
    return cache->run(key(name), stream, [&](Recorder& rec) {
      rec.launch(blend, {2, 32}, at(0), 128, 3, 3);
      return end(rec);
    });
  };
  EXPECT_THROW((void)end_by("throws", [](Recorder&) -> cudaError_t { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_RUN(kReplayed, run_which(0, 3));
  EXPECT_FAILURE(kAborted, end_by("fails", [](Recorder&) { return absl::AbortedError("no"); }));
  EXPECT_RUN(kPatched, run_which(0, 4));
  EXPECT_FALSE(end_by("fails", [](Recorder&) { return cudaErrorInvalidValue; }).ok());
  EXPECT_RUN(kReplayed, run_which(0, 4));
  // A capture that breaks.
  EXPECT_RUN(kEager, end_by("breaks", [](Recorder& rec) { return cudaStreamSynchronize(rec.stream()); }));
  EXPECT_RUN(kReplayed, run_which(0, 4));
  EXPECT_EQ(cache->stats().updates, 0u);
  EXPECT_EQ(cache->stats().failed, 3u);

  EXPECT_RUN(kUpdated, run_which(1, 5));
  EXPECT_THROW((void)cache->run(key("k", 2), stream, params(6),
                                [&](Recorder& rec, Slot<int> v) {
                                  rec.launch(blend, {3, 32}, at(0), 128, v, 2);
                                  throw std::runtime_error("no");
                                }),
               std::runtime_error);
  EXPECT_RUN(kReplayed, run_which(1, 5));
  EXPECT_RUN(kSwitched, run_which(0, 4));
  EXPECT_RUN(kUpdated, run_which(2, 6));
  EXPECT_RUN(kSwitched, run_which(1, 7));
}

// ---- Streams, threads and the last-error slot -----------------------------------------------------------------------

TEST_F(SharingTest, SiblingsOnTwoStreamsInTurn) {
  use(at_most(1));
  Log logs[] = {Log(7 * 300), Log(7 * 300)};
  for (int i = 0; i < 300; ++i) ASSERT_SUCCESS(run_logged(*cache, logs[i % 2], i % 2, i, nullptr));
  for (int i = 0; i < 300; ++i) ASSERT_SUCCESS(run_logged(*cache, logs[i % 2], i % 3, i, nullptr));
  for (const Log& log : logs) log.expect_right();
  EXPECT_EQ(cache->stats().instantiations, 1u);
  EXPECT_EQ(cache->stats().captures, 3u);
}

class SharingOnStreamsTest : public SharingTest {
 protected:
  absl::StatusOr<Outcome> run_on_stream(unsigned which, cudaStream_t on) {
    return run_on(on, key("k", which), params(), [&, which](Recorder& rec) {
      rec.launch(blend, {1 + which, 32}, at(0), 32 * (1 + which), 3, which);
      pad(rec, 5);
    });
  }
  std::uint64_t family_of(unsigned which) const {
    for (const EntryInfo& entry : cache->entries()) {
      if (entry.key == key("k", which)) return entry.family;
    }
    return 0;
  }
  Stream other;
};

// Launches of one executable follow each other whatever their streams. So while there is room, keys of two streams do
// not share one, unless an option requests it.
TEST_F(SharingOnStreamsTest, KeysOfTwoStreamsShareWhereTheyMustOrAnOptionSaysSo) {
  const auto run_key = [&](unsigned which) { return run_on_stream(which, which % 2 == 0 ? stream : other); };
  {
    use(renting());
    EXPECT_RUN(kInstantiated, run_key(0));
    EXPECT_RUN(kInstantiated, run_key(1));
    EXPECT_RUN(kUpdated, run_key(2));
    EXPECT_RUN(kUpdated, run_key(3));
    EXPECT_RUN(kSwitched, run_key(0));
    EXPECT_RUN(kSwitched, run_key(1));
    EXPECT_EQ(cache->stats().families, 2u);
    EXPECT_EQ(cache->stats().live_executables, 2u);
  }
  for (const ForcedOptions& options :
       std::initializer_list<ForcedOptions>{at_most(1), at_most(64, Sharing::kUpdatesAcross)}) {
    use(options);
    EXPECT_RUN(kInstantiated, run_key(0));
    EXPECT_RUN(kUpdated, run_key(1));
    EXPECT_RUN(kSwitched, run_key(0));
    EXPECT_RUN(kUpdated, run_key(3));
    EXPECT_EQ(cache->stats().families, options.max_executables == 1 ? 2u : 1u);
    EXPECT_EQ(cache->stats().live_executables, 1u);
    EXPECT_EQ(cache->stats().evictions, 0u);
  }
  use(Options{.share = Share::kAlways});
  for (unsigned i = 0; i < 16; ++i) ASSERT_SUCCESS(run_key(i % 8));
  EXPECT_EQ(cache->stats().families, 2u);
  EXPECT_EQ(cache->stats().live_executables, 2u);  // a table for each
}

TEST_F(SharingOnStreamsTest, AKeyWithoutAnExecutableJoinsTheFamilyOfItsStream) {
  use(renting());
  EXPECT_RUN(kInstantiated, run_on_stream(0, stream));
  EXPECT_RUN(kUpdated, run_on_stream(1, stream));
  EXPECT_RUN(kRestored, run_on_stream(0, other));
  EXPECT_RUN(kUpdated, run_on_stream(2, other));
  EXPECT_EQ(family_of(0), family_of(2));
  EXPECT_EQ(cache->stats().families, 2u);
  EXPECT_RUN(kSwitched, run_on_stream(0, stream));  // by the executable of key 1
  EXPECT_EQ(family_of(0), family_of(1));
  EXPECT_RUN(kReplayed, run_on_stream(0, other));  // the key keeps its executable
  EXPECT_EQ(family_of(0), family_of(1));
  EXPECT_EQ(cache->stats().instantiations, 2u);
}

TEST_F(SharingOnStreamsTest, KeysOfStreamsThatAreReplacedShareWithNoOthers) {
  use(renting());
  for (int epoch = 0; epoch < 4; ++epoch) {
    Stream streams[2];
    for (unsigned run = 0; run < 12; ++run) ASSERT_SUCCESS(run_on_stream(run % 4, streams[run % 2]));
    for (const unsigned even : {0u, 2u}) {
      for (const unsigned odd : {1u, 3u}) EXPECT_NE(family_of(even), family_of(odd)) << "epoch " << epoch;
    }
  }
}

// cudaStreamPerThread is one handle, and another stream in each thread.
TEST_F(SharingTest, StreamsOfThreadsAreTheirOwn) {
  use(renting());
  const auto run_in_thread = [&](int which) {
    std::thread([&] {
      EXPECT_TRUE(
          did(Outcome::kInstantiated, run_on(cudaStreamPerThread, key("k", which), params(), [&](Recorder& rec) {
                rec.launch(blend, {1, 32}, at(0), 32, 3, which);
              })));
    }).join();
  };
  run_in_thread(0);
  run_in_thread(1);
  EXPECT_EQ(cache->stats().families, 2u);
}

}  // namespace
}  // namespace graphcache::test
