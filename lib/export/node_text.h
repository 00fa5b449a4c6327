// The text in a node's box in pictures of graphs.
#pragma once

#include <array>
#include <string>

#include "graphcache/graph_info.h"

namespace graphcache {

// The name. Of a long name only the part with the function is kept: first its parameters are cut, then its template
// arguments, then what precedes it.
std::string short_name(const std::string& name);

// Four lines: the short name; grid, block and shared memory; launch attributes; what follows slots. A line is empty if
// there is nothing to say. Values of arguments are left out.
std::array<std::string, 4> lines_of(const GraphNode& node);

}  // namespace graphcache
