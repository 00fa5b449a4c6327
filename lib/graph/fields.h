// Nodes that were read as reports show them (graphcache/graph_info.h): their names, and the values among their
// parameters. Two recordings are compared by these, and they become the fields of a slot node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/describe.h"
#include "graph/template.h"
#include "graphcache/graph_info.h"

namespace graphcache {

// Stands for a kernel whose name the driver does not report.
inline constexpr char kUnknownName[] = "of unknown name";
std::string name_of(const CUDA_KERNEL_NODE_PARAMS& kernel);

// "kernel add(float*)", "copy", "host function", ...
std::string kind_of(const NodeContent& node);

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

// Fills in the nodes. Returns false if their types or dependencies cannot be read. The caller has exclusive access to
// the graph. REQUIRES: the graph's device is current. Nodes in bodies of conditional nodes and in child graphs are left
// out.
bool read_graph_info(const Template& from, const Content& content, GraphInfo* info);

// Sets the driver's handles of the kernel and of its context. REQUIRES: has_context().
void find_kernel(const CUDA_KERNEL_NODE_PARAMS& params, SlotNode* node);

// Where the bytes of a node of a content (NodeContent::bytes) begin in the fields that add_slot_node() makes of them.
constexpr std::size_t first_byte(cudaGraphNodeType type) {
  return type == cudaGraphNodeTypeKernel ? detail::align_up(sizeof(KernelFields), alignof(std::max_align_t)) : 0;
}

// Adds a slot node with the parameters that were read of a kernel, copy or set, and without bindings.
SlotNode& add_slot_node(const NodeContents& content, std::uint32_t index, Slots* slots);

}  // namespace graphcache
