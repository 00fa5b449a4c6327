// Reads the nodes of a graph: what they hold, and the signature, which two graphs must share for an update between them
// to be correct. All other files ask this one, but inspect.h, which looks at each capture before it is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/attributes.h"
#include "graph/template.h"

namespace graphcache {

// Bytes that are equal for two graphs only if an update from one to the other succeeds and has the right effect, as far
// as docs/semantics.md ("What an update says and does") describes: nodes and their types, dependencies in their order
// with edge data, contexts, launch attributes, kinds and shapes of copies and sets, and the memory they use. Graphs of
// equal signature pair their nodes by index.
using Signature = std::string;
// Without the parameters of copies in several dimensions, which a pointer may be among. It is enough to pair the nodes.
std::string_view without_fixed_copies(const Signature& signature);

// Reads the template's nodes into `content`, and says whether updates support them all (Content::is_alone). Returns
// nothing if the graph could not be read.
std::optional<Signature> describe(const Template& from, Content* content);

// How nodes differ, in rising order of what a change takes. The device can change arguments and grids.
enum class Change : std::uint8_t {
  kNone,
  kArguments,  // A kernel's argument bytes.
  kGrid,       // A kernel's grid, and perhaps its argument bytes.
  kOther,      // Anything else of a kernel, anything in another type of node, or a node that could not be read.
};
// How two nodes of the same index differ in contents of equal signature.
Change change(const Content& from, const Content& to, std::uint32_t index);

// Gives the parameters of a copy or set with slots, as the graph has them, those of the capture: they may be a later
// run's (Executable::renew).
void put_captured(const Slots& slots, const SlotNode& node, void* params);

// As much of any graph as can be read, for comparison with another recording of the same `fn` (compare.h).
struct Reading {
  struct Part {
    std::string place;                        // The node's type and dependencies, as in a signature.
    std::vector<std::uint32_t> dependencies;  // Indices of the nodes that it waits for.
    // Those that are set, as far as they could be read.
    std::vector<std::pair<const KnownAttribute*, CUlaunchAttributeValue>> attributes;
  };

  NodeContents content;              // Memory nodes have an AddressRange.
  std::vector<std::uint32_t> sizes;  // Size in bytes of each of the arguments.
  std::vector<Part> parts;           // One part for each node.
};
// Copies and sets with slots are as captured. Returns nothing if the nodes' types or dependencies cannot be read.
std::optional<Reading> read_all(const Template& from, const Slots& slots);

}  // namespace graphcache
