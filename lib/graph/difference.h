// How nodes of two contents of equal signature differ.
#pragma once

#include <cstdint>

#include "graph/template.h"

namespace graphcache {

// In rising order of what a change takes. The device can change arguments and grids.
enum class Change : std::uint8_t {
  kNone,
  kArguments,  // A kernel's argument bytes.
  kGrid,       // A kernel's grid, and perhaps its argument bytes.
  kOther,      // Anything else of a kernel, anything in another type of node, or a node that could not be read.
};

// How two nodes of the same index differ.
Change change(const Content& from, const Content& to, std::uint32_t index);

}  // namespace graphcache
