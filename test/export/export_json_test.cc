// The JSON of a cache's state, and which of its texts may leave the process.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cache_support.h"
#include "graphcache_export/json.h"
#include "stats_fields.h"

namespace graphcache::test {
namespace {

using nlohmann::json;

class ExportJsonTest : public CacheTest {
 protected:
  template <class Enum, std::size_t kCount>
  static void expect_counts(const json& found, const std::array<std::uint64_t, kCount>& counts) {
    EXPECT_EQ(found.size(), kCount);
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(found.at(to_string(static_cast<Enum>(i))), counts[i]);
  }
  // In the form of a key or a message.
  std::string address_of_data() const {
    std::ostringstream text;
    text << std::hex << reinterpret_cast<std::uintptr_t>(data.get());
    return text.str();
  }
};

TEST_F(ExportJsonTest, StatsHaveTheNamesOfTheirFields) {
  Stats all;
  for (int i = 0; i < kOutcomeCount; ++i) all.outcomes[i] = 10 + i;
  for (int i = 0; i < kEagerReasonCount; ++i) all.eager_reasons[i] = 30 + i;
  std::uint64_t next = 100;
  for (const NumberOfStats& number : kNumbersOfStats) all.*number.field = next++;
  for (const TimeOfStats& time : kTimesOfStats) all.*time.field = std::chrono::nanoseconds(next++);

  const json found = json::parse(to_json(all));
  for (const auto& [name, field, is_of_now] : kNumbersOfStats) EXPECT_EQ(found.at(name), all.*field) << name;
  for (const auto& [name, field] : kTimesOfStats) {
    EXPECT_EQ(found.at(std::string(name) + "_time_ns"), (all.*field).count()) << name;
  }
  expect_counts<Outcome>(found.at("outcomes"), all.outcomes);
  expect_counts<EagerReason>(found.at("eager_reasons"), all.eager_reasons);
  EXPECT_EQ(found.size(), std::size(kNumbersOfStats) + std::size(kTimesOfStats) + 2);  // nothing else
}

TEST_F(ExportJsonTest, AnEmptyCacheHasEmptyListsAndListenersAddWhatTheyMeasured) {
  const json without = json::parse(to_json(Cache()));
  EXPECT_TRUE(without.at("hit_latency").is_null());
  EXPECT_TRUE(without.at("measured_device_bytes").is_null());
  for (const char* name : {"labels", "entries", "findings"}) EXPECT_EQ(without.at(name), json::array()) << name;
  const auto latency = std::make_shared<HitLatency>(1);
  Cache cache({.listeners = {latency, std::make_shared<MemoryMeter>(0)}});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run_add(cache, key("k")).ok());
  const json found = json::parse(to_json(cache));
  EXPECT_TRUE(found.at("measured_device_bytes").is_number());
  const json& buckets = found.at("hit_latency");
  const HitLatency::Counts counts = latency->counts();
  ASSERT_EQ(buckets.size(), counts.size());
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(buckets[i].at("below_ns"), i < HitLatency::kBounds.size() ? json(HitLatency::kBounds[i]) : json());
    EXPECT_EQ(buckets[i].at("count"), counts[i]);
    all += counts[i];
  }
  EXPECT_EQ(all, 3u);
}

