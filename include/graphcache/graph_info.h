// GraphInfo: a key's captured graph, node by node, as Cache::graph() returns it. difference() compares two graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace graphcache {

// One node of a graph. Fields that do not apply to its type, or that could not be read, are empty or zero.
struct GraphNode {
  // A launch attribute that has been set, such as {"cluster dimension", "2, 1, 1"}.
  struct Attribute {
    std::string name;
    std::string value;
  };
  // An argument of a kernel, or a field of a copy or a memset.
  struct Argument {
    // "argument 0" and so on for kernels; "source", "destination", "bytes" or "value" for copies and memsets.
    std::string name;
    std::vector<unsigned char> value;  // The bytes that were captured. They may be an address.
    bool is_slot = false;              // Whether it is a slot, whose value each run replaces.
  };

  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::string name;  // "kernel gemm(float*, int)", "copy", "set", "host function", "child graph", ...
  dim3 grid = dim3(0, 0, 0);
  dim3 block = dim3(0, 0, 0);
  std::size_t shared_bytes = 0;  // Dynamic shared memory for each block.
  bool grid_is_slot = false;     // Whether the grid depends on a slot.
  bool block_is_slot = false;    // Whether the block depends on a slot.
  bool shared_is_slot = false;   // Whether the dynamic shared memory depends on a slot.
  std::vector<Attribute> attributes;
  std::vector<Argument> arguments;
  std::vector<std::uint32_t> dependencies;  // Indices in GraphInfo::nodes of the nodes that it waits for.
};

// The graph that an entry keeps, as it was captured.
struct GraphInfo {
  std::uint64_t entry = 0;       // The entry's EntryInfo::id.
  std::string label;             // The entry's EntryInfo::label.
  std::uint64_t family = 0;      // The entry's EntryInfo::family.
  std::vector<GraphNode> nodes;  // The nodes in the order in which the calls of the capture added them.
};

// How much two nodes differ, in ascending order.
enum class NodeDifference {
  kNone,  // Nothing that was read differs.
  // The values of arguments differ, or an argument is a slot in one node only. An update, a patch or a parameter set
  // can change that.
  kArguments,
  kShape,   // The grid, the block or the shared memory differs. An update or a patch can change that.
  kKernel,  // The kernels are different. An update can change that.
  // The type, the dependencies or a launch attribute differs, or one of the graphs does not have the node. No update
  // can change that, so the keys of such graphs cannot share an executable.
  kFixed,
};

// The enumerator without its k, in lower case: "none", "arguments", ...
const char* to_string(NodeDifference difference);

// How two graphs differ, node by node.
struct GraphDifference {
  std::vector<NodeDifference> nodes;  // One element for each node of the larger graph.
  // Describes the first node with the largest difference: "node 3, kernel gemm(float*): the cluster dimension is 2, 1,
  // 1 here and not set there". It contains no values of arguments, and is empty if nothing differs.
  std::string text;
};

// Compares two graphs. Nodes are paired by their index, as in an update. Throws std::bad_alloc.
GraphDifference difference(const GraphInfo& here, const GraphInfo& there);

}  // namespace graphcache
