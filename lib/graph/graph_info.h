// What a template holds, for people (graphcache/graph_info.h).
#pragma once

#include "graph/template.h"
#include "graphcache/graph_info.h"

namespace graphcache {

// Fills in the nodes, and the number of the graph and, if there is one, of the executable. False if the types or the
// dependencies of nodes cannot be read. The caller has both to himself. Current is the device that the graph is of.
// Nodes in bodies of conditional nodes and in child graphs are left out.
bool read_graph_info(const Template& from, const Content& content, cudaGraphExec_t executable, GraphInfo* info);

}  // namespace graphcache
