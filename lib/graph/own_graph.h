// Makes a template of a graph that the program made itself (graphcache/graph.h).
#pragma once

#include "graph/capture.h"

namespace graphcache {

// Calls `fn`, which returns a graph. Bound arguments get the call's values. Exceptions of `fn` pass through.
Captured make_graph(const detail::Call& call, int of_device);

}  // namespace graphcache
