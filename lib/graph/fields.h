// The values among the parameters of a node, by name: what reports show, and what two recordings are compared by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/describe.h"
#include "graph/template.h"

namespace graphcache {

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

}  // namespace graphcache
