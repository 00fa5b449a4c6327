// Templates, and what is kept of their nodes.
#pragma once

#include <absl/container/inlined_vector.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "cuda/handles.h"
#include "graphcache/recorder.h"

namespace graphcache {

// Of a recording or a content: no two of the process have the same. From 1.
std::uint64_t next_id();

// The fields of a slot node as bytes that bindings can point into, and the calls' structures are filled from.
struct KernelFields {
  dim3 grid, block;
  std::size_t shared_bytes;
};
struct MemcpyFields {
  void* dst;
  const void* src;
  std::size_t bytes;
};
struct MemsetFields {
  void* dst;
  int value;
  std::size_t bytes;
};

// One argument or field of a slot node that follows a slot.
struct Binding {
  std::uint32_t target;  // Where in the block of fields it is.
  std::uint32_t size;    // How many bytes it has there.
  std::uint32_t offset;  // Where in the run's values the slot's value is.
  detail::Convert convert;
};

inline constexpr int kHostMemory = -1;  // In the place of a device.

// A node that holds values of slots.
struct SlotNode {
  std::uint32_t index = 0;  // In the graph's nodes.
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  const void* kernel = nullptr;             // The host symbol of a kernel node.
  CUfunction function = nullptr;            // The driver's handle of that kernel, or null if it cannot be had.
  CUcontext context = nullptr;              // The driver's handle of the context that the kernel runs in.
  cudaMemcpyKind kind = cudaMemcpyDefault;  // The kind of a memcpy node.
  // Whose memory a copy or set was captured with, where its size is a slot.
  int dst_device = kHostMemory, src_device = kHostMemory;
  // Whether an end of a copy is a slot that must not become pageable memory.
  bool dst_must_stay = false, src_must_stay = false;
  // Where in the block its fields are: one of the structures above, then a kernel's arguments.
  std::uint32_t fields = 0;
  std::uint32_t fields_size = 0;
  std::uint32_t first_argument = 0, argument_count = 0;
  std::uint32_t first_binding = 0, binding_count = 0;
};

// Pointers to a kernel's arguments, as a launch takes them.
using ArgumentPointers = absl::InlinedVector<void*, 64>;

// The slot nodes of a graph, in order of their index, and one block with the fields of all of them.
struct Slots {
  std::vector<SlotNode> nodes;
  std::vector<std::uint32_t> arguments;  // Where in the block each argument of a kernel is.
  std::vector<Binding> bindings;
  std::vector<unsigned char> fields;
  CUcontext context = nullptr;  // Of the cache's device.

  template <class Fields>
  Fields& as(const SlotNode& node) {
    return *reinterpret_cast<Fields*>(fields.data() + node.fields);
  }
  void point_to_arguments(const SlotNode& node, ArgumentPointers* out) {
    out->clear();
    for (std::uint32_t i = 0; i < node.argument_count; ++i) {
      out->push_back(fields.data() + arguments[node.first_argument + i]);
    }
  }
};

// What a node does, as far as it was read: see signature.h.
struct NodeContent {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  bool readable = true;                 // Whether two of them can be compared.
  bool updatable = false;               // Whether the device can set its arguments.
  bool grid_updatable = false;          // Whether it may set its grid, too (docs/semantics.md).
  CUDA_KERNEL_NODE_PARAMS kernel = {};  // The parameters of a kernel node, without its arguments.
  // Where in Content::bytes a kernel's arguments or another node's parameters are.
  std::uint32_t bytes = 0;
  std::uint32_t size = 0;
  // Of a kernel's arguments in Content::arguments, which says where among its bytes each is.
  std::uint32_t first_argument = 0, argument_count = 0;
};

// What Recorder::on_device() has given: memory, and the code that writes to it.
struct DeviceValues {
  std::vector<DeviceMemory::Block> memory;
  std::shared_ptr<void> code;
};

// What was captured, shared by whoever holds or held it. It never changes, but that its nodes may be read later, by who
// has the template and an executable of it, if there is one, to himself.
struct Content {
  std::uint64_t id = 0;  // See next_id().
  std::size_t node_count = 0;
  std::uint64_t shape = 0;                                // A hash of the nodes' types in their order.
  std::size_t conditional_count = 0;                      // Of conditional nodes, those in bodies included.
  std::size_t body_node_count = 0;                        // Of the nodes in their bodies.
  std::vector<std::shared_ptr<void>> code_of_conditions;  // That these need.
  Slots slots;                                            // The slots, with their fields as they were captured.
  std::vector<unsigned char> values;                      // The values of the slots that these fields were made from.
  DeviceValues device_values;
  bool is_adopted = false;     // Somebody else made the graph, so it cannot be had again: see graphcache/adopt.h.
  bool leaves_memory = false;  // A node allocates memory that no node frees: `fn` has handed it out.

  // Whether another executable of the same template would be wrong: launches of both would write to the memory that
  // on_device() has given; or `fn` has handed memory of the graph out, and would not do so again.
  bool is_of_one_executable() const { return !device_values.memory.empty() || leaves_memory; }

  // Empty unless they were read.
  std::vector<NodeContent> nodes;
  std::vector<unsigned char> bytes;
  std::vector<std::uint32_t> arguments;
};

// A conditional node, whichever graph it is in.
struct ConditionalNode {
  cudaGraphConditionalNodeType type;
  cudaGraphConditionalHandle handle;
};

// The nodes of one body of a conditional node, in the order of cudaGraphGetNodes.
struct BodyNodes {
  std::size_t conditional;  // Which one of the template's.
  unsigned index;           // Which body of that one.
  std::vector<cudaGraphNode_t> nodes;
};

// The conditional nodes of a graph and of their bodies, in the order in which they were recorded.
struct Conditionals {
  std::vector<ConditionalNode> nodes;
  std::vector<BodyNodes> bodies;
};

// In the order of cudaGraphGetNodes, which is that of the capturing calls.
CallResult list_nodes(cudaGraph_t graph, std::vector<cudaGraphNode_t>* nodes);

// A captured graph. Used by one thread at a time, even to be read (fact 15): it belongs to its entry, or, as the base,
// to the executable that was instantiated from it.
struct Template {
  Graph graph;
  std::vector<cudaGraphNode_t> nodes;
  Conditionals conditionals;  // A graph that has some cannot be cloned.

  bool empty() const { return graph.get() == nullptr; }
  CallResult list_nodes() { return graphcache::list_nodes(graph.get(), &nodes); }
  // A graph of its own with the same nodes in the same order.
  CallResult clone(Template* out);
};

// Device memory of an executable whose nodes are kernels with up to 1 KiB of arguments, as measured on an H200: within
// 2 % for graphs of 200 nodes and more, up to a quarter too high for those of 40 (docs/performance.md). Nodes that copy
// from or to the host, set, or call the host take none, so they count too high; kernels with 4 KiB of arguments take 9
// KiB, and count too low. A conditional node takes 128 KiB besides.
inline std::size_t estimated_device_bytes(std::size_t nodes, std::size_t conditional_nodes = 0) {
  return 114'000 + nodes * 2'600 + conditional_nodes * 131'072;
}

}  // namespace graphcache
