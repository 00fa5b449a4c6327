// The kernels of conditional nodes. They are a module of their own, which is loaded only for these nodes and not linked
// with the device runtime, which would take 16 MiB of device memory.
#include "condition.h"

extern "C" __global__ void graphcache_set_condition(cudaGraphConditionalHandle handle, const unsigned* condition,
                                                    const unsigned** kept) {
  if (kept != nullptr) *kept = condition;
  cudaGraphSetConditional(handle, *condition);
}

extern "C" __global__ void graphcache_set_kept_condition(cudaGraphConditionalHandle handle,
                                                         const unsigned* const* kept) {
  cudaGraphSetConditional(handle, **kept);
}
