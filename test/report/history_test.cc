// History: what happened to keys that the cache does not remember; labels() and advise() with it. On either runtime.
#include "graphcache/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "advice_support.h"
#include "graphcache/advice.h"
#include "graphcache/observe.h"
#include "listeners.h"
#include "runs/threads_support.h"

namespace graphcache::test {
namespace {

// ---- Events by hand -------------------------------------------------------------------------------------------------

class HistoryEventsTest : public testing::Test {
 protected:
  void tell(
      EventKind kind, std::uint64_t entry, const std::function<void(CacheEvent&)>& fill = [](CacheEvent&) {}) {
    const Key of_entry = key("k" + std::to_string(entry));
    CacheEvent event{.kind = kind, .key = of_entry, .entry = entry, .outcome = {}, .reason = {}, .status = {}};
    fill(event);
    EXPECT_TRUE(history_->begin({.kind = EventKind::kRun, .key = of_entry}).ok());  // All happens in a run.
    history_->end(event);
  }
  static auto with_loss(Loss loss) {
    return [loss](CacheEvent& event) { event.loss = loss; };
  }
  // A run of the entry that takes the executable of another one.
  void take(std::uint64_t entry, std::uint64_t from) {
    tell(EventKind::kEvict, from, with_loss(Loss::kEvicted));
    tell(EventKind::kInstantiate, entry);
    tell(EventKind::kDestroyExecutable, from, with_loss(Loss::kEvicted));
  }
  void fill(std::uint64_t executables) {
    for (std::uint64_t i = 1; i <= executables; ++i) tell(EventKind::kInstantiate, i);
  }
  // Runs keys in turn on a cache that evicts the key used longest ago.
  History::Returns run_in_turn(std::uint64_t executables, std::uint64_t keys, int rounds) {
    fill(executables);
    for (std::uint64_t i = executables; i < keys * static_cast<std::uint64_t>(rounds); ++i) {
      take(1 + i % keys, 1 + (i - executables) % keys);
    }
    return history_->returns(/*with_lent=*/false);
  }

