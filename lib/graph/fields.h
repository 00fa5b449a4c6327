// The values among the parameters of a node that was read: by name, as reports show them and two recordings are
// compared by them, and as the fields of a slot node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/describe.h"
#include "graph/template.h"

namespace graphcache {

struct Field {
  enum class Kind : std::uint8_t { kBytes, kAddress, kNumber, kShape, kOther };

  Kind kind = Kind::kBytes;
  std::string name;             // In a sentence: "argument 2", "the target".
  const char* shown = nullptr;  // The name in GraphNode::arguments, if it is shown there.
  std::string value;            // Bytes. Those of a shape are three unsigned numbers.
  const Binding* slot = nullptr;
};

// In an order that depends on the node's type alone. Arguments are left out where the driver does not report them, as
// are fields that mean nothing beside one that follows a slot.
std::vector<Field> fields_of(const Reading& reading, const Slots& slots, std::uint32_t index);

// Sets the driver's handles of the kernel and of its context.
void find_kernel(const CUDA_KERNEL_NODE_PARAMS& params, SlotNode* node);

// Where the bytes of a node of a content (NodeContent::bytes) begin in the fields that add_slot_node() makes of them.
constexpr std::size_t first_byte(cudaGraphNodeType type) {
  return type == cudaGraphNodeTypeKernel ? detail::align_up(sizeof(KernelFields), alignof(std::max_align_t)) : 0;
}

// Adds a slot node with the parameters that were read of a kernel, copy or set, and without bindings.
SlotNode& add_slot_node(const Content& content, std::uint32_t index, Slots* slots);

}  // namespace graphcache
