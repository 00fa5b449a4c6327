// What two templates must share for an update between them to be correct, and what differs between two that share it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/attributes.h"
#include "graph/template.h"
#include "policy/costs.h"

namespace graphcache {

// Bytes that are equal for two graphs only if an update from one to the other succeeds and has the right effect, as far
// as docs/semantics.md ("What an update says and does") describes: nodes and their types, dependencies in their order
// with edge data, contexts, launch attributes, kinds and shapes of copies and sets, and the memory they use. Graphs of
// equal signature pair their nodes by index.
using Signature = std::string;

// Reads the template's nodes into `content`. Returns nothing if the graph cannot have siblings, because updates do not
// support one of its nodes or it could not be read.
std::optional<Signature> describe(const Template& from, Content* content);

// What a memory node allocates or frees, in place of CUDA's structures. What is freed has no size.
struct Allocation {
  void* begin = nullptr;
  std::size_t size = 0;
};

// As much of any graph as can be read, for comparison with another recording of the same `fn` (compare.h).
struct Reading {
  struct Attribute {
    const KnownAttribute* known;
    CUlaunchAttributeValue value;
  };
  struct Part {
    std::uint32_t begin, end;                 // Offsets in the signature of the node's type and dependencies.
    std::vector<std::uint32_t> dependencies;  // Indices of the nodes that it waits for.
    std::vector<Attribute> attributes;        // Those that are set, as far as they could be read.
  };

  template <class Params>
  Params params(const NodeContent& node) const {
    Params params;
    std::memcpy(&params, content.bytes.data() + node.bytes, sizeof params);
    return params;
  }

  Content content;                   // Contains only nodes, bytes and arguments. Includes those of memory nodes.
  std::vector<std::uint32_t> sizes;  // Size in bytes of each of Content::arguments.
  Signature signature;               // Contains no launch attributes.
  std::vector<Part> parts;           // One part for each node.
};
// Returns nothing if the nodes' types or dependencies cannot be read.
std::optional<Reading> read_all(const Template& from);

// How two nodes of the same index differ.
Change change(const Content& from, const Content& to, std::uint32_t index);

// The changes that turn an executable of one content into one of another content with the same signature.
struct Difference {
  struct Node {
    std::uint32_t index;
    Change change;
  };
  std::vector<Node> nodes;  // Nodes that differ and hold no slots; empty if an update is cheaper than patches.
  // Number of nodes for each kind of change. Changes of values count only nodes without slots.
  std::array<std::uint32_t, kChangeCount> counts{};
  bool by_update = false;  // Whether an update is cheaper than patches.
  Cost cost = 0;           // The cost of the cheaper of the two.
};
Difference difference(const Content& from, const Content& to);

// Caches the differences between a content and its siblings, so that each is computed once.
class Differences {
 public:
  const Difference& between(const Content& from, const Content& to) {
    if (found_.size() >= kMaxFound && !found_.contains(from.id)) found_.clear();
    auto at = found_.find(from.id);
    if (at == found_.end()) at = found_.emplace(from.id, difference(from, to)).first;
    return at->second;
  }
  void clear() { found_.clear(); }

 private:
  static constexpr std::size_t kMaxFound = 64;
  std::unordered_map<std::uint64_t, Difference> found_;
};

}  // namespace graphcache
