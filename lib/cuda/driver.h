// The driver's functions that the library calls. They are asked for through the runtime, so that nothing links against
// libcuda; one that a driver does not have is null.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>

namespace graphcache {

struct Driver {
  int version;  // As CUDART_VERSION counts, 0 if it cannot be had.
  CUresult (*current_context)(CUcontext*);
  CUresult (*stream_context)(CUstream, CUcontext*);
  CUresult (*set_kernel_node)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*);
  CUresult (*node_type)(CUgraphNode, CUgraphNodeType*);
  CUresult (*node_dependencies)(CUgraphNode, CUgraphNode*, CUgraphEdgeData*, std::size_t*);
  CUresult (*kernel_params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
  CUresult (*set_kernel_params)(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*);
  CUresult (*kernel_attribute)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*);
  CUresult (*set_kernel_attribute)(CUgraphNode, CUlaunchAttributeID, const CUlaunchAttributeValue*);
  CUresult (*function_param_info)(CUfunction, std::size_t, std::size_t*, std::size_t*);
  CUresult (*kernel_function)(CUfunction*, CUkernel);
  CUresult (*kernel_param_info)(CUkernel, std::size_t, std::size_t*, std::size_t*);
#if CUDART_VERSION < 12080  // For compat.h.
  CUresult (*load_library)(CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned);
  CUresult (*unload_library)(CUlibrary);
  CUresult (*library_kernel)(CUkernel*, CUlibrary, const char*);
  CUresult (*add_kernel_node)(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, const CUDA_KERNEL_NODE_PARAMS*);
  CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**);
#endif

  // A launch attribute of a kernel node, and whether it is other than zeros. The getter is not null.
  CUresult read_attribute(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue* value, bool* is_set) const {
    CUlaunchAttributeValue unset;
    std::memset(value, 0, sizeof *value);
    std::memset(&unset, 0, sizeof unset);
    const CUresult result = kernel_attribute(node, id, value);
    *is_set = result == CUDA_SUCCESS && std::memcmp(value, &unset, sizeof unset) != 0;
    return result;
  }
};

// Asked for once in the process.
const Driver& driver();

// The context that is current, or null.
CUcontext current_context();

// Most of the driver's functions need a current context, and crash without one (tried). The runtime gives a thread its
// context at the thread's first runtime call, which a hit's patch may well be, and a user of the driver may take it
// away again: a thread without one gets that of its current device. False if it cannot be had.
bool has_context();

// The function of a library's kernel in the current context, or null if it cannot be had. The runtime has no call for
// it: its cudaGetFuncBySymbol knows no such kernels (tried).
CUfunction function_of_library(const void* kernel);

// The parameters of a kernel node, with the kernel left unset.
inline CUDA_KERNEL_NODE_PARAMS driver_params(dim3 grid, dim3 block, unsigned shared_bytes, void** arguments) {
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.gridDimX = grid.x;
  params.gridDimY = grid.y;
  params.gridDimZ = grid.z;
  params.blockDimX = block.x;
  params.blockDimY = block.y;
  params.blockDimZ = block.z;
  params.sharedMemBytes = shared_bytes;
  params.kernelParams = arguments;
  return params;
}

}  // namespace graphcache