  std::optional<History> history_{std::in_place};
};

TEST_F(HistoryEventsTest, KeysInTurnComeBackWhereTheBudgetWouldHoldThemAll) {
  struct Case {
    std::uint64_t keys, of_twice, of_four_times;
  };
  // With four executables, all runs but the first round's.
  for (const Case& one : {Case{8, 72, 72}, {9, 0, 81}, {16, 0, 144}, {17, 0, 0}}) {
    SCOPED_TRACE(one.keys);
    history_.emplace();
    const History::Returns returns = run_in_turn(4, one.keys, 10);
    EXPECT_EQ(returns.of_twice, one.of_twice);
    EXPECT_EQ(returns.of_four_times, one.of_four_times);
  }
}

TEST_F(HistoryEventsTest, AnExecutableThatIsDestroyedMakesRoom) {
  fill(2);
  tell(EventKind::kDestroyExecutable, 1, with_loss(Loss::kFailed));
  tell(EventKind::kInstantiate, 1);
  for (std::uint64_t entry = 3; entry <= 5; ++entry) take(entry, entry - 2);
  take(1, 4);  // 1, 2, 3 and 4 were lost: with two executables, twice the budget is too small for 1.
  EXPECT_EQ(history_->returns(false).of_twice, 0u);
  EXPECT_EQ(history_->returns(false).of_four_times, 1u);
}

TEST_F(HistoryEventsTest, WhatIsErasedOrFailsDoesNotComeBack) {
  fill(1);
  take(2, 1);
  tell(EventKind::kErase, 1);
  take(1, 2);
  EXPECT_EQ(history_->returns(false).of_four_times, 0u);

  history_.emplace();
  fill(1);
  tell(EventKind::kEvict, 1, with_loss(Loss::kEvicted));
  tell(EventKind::kInstantiate, 1, [](CacheEvent& event) { event.status = absl::UnknownError(""); });
  EXPECT_EQ(history_->returns(false).of_twice, 0u);
  tell(EventKind::kInstantiate, 1);
  EXPECT_EQ(history_->returns(false).of_twice, 1u);
}

TEST_F(HistoryEventsTest, LentExecutablesCountIfAsked) {
  fill(1);
  for (std::uint64_t i = 0; i < 10; ++i) {
    tell(EventKind::kLend, 1 + i % 2, with_loss(Loss::kLent));
    tell(EventKind::kUpdate, 2 - i % 2);
  }
  EXPECT_EQ(history_->returns(/*with_lent=*/false).of_twice, 0u);
  EXPECT_EQ(history_->returns(/*with_lent=*/true).of_twice, 9u);
}

TEST_F(HistoryEventsTest, CapturesForALostTemplateCount) {
  const auto captured = [](Loss loss, bool is_kept) {
    return [=](CacheEvent& event) {
      event.loss = loss;
      event.captured = is_kept ? reinterpret_cast<cudaGraph_t>(&event) : nullptr;
    };
  };
  tell(EventKind::kCapture, 1, captured(Loss::kNone, true));
  tell(EventKind::kCapture, 1, captured(Loss::kStale, true));
  tell(EventKind::kCapture, 1, captured(Loss::kTemplates, false));
  EXPECT_EQ(history_->recaptures(), 0u);
  tell(EventKind::kCapture, 1, captured(Loss::kTemplates, true));
  EXPECT_EQ(history_->recaptures(), 1u);
}

TEST_F(HistoryEventsTest, ReasonsAndRunsOfErasedEntriesCountByLabel) {
  std::array<std::uint64_t, kOutcomeCount> runs{};
  runs[static_cast<std::size_t>(Outcome::kReplayed)] = 7;
  tell(EventKind::kRun, 1, [](CacheEvent& event) {
    event.outcome = Outcome::kEager;
    event.reason = EagerReason::kBudget;
  });
  tell(EventKind::kErase, 2, [&](CacheEvent& event) { event.runs = &runs; });
  tell(EventKind::kErase, 2, [&](CacheEvent& event) { event.runs = &runs; });
  tell(EventKind::kRun, 0, [](CacheEvent& event) { event.reason = EagerReason::kDisabled; });  // It has no entry.
  const std::vector<LabelStats> labels = history_->labels();
  ASSERT_EQ(labels.size(), 2u);
  EXPECT_EQ(labels[0].label, "k1");
  EXPECT_EQ(labels[0].eager_reasons[static_cast<std::size_t>(EagerReason::kBudget)], 1u);
  EXPECT_EQ(labels[1].label, "k2");
  EXPECT_EQ(labels[1].outcomes[static_cast<std::size_t>(Outcome::kReplayed)], 14u);
}

TEST_F(HistoryEventsTest, ThreadsMayTellAtOnce) {
  in_threads(4, [&](int thread) {
    const auto entry = static_cast<std::uint64_t>(thread + 1);
    for (int i = 0; i < 500; ++i) {
      tell(EventKind::kInstantiate, entry);
      tell(EventKind::kEvict, entry, with_loss(Loss::kEvicted));
      (void)history_->labels();
    }
  });
  EXPECT_EQ(history_->labels().size(), 4u);
}

// ---- Of a cache -----------------------------------------------------------------------------------------------------

class HistoryTest : public AdviceTest {
 protected:
  static Options followed(Options options = {}) {
    options.listeners = {std::make_shared<History>()};
    return options;
  }
  static std::map<std::string, LabelStats> by_label(const Cache& cache) {
    std::map<std::string, LabelStats> labels;
    for (LabelStats& stats : graphcache::labels(cache)) labels[stats.label] = stats;
    return labels;
  }
  // Runs so many keys in turn.
  void run_in_turn(Cache& cache, int keys, int runs) {
    for (int i = 0; i < runs; ++i) EXPECT_TRUE(run_add(cache, key("k", i % keys)).ok());
  }
  static std::uint64_t count(const LabelStats& stats, Outcome outcome) {
    return stats.outcomes[static_cast<std::size_t>(outcome)];
  }
};

TEST_F(HistoryTest, WithoutAHistoryEntriesThatExistAreSummedUp) {
  Cache cache({.capture_after = 2});
  EXPECT_TRUE(labels(cache).empty());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run_add(cache, key("a", 1)).ok());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run_add(cache, key("a", 2)).ok());
  EXPECT_TRUE(run_add(cache, key("b")).ok());
  EXPECT_TRUE(cache.erase(key("a", 2)));
  const std::vector<LabelStats> found = labels(cache);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].label, "b");  // It was used last.
  EXPECT_EQ(found[1].entries, 1u);
  EXPECT_EQ(count(found[1], Outcome::kReplayed), 1u);
  EXPECT_EQ(found[1].eager_reasons[static_cast<std::size_t>(EagerReason::kCaptureAfter)], 2u);
}

