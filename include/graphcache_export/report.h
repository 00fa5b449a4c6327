// A page that shows what a cache did.
#pragma once

#include <cstddef>
#include <string>

#include "graphcache/cache.h"
#include "graphcache_export/json.h"

namespace graphcache {

struct ReportOptions {
  std::string title = "graphcache";
  ExportOptions may_leave = {};
  // How many entries are shown, the costliest first, and how many of these with a picture of their graph.
  std::size_t most_entries = 200;
  std::size_t most_graphs = 32;
  std::size_t most_nodes = 2000;  // Of all pictures together. A larger graph is cut.
};

// One HTML page that needs no network and no other file: outcomes over time (from Cache::events(), if
// Options::keep_events is set), the share of runs on graphs, the costliest entries, families and who shares what,
// evictions, the findings of Cache::advise(), and pictures of graphs. Throws std::bad_alloc.
std::string report_html(const Cache& cache, const ReportOptions& options = {});

}  // namespace graphcache
