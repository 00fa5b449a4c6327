// The Prometheus metrics of a cache: values, names by Prometheus' rules, labels that cannot break a page; and the
// dashboard.
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cache_support.h"
#include "graphcache_export/prometheus.h"
#include "size.h"
#include "stats_fields.h"

namespace graphcache::test {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class ExportPrometheusTest : public CacheTest {
 protected:
  using Labels = std::map<std::string, std::string>;

  static Labels labels_of(const ClientMetric& metric) {
    Labels labels;
    for (const ClientMetric::Label& label : metric.label) EXPECT_TRUE(labels.emplace(label.name, label.value).second);
    return labels;
  }
  static const MetricFamily* family(const std::vector<MetricFamily>& page, const std::string& name) {
    for (const MetricFamily& family : page) {
      if (family.name == name) return &family;
    }
    return nullptr;
  }
  // Returns -1 if there is none.
  static double value(const std::vector<MetricFamily>& page, const std::string& name, const Labels& labels) {
    const MetricFamily* const found = family(page, name);
    if (found == nullptr) return -1;
    for (const ClientMetric& metric : found->metric) {
      if (labels_of(metric) != labels) continue;
      return found->type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
    }
    return -1;
  }
  // Of a label of the cache "default": its entries, or its runs with this outcome.
  static double entries_of(const std::vector<MetricFamily>& page, const std::string& label) {
    return value(page, "graphcache_label_entries", {{"cache", "default"}, {"label", label}});
  }
  static double runs_of(const std::vector<MetricFamily>& page, const std::string& label, Outcome outcome) {
    return value(page, "graphcache_label_runs_total",
                 {{"cache", "default"}, {"label", label}, {"outcome", to_string(outcome)}});
  }
  static std::string text(const std::vector<MetricFamily>& page) {
    return static_cast<const prometheus::Serializer&>(prometheus::TextSerializer()).Serialize(page);
  }
  // Another topology than that of add_one().
  absl::StatusOr<Outcome> run_no_sibling(Cache& cache) {
    return cache.run(key("no sibling"), stream,
                     [&](cudaStream_t on) { return cudaMemsetAsync(data.get(), 0, data.bytes(), on); });
  }
  // Options with everything measured.
  static Options measured(Options options) {
    options = renting(options);
    options.listeners = {std::make_shared<HitLatency>(), std::make_shared<MemoryMeter>(0)};
    return options;
  }
};

TEST_F(ExportPrometheusTest, ValuesAreThoseOfStats) {
  Cache cache(measured({.max_executables = 1, .max_templates = 2, .capture_after = 1, .verify_every = 2}));
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(run_add(cache, key("k", i % 4)).ok());
    EXPECT_TRUE(run_add(cache, stream, static_cast<float>(i)).ok());
    EXPECT_TRUE(i % 5 != 0 || run_no_sibling(cache).ok());
  }
  EXPECT_FALSE(cache.run(key("failing"), stream, [](cudaStream_t) { return absl::DataLossError("lost"); }).ok());
  const Stats stats = cache.stats();
  const std::vector<MetricFamily> page = PrometheusCollector(cache, "name").Collect();
  const auto found = [&](const std::string& name, Labels labels = {}) {
    labels["cache"] = "name";
    return value(page, "graphcache_" + name, labels);
  };
  for (int i = 0; i < kOutcomeCount; ++i) {
    EXPECT_EQ(found("runs_total", {{"outcome", to_string(static_cast<Outcome>(i))}}), stats.outcomes[i]);
  }
  for (int i = 0; i < kEagerReasonCount; ++i) {
    EXPECT_EQ(found("direct_runs_total", {{"reason", to_string(static_cast<EagerReason>(i))}}), stats.eager_reasons[i]);
  }
  const std::map<std::string, std::uint64_t> numbers = {{"failed_runs_total", stats.failed},
                                                        {"captures_total", stats.captures},
                                                        {"capture_failures_total", stats.capture_failures},
                                                        {"instantiations_total", stats.instantiations},
                                                        {"updates_total", stats.updates},
                                                        {"set_switches_total", stats.set_switches},
                                                        {"patched_nodes_total", stats.patched_nodes},
                                                        {"evictions_total", stats.evictions},
                                                        {"forgotten_templates_total", stats.forgotten},
                                                        {"refused_updates_total", stats.refused_updates},
                                                        {"refused_device_updates_total", stats.refused_device_updates},
                                                        {"verified_hits_total", stats.verified},
                                                        {"stale_hits_total", stats.stale},
                                                        {"executables", stats.live_executables},
                                                        {"templates", stats.live_templates},
                                                        {"families", stats.families},
                                                        {"estimated_device_bytes", stats.estimated_device_bytes}};
  for (const auto& [name, number] : numbers) EXPECT_EQ(found(name), static_cast<double>(number)) << name;
  EXPECT_EQ(found("measured_device_bytes"),
            static_cast<double>(find_listener<MemoryMeter>(cache.options().listeners)->bytes()));
  for (const TimeOfStats& time : kTimesOfStats) {
    SCOPED_TRACE(time.name);
    const std::chrono::nanoseconds spent = stats.*time.field;
    EXPECT_DOUBLE_EQ(found(std::string(time.name) + "_seconds_total"), static_cast<double>(spent.count()) / 1e9);
    EXPECT_GT(spent.count(), 0);
  }
  // The workload also changes the counters that this one could be confused with.
  EXPECT_GT(stats.failed, 0u);
  EXPECT_GT(stats.evictions, 0u);
  EXPECT_GT(stats.forgotten, 0u);
  EXPECT_GT(stats.updates, 0u);
  EXPECT_GT(stats.patched_nodes, 0u);
  EXPECT_GT(stats.verified, 0u);
}

