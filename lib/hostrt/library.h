// The kernels of loaded libraries: hostrt's CPU versions of the device code that graphcache loads. All functions expect
// the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
#define GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_

#include "state.h"

namespace graphcache::hostrt {

// Libraries, for the driver's calls and for the runtime's calls (CUDA 12.8 and newer).
cudaError_t load_library(const Call& call, CUlibrary* library, const void* code, unsigned option_count);
cudaError_t unload_library(const Call& call, CUlibrary library);
cudaError_t library_kernel(const Call& call, CUkernel* kernel, CUlibrary library, const char* name);

// Whether the kernel comes from a library. Such a kernel is no symbol of the program.
bool is_of_library(const void* kernel);

// Whether the kernel is one that updates nodes.
bool is_updater(const void* kernel);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_LIBRARY_H_
