// What options.h and costs.h say of executables that the device updates, for the model of the policy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "cuda/costs.h"
#include "graphcache/graphcache.h"
#include "policy_work.h"

namespace graphcache::test {

// Keys of one family with the same number can share a table: they differ in arguments and grids of kernels alone, and
// the same nodes follow the same slots. What a set that follows slots does otherwise, the host tells it.
inline std::string row_class(const Spec& spec) {
  std::string text = spec.varying ? "varying" : "";
  for (const Node& node : spec.nodes) {
    text += node.sets ? " set" : " kernel";
    if (node.has_slot()) text += " slots " + std::to_string(node.value_slot) + "," + std::to_string(node.size_slot);
    if (node.sets && !node.has_slot()) text += " " + std::to_string(node.value) + " " + std::to_string(node.size);
    if (!node.sets) text += " " + std::to_string(node.kernel) + " " + std::to_string(node.block);
  }
  return text;
}

// Kernels that follow slots: what the device can write for a run.
inline std::size_t kernels_with_slots(const Spec& spec) {
  return static_cast<std::size_t>(std::count_if(spec.nodes.begin(), spec.nodes.end(),
                                                [](const Node& node) { return !node.sets && node.has_slot(); }));
}

// Whether the device is to write them: where that is the cheaper way by what is preferred.
inline bool device_writes_slots(const Options& options, const Spec& spec) {
  const Cost count = kernels_with_slots(spec);
  switch (options.mechanisms.patching) {
    case detail::Patching::kPerNode:
      return false;
    case detail::Patching::kDeviceUpdated:
      return count != 0;
    default:
      break;
  }
  const Cost one_by_one = count * costs::kPatch[static_cast<std::size_t>(Change::kArguments)];
  return options.prefer != Prefer::kDeviceTime &&
         one_by_one > costs::kPatchUpdaterNode + costs::kUpdaterNode + count * costs::kCell;
}

// What a switch by a row counts for.
inline Cost cost_of_row(const Options& options, std::size_t nodes) {
  return options.prefer == Prefer::kMemory ? 0 : costs::switch_row(nodes);
}

// Nodes that a member's row writes, beside a base whose slots are the same.
inline std::size_t differing_from_base(const Spec& base, const Spec& spec) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < spec.nodes.size(); ++i) {
    const Node& a = base.nodes[i];
    const Node& b = spec.nodes[i];
    if (!b.sets && (a.grid != b.grid || (b.value_slot < 0 && a.value != b.value))) ++count;
  }
  return count;
}

}  // namespace graphcache::test