TEST_F(ExportPrometheusTest, LabelsHaveTheirRunsAndEntries) {
  Cache cache;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_add(cache, key("a", 1)).ok());
  EXPECT_TRUE(run_add(cache, key("a", 2)).ok());
  EXPECT_TRUE(run_add(cache, key(1)).ok());
  const PrometheusCollector collector(cache);
  const std::vector<MetricFamily> page = collector.Collect();
  const std::vector<LabelStats> labels = graphcache::labels(cache);
  ASSERT_EQ(labels.size(), 2u);
  EXPECT_EQ(labels[0].label, "");
  for (const LabelStats& label : labels) {
    EXPECT_EQ(entries_of(page, label.label), static_cast<double>(label.entries));
    for (int i = 0; i < kOutcomeCount; ++i) {
      EXPECT_EQ(runs_of(page, label.label, static_cast<Outcome>(i)), static_cast<double>(label.outcomes[i]));
    }
  }
  cache.clear();
  const std::vector<MetricFamily> cleared = collector.Collect();
  EXPECT_EQ(entries_of(cleared, "a"), 0);
  EXPECT_EQ(runs_of(cleared, "a", Outcome::kReplayed), 2);
}

// https://prometheus.io/docs/practices/naming
TEST_F(ExportPrometheusTest, NamesFollowTheRules) {
  Cache cache(measured({.max_executables = 2}));
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  const std::vector<MetricFamily> page = PrometheusCollector(cache).Collect();
  std::set<std::string> names;
  for (const MetricFamily& family : page) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_TRUE(std::regex_match(family.name, std::regex("graphcache_[a-z]+(_[a-z]+)*"))) << family.name;
    const bool is_total = family.name.size() > 6 && family.name.substr(family.name.size() - 6) == "_total";
    EXPECT_EQ(is_total, family.type == MetricType::Counter) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
    EXPECT_EQ(family.help.find_first_of("\n\\"), std::string::npos) << family.help;
    EXPECT_FALSE(family.metric.empty()) << family.name;
    std::set<Labels> seen;
    for (const ClientMetric& metric : family.metric) {
      EXPECT_TRUE(seen.insert(labels_of(metric)).second) << family.name;
      EXPECT_EQ(labels_of(metric)["cache"], "default") << family.name;
    }
  }
}

