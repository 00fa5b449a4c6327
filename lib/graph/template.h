// Templates, and the description of their nodes.
#pragma once

#include <absl/container/inlined_vector.h>
#include <absl/functional/function_ref.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/compat.h"
#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "cuda/handles.h"
#include "graphcache/key.h"
#include "graphcache/recorder.h"

namespace graphcache {

// An id of a content and its recording, unique in the process. The first one is 1.
std::uint64_t next_id();

// The value of this type that begins at these bytes.
template <class T>
T read_as(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// The fields of a slot node as bytes, into which bindings point: CUDA's parameters of a copy (cudaMemcpy3DParms) or set
// (cudaMemsetParams), or these of a kernel, and then its arguments.
struct KernelFields {
  dim3 grid, block;
  std::size_t shared_bytes;
};

// One argument or field of a slot node that follows a slot.
struct Binding {
  std::uint32_t target;  // Offset in the block of fields.
  std::uint32_t size;    // Size in bytes in the block of fields.
  std::uint32_t offset;  // Offset of the slot's value in the run's values.
  detail::Convert convert;
  std::uint64_t addend = 0;  // What is added to the value, which is then an address.

  bool operator==(const Binding&) const = default;
  // Whether the field gets the same bytes as another.
  bool is_of(const Binding& other) const {
    return size == other.size && offset == other.offset && convert == other.convert && addend == other.addend;
  }
  // The bytes of the field in a run. May use `room`, of kMaxConvertedBytes.
  const unsigned char* bytes(const unsigned char* values, unsigned char* room) const {
    if (convert == nullptr && addend == 0) return values + offset;
    if (convert != nullptr) {
      convert(values + offset, room);
    } else {
      const std::uint64_t address = read_as<std::uint64_t>(values + offset) + addend;
      std::memcpy(room, &address, sizeof address);
    }
    return room;
  }
  // Writes these bytes. Returns whether they differ from those that were there.
  bool write(const unsigned char* values, unsigned char* to) const {
    unsigned char room[detail::kMaxConvertedBytes];
    const unsigned char* const from = bytes(values, room);
    if (std::memcmp(to, from, size) == 0) return false;
    std::memcpy(to, from, size);
    return true;
  }
};

inline constexpr std::size_t kMostBytes = SIZE_MAX / 2;  // Of a copy or set. More is a negative number.

// A node that holds values of slots.
struct SlotNode {
  std::uint32_t index = 0;  // Index in the graph's nodes.
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CUfunction function = nullptr;  // The driver's handle of a kernel.
  CUcontext context = nullptr;    // The driver's handle of the context that the kernel runs in.
  bool is_of_device = false;      // Whether that is the context of the cache's device.
  // The kernel, if it is not: a green context's node takes no function (docs/semantics.md).
  CUkernel foreign = nullptr;
  // Where the memory is that a copy or set was captured with: device_of(). It may be gone later.
  int dst_device = kUnknownMemory, src_device = kUnknownMemory;
  // Offset of its fields in the block.
  std::uint32_t fields = 0;
  std::uint32_t fields_size = 0;
  std::uint32_t first_argument = 0, argument_count = 0;
  std::uint32_t first_binding = 0, binding_count = 0;

  bool operator==(const SlotNode&) const = default;
};

// Pointers to a kernel's arguments, in the form that a launch takes.
using ArgumentPointers = absl::InlinedVector<void*, 64>;

// The slot nodes of a graph, in order of their index, and one block with the fields of all of them.
struct Slots {
  std::vector<SlotNode> nodes;
  std::vector<std::uint32_t> arguments;  // Offset of each kernel argument in the block.
  std::vector<Binding> bindings;
  std::vector<unsigned char> fields;

  // The slot node with this index, or null.
  const SlotNode* node(std::uint32_t index) const {
    const auto found = std::ranges::lower_bound(nodes, index, {}, &SlotNode::index);
    return found != nodes.end() && found->index == index ? &*found : nullptr;
  }
  // Begins a node with so many bytes of fields, which are 0. It is kept by adding it to `nodes`. If the one that was
  // begun before was not, that one is dropped.
  SlotNode begin(std::size_t fields_size);
  template <class Fields>
  Fields& as(const SlotNode& node) {
    return *reinterpret_cast<Fields*>(fields.data() + node.fields);
  }
  // Writes the values into the node's fields. Returns true if any byte changed.
  bool update_fields(const SlotNode& node, const unsigned char* values);
  // Whether the values would change the node's fields.
  bool differs(const SlotNode& node, const unsigned char* values) const;
  std::span<const Binding> bindings_of(const SlotNode& node) const {
    return std::span(bindings).subspan(node.first_binding, node.binding_count);
  }
  // The binding at this place of the node's fields, or null. The node may be null.
  const Binding* binding(const SlotNode* node, std::size_t field) const {
    for (std::uint32_t i = 0; node != nullptr && i < node->binding_count; ++i) {
      const Binding& binding = bindings[node->first_binding + i];
      if (binding.target == node->fields + field) return &binding;
    }
    return nullptr;
  }
  ArgumentPointers pointers_to_arguments(const SlotNode& node) {
    ArgumentPointers pointers;
    for (std::uint32_t i = 0; i < node.argument_count; ++i) {
      pointers.push_back(fields.data() + arguments[node.first_argument + i]);
    }
    return pointers;
  }
};

// What was read of a node: see describe.h.
struct NodeContent {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  bool readable = true;                 // Whether two such nodes can be compared.
  bool is_inner = false;                // Whether it is one of Template::inner.
  bool updatable = false;               // Whether the device can set its arguments.
  bool grid_updatable = false;          // Whether the device can set its grid (docs/semantics.md).
  CUDA_KERNEL_NODE_PARAMS kernel = {};  // Parameters of a kernel node, without its arguments.
  // Offset in NodeContents::bytes of a kernel's arguments or of another node's parameters.
  std::uint32_t bytes = 0;
  std::uint32_t size = 0;
  // The range of a kernel's arguments in NodeContents::arguments, which has the offset of each among its bytes.
  std::uint32_t first_argument = 0, argument_count = 0;
};

// What was read of a graph's nodes. Empty until then.
struct NodeContents {
  std::vector<NodeContent> nodes;
  std::vector<unsigned char> bytes;
  std::vector<std::uint32_t> arguments;

  // The parameters that were read of a node that is no kernel.
  template <class Params>
  Params params(const NodeContent& node) const {
    return read_as<Params>(bytes.data() + node.bytes);
  }
};

// Host memory that a graph keeps alive (Recorder::keep). Without a size, only its first address is known.
struct KeptMemory {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  // Number of nodes before it was kept. Another object may have had its address until then.
  std::size_t first_node = 0;

  bool contains(const void* memory, std::size_t size) const {
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(begin);
    return offset == 0 || (offset < bytes && size <= bytes - offset);
  }
};
// What a graph keeps alive (Recorder::keep, Graph::owner). Its entry holds it, and so do executables that may have
// launches of the graph in flight. It is released outside of captures and locks (graveyard.h).
using Objects = std::list<std::shared_ptr<const void>>;

// What was captured. Shared by everything that holds or held it. It does not change, except that its nodes may be read
// later by a thread with exclusive access to the template and to its executable, if there is one.
struct Content : NodeContents {
  // Whether it is memory that a node allocates.
  bool allocates(const void* memory) const {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    return std::ranges::any_of(allocated, [&](const AddressRange& own) { return at - own.begin < own.size; });
  }

  std::uint64_t id = next_id();
  Key key;                                   // The key whose graph it is.
  std::uint64_t entry = 0;                   // EntryInfo::id of that key's entry.
  std::size_t node_count = 0;                // With those in Template::inner.
  std::uint64_t shape = 0;                   // A hash of the nodes' types in their order.
  std::size_t conditional_count = 0;         // Number of conditional nodes, those in bodies included.
  std::vector<std::shared_ptr<void>> needs;  // Code and memory of the library that the nodes use.
  std::vector<std::uint32_t> copies;         // Nodes that are copies, or child graphs with copies inside.
  Slots slots;                               // The slots, with their fields as captured.
  std::vector<unsigned char> values;         // The values of the slots at the capture.
  bool is_alone = false;                     // Whether its nodes were read, and updates do not support one of them.
  bool finds_values = false;                 // Whether its slots are not `fn`'s, but found (found_values.h).
  bool is_settled = true;                    // Whether all of these values that have ever changed are found.
  std::vector<AddressRange> ranges;          // The allocation that each of them was in at the capture.
  std::vector<AddressRange> allocated;       // What its nodes allocate.
  bool leaves_memory = false;                // Whether none frees it.
  std::vector<KeptMemory> kept_memory;
  std::weak_ptr<Objects> kept;  // Null if the graph keeps nothing.

  // In verify mode, the allocations that addresses of the nodes were in at the capture (outside.h).
  std::map<std::uint64_t, std::uint64_t> allocations;
};

// Nodes inside a node of the graph, in the order of cudaGraphGetNodes.
struct InnerNodes {
  std::string name;  // "condition 0, body 1"
  std::vector<cudaGraphNode_t> nodes;
};

// Lists nodes in the order of cudaGraphGetNodes, which is the order of the capturing calls.
CallResult list_nodes(cudaGraph_t graph, std::vector<cudaGraphNode_t>* nodes);

// A captured graph. Only one thread at a time may use it, even to read it (fact 15). It belongs to its entry or, as the
// base, to the executable that was instantiated from it.
struct Template {
  OwnedGraph graph;
  std::vector<cudaGraphNode_t> nodes;
  std::vector<InnerNodes> inner;       // In the order of recording. A graph with conditional nodes cannot be cloned.
  std::vector<std::uint64_t> handles;  // Numbers in arguments that each recording gets for itself.
  // The values of slots that its copies and sets have, if these are not the content's.
  std::vector<unsigned char> values;

  bool empty() const { return graph.get() == nullptr; }
  CallResult list_nodes() { return graphcache::list_nodes(graph.get(), &nodes); }
  // Calls `use` with each copy until it fails, in the order of their indices: that in `nodes`, of the child graph if it
  // is in one, or kInner in a body.
  static constexpr std::uint32_t kInner = UINT32_MAX;
  using UseCopy = absl::FunctionRef<CallResult(cudaGraphNode_t, std::uint32_t)>;
  CallResult each_copy(const Content& content, UseCopy use) const;
  // Gives sinks the order of the nodes. An update pairs nodes from the sinks on, in the order in which they became
  // sinks, which no call tells (fact 22). REQUIRES: list_nodes(), has_context(), and no nodes of memory, which exclude
  // updates.
  CallResult order_sinks();
  // Makes a separate graph with the same nodes in the same order.
  CallResult clone(Template* out);
};

// An estimate of an executable's device memory, from measurements on an H200 for kernels with up to 1 KiB of arguments.
// It is within 2 % for graphs of 200 nodes and more, and up to a quarter too high for 40 nodes
// (test/bench/results/2026-11-22-keys.md).
// Sets, host functions and copies from or to the host take no memory, so they count too high. Kernels with 4 KiB of
// arguments take 9 KiB and count too low. A conditional node takes another 128 KiB.
inline std::size_t estimated_device_bytes(std::size_t nodes, std::size_t conditional_nodes = 0) {
  return 114'000 + nodes * 2'600 + conditional_nodes * 131'072;
}

}  // namespace graphcache
