// What two templates must share for an update between them to be right, and what differs between two that share it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/template.h"
#include "policy/costs.h"

namespace graphcache {

// Bytes that are equal for two graphs only if an update from one to the other is accepted and does what it should, as
// far as docs/semantics.md ("What an update says and does") knows: nodes and their types, dependencies in their order
// with edge data, contexts, launch attributes, kinds and shapes of copies and sets, memory that these use. Graphs of
// equal signature pair their nodes by index.
using Signature = std::string;

// Reads the template's nodes into `content`. Nothing if the graph can have no siblings: it holds nodes of types that
// updates do not reach, or could not be read.
std::optional<Signature> describe(const Template& from, Content* content);

// A graph of any kind, as far as it can be read, to be compared with another recording of the same `fn` (compare.h).
struct Reading {
  // Where in the signature a node's type begins, its dependencies end, and its launch attributes end. These are of no
  // bytes if they could not be read.
  struct Part {
    std::uint32_t begin, dependencies_end, end;
  };

  Content content;                   // Its nodes, bytes and arguments alone.
  std::vector<std::uint32_t> sizes;  // Of the arguments in Content::arguments, in bytes.
  Signature signature;  // Launch attributes that change no result are left out: they follow the stream of the capture.
  std::vector<Part> parts;  // One for each node.
};
// Nothing if the nodes' types or dependencies cannot be read.
std::optional<Reading> read_all(const Template& from);

// How the nodes of an index differ.
Change change(const Content& from, const Content& to, std::uint32_t index);

// What brings an executable from one content to another of the same signature.
struct Difference {
  struct Node {
    std::uint32_t index;
    Change change;
  };
  std::vector<Node> nodes;  // Those that differ and hold no slots; empty if an update is cheaper than patching them.
  std::array<std::uint32_t, kChangeCount> counts{};  // How many differ, by how: in values, those that hold no slots.
  bool by_update = false;                            // Whether an update is cheaper than patches.
  Cost cost = 0;                                     // The cost of the cheaper way.
};
Difference difference(const Content& from, const Content& to);

// The differences of a content from those of its siblings that it was compared with, each found once.
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
