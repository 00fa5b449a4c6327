// Describes a template for people (graphcache/graph_info.h).
#pragma once

#include "graph/template.h"
#include "graphcache/graph_info.h"

namespace graphcache {

// Fills in the nodes, the id of the graph and, if there is one, the id of the executable. Returns false if the types or
// dependencies of nodes cannot be read. The caller has exclusive access to both. REQUIRES: the graph's device is
// current. Nodes in bodies of conditional nodes and in child graphs are left out.
bool read_graph_info(const Template& from, const Content& content, cudaGraphExec_t executable, GraphInfo* info);

}  // namespace graphcache
