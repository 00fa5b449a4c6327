// Counters, names and text. No runtime is needed.
#include "graphcache/stats.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "graphcache/format.h"

namespace graphcache {
namespace {

Stats example() {
  Stats stats;
  for (int i = 0; i < kOutcomeCount; ++i) stats.outcomes[static_cast<std::size_t>(i)] = 100u + static_cast<unsigned>(i);
  for (int i = 0; i < kEagerReasonCount; ++i) {
    stats.eager_reasons[static_cast<std::size_t>(i)] = 200u + static_cast<unsigned>(i);
  }
  stats.failed = 301;
  stats.captures = 302;
  stats.capture_failures = 303;
  stats.instantiations = 304;
  stats.patched_nodes = 305;
  stats.evictions = 306;
  stats.live_executables = 307;
  stats.live_templates = 308;
  stats.estimated_device_bytes = 1024 * 309;
  stats.capture_time = std::chrono::microseconds(310500);
  stats.instantiate_time = std::chrono::microseconds(311500);
  return stats;
}

TEST(StatsTest, RunsAreTheOutcomesAndTheFailures) {
  EXPECT_EQ(Stats().runs(), 0u);
  EXPECT_EQ(example().runs(), 100u + 101 + 102 + 103 + 104 + 105 + 106 + 301);
}

TEST(StatsTest, HitRateIsHitsOfHitsAndMisses) {
  Stats stats;
  EXPECT_EQ(stats.hit_rate(), 0.0);
  stats.outcomes[static_cast<int>(Outcome::kInstantiated)] = 1;
  EXPECT_EQ(stats.hit_rate(), 0.0);
  stats.outcomes[static_cast<int>(Outcome::kReplayed)] = 1;
  stats.outcomes[static_cast<int>(Outcome::kPatched)] = 1;
  stats.outcomes[static_cast<int>(Outcome::kSwitched)] = 1;
  EXPECT_EQ(stats.hits(), 3u);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.75);
  stats.outcomes[static_cast<int>(Outcome::kUpdated)] = 2;
  EXPECT_EQ(stats.misses(), 3u);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.5);
  stats.outcomes[static_cast<int>(Outcome::kEager)] = 100;  // Neither.
  stats.outcomes[static_cast<int>(Outcome::kInlined)] = 100;
  stats.failed = 100;
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.5);
}

TEST(StatsTest, CountersAreReadByName) {
  const Stats stats = example();
  EXPECT_EQ(stats.outcome(Outcome::kReplayed), 100u);
  EXPECT_EQ(stats.outcome(Outcome::kInlined), 106u);
  EXPECT_EQ(stats.eager(EagerReason::kDisabled), 200u);
}

TEST(StatsTest, OutcomesAndReasonsHaveNames) {
  EXPECT_STREQ(to_string(Outcome::kReplayed), "replayed");
  EXPECT_STREQ(to_string(Outcome::kPatched), "patched");
  EXPECT_STREQ(to_string(Outcome::kSwitched), "switched");
  EXPECT_STREQ(to_string(Outcome::kUpdated), "updated");
  EXPECT_STREQ(to_string(Outcome::kInstantiated), "instantiated");
  EXPECT_STREQ(to_string(Outcome::kEager), "eager");
  EXPECT_STREQ(to_string(Outcome::kInlined), "inlined");
  EXPECT_STREQ(to_string(EagerReason::kDisabled), "disabled");
  EXPECT_STREQ(to_string(EagerReason::kCaptureAfter), "capture_after");
  EXPECT_STREQ(to_string(EagerReason::kCaptureFailed), "capture_failed");
  EXPECT_STREQ(to_string(EagerReason::kBackoff), "backoff");
  EXPECT_STREQ(to_string(EagerReason::kBudget), "budget");
  EXPECT_STREQ(to_string(EagerReason::kOutOfMemory), "out_of_memory");
  EXPECT_STREQ(to_string(EagerReason::kRefused), "refused");
  EXPECT_STREQ(to_string(EagerReason::kLaunchFailed), "launch_failed");
  std::set<std::string> names;
  for (int i = 0; i < kOutcomeCount; ++i) names.insert(to_string(static_cast<Outcome>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kOutcomeCount));
  names.clear();
  for (int i = 0; i < kEagerReasonCount; ++i) names.insert(to_string(static_cast<EagerReason>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kEagerReasonCount));
  EXPECT_STREQ(to_string(static_cast<Outcome>(99)), "unknown");
  EXPECT_STREQ(to_string(static_cast<Outcome>(-1)), "unknown");
  EXPECT_STREQ(to_string(static_cast<EagerReason>(99)), "unknown");
}

void expect_all(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(StatsTest, TextHoldsEveryNumber) {
  const std::string text = to_string(example());
  expect_all(text, {"runs 1022", "replayed 100", "patched 101",  "switched 102", "updated 103", "instantiated 104",
                    "eager 105", "inlined 106",  "disabled 200", "failed 301",   "302",         "303",
                    "304",       "305",          "306",          "307",          "308",         "309",
                    "310.5",     "311.5"});
  expect_all(text, {"59.41%"});  // 303 of 510.
  EXPECT_NE(text.back(), '\n');
}

TEST(StatsTest, TextOfAFreshCacheIsShortAndWhole) {
  const std::string text = to_string(Stats());
  expect_all(text, {"runs 0", "0.00%"});
  EXPECT_EQ(text.find("eager"), std::string::npos) << text;
  EXPECT_EQ(text.find("failed"), std::string::npos) << text;
}

TEST(StatsTest, TextOfAnEntryHoldsItsNumbers) {
  EntryInfo entry;
  entry.label = "train";
  entry.key = "(\"train\", 8)";
  entry.outcomes[static_cast<int>(Outcome::kPatched)] = 17;
  entry.live = true;
  entry.nodes = 42;
  entry.slot_nodes = 13;
  entry.estimated_device_bytes = 42 * 2048;
  entry.last_use_order = 5;
  expect_all(to_string(entry), {"(\"train\", 8)", "patched 17", "42", "13", "84.0 KiB", "5"});
}

TEST(StatsTest, FmtPrintsWhatToStringMakes) {
  const Stats stats = example();
  EXPECT_EQ(fmt::format("{}", stats), to_string(stats));
  EXPECT_EQ(fmt::format("{}", EntryInfo()), to_string(EntryInfo()));
  EXPECT_EQ(fmt::format("{}", Outcome::kPatched), "patched");
  EXPECT_EQ(fmt::format("{:>10}|{:<9}|", Outcome::kPatched, EagerReason::kBudget), "   patched|budget   |");
}

}  // namespace
}  // namespace graphcache
