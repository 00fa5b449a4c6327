// The driver functions that the library calls. They are looked up by the runtime, so nothing links against libcuda. A
// function that is newer than CUDA 12.0 is null if the driver does not have it. No cache begins without the others
// (Core::begin), so nobody else checks them.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace graphcache {

struct CallResult;  // cuda/errors.h

inline constexpr unsigned kOldestVersion = 12000;  // The first version of CUDA whose drivers the library can use.

struct Driver {
  int version = 0;                // In the form of CUDART_VERSION; 0 if it is unknown.
  const char* missing = nullptr;  // The first function of CUDA 12.0 that the driver does not have, or null.
  CUresult (*current_context)(CUcontext*);
  CUresult (*context_id)(CUcontext, unsigned long long*);
  CUresult (*stream_context)(CUstream, CUcontext*);
  CUresult (*pointer_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
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
  CUresult (*function_name)(const char**, CUfunction);
  CUresult (*kernel_name)(const char**, CUkernel);
#if CUDART_VERSION < 12080  // for compat.h
  CUresult (*load_library)(CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned);
  CUresult (*unload_library)(CUlibrary);
  CUresult (*library_kernel)(CUkernel*, CUlibrary, const char*);
  CUresult (*add_kernel_node)(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, const CUDA_KERNEL_NODE_PARAMS*);
  CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**);
#endif

  // Reads a launch attribute of a kernel node, and whether it is not all zeros.
  CUresult read_attribute(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue* value, bool* is_set) const {
    CUlaunchAttributeValue unset;
    std::memset(value, 0, sizeof *value);
    std::memset(&unset, 0, sizeof unset);
    const CUresult result = kernel_attribute(node, id, value);
    *is_set = result == CUDA_SUCCESS && std::memcmp(value, &unset, sizeof unset) != 0;
    return result;
  }
};

// Looked up once per process.
const Driver& driver();

// The current context, or null.
CUcontext current_context();

// Most driver functions crash without a current context. The runtime gives a thread its context at the thread's first
// runtime call, which may be the patch of a hit, and a user of the driver API may remove it again. So this gives a
// thread without a context that of its current device. Returns false if that fails.
bool has_context();

// Finds the id of the context that is current while the device is. After cudaDeviceReset the device has another
// context, and no id is given twice.
CallResult find_context(int device, std::uint64_t* id);

// The function of a library's kernel in the current context, or null if there is none. This needs the driver, because
// cudaGetFuncBySymbol does not know such kernels.
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