TEST_F(ExportJsonTest, ACacheIsItsParts) {
  Cache cache(unshared(1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_add(cache, key("a", i)).ok());
  EXPECT_TRUE(run_add(cache, key("b")).ok());
  EXPECT_TRUE(cache.pin(key("b")));
  const json found = json::parse(to_json(cache));
  EXPECT_EQ(found.at("graphcache"), kVersion);
  EXPECT_EQ(found.at("stats"), json::parse(to_json(cache.stats())));
  EXPECT_EQ(found.at("labels"), json::parse(to_json(labels(cache))));
  EXPECT_EQ(found.at("entries"), json::parse(to_json(cache.entries())));
  EXPECT_EQ(found.at("findings"), json::parse(to_json(advise(cache))));
  EXPECT_EQ(found.size(), 7u);

  EXPECT_EQ(found["stats"]["captures"], 4);
  EXPECT_EQ(found["stats"]["evictions"], 3);
  const std::vector<LabelStats> labels = graphcache::labels(cache);
  ASSERT_EQ(found["labels"].size(), labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    EXPECT_EQ(found["labels"][i].at("label"), labels[i].label);
    EXPECT_EQ(found["labels"][i].at("entries"), labels[i].entries);
    expect_counts<Outcome>(found["labels"][i].at("outcomes"), labels[i].outcomes);
    expect_counts<EagerReason>(found["labels"][i].at("eager_reasons"), labels[i].eager_reasons);
  }
  const std::vector<EntryInfo> entries = cache.entries();
  ASSERT_EQ(found["entries"].size(), entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const json& entry = found["entries"][i];
    EXPECT_EQ(entry.at("id"), entries[i].id);
    EXPECT_EQ(entry.at("label"), entries[i].label);
    EXPECT_EQ(entry.at("live"), entries[i].live);
    EXPECT_EQ(entry.at("recorded"), entries[i].recorded);
    EXPECT_EQ(entry.at("pinned"), entries[i].label == "b");
    EXPECT_EQ(entry.at("eager_reason"), json());
    EXPECT_EQ(entry.at("family"), entries[i].family);
    EXPECT_EQ(entry.at("nodes"), 1);
    EXPECT_EQ(entry.at("slot_nodes"), 0);
    EXPECT_EQ(entry.at("estimated_device_bytes"), entries[i].estimated_device_bytes);
    EXPECT_EQ(entry.at("last_use_order"), i);
    expect_counts<Outcome>(entry.at("outcomes"), entries[i].outcomes);
  }
}

TEST_F(ExportJsonTest, WholeKeysAreExportedOnlyIfAllowed) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("step", data.get(), "a secret text")).ok());
  const std::string closed = to_json(cache);
  EXPECT_EQ(closed.find("a secret text"), std::string::npos) << closed;
  EXPECT_EQ(closed.find(address_of_data()), std::string::npos) << closed;
  EXPECT_EQ(json::parse(closed)["entries"][0].at("label"), "step");
  for (const char* name : {"key", "error", "stale", "stray_work"}) {
    EXPECT_FALSE(json::parse(closed)["entries"][0].contains(name)) << name;
  }
  const std::string open = to_json(cache, {.keys = true});
  EXPECT_NE(open.find("a secret text"), std::string::npos) << open;
  EXPECT_NE(open.find(address_of_data()), std::string::npos) << open;
  EXPECT_EQ(json::parse(open)["entries"][0].at("key"), cache.entries()[0].key.to_string());
}

TEST_F(ExportJsonTest, TextsOfErrorsLeaveOnlyIfTheyMay) {
  EntryInfo entry;
  entry.eager_reason = EagerReason::kCaptureFailed;
  entry.error = "error of secret";
  entry.refusal = "refusal secret";
  entry.stale = {{"stale secret", 2}};
  entry.stray_work = {{"one secret", 1}, {"another secret", 3}};
  EXPECT_EQ(to_json(std::vector{entry}).find("secret"), std::string::npos);
  const json found = json::parse(to_json(std::vector{entry}, {.keys = true}))[0];
  EXPECT_EQ(found.at("eager_reason"), "capture_failed");
  EXPECT_EQ(found.at("error"), entry.error);
  EXPECT_EQ(found.at("refusal"), entry.refusal);
  EXPECT_EQ(found.at("stale"), json::parse(R"([{"text": "stale secret", "count": 2}])"));
  EXPECT_EQ(found.at("stray_work"),
            json::parse(R"([{"text": "one secret", "count": 1}, {"text": "another secret", "count": 3}])"));
}

TEST_F(ExportJsonTest, AnyBytesMayBeALabel) {
  const std::string hostile = "\"quoted\" \\ \n\t</script>\x01";
  Cache cache;
  EXPECT_TRUE(run_add(cache, key(hostile)).ok());
  EXPECT_TRUE(run_add(cache, key("half \xe2\x82 and \xff")).ok());
  const json found = json::parse(to_json(cache, {.keys = true}));
  EXPECT_EQ(found["labels"][0].at("label"), "half \xef\xbf\xbd and \xef\xbf\xbd");
  EXPECT_EQ(found["labels"][1].at("label"), hostile);
  EXPECT_EQ(found["entries"][0].at("label"), found["labels"][0].at("label"));
}

