// Observing a cache: counts by label, times, events, ranges for profilers. On either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

class ObserveTest : public CacheTest {
 protected:
  static std::map<std::string, LabelStats> by_label(const Cache& cache) {
    std::map<std::string, LabelStats> labels;
    for (LabelStats& stats : cache.labels()) labels[stats.label] = stats;
    return labels;
  }
  static std::uint64_t count(const LabelStats& stats, Outcome outcome) {
    return stats.outcomes[static_cast<std::size_t>(outcome)];
  }
  static std::vector<EventKind> kinds(const std::vector<CacheEvent>& events) {
    std::vector<EventKind> kinds;
    for (const CacheEvent& event : events) kinds.push_back(event.kind);
    return kinds;
  }
  static std::uint64_t timed(const Stats& stats) {
    return std::accumulate(stats.hit_latency.begin(), stats.hit_latency.end(), std::uint64_t{0});
  }
};

TEST_F(ObserveTest, RunsCountByTheLabelOfTheirKey) {
  Cache cache(unshared(1));
  EXPECT_TRUE(cache.labels().empty());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_add(cache, key("a", 1)).ok());
  EXPECT_TRUE(run_add(cache, key("a", 2)).ok());  // evicts the former
  EXPECT_RUN(kRestored, run_add(cache, key("a", 1)));
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  EXPECT_RUN(kInstantiated, run_add(cache, key(1, 2)));
  const auto labels = by_label(cache);
  ASSERT_EQ(labels.size(), 3u);
  EXPECT_EQ(labels.at("a").entries, 2u);
  EXPECT_EQ(count(labels.at("a"), Outcome::kInstantiated), 2u);
  EXPECT_EQ(count(labels.at("a"), Outcome::kReplayed), 2u);
  EXPECT_EQ(count(labels.at("a"), Outcome::kRestored), 1u);
  EXPECT_EQ(count(labels.at("b"), Outcome::kInstantiated), 1u);
  EXPECT_EQ(labels.at("").entries, 1u);  // a key without text
}

TEST_F(ObserveTest, DirectRunsCountByLabelAndReason) {
  Options options;
  options.capture_after = 2;
  Cache cache(options);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run_add(cache, key("late")).ok());
  const auto labels = by_label(cache);
  EXPECT_EQ(count(labels.at("late"), Outcome::kEager), 2u);
  EXPECT_EQ(labels.at("late").eager_reasons[static_cast<std::size_t>(EagerReason::kCaptureAfter)], 2u);
}

TEST_F(ObserveTest, CountsOfALabelStayWhenItsKeysAreGone) {
  Cache cache;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run_add(cache, key("gone", i % 2)).ok());
  EXPECT_TRUE(cache.erase(key("gone", 0)));
  EXPECT_EQ(by_label(cache).at("gone").entries, 1u);
  cache.clear();
  const LabelStats gone = by_label(cache).at("gone");
  EXPECT_EQ(gone.entries, 0u);
  EXPECT_EQ(count(gone, Outcome::kReplayed), 3u);
  EXPECT_EQ(count(gone, Outcome::kInstantiated) + count(gone, Outcome::kUpdated), 2u);
}

TEST_F(ObserveTest, LabelsBeyondSixtyFourAreOthers) {
  Cache cache({.max_executables = 70});
  for (int i = 0; i < 70; ++i) EXPECT_TRUE(run_add(cache, key("label " + std::to_string(i))).ok());
  EXPECT_TRUE(run_add(cache, key("label 3")).ok());
  const std::vector<LabelStats> labels = cache.labels();
  ASSERT_EQ(labels.size(), 65u);
  EXPECT_EQ(labels[3].label, "label 3");
  EXPECT_EQ(count(labels[3], Outcome::kReplayed), 1u);
  EXPECT_EQ(labels[64].label, "other");
  EXPECT_EQ(labels[64].entries, 6u);
  std::uint64_t runs = 0;
  for (const LabelStats& each : labels) runs += std::accumulate(each.outcomes.begin(), each.outcomes.end(), 0u);
  EXPECT_EQ(runs, cache.stats().runs());
}

