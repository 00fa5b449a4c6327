// A cache's counters for Prometheus.
//
//   prometheus::Exposer exposer("127.0.0.1:9464");
//   auto collector = std::make_shared<graphcache::PrometheusCollector>(cache, "decode");
//   exposer.RegisterCollectable(collector);
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "graphcache/cache.h"

namespace graphcache {

// The cache must outlive the collector. Collect() may be called from any thread, reads stats() and labels(), and makes no
// CUDA call. Metrics have names that begin with graphcache_ and a label cache="NAME".
class PrometheusCollector final : public prometheus::Collectable {
 public:
  explicit PrometheusCollector(const Cache& cache, std::string name = "default");
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Cache& cache_;
  const std::string name_;
};

}  // namespace graphcache