TEST_F(ExportPrometheusTest, TimedHitsAreAHistogram) {
  Cache cache(measured({.max_executables = 2}));
  for (int i = 0; i < 4 * 1024; ++i) EXPECT_TRUE(run_add(cache, key("k")).ok());
  const std::vector<MetricFamily> page = PrometheusCollector(cache).Collect();
  const MetricFamily* const hits = family(page, "graphcache_hit_seconds");
  ASSERT_NE(hits, nullptr);
  EXPECT_EQ(hits->type, MetricType::Histogram);
  const ClientMetric::Histogram& histogram = hits->metric.at(0).histogram;
  EXPECT_EQ(histogram.sample_count, 4u);
  EXPECT_TRUE(std::isnan(histogram.sample_sum));
  const HitLatency::Counts counts = find_listener<HitLatency>(cache.options().listeners)->counts();
  ASSERT_EQ(histogram.bucket.size(), counts.size());
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    EXPECT_EQ(histogram.bucket[i].cumulative_count, below);
    if (i < HitLatency::kBounds.size()) {
      EXPECT_DOUBLE_EQ(histogram.bucket[i].upper_bound, static_cast<double>(HitLatency::kBounds[i]) / 1e9);
    }
  }
  EXPECT_EQ(histogram.bucket.back().upper_bound, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(says(text(page), "graphcache_hit_seconds_bucket{cache=\"default\",le=\"5e-07\"} "));
  EXPECT_TRUE(says(text(page), "graphcache_hit_seconds_bucket{cache=\"default\",le=\"+Inf\"} 4\n"));
  EXPECT_TRUE(says(text(page), "graphcache_hit_seconds_count{cache=\"default\"} 4\n"));
}

TEST_F(ExportPrometheusTest, ValuesThatAreNotMeasuredAreLeftOut) {
  const Cache cache;
  const std::vector<MetricFamily> page = PrometheusCollector(cache).Collect();
  EXPECT_EQ(family(page, "graphcache_hit_seconds"), nullptr);
  EXPECT_EQ(family(page, "graphcache_measured_device_bytes"), nullptr);
}

TEST_F(ExportPrometheusTest, OthersAndAnOwnLabelOtherAreOneSeries) {
  Cache cache;
  for (int i = 0; i < 70; ++i) EXPECT_TRUE(run_add(cache, key("label " + std::to_string(i))).ok());
  EXPECT_TRUE(run_add(cache, key("other", 1)).ok());
  EXPECT_TRUE(run_add(cache, key("other", 1)).ok());
  ASSERT_EQ(labels(cache).size(), 65u);
  const std::vector<MetricFamily> page = PrometheusCollector(cache).Collect();
  const MetricFamily* const entries = family(page, "graphcache_label_entries");
  ASSERT_NE(entries, nullptr);
  EXPECT_EQ(entries->metric.size(), 64u);
  EXPECT_EQ(entries_of(page, "other"), 8);
  EXPECT_EQ(runs_of(page, "other", Outcome::kReplayed), 1);
}

TEST_F(ExportPrometheusTest, ALabelKeepsItsSeries) {
  Cache cache({.max_executables = 150});
  const PrometheusCollector collector(cache);
  std::vector<MetricFamily> page;
  for (int i = 1; i <= 150; ++i) {
    EXPECT_TRUE(run_add(cache, key("label " + std::to_string(i))).ok());
    if (i % 50 == 0) page = collector.Collect();
  }
  double runs = 0;
  for (const ClientMetric& each : family(page, "graphcache_label_runs_total")->metric) runs += each.counter.value;
  EXPECT_EQ(runs, 150);
  EXPECT_EQ(family(page, "graphcache_label_entries")->metric.size(), 65u);
}

TEST_F(ExportPrometheusTest, LabelsThatAreNoTextShareASeriesOfText) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("bytes \xff")).ok());
  EXPECT_TRUE(run_add(cache, key("bytes \xfe")).ok());
  const std::vector<MetricFamily> page = PrometheusCollector(cache, "cache \xff").Collect();
  const MetricFamily* const entries = family(page, "graphcache_label_entries");
  ASSERT_NE(entries, nullptr);
  EXPECT_EQ(entries->metric.size(), 1u);
  EXPECT_EQ(value(page, entries->name, {{"cache", "cache \xef\xbf\xbd"}, {"label", "bytes \xef\xbf\xbd"}}), 2);
}

