// The kernels of loaded libraries: the twins of those that the library loads. All functions expect the state to be
// locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
#define GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_

#include "state.h"

namespace graphcache::hostrt {

// Libraries, for the runtime's calls, which CUDA has from 12.8 on, and the driver's.
cudaError_t load_library(const Call& call, CUlibrary* library, const void* code, unsigned option_count);
cudaError_t unload_library(const Call& call, CUlibrary library);
cudaError_t library_kernel(const Call& call, CUkernel* kernel, CUlibrary library, const char* name);

// Whether it is a kernel of a library, which is no symbol of the program.
bool is_of_library(const void* kernel);

// Whether it is one that updates nodes.
bool is_updater(const void* kernel);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
