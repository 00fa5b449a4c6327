// How two graphs differ, in words.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "graphcache/graph_info.h"

namespace graphcache {
namespace {

// Not by absl::StrFormat, which aborts the process if memory runs out.
std::string text_of(const dim3& size) { return absl::StrCat(size.x, ", ", size.y, ", ", size.z); }

// How two nodes differ and in what, in words.
struct Found {
  NodeDifference difference = NodeDifference::kNone;
  std::string text;

  void note(NodeDifference larger, std::string what) {
    if (larger <= difference) return;
    difference = larger;
    text = std::move(what);
  }
};

std::string here_and_there(const std::string& what, const std::string& here, const std::string& there) {
  return absl::StrCat(what, " is ", here, " here and ", there, " there");
}

void compare_attributes(const GraphNode& here, const GraphNode& there, Found* found) {
  const auto value_of = [](const GraphNode& node, const std::string& name) -> std::string {
    for (const GraphNode::Attribute& attribute : node.attributes) {
      if (attribute.name == name) return attribute.value;
    }
    return "not set";
  };
  for (const GraphNode* const node : {&here, &there}) {
    for (const GraphNode::Attribute& attribute : node->attributes) {
      const std::string a = value_of(here, attribute.name), b = value_of(there, attribute.name);
      if (a != b) found->note(NodeDifference::kFixed, here_and_there(absl::StrCat("the ", attribute.name), a, b));
    }
  }
}

void compare_arguments(const GraphNode& here, const GraphNode& there, Found* found) {
  const auto equal = [](const GraphNode::Argument& a, const GraphNode::Argument& b) {
    return a.name == b.name && a.is_slot == b.is_slot && (a.is_slot || a.value == b.value);
  };
  const auto [a, b] = std::mismatch(here.arguments.begin(), here.arguments.end(), there.arguments.begin(),
                                    there.arguments.end(), equal);
  const auto& which = a != here.arguments.end() ? a : b;
  if (a == here.arguments.end() && b == there.arguments.end()) return;
  found->note(NodeDifference::kArguments, absl::StrCat(which->name, " differs"));
}

Found compare(const GraphNode& here, const GraphNode& there) {
  Found found;
  if (here.type != there.type) {
    found.note(NodeDifference::kFixed, here_and_there("the type", here.name, there.name));
    return found;
  }
  if (here.dependencies != there.dependencies) found.note(NodeDifference::kFixed, "it depends on other nodes");
  compare_attributes(here, there, &found);
  if (here.name != there.name) {
    found.note(NodeDifference::kKernel, here_and_there("it", here.name, there.name));
    return found;
  }
  const auto compare_shape = [&](const char* what, bool is_slot, bool is_slot_there, const std::string& a,
                                 const std::string& b) {
    if (is_slot != is_slot_there) {
      found.note(NodeDifference::kArguments, absl::StrCat(what, " is a slot in only one of them"));
    } else if (!is_slot && a != b) {
      found.note(NodeDifference::kShape, here_and_there(what, a, b));
    }
  };
  compare_shape("the grid", here.grid_is_slot, there.grid_is_slot, text_of(here.grid), text_of(there.grid));
  compare_shape("the block", here.block_is_slot, there.block_is_slot, text_of(here.block), text_of(there.block));
  compare_shape("the dynamic shared memory", here.shared_is_slot, there.shared_is_slot, absl::StrCat(here.shared_bytes),
                absl::StrCat(there.shared_bytes));
  compare_arguments(here, there, &found);
  return found;
}

}  // namespace

const char* to_string(NodeDifference difference) {
  constexpr const char* kKinds[] = {"none", "arguments", "shape", "kernel", "fixed"};
  const auto index = static_cast<std::size_t>(difference);
  return index < std::size(kKinds) ? kKinds[index] : "unknown";
}

GraphDifference difference(const GraphInfo& here, const GraphInfo& there) {
  GraphDifference result;
  auto largest = NodeDifference::kNone;
  const std::size_t most = std::max(here.nodes.size(), there.nodes.size());
  for (std::size_t i = 0; i < most; ++i) {
    const bool is_here = i < here.nodes.size(), is_there = i < there.nodes.size();
    Found found;
    if (is_here && is_there) {
      found = compare(here.nodes[i], there.nodes[i]);
    } else {
      found.note(NodeDifference::kFixed, is_here ? "it is only here" : "it is only there");
    }
    result.nodes.push_back(found.difference);
    if (found.difference <= largest) continue;
    largest = found.difference;
    result.text = absl::StrCat("node ", i, ", ", (is_here ? here : there).nodes[i].name, ": ", found.text);
  }
  return result;
}

}  // namespace graphcache
