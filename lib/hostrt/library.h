// Updates of nodes by device code: what the kernels of loaded libraries do. All functions expect the state to be
// locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
#define GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_

#include "state.h"

namespace graphcache::hostrt {

// What a kernel node runs: as device code left it, or else as the program has it.
const NodeParams& params_to_run(const State& state, const ProgramNode& node);

// The host set the node's parameters, or its executable is gone.
void forget_device_updates(State& state, cudaGraphNode_t node);
void forget_device_updates(State& state, const Program& program);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
