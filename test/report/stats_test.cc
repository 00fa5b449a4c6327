// Counters, names and text. No runtime is needed.
#include "graphcache/stats.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "graphcache/format.h"

namespace graphcache {
namespace {

Stats example() {
  Stats stats;
  for (int i = 0; i < kOutcomeCount; ++i) stats.outcomes[static_cast<std::size_t>(i)] = 100u + static_cast<unsigned>(i);
  for (int i = 0; i < kEagerReasonCount; ++i) {
    stats.eager_reasons[static_cast<std::size_t>(i)] = 200u + static_cast<unsigned>(i);
  }
  for (int i = 0; i < kUpdateRefusalCount; ++i) {
    stats.refused_updates[static_cast<std::size_t>(i)] = 400u + static_cast<unsigned>(i);
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
  stats.updates = 312;
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

TEST(StatsTest, CountersAreReadByName) {
  const Stats stats = example();
  EXPECT_EQ(stats.outcome(Outcome::kReplayed), 100u);
  EXPECT_EQ(stats.outcome(Outcome::kRestored), 103u);
  EXPECT_EQ(stats.outcome(Outcome::kInlined), 107u);
  EXPECT_EQ(stats.refused(UpdateRefusal::kTopology), 400u);
  EXPECT_EQ(stats.refused(UpdateRefusal::kOther), 406u);
  EXPECT_EQ(stats.eager(EagerReason::kDisabled), 200u);
}

TEST(StatsTest, OutcomesReasonsAndRefusalsHaveNames) {
  EXPECT_STREQ(to_string(Outcome::kReplayed), "replayed");
  EXPECT_STREQ(to_string(Outcome::kPatched), "patched");
  EXPECT_STREQ(to_string(Outcome::kSwitched), "switched");
  EXPECT_STREQ(to_string(Outcome::kRestored), "restored");
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
  EXPECT_STREQ(to_string(UpdateRefusal::kTopology), "topology");
  EXPECT_STREQ(to_string(UpdateRefusal::kNodeType), "node_type");
  EXPECT_STREQ(to_string(UpdateRefusal::kFunction), "function");
  EXPECT_STREQ(to_string(UpdateRefusal::kParameters), "parameters");
  EXPECT_STREQ(to_string(UpdateRefusal::kAttributes), "attributes");
  EXPECT_STREQ(to_string(UpdateRefusal::kNotSupported), "not_supported");
  EXPECT_STREQ(to_string(UpdateRefusal::kOther), "other");
  names.clear();
  for (int i = 0; i < kUpdateRefusalCount; ++i) names.insert(to_string(static_cast<UpdateRefusal>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kUpdateRefusalCount));
  EXPECT_STREQ(to_string(static_cast<UpdateRefusal>(99)), "unknown");
  EXPECT_STREQ(to_string(static_cast<UpdateRefusal>(-1)), "unknown");
  EXPECT_STREQ(to_string(static_cast<Outcome>(99)), "unknown");
  EXPECT_STREQ(to_string(static_cast<Outcome>(-1)), "unknown");
  EXPECT_STREQ(to_string(static_cast<EagerReason>(99)), "unknown");
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
                    "topology 400",
                    "not_supported 405",
                    "other 406",
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

TEST(StatsTest, TextOfAnEntryNamesWhatItHas) {
  EntryInfo entry;
  expect_all(to_string(entry), {"nothing recorded"});
  entry.recorded = true;
  expect_all(to_string(entry), {"only a template"});
  entry.live = true;
  expect_all(to_string(entry), {"live"});
  EXPECT_EQ(to_string(entry).find("only a template"), std::string::npos) << to_string(entry);
}

TEST(StatsTest, TextOfAnEntryNamesItsSpecialStates) {
  EntryInfo entry;
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
}

TEST(StatsTest, TextHoldsStaleHits) {
  Stats stats;
  stats.stale = 4;
  expect_all(to_string(stats), {"verified hits 0, stale 4"});
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
