// to_dot(): pictures of graphs for Graphviz. `dot -Tsvg` renders them.
#pragma once

#include <string>

#include "graphcache/graph_info.h"

namespace graphcache {

// A picture of one graph: its edges, and its nodes with the names of kernels, grids, blocks and slots. It contains no
// values of arguments and no addresses. Throws std::bad_alloc.
std::string to_dot(const GraphInfo& graph);

// A picture of two graphs. Nodes are paired by their index, as in an update, and coloured by their NodeDifference. A
// legend explains the colours. Throws std::bad_alloc.
std::string to_dot(const GraphInfo& here, const GraphInfo& there);

}  // namespace graphcache
