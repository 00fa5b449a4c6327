// Counters, names and text. No runtime is needed.
#include "graphcache/stats.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "graphcache/format.h"

namespace graphcache {
namespace {

Stats example() {
  Stats stats;
  std::iota(stats.outcomes.begin(), stats.outcomes.end(), 100u);
  std::iota(stats.eager_reasons.begin(), stats.eager_reasons.end(), 200u);
  stats.failed = 301;
  stats.captures = 302;
  stats.capture_failures = 303;
  stats.instantiations = 304;
  stats.patched_nodes = 305;
  stats.evictions = 306;
  stats.live_executables = 307;
  stats.live_templates = 308;
  stats.estimated_device_bytes = 1024 * 309;
  stats.updates = 312;
  stats.refused_updates = 316;
  stats.forgotten = 313;
  stats.value_captures = 315;
  stats.families = 314;
  stats.capture_time = std::chrono::microseconds(310500);
  stats.instantiate_time = std::chrono::microseconds(311500);
  return stats;
}

TEST(StatsTest, RunsAreTheOutcomesAndTheFailures) {
  EXPECT_EQ(Stats().runs(), 0u);
  EXPECT_EQ(example().runs(), 100u + 101 + 102 + 103 + 104 + 105 + 106 + 107 + 301);
}

TEST(StatsTest, RatesCountHitsMissesAndEagerRuns) {
  Stats stats;
  EXPECT_EQ(stats.hit_rate(), 0.0);
  stats.outcomes[static_cast<int>(Outcome::kInstantiated)] = 1;
  EXPECT_EQ(stats.hit_rate(), 0.0);
  stats.outcomes[static_cast<int>(Outcome::kReplayed)] = 1;
  stats.outcomes[static_cast<int>(Outcome::kPatched)] = 1;
  stats.outcomes[static_cast<int>(Outcome::kSwitched)] = 1;
  EXPECT_EQ(stats.hits(), 3u);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.75);
  stats.outcomes[static_cast<int>(Outcome::kRestored)] = 4;
  EXPECT_EQ(stats.hits(), 7u);
  EXPECT_EQ(stats.misses(), 1u);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.875);
  stats.outcomes[static_cast<int>(Outcome::kUpdated)] = 6;
  EXPECT_EQ(stats.misses(), 7u);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.5);
  EXPECT_DOUBLE_EQ(stats.graph_rate(), 1);
  stats.outcomes[static_cast<int>(Outcome::kEager)] = 14;
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.25);
  EXPECT_DOUBLE_EQ(stats.graph_rate(), 0.5);
  stats.outcomes[static_cast<int>(Outcome::kInlined)] = 100;  // these count nowhere
  stats.failed = 100;
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.25);
  EXPECT_DOUBLE_EQ(stats.graph_rate(), 0.5);
}

// Checks the names of an enumeration, in its order, each followed by a space. No other value has one.
template <class Enum>
void expect_names(int count, const std::string& names) {
  std::string found;
  for (int i = 0; i < count; ++i) found += std::string(to_string(static_cast<Enum>(i))) + " ";
  EXPECT_EQ(found, names);
  for (const int none : {99, -1}) EXPECT_STREQ(to_string(static_cast<Enum>(none)), "unknown");
}

TEST(StatsTest, OutcomesAndReasonsHaveNames) {
  expect_names<Outcome>(kOutcomeCount, "replayed patched switched restored updated instantiated eager inlined ");
  expect_names<EagerReason>(kEagerReasonCount,
                            "disabled capture_after capture_failed backoff budget out_of_memory refused launch_failed "
                            "nothing_captured hands_out_memory ");
}

void expect_all(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(StatsTest, TextHoldsEveryNumber) {
  const std::string text = to_string(example());
  expect_all(text, {"runs 1129",
                    "replayed 100",
                    "patched 101",
                    "switched 102",
                    "restored 103",
                    "updated 104",
                    "instantiated 105",
                    "eager 106",
                    "inlined 107",
                    "disabled 200",
                    "failed 301",
                    "captures 302",
                    "failed captures 303",
                    "instantiations 304",
                    "switches by cudaGraphExecUpdate 312",
                    "patched nodes 305",
                    "refused updates 316",
                    "executables 307",
                    "309.0 KiB",
                    "evictions 306",
                    "templates 308",
                    "314 families",
                    "forgotten 313",
                    "310.5",
                    "311.5"});
  expect_all(text, {"hit rate 56.31%", "graph rate 85.30%"});  // 406 and 615 of 721
  EXPECT_NE(text.back(), '\n');
  Stats stale;
  stale.stale = 4;
  expect_all(to_string(stale), {"verified hits 0, stale 4"});
}

TEST(StatsTest, TextOfAFreshCacheIsShortAndWhole) {
  const std::string text = to_string(Stats());
  expect_all(text, {"runs 0", "0.00%"});
  EXPECT_EQ(text.find("eager"), std::string::npos) << text;
  EXPECT_EQ(text.find("failed"), std::string::npos) << text;
  EXPECT_EQ(text.find("refused"), std::string::npos) << text;
}

TEST(StatsTest, TextOfAnEntryHoldsItsNumbers) {
  EntryInfo entry;
  entry.label = "train";
  entry.key = key("train", 8);
  entry.outcomes[static_cast<int>(Outcome::kPatched)] = 17;
  entry.live = true;
  entry.nodes = 42;
  entry.slot_nodes = 13;
  entry.estimated_device_bytes = 42 * 2048;
  entry.last_use_order = 5;
  expect_all(to_string(entry), {"(\"train\", 8)", "patched 17", "live", "42", "13", "84.0 KiB", "5"});
}

TEST(StatsTest, TextOfAnEntryNamesWhatItHasAndItsSpecialStates) {
  EntryInfo entry;
  expect_all(to_string(entry), {"nothing recorded"});
  for (const char* const part : {", pinned", "because", "error: ", "not in the graph", "stale: "}) {
    EXPECT_EQ(to_string(entry).find(part), std::string::npos) << part;
  }
  entry.pinned = true;
  entry.eager_reason = EagerReason::kBudget;
  entry.error = "the last";
  entry.stray_work = {{"one", 1}, {"two", 3}};
  entry.stale = {{"argument 1", 2}};
  expect_all(to_string(entry), {", pinned; last direct run because: budget; error: the last; not in the graph: "
                                "one; not in the graph: two (3 times); stale: argument 1 (2 times)"});
  entry.recorded = true;
  expect_all(to_string(entry), {"only a template"});
  entry.live = true;
  expect_all(to_string(entry), {"live"});
  EXPECT_EQ(to_string(entry).find("only a template"), std::string::npos) << to_string(entry);
}

TEST(StatsTest, FmtPrintsTheTextOfToString) {
  const Stats stats = example();
  EXPECT_EQ(fmt::format("{}", stats), to_string(stats));
  EXPECT_EQ(fmt::format("{}", EntryInfo()), to_string(EntryInfo()));
  EXPECT_EQ(fmt::format("{}", Outcome::kPatched), "patched");
  EXPECT_EQ(fmt::format("{}", Outcome::kRestored), "restored");
  EXPECT_EQ(fmt::format("{:>10}|{:<9}|", Outcome::kPatched, EagerReason::kBudget), "   patched|budget   |");
}

}  // namespace
}  // namespace graphcache
