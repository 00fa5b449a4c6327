#include "node_text.h"

#include <cstddef>
#include <string_view>

namespace graphcache {
namespace {

constexpr std::size_t kLongestName = 56;  // in bytes
constexpr const char* kCut = "...";

void add(const std::string& text, const char* separator, std::string* to) {
  if (!to->empty()) *to += separator;
  *to += text;
}

// Cuts the parameters at the end: "f(int) const" becomes "f(...)".
std::string without_parameters(const std::string& name) {
  const std::size_t end = name.rfind(')');
  if (end == std::string::npos) return name;
  std::size_t begin = end, depth = 0;
  do {
    if (name[begin] == ')') ++depth;
    if (name[begin] == '(' && --depth == 0) return name.substr(0, begin + 1) + kCut + ')';
  } while (begin-- > 0);
  return name;
}

bool is_operator_at(std::string_view name, std::size_t at) {
  constexpr std::string_view kOperator = "operator";
  while (at > 0 && (name[at - 1] == '<' || name[at - 1] == '>' || name[at - 1] == '-')) --at;
  return at >= kOperator.size() && name.substr(at - kOperator.size(), kOperator.size()) == kOperator;
}

// Cuts template arguments: "f<float, g<1>>(int)" becomes "f<...>(int)".
std::string without_template_arguments(const std::string& name) {
  std::string result;
  std::size_t depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_bracket = (name[i] == '<' || name[i] == '>') && !is_operator_at(name, i);
    if (is_bracket && name[i] == '<' && depth++ == 0) result += std::string("<") + kCut;
    if (is_bracket && name[i] == '>' && depth > 0) --depth;
    if (depth == 0) result += name[i];
  }
  return depth == 0 ? result : name;  // unbalanced, so not a C++ name
}

// Its last bytes, from the begin of a character of UTF-8 on.
std::string end_of(const std::string& name) {
  std::size_t begin = name.size() - (kLongestName - 3);
  while (begin < name.size() && (static_cast<unsigned char>(name[begin]) & 0xC0) == 0x80) ++begin;
  return kCut + name.substr(begin);
}

// Sizes of 1 at the end are left out, as a launch may leave them out.
std::string text_of(const dim3& size) {
  std::string text = std::to_string(size.x);
  if (size.y != 1 || size.z != 1) text += " x " + std::to_string(size.y);
  if (size.z != 1) text += " x " + std::to_string(size.z);
  return text;
}

std::string shape_of(const GraphNode& node) {
  if (node.type != cudaGraphNodeTypeKernel) return "";
  std::string shape = "grid " + text_of(node.grid) + ", block " + text_of(node.block);
  if (node.shared_bytes != 0) shape += ", shared " + std::to_string(node.shared_bytes) + " bytes";
  return shape;
}

// The launch attributes that a GPU gives to each kernel without any of its own (seen on an H200).
bool is_usual(const GraphNode::Attribute& attribute) {
  return (attribute.name == "cluster scheduling policy" && attribute.value == "1") ||
         (attribute.name == "memory synchronization domain map" && attribute.value == "0, 1");
}

std::string attributes_of(const GraphNode& node) {
  std::string attributes;
  for (const GraphNode::Attribute& attribute : node.attributes) {
    if (!is_usual(attribute)) add(attribute.name + ": " + attribute.value, "; ", &attributes);
  }
  return attributes;
}

std::string slots_of(const GraphNode& node) {
  std::string slots;
  for (const GraphNode::Argument& argument : node.arguments) {
    if (argument.is_slot) add(argument.name, ", ", &slots);
  }
  if (node.grid_is_slot) add("grid", ", ", &slots);
  if (node.block_is_slot) add("block", ", ", &slots);
  if (node.shared_is_slot) add("shared memory", ", ", &slots);
  return slots.empty() ? "" : "slot: " + slots;
}

}  // namespace

std::string short_name(const std::string& name) {
  std::string result = name;
  if (result.size() > kLongestName) result = without_parameters(result);
  if (result.size() > kLongestName) result = without_template_arguments(result);
  if (result.size() > kLongestName) result = end_of(result);
  return result;
}

std::array<std::string, 4> lines_of(const GraphNode& node) {
  return {short_name(node.name), shape_of(node), attributes_of(node), slots_of(node)};
}

}  // namespace graphcache
