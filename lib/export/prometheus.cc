#include "graphcache_export/prometheus.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "graphcache/observe.h"
#include "text.h"

namespace graphcache {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;

// Builds the metrics of one cache.
class Page {
 public:
  explicit Page(const std::string& cache) : cache_{"cache", cache} {}

  void counter(const char* name, const char* help, double value) {
    add_family(name, help, MetricType::Counter);
    add(value);
  }
  void counter(const char* name, const char* help, std::chrono::nanoseconds time) {
    counter(name, help, std::chrono::duration<double>(time).count());
  }
  // Adds a series for each enumerator, labelled with its name.
  template <class Enum, std::size_t kCount>
  void counter(const char* name, const char* help, const char* label, const std::array<std::uint64_t, kCount>& counts) {
    add_family(name, help, MetricType::Counter);
    add<Enum>(label, counts);
  }
  void gauge(const char* name, const char* help, double value) {
    add_family(name, help, MetricType::Gauge);
    add(value);
  }

  // Begins a metric. What is added next belongs to it.
  void add_family(const char* name, const char* help, MetricType type) { families_.push_back({name, help, type, {}}); }
  void add(double value, std::vector<Label> labels = {}) {
    ClientMetric& metric = add_metric(std::move(labels));
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  }
  template <class Enum, std::size_t kCount>
  void add(const char* label, const std::array<std::uint64_t, kCount>& counts, const std::vector<Label>& more = {}) {
    for (std::size_t i = 0; i < kCount; ++i) {
      std::vector<Label> labels = more;
      labels.push_back({label, to_string(static_cast<Enum>(i))});
      add(static_cast<double>(counts[i]), std::move(labels));
    }
  }

  void histogram(const char* name, const char* help, const HitLatency::Counts& counts) {
    add_family(name, help, MetricType::Histogram);
    ClientMetric::Histogram& histogram = add_metric({}).histogram;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double bound = i < HitLatency::kBounds.size() ? static_cast<double>(HitLatency::kBounds[i]) / 1e9
                                                          : std::numeric_limits<double>::infinity();
      histogram.sample_count += counts[i];
      histogram.bucket.push_back({histogram.sample_count, bound});
    }
    histogram.sample_sum = std::numeric_limits<double>::quiet_NaN();
  }

  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  ClientMetric& add_metric(std::vector<Label> labels) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    metric.label.insert(metric.label.begin(), cache_);
    return metric;
  }

  const Label cache_;
  std::vector<MetricFamily> families_;
};

}  // namespace

PrometheusCollector::PrometheusCollector(const Cache& cache, std::string name)
    : cache_(cache), name_(valid_utf8(name)) {}

