// What differs between two contents of equal signature, and which way from one to the other is cheaper.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "graph/template.h"
#include "policy/costs.h"

namespace graphcache {

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
