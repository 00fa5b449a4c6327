// report_html(): one HTML page that shows what a cache did.
#pragma once

#include <cstddef>
#include <string>

#include "graphcache/cache.h"
#include "graphcache_export/json.h"

namespace graphcache {

struct ReportOptions {
  std::string title = "graphcache";
  ExportOptions may_leave = {};    // Which data the page may contain.
  std::size_t most_entries = 200;  // The largest number of entries, the costliest first.
  std::size_t most_graphs = 32;    // The largest number of these entries that have a picture of their graph.
  std::size_t most_nodes = 2000;   // The largest number of nodes in all pictures together. A larger graph is cut.
};

// Returns the page, which needs no network and no other file. It shows
//   - outcomes over time, if an EventRing is among the listeners;
//   - the share of runs that launched a graph;
//   - the costliest entries, the families, and which keys share executables;
//   - evictions, and the findings of advise();
//   - pictures of graphs.
// Beside what `may_leave` says, it contains the device's name, and of keys of one label the bools, enums and numbers of
// up to 32 bits that differ. Throws std::bad_alloc.
std::string report_html(const Cache& cache, const ReportOptions& options = {});

}  // namespace graphcache
