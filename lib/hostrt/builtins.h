// Writes the variables that kernels read as threadIdx, blockIdx and so on. See builtins.cc.

#ifndef GRAPHCACHE_LIB_HOSTRT_BUILTINS_H_
#define GRAPHCACHE_LIB_HOSTRT_BUILTINS_H_

#include <vector_types.h>

namespace graphcache::hostrt {

void set_dimensions(const dim3& grid, const dim3& block, const dim3& cluster);
// Sets the result of current_device().
void set_device(int device);

void set_indices(const uint3& block_index, const uint3& thread_index);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_BUILTINS_H_
