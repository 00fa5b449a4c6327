// Ways to serve keys that the cache chooses among by itself, and that tests and benchmarks ask for. Not for users: they
// change without notice.
#pragma once

namespace graphcache::detail {

// How the keys of a family share executables, if Options::share says that they do.
enum class Sharing {
  // By the rules of docs/policy.md. Keys of different streams do not borrow from each other, since launches of one
  // executable follow each other whatever their streams (docs/demos/decode.md).
  kAuto,
  kNever,  // Not at all, as if Options::share were false.
  // By the rules without tables, and with small graphs as with large ones, whatever is preferred: a key without an
  // executable borrows the family's, by an update, until it has paid for one of its own.
  kRent,
  // A family has one as long as one suffices, whatever the streams: a second only if the first is pinned, or in use by
  // another thread's run.
  kAlways,
  // The same, and that one has a table from the first member on.
  kTable,
};

// How values that changed since the last run of a key reach the nodes that hold them.
enum class Patching {
  // Whichever of the others is cheaper by Options::prefer, for the number of nodes that hold slots.
  kAuto,
  // One call for each node, 0.15 to 0.5 us of the host's time; in an executable with a table by the device all the
  // same.
  kPerNode,
  // One call for all kernel nodes, whatever their number: a node before the others writes their arguments and grids on
  // the device. It takes about 2.3 us of the device's time in a run with changed values and 1 us in another, and 0.02
  // us more for each of these nodes. Other slot nodes are set one by one, and so are kernels whose block or shared
  // memory is a slot, whose grid is one that the device must not set (docs/semantics.md), or that run on another
  // device, and those beyond the first 32,000 bytes of values. Siblings can share such an executable only if it has a
  // table. If the driver refuses it, a key is patched node by node (Stats::refused_device_updates).
  kDeviceUpdated,
};

struct Mechanisms {
  Sharing sharing = Sharing::kAuto;
  Patching patching = Patching::kAuto;
};

}  // namespace graphcache::detail