TEST_F(ObserveTest, LabelsOfAllThreadsAddUp) {
  constexpr int kThreads = 4, kRuns = 300;
  Cache cache(unshared(3));
  std::vector<std::unique_ptr<DeviceBuffer<float>>> memories;
  for (int i = 0; i < kThreads; ++i) memories.push_back(std::make_unique<DeviceBuffer<float>>(kSize));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Stream own;
      float* const memory = memories[static_cast<std::size_t>(i)]->get();
      for (int run = 0; run < kRuns; ++run) {
        EXPECT_TRUE(cache
                        .run(key("thread", i, run % 5), own,
                             [&](cudaStream_t on) { return launch(add, kGrid, kBlock, on, memory, kSize, 1.0f); })
                        .ok());
        if (run % 50 == 0) cache.erase(key("thread", i, 1));
        if (run % 60 == 0) (void)cache.labels();
      }
      CUDA_OK(cudaStreamSynchronize(own));
      cache.erase(key("thread", i, 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const LabelStats all = by_label(cache).at("thread");
  EXPECT_EQ(all.outcomes, cache.stats().outcomes);
  EXPECT_EQ(all.eager_reasons, cache.stats().eager_reasons);
  EXPECT_EQ(std::accumulate(all.outcomes.begin(), all.outcomes.end(), 0u), unsigned{kThreads * kRuns});
}

TEST_F(ObserveTest, TimesGrowWithTheMeasuredWork) {
  Cache cache(renting(1));
  const auto run = [&](float value) {
    return cache.run(key("k", value > 1), stream,
                     [&](cudaStream_t on) { return launch(add, kGrid, kBlock, on, data.get(), kSize, value); });
  };
  EXPECT_RUN(kInstantiated, run(1));
  const Stats first = cache.stats();
  EXPECT_GT(first.capture_time.count(), 0);
  EXPECT_GT(first.instantiate_time.count(), 0);
  EXPECT_GT(first.first_launch_time.count(), 0);
  EXPECT_EQ(first.update_time.count(), 0);
  EXPECT_RUN(kReplayed, run(1));
  const Stats hit = cache.stats() - first;
  EXPECT_EQ((hit.capture_time + hit.instantiate_time + hit.first_launch_time + hit.update_time).count(), 0);
  EXPECT_RUN(kUpdated, run(2));
  const Stats updated = cache.stats() - first;
  EXPECT_GT(updated.capture_time.count(), 0);
  EXPECT_GT(updated.update_time.count(), 0);
  EXPECT_EQ((updated.instantiate_time + updated.first_launch_time).count(), 0);
}

TEST_F(ObserveTest, UploadsAheadCountAsFirstLaunches) {
  Cache cache;
  const auto fn = [&](cudaStream_t on) { return add_one(on); };
  EXPECT_TRUE(cache.warm(key("k"), stream, fn).ok());
  const Stats warmed = cache.stats();
  EXPECT_GT(warmed.first_launch_time.count(), 0);
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
  EXPECT_EQ(cache.stats().first_launch_time, warmed.first_launch_time);
}

TEST_F(ObserveTest, OneHitOf1024IsTimed) {
  Options options;
  options.time_hits = true;
  Cache cache(options);
  auto step = cache.prepare(key("k"), [&](cudaStream_t on) { return add_one(on); });
  for (int i = 0; i < 4 * 1024; ++i) {
    EXPECT_TRUE((i % 2 == 0 ? step.run(stream) : run_add(cache, key("another"))).ok());
  }
  EXPECT_EQ(timed(cache.stats()), 4u);
  expect_sum(4 * 1024);
  EXPECT_NE(to_string(cache.stats()).find("hits timed: "), std::string::npos);
}

TEST_F(ObserveTest, OnlyHitsAreTimed) {
  Options options;
  options.time_hits = true;
  options.max_executables = 0;
  Cache cache(options);
  for (int i = 0; i < 2 * 1024; ++i) EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_EQ(timed(cache.stats()), 0u);
}

TEST_F(ObserveTest, NothingIsTimedByDefault) {
  Cache cache;
  for (int i = 0; i < 2 * 1024; ++i) EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_EQ(timed(cache.stats()), 0u);
  EXPECT_EQ(to_string(cache.stats()).find("hits timed"), std::string::npos);
}

TEST_F(ObserveTest, EventsReportWhatWasDone) {
  Options options = unshared(1);
  options.keep_events = 100;
  options.max_templates = 1;
  Cache cache(options);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_RUN(kInstantiated, run_add(cache, key("first", 1)));
  EXPECT_RUN(kReplayed, run_add(cache, key("first", 1)));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a label that is longer than what is kept of it")));
  const auto end = std::chrono::steady_clock::now();
  const std::vector<CacheEvent> events = cache.events();
  using enum EventKind;
  EXPECT_EQ(kinds(events), (std::vector<EventKind>{kCapture, kInstantiate, kRun, kRun, kCapture, kEvict, kInstantiate,
                                                   kForget, kRun}));
  EXPECT_EQ(events[2].outcome, Outcome::kInstantiated);
  EXPECT_EQ(events[3].outcome, Outcome::kReplayed);
  EXPECT_EQ(events[0].outcome, std::nullopt);
  EXPECT_EQ(events[5].label, "first");
  EXPECT_EQ(events[7].label, "first");
  EXPECT_EQ(events[8].label, "a label that is longer than what");
  EXPECT_EQ(events[5].duration.count(), 0);
  for (const CacheEvent& event : events) {
    EXPECT_GE(event.begin, begin);
    EXPECT_LE(event.begin + event.duration, end);
    EXPECT_EQ(event.thread, events[0].thread);
  }
  // A run contains what was done in it.
  EXPECT_LE(events[2].begin, events[0].begin);
  EXPECT_GE(events[2].begin + events[2].duration, events[1].begin + events[1].duration);
}

TEST_F(ObserveTest, AFailedRunHasNoOutcome) {
  Options options;
  options.keep_events = 10;
  Cache cache(options);
  EXPECT_FALSE(cache.run(key("k"), stream, [](cudaStream_t) { return absl::DataLossError("lost"); }).ok());
  ASSERT_EQ(kinds(cache.events()), (std::vector<EventKind>{EventKind::kCapture, EventKind::kRun}));
  EXPECT_EQ(cache.events()[1].outcome, std::nullopt);
}

TEST_F(ObserveTest, TheLastEventsAreKept) {
  Options options;
  options.keep_events = 3;
  Cache cache(options);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(run_add(cache, key("k" + std::to_string(i))).ok());
  const std::vector<CacheEvent> events = cache.events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].label, "k9");
  EXPECT_EQ(kinds(events), (std::vector<EventKind>{EventKind::kCapture, EventKind::kInstantiate, EventKind::kRun}));
}

