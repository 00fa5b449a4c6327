// Pictures of graphs, in the language of Graphviz: `dot -Tsvg`.
#pragma once

#include <string>

#include "graphcache/graph_info.h"

namespace graphcache {

// The nodes with the names of their kernels, grids, blocks and slots, and the edges between them. Values of arguments
// and addresses are left out. Throws std::bad_alloc.
std::string to_dot(const GraphInfo& graph);

// Both graphs in one picture, their nodes paired by index as an update pairs them: what differs is coloured by
// NodeDifference, and a legend names the colours.
std::string to_dot(const GraphInfo& here, const GraphInfo& there);

}  // namespace graphcache