std::vector<MetricFamily> PrometheusCollector::Collect() const {
  const Stats stats = cache_.stats();
  Page page(name_);
  page.counter<Outcome>("graphcache_runs_total", "Runs that succeeded, by what they did", "outcome", stats.outcomes);
  page.counter<EagerReason>("graphcache_direct_runs_total", "Runs that called fn directly, by the reason", "reason",
                            stats.eager_reasons);
  page.counter("graphcache_failed_runs_total", "Runs and calls of warm() that failed", stats.failed);
  page.counter("graphcache_captures_total", "Captures that ended with a graph", stats.captures);
  page.counter("graphcache_capture_failures_total", "Captures that gave no graph to keep", stats.capture_failures);
  page.counter("graphcache_value_captures_total", "Recordings made because values had changed that are not found",
               stats.value_captures);
  page.counter("graphcache_instantiations_total", "Graphs that were instantiated", stats.instantiations);
  page.counter("graphcache_updates_total", "Executables switched to a sibling key by an update", stats.updates);
  page.counter("graphcache_set_switches_total", "Executables switched to a sibling key by a parameter set",
               stats.set_switches);
  page.counter("graphcache_patched_nodes_total", "Nodes that were set to new parameters", stats.patched_nodes);
  page.counter("graphcache_evictions_total", "Executables that were evicted to make room for another one",
               stats.evictions);
  page.counter("graphcache_forgotten_templates_total", "Templates that were dropped while their key stayed",
               stats.forgotten);
  page.counter("graphcache_refused_updates_total", "Updates that the runtime refused", stats.refused_updates);
  page.counter("graphcache_refused_device_updates_total",
               "Executables that the driver refused to have updated by the device", stats.refused_device_updates);
  page.counter("graphcache_verified_hits_total", "Hits that verify mode compared with a new recording", stats.verified);
  page.counter("graphcache_stale_hits_total", "Hits whose graph verify mode found stale", stats.stale);
  page.counter("graphcache_capture_seconds_total", "Host time in captures, with the calls of fn", stats.capture_time);
  page.counter("graphcache_instantiate_seconds_total", "Host time in making executables", stats.instantiate_time);
  page.counter("graphcache_update_seconds_total", "Host time in switching executables to sibling keys",
               stats.update_time);
  page.counter("graphcache_first_launch_seconds_total", "Host time in first launches and in uploads ahead of them",
               stats.first_launch_time);
  page.gauge("graphcache_executables", "Executables that exist", stats.live_executables);
  page.gauge("graphcache_templates", "Captured graphs that are kept", stats.live_templates);
  page.gauge("graphcache_families", "Families of keys whose graphs have the same topology", stats.families);
  page.gauge("graphcache_estimated_device_bytes", "Device memory of the executables, estimated from their nodes",
             stats.estimated_device_bytes);
  const Listeners& listeners = cache_.options().listeners;
  if (const MemoryMeter* const meter = find_listener<MemoryMeter>(listeners); meter != nullptr) {
    page.gauge("graphcache_measured_device_bytes", "Device memory taken by executables, as measured", meter->bytes());
  }
  if (const HitLatency* const latency = find_listener<HitLatency>(listeners); latency != nullptr) {
    page.histogram("graphcache_hit_seconds", "Host time of sampled hits; the sum is not known", latency->counts());
  }

  const Labels labels = read_labels();
  page.add_family("graphcache_label_runs_total", "Runs that succeeded, by the label of their key and what they did",
                  MetricType::Counter);
  for (const auto& [label, counts] : labels) page.add<Outcome>("outcome", counts.outcomes, {{"label", label}});
  page.add_family("graphcache_label_entries", "Keys that the cache knows, by their label", MetricType::Gauge);
  for (const auto& [label, counts] : labels) page.add(counts.entries, {{"label", label}});
  return page.take();
}

// Keys may be erased meanwhile. Prometheus would take the smaller count for a restart of the program, and add all of
// the next one again. So counts never decrease here, and a label keeps its series.
PrometheusCollector::Labels PrometheusCollector::read_labels() const {
  std::vector<LabelStats> all;
  if (find_listener<History>(cache_.options().listeners) != nullptr) {
    all = labels(cache_);
  } else {  // Then labels() moves labels to "other" and back.
    for (EntryInfo& entry : cache_.entries()) all.push_back({std::move(entry.label), 1, entry.outcomes, {}});
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [label, reported] : reported_) reported.entries = 0;
  Labels now;
  for (const LabelStats& read : all) {
    std::string label = valid_utf8(read.label);
    if (reported_.size() >= History::kMostLabels && reported_.count(label) == 0) label = "other";
    reported_[label].entries += read.entries;
    LabelStats& sum = now[label];
    for (std::size_t i = 0; i < kOutcomeCount; ++i) sum.outcomes[i] += read.outcomes[i];
  }
  for (const auto& [label, counts] : now) {
    LabelStats& reported = reported_[label];
    for (std::size_t i = 0; i < kOutcomeCount; ++i) {
      reported.outcomes[i] = std::max(reported.outcomes[i], counts.outcomes[i]);
    }
  }
  return reported_;
}

}  // namespace graphcache