TEST_F(ObserveTest, NoEventsAreKeptByDefault) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_TRUE(cache.events().empty());
}

TEST_F(ObserveTest, EventsOfThreadsHaveTheirNumbers) {
  Options options;
  options.keep_events = 1000;
  options.background_threads = 1;
  Cache cache(options);
  std::thread other([&] { EXPECT_TRUE(run_add(cache, key("of another")).ok()); });
  other.join();
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_TRUE(run_add(cache, key("of another")).ok());
  std::map<EventKind, unsigned> threads;
  for (const CacheEvent& event : cache.events()) threads[event.kind] = event.thread;  // the last one of each kind
  EXPECT_NE(threads.at(EventKind::kUpload), threads.at(EventKind::kRun));
  EXPECT_EQ(threads.at(EventKind::kUpload), threads.at(EventKind::kInstantiate));
}

TEST_F(ObserveTest, ANegativeNumberOfEventsIsAnError) {
  Options options;
  options.keep_events = -1;
  Cache cache(options);
  EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
}

TEST_F(ObserveTest, ADifferenceOfSnapshotsCoversTheTimeBetween) {
  Cache cache(unshared(1));
  EXPECT_TRUE(run_add(cache, key("a")).ok());
  const Stats before = cache.stats();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_add(cache, key("b")).ok());
  const Stats between = cache.stats() - before;
  EXPECT_EQ(between.runs(), 3u);
  EXPECT_EQ(between.captures, 1u);
  EXPECT_EQ(between.evictions, 1u);
  EXPECT_DOUBLE_EQ(between.hit_rate(), 2.0 / 3);
  EXPECT_EQ(between.live_executables, 1u);  // numbers of what is alive are those of the later snapshot
  EXPECT_EQ(between.live_templates, 2u);
}

