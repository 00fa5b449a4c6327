// What pictures of graphs write into the box of a node.
#pragma once

#include <array>
#include <string>

#include "graphcache/graph_info.h"

namespace graphcache {

// The name, or of a long name the part that holds the function: its parameters are cut first, then its template
// arguments, then what stands before it.
std::string short_name(const std::string& name);

// Four lines: the short name; the grid, the block and the shared memory; the launch attributes; what follows slots.
// Lines that say nothing about this node are empty. Values of arguments are left out.
std::array<std::string, 4> lines_of(const GraphNode& node);

}  // namespace graphcache
