// Reports to a cache about its captures (Options::diagnose): the calls that break them, and the work that they miss.

#ifndef GRAPHCACHE_LIB_HOSTRT_DIAGNOSE_H_
#define GRAPHCACHE_LIB_HOSTRT_DIAGNOSE_H_

#include <cuda_runtime_api.h>

#include "diagnose/watch.h"
#include "functions.h"

namespace graphcache::hostrt {

struct Kernel;
struct State;
struct Stream;

// Notes a call that has returned `error`, to `address`. To be called while diagnose::watches_any(). Locked.
void note_result(const State& state, Function function, cudaError_t error, const void* address);

// Notes a piece of work outside of captures; `kernel` is null if it is none. Locked.
void note_stray(const State& state, Function function, const Stream& stream, const Kernel* kernel);

// Notes a launch of this thread. Locked.
void note_launch(const Kernel& kernel);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_DIAGNOSE_H_
