// Mechanisms: forces the way in which a cache serves its keys, for tests and benchmarks. By default the cache chooses.
// Not for users: it changes without notice.
#pragma once

namespace graphcache::detail {

// How the keys of a family share executables, if Options::share is true.
enum class Sharing {
  // By the rules of docs/policy.md. Keys of different streams do not share, because CUDA runs the launches of one
  // executable one after the other, whatever their streams (docs/demos/decode.md).
  kAuto,
  // They do not share, as if Options::share were false.
  kNever,
  // By the ski-rental rule, without tables, for graphs of any size and any Options::prefer. A key without an executable
  // borrows that of its family, by updates, until these have cost as much as an instantiation. Then it gets its own.
  kRent,
  // A family has a single executable, whatever the streams. It gets another one only if that is pinned or in use by
  // another thread's run.
  kAlways,
  // As kAlways, and the executable has a parameter table from its first key on.
  kTable,
};

// How new values of slots get into the nodes.
enum class Patching {
  // The cheaper of the following two, given Options::prefer and the number of nodes with slots.
  kAuto,
  // By one call for each node, which takes 0.15 to 0.5 us of host time. An executable with a parameter table is
  // nevertheless updated by the device.
  kPerNode,
  // By one call for all kernel nodes. An updater node, which precedes them, writes their arguments and grids on the
  // device. It takes about 2.3 us of device time in a run with changed values, 1 us in other runs, and 0.02 us more for
  // each of these kernel nodes. If the driver refuses it, the key's nodes are patched one by one
  // (Stats::refused_device_updates). Siblings can share such an executable only if it has a parameter table.
  //
  // Some nodes are still patched one by one: nodes other than kernels; kernels whose block or shared memory is a slot;
  // kernels with a grid that the device must not set (docs/semantics.md); kernels on another device; and kernels whose
  // values lie beyond the first 32,000 bytes.
  kDeviceUpdated,
};

struct Mechanisms {
  Sharing sharing = Sharing::kAuto;
  Patching patching = Patching::kAuto;
};

}  // namespace graphcache::detail
