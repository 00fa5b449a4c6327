// The driver functions that the library calls. They are looked up by the runtime, so nothing links against libcuda. A
// function that is newer than CUDA 12.0 returns an error if the driver does not have it. No cache begins without the
// others (Core::begin).
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
  // Returns the code of the runtime, which is the same number.
  template <class... Args>
  class Call {
   public:
    Call(void* found) : function_(reinterpret_cast<CUresult (*)(Args...)>(found)) {}  // NOLINT: from find()
    cudaError_t operator()(Args... args) const {
      return function_ == nullptr ? cudaErrorCallRequiresNewerDriver : static_cast<cudaError_t>(function_(args...));
    }

   private:
    CUresult (*function_)(Args...);
  };

  int version = 0;                // In the form of CUDART_VERSION; 0 if it is unknown.
  const char* missing = nullptr;  // The first function of CUDA 12.0 that the driver does not have, or null.
  Call<CUcontext*> current_context = find("cuCtxGetCurrent");
  Call<CUcontext, unsigned long long*> context_id = find("cuCtxGetId");
  Call<CUstream, CUcontext*> stream_context = find("cuStreamGetCtx");
  Call<unsigned, CUpointer_attribute*, void**, CUdeviceptr> pointer_attributes = find("cuPointerGetAttributes");
  Call<CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*> set_kernel_node =
      find("cuGraphExecKernelNodeSetParams");
  Call<CUgraphNode, CUgraphNodeType*> node_type = find("cuGraphNodeGetType");
  Call<CUgraphNode, CUgraphNode*, CUgraphEdgeData*, std::size_t*> node_dependencies =
      find("cuGraphNodeGetDependencies", 12030);
  Call<CUgraphNode, CUgraphNode*, CUgraphEdgeData*, std::size_t*> node_dependents =
      find("cuGraphNodeGetDependentNodes", 12030);
  Call<CUgraphNode, CUDA_MEMCPY3D*> copy_params = find("cuGraphMemcpyNodeGetParams");
  Call<CUgraphNode, const CUDA_MEMCPY3D*> set_copy_params = find("cuGraphMemcpyNodeSetParams");
  Call<CUgraphNode, CUDA_KERNEL_NODE_PARAMS*> kernel_params = find("cuGraphKernelNodeGetParams");
  Call<CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*> set_kernel_params = find("cuGraphKernelNodeSetParams");
  Call<CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*> kernel_attribute =
      find("cuGraphKernelNodeGetAttribute");
  Call<CUgraphNode, CUlaunchAttributeID, const CUlaunchAttributeValue*> set_kernel_attribute =
      find("cuGraphKernelNodeSetAttribute");
  Call<CUfunction, std::size_t, std::size_t*, std::size_t*> function_param_info = find("cuFuncGetParamInfo", 12040);
  Call<CUfunction*, CUkernel> kernel_function = find("cuKernelGetFunction");
  Call<CUkernel, std::size_t, std::size_t*, std::size_t*> kernel_param_info = find("cuKernelGetParamInfo", 12040);
  Call<const char**, CUfunction> function_name = find("cuFuncGetName", 12030);
  Call<const char**, CUkernel> kernel_name = find("cuKernelGetName", 12030);
  Call<CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, const CUDA_KERNEL_NODE_PARAMS*> add_kernel_node =
      find("cuGraphAddKernelNode");
  Call<CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned> load_library =
      find("cuLibraryLoadData");
  Call<CUlibrary> unload_library = find("cuLibraryUnload");
  Call<CUkernel*, CUlibrary, const char*> library_kernel = find("cuLibraryGetKernel");
  Call<CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**>
      launch_kernel = find("cuLaunchKernel");

  // Reads a launch attribute of a kernel node, and whether it is not all zeros.
  cudaError_t read_attribute(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue* value,
                             bool* is_set) const {
    CUlaunchAttributeValue unset;
    std::memset(value, 0, sizeof *value);
    std::memset(&unset, 0, sizeof unset);
    const cudaError_t error = kernel_attribute(node, id, value);
    *is_set = error == cudaSuccess && std::memcmp(value, &unset, sizeof unset) != 0;
    return error;
  }

 private:
  // A function in its form of a CUDA version, or null.
  void* find(const char* name, unsigned since = kOldestVersion);
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