TEST_F(ExportPrometheusTest, ALabelCannotBreakThePage) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("\"} 1\ngraphcache_runs_total \\")).ok());
  const std::string page = text(PrometheusCollector(cache, "</script>\n").Collect());
  EXPECT_TRUE(says(page, R"(label="\"} 1\ngraphcache_runs_total \\")"));
  const std::regex line(R"re((# (HELP|TYPE) .*)|([a-z_]+\{([a-z]+="([^"\\]|\\["\\n])*",?)+\} [0-9.e+-]+))re");
  std::istringstream lines(page);
  for (std::string each; std::getline(lines, each);) EXPECT_TRUE(std::regex_match(each, line)) << each;
}

TEST_F(ExportPrometheusTest, NoCountOfALabelFallsWhenOneOfItsKeysIsErased) {
  Cache cache;
  const auto run_thrice = [&](int i) {
    for (int run = 0; run < 3; ++run) EXPECT_TRUE(run_add(cache, key("k", i)).ok());
  };
  run_thrice(1);
  run_thrice(2);
  const PrometheusCollector collector(cache);
  EXPECT_EQ(runs_of(collector.Collect(), "k", Outcome::kReplayed), 4);
  cache.erase(key("k", 1));
  EXPECT_EQ(runs_of(collector.Collect(), "k", Outcome::kReplayed), 4);
  run_thrice(2);
  EXPECT_EQ(runs_of(collector.Collect(), "k", Outcome::kReplayed), 5);
}

TEST_F(ExportPrometheusTest, NoCountOfALabelFallsWhileKeysAreErased) {
  const int keys = by_size(700, 3000, 3000);  // more than the cache reads at a time
  Cache cache({.capture_after = 1000, .listeners = {std::make_shared<History>()}});
  const auto run = [&](int i) { EXPECT_TRUE(run_add(cache, key("k", i)).ok()); };
  for (int i = 0; i < keys; ++i) run(i);
  const PrometheusCollector collector(cache);
  std::atomic<bool> over = false;
  std::thread eraser([&] {
    for (int i = 0; i < keys; ++i) cache.erase(key("k", i));
    over = true;
  });
  double last = 0;
  for (bool done = false; !done;) {
    done = over;
    const double now = runs_of(collector.Collect(), "k", Outcome::kEager);
    EXPECT_GE(now, last);
    last = now;
  }
  eraser.join();
  EXPECT_GE(last, keys);
}

// Collects every query of a dashboard's panels.
void collect_queries(const nlohmann::json& json, std::vector<std::string>* queries) {
  if (json.is_object() && json.contains("expr")) queries->push_back(json["expr"]);
  if (json.is_structured()) {
    for (const nlohmann::json& part : json) collect_queries(part, queries);
  }
}

TEST_F(ExportPrometheusTest, TheDashboardQueriesExistingMetrics) {
  Cache cache(measured({.max_executables = 2}));
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  std::set<std::string> known;
  for (const MetricFamily& family : PrometheusCollector(cache).Collect()) {
    known.insert(family.name);
    if (family.type == MetricType::Histogram) known.insert({family.name + "_bucket", family.name + "_count"});
  }
  std::ifstream file(GRAPHCACHE_DASHBOARD);
  std::vector<std::string> queries;
  collect_queries(nlohmann::json::parse(file), &queries);
  EXPECT_GE(queries.size(), 10u);
  for (const std::string& query : queries) {
    const std::regex name("graphcache_[a-z_]+");
    auto found = std::sregex_iterator(query.begin(), query.end(), name);
    EXPECT_NE(found, std::sregex_iterator()) << query;
    for (; found != std::sregex_iterator(); ++found) EXPECT_TRUE(known.count(found->str())) << query;
  }
}

}  // namespace
}  // namespace graphcache::test