TEST_F(HistoryTest, RunsCountByTheLabelOfTheirKey) {
  Cache cache(followed(unshared(1)));
  EXPECT_TRUE(labels(cache).empty());
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

TEST_F(HistoryTest, DirectRunsCountByLabelAndReason) {
  for (const bool has_ring : {false, true}) {  // a listener that wants each run
    Options options = followed({.capture_after = 2});
    if (has_ring) options.listeners.push_back(std::make_shared<EventRing>(10));
    Cache cache(options);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(run_add(cache, key("late")).ok());
    const auto labels = by_label(cache);
    EXPECT_EQ(count(labels.at("late"), Outcome::kEager), 2u);
    EXPECT_EQ(labels.at("late").eager_reasons[static_cast<std::size_t>(EagerReason::kCaptureAfter)], 2u);
  }
}

TEST_F(HistoryTest, CountsOfALabelStayWhenItsKeysAreGone) {
  Cache cache(followed());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run_add(cache, key("gone", i % 2)).ok());
  EXPECT_TRUE(cache.erase(key("gone", 0)));
  EXPECT_EQ(by_label(cache).at("gone").entries, 1u);
  cache.clear();
  const LabelStats gone = by_label(cache).at("gone");
  EXPECT_EQ(gone.entries, 0u);
  EXPECT_EQ(count(gone, Outcome::kReplayed), 3u);
  EXPECT_EQ(count(gone, Outcome::kInstantiated) + count(gone, Outcome::kUpdated), 2u);
}

TEST_F(HistoryTest, LabelsBeyondSixtyFourAreOthers) {
  Cache cache(followed({.max_executables = 70}));
  for (int i = 0; i < 70; ++i) EXPECT_TRUE(run_add(cache, key("label " + std::to_string(i))).ok());
  EXPECT_TRUE(run_add(cache, key("label 3")).ok());
  const std::vector<LabelStats> labels = graphcache::labels(cache);
  ASSERT_EQ(labels.size(), History::kMostLabels + 1);
  EXPECT_EQ(labels[3].label, "label 3");
  EXPECT_EQ(count(labels[3], Outcome::kReplayed), 1u);
  EXPECT_EQ(labels[63].label, "label 63");
  EXPECT_EQ(labels[64].label, "other");
  EXPECT_EQ(labels[64].entries, 6u);
  std::uint64_t runs = 0;
  for (const LabelStats& each : labels) runs += std::accumulate(each.outcomes.begin(), each.outcomes.end(), 0u);
  EXPECT_EQ(runs, cache.stats().runs());
}

TEST_F(HistoryTest, LabelsOfAllThreadsAddUp) {
  constexpr int kThreads = 4, kRuns = 300;
  Cache cache(followed(unshared(3)));
  std::vector<Lane> lanes(kThreads);
  in_threads(kThreads, [&](int i) {
    const Lane& lane = lanes[static_cast<std::size_t>(i)];
    for (int run = 0; run < kRuns; ++run) {
      EXPECT_SUCCESS(cache.run(key("thread", i, run % 5), lane.stream, [&](cudaStream_t on) {
        return launch(add, kGrid, kBlock, on, lane.sum.get(), kSize, 1.0f);
      }));
      if (run % 50 == 0) cache.erase(key("thread", i, 1));
      if (run % 60 == 0) (void)labels(cache);
    }
    CUDA_OK(cudaStreamSynchronize(lane.stream));
    cache.erase(key("thread", i, 0));
  });
  const LabelStats all = by_label(cache).at("thread");
  EXPECT_EQ(all.outcomes, cache.stats().outcomes);
  EXPECT_EQ(all.eager_reasons, cache.stats().eager_reasons);
  EXPECT_EQ(std::accumulate(all.outcomes.begin(), all.outcomes.end(), 0u), unsigned{kThreads * kRuns});
}

TEST_F(HistoryTest, ABudgetThatIsTooSmall) {
  Cache cache(followed(unshared(4)));
  // With keys in turn, a budget of 4 always loses all 7. Twice the budget would keep them.
  run_in_turn(cache, 7, 210);
  const Finding finding = only(cache, FindingKind::kBudget);
  EXPECT_EQ(finding.label, "");
  EXPECT_DOUBLE_EQ(finding.ready_rate, 0.0);
  EXPECT_DOUBLE_EQ(finding.ready_rate_of_twice, 203.0 / 210);
  EXPECT_DOUBLE_EQ(finding.ready_rate_of_four_times, 203.0 / 210);
  EXPECT_EQ(finding.runs, 203u);
  EXPECT_NE(finding.cure.find("Options::max_executables"), std::string::npos);
  // The prediction is right.
  Cache twice(followed(unshared(8)));
  run_in_turn(twice, 7, 210);
  EXPECT_EQ(twice.stats().outcome(Outcome::kReplayed), 203u);
  EXPECT_THAT(kinds(twice), testing::IsEmpty());
}

