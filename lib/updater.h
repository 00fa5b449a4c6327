// What the updater kernel reads: one layout for the device, the host and the twin of hostrt. The kernel is the head
// node of a device-updated executable, and writes into the other nodes the row of the member of the family that a run
// is of, and over it the run's values.
#pragma once

#include <cuda_runtime_api.h>

namespace graphcache::updater {

// One argument of a node, or its grid: where in the run's values it is, and where in the node's arguments it goes.
struct Update {
  static constexpr unsigned kGrid = ~0u;

  unsigned source;
  unsigned offset;  // kGrid: the values are those of a dim3.
  unsigned size;
};

// A node, and which updates are its own. Each is served by one thread: updates of one node must not meet.
struct Node {
  cudaGraphDeviceNode_t handle;
  unsigned first;
  unsigned count;
};

// How a node of a member differs from the base's. A row is one for each node, and behind them the bytes.
struct Cell {
  unsigned source;  // Where in the row the arguments are,
  unsigned offset;  // where in the node's they begin,
  unsigned size;    // and how many bytes; 0: they are the base's.
  unsigned grid;    // Where in the row the grid is; 0: it is the base's.
};

using Row = const unsigned char*;

// What a block has written last. A launch that brings the same token has nothing to write.
struct Written {
  Row row;
  unsigned token;
};

// In device memory, but for `error`, in the host's: written only if an update fails, by the code of its error.
struct Plan {
  const Node* nodes;
  const Update* updates;
  Row base;  // Of all nodes with all that they have. Null if there are no other rows.
  Written* written;
  int* error;
  unsigned node_count;
};

// The parameter of the kernel, by value.
template <unsigned kBytes>
struct Values {
  Plan plan;
  Row row;  // Null: the base's.
  unsigned token;
  alignas(8) unsigned char bytes[kBytes];
};

// A kernel's parameters take 4 KiB at most; what is set is copied as a whole, so most runs take the smaller one.
inline constexpr unsigned kSmall = 192;
inline constexpr unsigned kLarge = 4000;
inline constexpr unsigned kThreads = 64;
static_assert(sizeof(Values<kLarge>) <= 4096);

inline constexpr char kSmallName[] = "graphcache_update_small";
inline constexpr char kLargeName[] = "graphcache_update_large";

// What one thread does, for the node of index `i`: `set_argument(node, offset, value, size)` and `set_grid(node, grid)`
// are the runtime's on the device, and hostrt's on the host.
template <class SetArgument, class SetGrid>
#ifdef __CUDACC__
__device__
#endif
    void
    update_node(const Plan& plan, unsigned i, Row held, Row wanted, const unsigned char* values,
                const SetArgument& set_argument, const SetGrid& set_grid) {
  const Node node = plan.nodes[i];
  if (held != wanted) {
    const Cell base = reinterpret_cast<const Cell*>(plan.base)[i];
    const Cell none = {0, 0, 0, 0};
    const Cell from = held == nullptr ? none : reinterpret_cast<const Cell*>(held)[i];
    const Cell to = wanted == nullptr ? none : reinterpret_cast<const Cell*>(wanted)[i];
    const bool covers = to.offset <= from.offset && from.offset + from.size <= to.offset + to.size;
    if (from.size != 0 && !covers) {
      set_argument(node.handle, from.offset, plan.base + base.source + from.offset, from.size);
    }
    if (to.size != 0) set_argument(node.handle, to.offset, wanted + to.source, to.size);
    if (to.grid != 0) {
      set_grid(node.handle, reinterpret_cast<const unsigned*>(wanted + to.grid));
    } else if (from.grid != 0) {
      set_grid(node.handle, reinterpret_cast<const unsigned*>(plan.base + base.grid));
    }
  }
  for (unsigned k = node.first; k < node.first + node.count; ++k) {
    const Update one = plan.updates[k];
    if (one.offset == Update::kGrid) {
      set_grid(node.handle, reinterpret_cast<const unsigned*>(values + one.source));
    } else {
      set_argument(node.handle, one.offset, values + one.source, one.size);
    }
  }
}

}  // namespace graphcache::updater
