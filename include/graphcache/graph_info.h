// What a key's captured graph holds, node by node (Cache::graph).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace graphcache {

// One node of a graph. Fields that its type does not have are empty or zero, and so are those that could not be read.
struct GraphNode {
  // A launch attribute that is set, such as {"cluster dimension", "2, 1, 1"}.
  struct Attribute {
    std::string name;
    std::string value;
  };
  // An argument of a kernel, or a field of a copy or a set.
  struct Argument {
    std::string name;                  // "argument 0" of a kernel; "source", "destination", "bytes", "value" elsewhere.
    std::vector<unsigned char> value;  // The bytes that were captured. These may be an address.
    bool is_slot = false;              // Whether it follows a slot, so that each run replaces the value.
  };

  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::string name;  // "kernel gemm(float*, int)", "copy", "set", "host function", "child graph", ...
  dim3 grid = dim3(0, 0, 0);
  dim3 block = dim3(0, 0, 0);
  std::size_t shared_bytes = 0;  // Dynamic shared memory of a block.
  bool grid_is_slot = false;     // Whether a part of the grid follows a slot,
  bool block_is_slot = false;    // and of the block,
  bool shared_is_slot = false;   // and the shared memory.
  std::vector<Attribute> attributes;
  std::vector<Argument> arguments;
  std::vector<std::uint32_t> dependencies;  // The nodes that it waits for, by their index in GraphInfo::nodes.
  // What profilers call the node of the captured graph, where the driver tells (CUDA 13.1).
  std::optional<std::uint64_t> tools_id;
};

// The graph that an entry keeps: as it was captured, in the order of the capturing calls.
struct GraphInfo {
  std::uint64_t entry = 0;   // EntryInfo::id.
  std::string label;         // EntryInfo::label.
  std::uint64_t family = 0;  // EntryInfo::family.
  std::vector<GraphNode> nodes;
  // What profilers call the captured graph and the executable made from it, where the driver tells and there is one.
  std::optional<std::uint64_t> graph_id;
  std::optional<std::uint64_t> executable_id;
};

// How far two nodes are from each other, the larger difference later.
enum class NodeDifference {
  kNone,       // Nothing that was read differs.
  kArguments,  // Values of arguments differ, or whether they follow slots. An update, a patch or a set changes them.
  kShape,      // The grid, the block or the shared memory differs. An update or a patch changes them.
  kKernel,     // Another kernel. An update changes that.
  kFixed,      // The type, the dependencies or a launch attribute differs, or the node is missing in one of the graphs.
               // No update changes that, so keys of such graphs share no executable.
};

// "none", "arguments", ...: the enumerator without its k, in lower case.
const char* to_string(NodeDifference difference);

// Pairs the nodes of two graphs by their index, as an update does. Throws std::bad_alloc.
struct GraphDifference {
  std::vector<NodeDifference> nodes;  // As many as the larger graph has.
  // The first of the largest difference, in words: "node 3, kernel gemm(float*): the cluster dimension is 2, 1, 1 here
  // and not set there". Values of arguments are left out. Empty if nothing differs.
  std::string text;
};
GraphDifference difference(const GraphInfo& here, const GraphInfo& there);

}  // namespace graphcache