TEST_F(HistoryTest, FourTimesTheBudget) {
  Cache cache(followed(unshared(4)));
  run_in_turn(cache, 12, 240);
  const Finding finding = only(cache, FindingKind::kBudget);
  EXPECT_DOUBLE_EQ(finding.ready_rate_of_twice, 0.0);
  EXPECT_DOUBLE_EQ(finding.ready_rate_of_four_times, 228.0 / 240);
  Cache four_times(unshared(16));
  run_in_turn(four_times, 12, 240);
  EXPECT_EQ(four_times.stats().outcome(Outcome::kReplayed), 228u);
}

TEST_F(HistoryTest, NoBudgetWouldHelpKeysThatRunAgainTooLate) {
  Cache cache(followed(unshared(4)));
  run_in_turn(cache, 50, 100);
  for (const Finding& finding : advise(cache)) EXPECT_NE(finding.kind, FindingKind::kBudget) << finding.text;
}

TEST_F(HistoryTest, ALargerBudgetSparesWarmNothingAndNoRateIsAboveOne) {
  const auto refuses = std::make_shared<Functions>();
  refuses->wanted.launches = true;
  Cache cache(unshared({.max_executables = 1, .listeners = {std::make_shared<History>(), refuses}}));
  const auto fn = [&](cudaStream_t on) { return add_one(on); };
  for (int i = 0; i < 20; ++i) {
    EXPECT_SUCCESS(cache.warm(key("k"), stream, fn));
    EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
    EXPECT_SUCCESS(run_add(cache, key("evicts")));
    cache.erase(key("evicts"));
  }
  EXPECT_THAT(kinds(cache), testing::IsEmpty());
  refuses->on_begin = [](const CacheEvent& event) {
    return event.kind == EventKind::kLaunch ? absl::AbortedError("no") : absl::OkStatus();
  };
  for (int i = 0; i < 60; ++i) EXPECT_FAILURE(kAborted, run_add(cache, key("k", i % 2)));
  EXPECT_EQ(only(cache, FindingKind::kBudget).ready_rate_of_twice, 1);
}

TEST_F(HistoryTest, SharedExecutablesLentForWantOfRoom) {
  Cache cache(followed({.max_executables = 2}));
  run_in_turn(cache, 3, 90);
  const std::vector<Finding> findings = advise(cache);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, FindingKind::kBudget);
  Cache twice({.max_executables = 4});
  run_in_turn(twice, 3, 90);
  EXPECT_NEAR(findings[0].ready_rate_of_twice, static_cast<double>(twice.stats().outcome(Outcome::kReplayed)) / 90,
              0.2);
}

TEST_F(HistoryTest, TemplatesThatAreDroppedTooEarly) {
  Options options = unshared(4);
  options.max_templates = 4;
  const auto use = [&](Cache& cache) {
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(run_add(cache, key("k" + std::to_string(i % 40))).ok());
  };
  Cache cache(followed(options)), without_history(options);
  for (Cache* const of : {&cache, &without_history}) {
    use(*of);
    const Finding finding = only(*of, FindingKind::kTemplates);
    EXPECT_EQ(finding.runs, 160u);
    EXPECT_NE(finding.cure.find("Options::max_templates"), std::string::npos);
  }
  options.max_templates = 40;
  Cache enough(followed(options));
  use(enough);
  EXPECT_THAT(kinds(enough), testing::IsEmpty());
}

TEST_F(HistoryTest, FindingsOfMoreRunsAreFirst) {
  Cache cache(followed(unshared(4)));
  for (int i = 0; i < 20; ++i) EXPECT_RUN(kEager, cache.run(key("empty"), stream, [](cudaStream_t) {}));
  run_in_turn(cache, 7, 210);
  EXPECT_THAT(kinds(cache), testing::ElementsAre(FindingKind::kBudget, FindingKind::kDirectRuns));
}

}  // namespace
}  // namespace graphcache::test
