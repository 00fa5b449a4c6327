// The costs of every way to an executable, in nanoseconds of host time measured on an H200
// (test/bench/results/2026-11-22-keys.md, "What a switch costs"). Only their ratios matter. They decide which way is
// taken; nothing is ever timed, so equal sequences of runs lead to equal decisions on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace graphcache {

using Cost = std::uint64_t;

// How a node differs from its partner in a sibling's graph, in rising order of cost. A device-side update can change
// only the first two differences.
enum class Change : std::uint8_t {
  kNone,
  kArguments,  // A kernel's argument bytes.
  kGrid,       // A kernel's grid, and perhaps its argument bytes.
  // A kernel's block, shared memory or function, and perhaps the above.
  kLaunch,
  kOther,  // Anything in another type of node, or a node that could not be read.
};
inline constexpr int kChangeCount = 5;

namespace costs {

// A call of cudaGraphExecUpdate, for each node of the graph.
inline constexpr Cost kUpdateReads = 25;

// The cost of the cache's own work and calls, for each switch.
inline constexpr Cost kTakeOver = 800;

// Cost of cudaGraphExecUpdate for each node that differs, beyond kUpdateReads. Includes the node's cost in the next
// launch.
inline constexpr Cost kUpdate[kChangeCount] = {0, 80, 900, 1000, 1000};
// Cost of setting the parameters of that node alone. Nodes other than kernels can only be changed by an update.
inline constexpr Cost kPatch[kChangeCount] = {0, 146, 990, 1100, 0};

// A patch of the updater node, whatever it writes.
inline constexpr Cost kPatchUpdaterNode = 400;

// A switch to another set costs device time: for the updater node, and for each node that it may write.
inline constexpr Cost kUpdaterNode = 2300;
inline constexpr Cost kCell = 35;
inline constexpr Cost switch_set(std::size_t nodes) { return kTakeOver + kUpdaterNode + nodes * kCell; }

// Whether, for this number of nodes, new values cost less by an updater node than by patches.
inline constexpr bool is_updater_node_cheaper(std::size_t nodes) {
  return nodes * kPatch[static_cast<std::size_t>(Change::kArguments)] >
         kPatchUpdaterNode + kUpdaterNode + nodes * kCell;
}

}  // namespace costs

}  // namespace graphcache