TEST_F(ObserveTest, AKeyThatNeverRanIsExplained) {
  const Cache cache;
  EXPECT_TRUE(says(cache.explain(key("k")), "No run of this key is known"));
}

TEST_F(ObserveTest, AnEvictionIsExplained) {
  Options options = unshared(1);
  options.max_templates = 2;
  Cache cache(options);
  EXPECT_RUN(kInstantiated, run_add(cache, key("first")));
  EXPECT_RUN(kReplayed, run_add(cache, key("first")));
  const std::string live = cache.explain(key("first"));
  EXPECT_TRUE(says(live, "Runs: replayed 1, instantiated 1."));
  EXPECT_TRUE(says(live, "It has an executable, of its own because there was room (rule 1)."));
  EXPECT_TRUE(says(live, "Options::share is kNever"));
  EXPECT_EQ(live.find("lost"), std::string::npos);
  EXPECT_RUN(kInstantiated, run_add(cache, key("second")));
  const std::string evicted = cache.explain(key("first"));
  EXPECT_TRUE(says(evicted, "It has a template and no executable"));
  EXPECT_TRUE(says(evicted, "It lost an executable the last time because other keys were used more recently"));
  EXPECT_TRUE(says(evicted, "Options::max_executables is 1"));
  EXPECT_RUN(kInstantiated, run_add(cache, key("third")));
  const std::string forgotten = cache.explain(key("first"));
  EXPECT_TRUE(says(forgotten, "neither an executable nor a template"));
  EXPECT_TRUE(says(forgotten, "more templates than Options::max_templates (2)"));
}

TEST_F(ObserveTest, ABrokenCaptureIsExplained) {
  Cache cache;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
    (void)cudaStreamSynchronize(on);
    (void)cudaGetLastError();
    return add_one(on);
  }));
  const std::string text = cache.explain(key("k"));
  EXPECT_TRUE(says(text, "Runs: eager 1."));
  EXPECT_TRUE(says(text, "Its last direct run was direct because its capture broke."));
  EXPECT_TRUE(says(text, "Its last error: "));
  EXPECT_TRUE(says(text, "cudaErrorStreamCapture"));
}

TEST_F(ObserveTest, SharedExecutablesAreExplained) {
  Cache cache(renting(1));
  EXPECT_TRUE(run_add(cache, key("a")).ok());
  EXPECT_RUN(kUpdated, run_add(cache, key("b")));
  EXPECT_TRUE(says(cache.explain(key("a")), "a sibling uses it now"));
  EXPECT_TRUE(says(cache.explain(key("b")), "the other keys of family 1"));
}

TEST_F(ObserveTest, EachPlaceOfTheProgramIsExplained) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_TRUE(cache.run(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }).ok());
  cache.pin(key("k"));
  const std::string text = cache.explain(key("k"));
  EXPECT_TRUE(says(text, "At another place of the program"));
  EXPECT_TRUE(says(text, "and is pinned"));
}

TEST_F(ObserveTest, DirectRunsAreExplained) {
  Options options;
  options.capture_after = 3;
  Cache cache(options);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_TRUE(says(cache.explain(key("k")), "one of its first 3 runs"));
  EXPECT_RUN(kEager, cache.run(key("empty"), stream, [](cudaStream_t) {}));
  Cache eager_cache;
  EXPECT_RUN(kEager, eager_cache.run(key("empty"), stream, [](cudaStream_t) {}));
  EXPECT_TRUE(says(eager_cache.explain(key("empty")), "fn enqueued nothing on the stream"));
}

}  // namespace
}  // namespace graphcache::test
