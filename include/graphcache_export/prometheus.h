// PrometheusCollector: the counters of a cache for Prometheus.
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
#include "graphcache/history.h"

namespace graphcache {

// Collects the metrics of one cache. Their names begin with graphcache_, and their help texts say what they count. Each
// metric has a label cache="NAME", so give the caches of one process different names.
//
// The label of a key becomes the label "label", in which invalid UTF-8 is replaced. Key labels that become equal by
// this share a series. The first 64 labels have one each, and further ones share "other".
//
// graphcache_label_runs_total needs a History (history.h) among the listeners of the cache. Without one it lacks the
// runs of keys that are gone.
//
// Some metrics need a listener: graphcache_hit_seconds needs a HitLatency, and graphcache_measured_device_bytes a
// MemoryMeter. The sum of graphcache_hit_seconds is NaN, because timed hits are counted by bucket.
class PrometheusCollector final : public prometheus::Collectable {
 public:
  // The cache must outlive the collector. Throws std::bad_alloc.
  explicit PrometheusCollector(const Cache& cache, std::string name = "default");

  // Reads Cache::stats() and Cache::entries(), and makes no CUDA call. Thread-safe. Throws std::bad_alloc.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  using Labels = std::map<std::string, LabelStats>;
  Labels read_labels() const;

  const Cache& cache_;
  const std::string name_;
  mutable std::mutex mutex_;
  mutable Labels reported_;  // The largest counts reported so far, by exported label. Guarded by mutex_.
};

}  // namespace graphcache
