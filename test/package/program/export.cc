// A user's program that also has the export component.
#include <graphcache/graphcache.h>
#include <graphcache_export/json.h>
#include <graphcache_export/prometheus.h>

#include <cstdio>
#include <string>

int main() {
  const graphcache::Cache cache;
  const std::string json = graphcache::to_json(cache);
  const bool is_right =
      json.find(graphcache::kVersion) != std::string::npos && !graphcache::PrometheusCollector(cache).Collect().empty();
  if (!is_right) std::printf("%s\n", json.c_str());
  return is_right ? 0 : 1;
}
