// Names for what profilers show of graphs.
#pragma once

#include <string>

#include "graphcache/cache.h"

namespace graphcache {

// Profilers show the launch of a graph, or its nodes by number, without names. This table maps the numbers to the key's
// label and the kernels: a line of tab-separated names first, then a line for each node of each entry that has a
// template:
//
//   label  entry  graph_id  executable_id  node  tools_id  name
//
// A number that the driver does not give is empty (GraphNode::tools_id). Tabs and line ends in texts are escaped. Graphs
// are read as Cache::graph() reads them; those in use meanwhile are left out. Throws std::bad_alloc.
std::string node_table(const Cache& cache);

}  // namespace graphcache
