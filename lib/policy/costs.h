// What the ways to an executable cost: one table, in nanoseconds of host time, measured on an H200
// (docs/performance.md, "What a switch costs"). Only their ratios matter: they decide which way is taken, and nothing
// is ever timed, so that equal sequences of runs lead to equal decisions on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace graphcache {

using Cost = std::uint64_t;

// How a node differs from its partner in a sibling's graph, the dearer below. The first two are all that a device-side
// update could change, too.
enum class Change : std::uint8_t {
  kNone,
  kArguments,  // A kernel's argument bytes.
  kGrid,       // Its grid, and perhaps those.
  kLaunch,     // Its block, its shared bytes or the kernel itself, and perhaps the above.
  kOther,      // Anything of another node, or what could not be read.
};
inline constexpr int kChangeCount = 5;

namespace costs {

// Per node of the graph.
inline constexpr Cost kInstantiate = 1400;
inline constexpr Cost kUpload = 900;  // By the first launch.
inline constexpr Cost kDestroy = 900;
inline constexpr Cost kUpdateReads = 25;

// Per switch or purchase, whatever it takes: the cache's own work and calls.
inline constexpr Cost kTakeOver = 800;

// Per node that differs, what the next launch pays for it included: by cudaGraphExecUpdate, beyond reading it,
inline constexpr Cost kUpdate[kChangeCount] = {0, 80, 900, 1000, 1000};
// and by setting the parameters of that node alone. Nodes other than kernels are left to updates.
inline constexpr Cost kPatch[kChangeCount] = {0, 146, 990, 1100, 0};

// The price of an executable of one's own.
inline constexpr Cost buy(std::size_t nodes) { return kTakeOver + nodes * (kInstantiate + kUpload + kDestroy); }

// A patch of the updater node, whatever it writes.
inline constexpr Cost kPatchUpdaterNode = 400;

// A switch to another set costs the device's time: for the updater node, and for each node that it may write.
inline constexpr Cost kUpdaterNode = 2300;
inline constexpr Cost kCell = 35;
inline constexpr Cost switch_set(std::size_t nodes) { return kTakeOver + kUpdaterNode + nodes * kCell; }

// Whether an updater node brings new values to so many nodes for less than patches do.
inline constexpr bool is_updater_node_cheaper(std::size_t nodes) {
  return nodes * kPatch[static_cast<std::size_t>(Change::kArguments)] >
         kPatchUpdaterNode + kUpdaterNode + nodes * kCell;
}

}  // namespace costs

// Rent or buy: whether a key that has paid `paid` in rent so far, and would now pay `rent`, is to have an executable of
// its own instead. The rents of a key that never buys are at most the price, those of one that buys at most the price
// before it: so no sequence costs more than twice the better of always renting and buying at once.
inline constexpr bool should_buy(Cost paid, Cost rent, Cost price) { return paid + rent > price; }

}  // namespace graphcache
