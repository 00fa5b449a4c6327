// node_table(): the names of the graphs and nodes that profilers show by number.
#pragma once

#include <string>

#include "graphcache/cache.h"

namespace graphcache {

// A table that maps the numbers to labels of keys and to kernels. It has one line for each node of each entry with a
// template. Columns are separated by tabs, and the first line has their names:
//
//   label  entry  graph_id  executable_id  node  tools_id  name
//
// A number that the driver does not report is empty (GraphNode::tools_id). Tabs and line ends in texts are escaped.
// Graphs are read as by Cache::graph(); a graph that is in use at the time is left out. Throws std::bad_alloc.
std::string node_table(const Cache& cache);

}  // namespace graphcache
