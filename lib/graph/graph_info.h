// Describes a template for people (graphcache/graph_info.h).
#pragma once

#include "graph/template.h"
#include "graphcache/graph_info.h"

namespace graphcache {

// Fills in the nodes. Returns false if their types or dependencies cannot be read. The caller has exclusive access to
// the graph. REQUIRES: the graph's device is current. Nodes in bodies of conditional nodes and in child graphs are left
// out.
bool read_graph_info(const Template& from, const Content& content, GraphInfo* info);

}  // namespace graphcache
