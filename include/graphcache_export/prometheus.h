// A cache's counters for Prometheus.
//
//   prometheus::Exposer exposer("127.0.0.1:9464");
//   auto collector = std::make_shared<graphcache::PrometheusCollector>(cache, "decode");
//   exposer.RegisterCollectable(collector);
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "graphcache/cache.h"

namespace graphcache {

// The metrics have names that begin with graphcache_ and a label cache="NAME", so caches of one process need names that
// differ. Each metric has a help text, which says what it counts.
//
// Labels of keys become the label "label". Bytes that are not UTF-8 are replaced. Labels that are equal then share
// their series, and so do keys of a label "other" of the program's own and those that the cache counts under "other".
//
// What is not measured is left out: graphcache_hit_seconds unless Options::time_hits is set, and
// graphcache_measured_device_bytes unless Options::measure_device_bytes is set. A cache counts its timed hits by bucket
// and does not add up their times, so the sum of graphcache_hit_seconds is not a number (NaN).
class PrometheusCollector final : public prometheus::Collectable {
 public:
  // The cache must outlive the collector. Throws std::bad_alloc.
  explicit PrometheusCollector(const Cache& cache, std::string name = "default");

  // May be called from any thread. It reads stats() and labels(), and makes no CUDA call. Throws std::bad_alloc.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  using Labels = std::map<std::string, LabelStats>;
  Labels read_labels() const;

  const Cache& cache_;
  const std::string name_;
  mutable std::mutex mutex_;
  mutable Labels reported_;  // The largest counts that were reported, by what the label is here. Guarded by mutex_.
};

}  // namespace graphcache
