// Updates of nodes by device code: what the kernels of loaded libraries do. All functions expect the state to be
// locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
#define GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_

#include "state.h"

namespace graphcache::hostrt {

// What a kernel node runs: as device code left it, or else as the program has it.
const NodeParams& params_to_run(const Program& program, const ProgramNode& node);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
