// What the updater kernel reads: one layout for the device, the host and the twin of hostrt. The kernel is the head
// node of a device-updated executable, and writes the run's values into the other nodes.
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

// In device memory, but for `error`, in the host's: written only if an update fails, by the code of its error.
struct Plan {
  const Node* nodes;
  const Update* updates;
  // The token of the values that each block wrote last. A launch that brings the same token has nothing to write.
  unsigned* tokens;
  int* error;
  unsigned node_count;
};

// The parameter of the kernel, by value.
template <unsigned kBytes>
struct Values {
  Plan plan;
  unsigned token;
  alignas(8) unsigned char bytes[kBytes];
};

// A kernel's parameters take 4 KiB at most; what is set is copied as a whole, so most runs take the smaller one.
inline constexpr unsigned kSmall = 192;
inline constexpr unsigned kLarge = 4000;
inline constexpr unsigned kThreads = 64;

inline constexpr char kSmallName[] = "graphcache_update_small";
inline constexpr char kLargeName[] = "graphcache_update_large";

}  // namespace graphcache::updater
