// The attributes of kernels.

#ifndef GRAPHCACHE_LIB_HOSTRT_FUNCTION_CALLS_H_
#define GRAPHCACHE_LIB_HOSTRT_FUNCTION_CALLS_H_

#include <cstddef>

namespace graphcache::hostrt {

struct Kernel;
struct State;

// How much dynamic shared memory launches of the kernel on this device may take.
std::size_t max_shared_bytes(const State& state, const Kernel& kernel, int device);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_FUNCTION_CALLS_H_