TEST_F(ExportJsonTest, AGraphIsItsNodes) {
  Cache cache;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, params(2.0f), [&](Recorder& rec, Slot<float> value) {
    CUDA_OK(cudaMemsetAsync(data.get(), 0, data.bytes(), rec.stream()));
    rec.launch(add, {kGrid, kBlock}, data.get(), kSize, value);
  }));
  const absl::StatusOr<GraphInfo> graph = cache.graph(key("k"));
  ASSERT_TRUE(graph.ok());
  const json found = json::parse(to_json(*graph, {.values = true}));
  EXPECT_EQ(found.at("entry"), graph->entry);
  EXPECT_EQ(found.at("label"), "k");
  EXPECT_EQ(found.at("family"), graph->family);
  ASSERT_EQ(found.at("nodes").size(), 2u);
  EXPECT_EQ(found["nodes"][0].at("type"), "memset");
  const json& node = found["nodes"][1];
  EXPECT_EQ(node.at("type"), "kernel");
  EXPECT_EQ(node.at("name"), graph->nodes[1].name);
  EXPECT_EQ(node.at("grid"), (json{kGrid.x, 1, 1}));
  EXPECT_EQ(node.at("block"), (json{kBlock.x, 1, 1}));
  EXPECT_EQ(node.at("shared_bytes"), 0);
  EXPECT_EQ(node.at("grid_is_slot"), false);
  EXPECT_EQ(node.at("dependencies"), json{0});
  ASSERT_EQ(node.at("arguments").size(), 3u);
  EXPECT_EQ(node["arguments"][0].at("value").get<std::string>().size(), 2 * sizeof(void*));
  EXPECT_EQ(node["arguments"][1], json::parse(R"({"name": "argument 1", "is_slot": false, "value": "64000000"})"));
  EXPECT_EQ(node["arguments"][2], json::parse(R"({"name": "argument 2", "is_slot": true, "value": "00000040"})"));
}

TEST_F(ExportJsonTest, CapturedValuesLeaveOnlyIfTheyMay) {
  GraphInfo graph;
  GraphNode& node = graph.nodes.emplace_back();
  node.type = static_cast<cudaGraphNodeType>(13);
  node.attributes = {{"cluster dimension", "2, 1, 1"}};
  node.arguments = {{"argument 0", {0xde, 0xad, 0x00, 0xf1}, true}};
  node.shared_is_slot = true;
  const std::string closed = to_json(graph);
  EXPECT_EQ(closed.find("dead00f1"), std::string::npos) << closed;
  const json found = json::parse(to_json(graph, {.values = true}));
  EXPECT_EQ(found["nodes"][0]["arguments"][0].at("value"), "dead00f1");
  EXPECT_EQ(found["nodes"][0].at("type"), "conditional");
  EXPECT_EQ(found["nodes"][0].at("attributes"), json::parse(R"([{"name": "cluster dimension", "value": "2, 1, 1"}])"));
  EXPECT_EQ(found["nodes"][0].at("shared_is_slot"), true);
}

TEST_F(ExportJsonTest, FindingsHaveTheNamesOfTheirFields) {
  Finding finding;
  finding.kind = FindingKind::kBudget;
  finding.label = "a";
  finding.text = "what was seen";
  finding.cure = "what to do";
  finding.runs = 3;
  finding.buckets = {8, 16};
  finding.padding = 0.25;
  finding.ready_rate = 0.5;
  finding.ready_rate_of_twice = 0.625;
  finding.ready_rate_of_four_times = 0.75;
  EXPECT_EQ(json::parse(to_json(std::vector{finding})),
            json::parse(R"([{"kind": "budget", "label": "a", "text": "what was seen", "cure": "what to do", "runs": 3,
                             "buckets": [8, 16], "padding": 0.25, "ready_rate": 0.5, "ready_rate_of_twice": 0.625,
                             "ready_rate_of_four_times": 0.75}])"));
}

}  // namespace
}  // namespace graphcache::test
