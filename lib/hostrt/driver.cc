// The few functions of the driver that a program reaches through the runtime. They count, and are failed, under the name
// of the runtime function of the same meaning, but as the driver's leave the last-error slot alone. cuCtxGetCurrent, which
// reads what the thread holds and has no such function, is not counted.

#include <cuda.h>

#include <cstring>

#include "kernels.h"
#include "state.h"

namespace graphcache::hostrt {
namespace {

// A thread has a context from its first runtime call on.
bool has_context() {
  const Thread& thread = this_thread();
  return thread.id != 0 && thread.epoch == state().epoch;
}

CUresult current_context(CUcontext* context) {
  static char the_context;  // Only its being there is of interest.
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = has_context() ? reinterpret_cast<CUcontext>(&the_context) : nullptr;
  return CUDA_SUCCESS;
}

CUresult set_kernel_node(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_context()) {  // The real one crashes (tried).
    return static_cast<CUresult>(enter(Function::kGraphExecKernelNodeSetParams, [](const Call& call) {
      return call.misuse(cudaErrorDeviceUninitialized, "the driver was called by a thread without a context");
    }));
  }
  cudaKernelNodeParams wanted = {};
  wanted.func = params->func;  // cudaGetFuncBySymbol gives the symbol itself.
  wanted.gridDim = dim3(params->gridDimX, params->gridDimY, params->gridDimZ);
  wanted.blockDim = dim3(params->blockDimX, params->blockDimY, params->blockDimZ);
  wanted.sharedMemBytes = params->sharedMemBytes;
  wanted.kernelParams = params->kernelParams;
  const cudaError_t found = this_thread().last_error;
  const cudaError_t error = cudaGraphExecKernelNodeSetParams(executable, node, &wanted);
  this_thread().last_error = found;
  return static_cast<CUresult>(error);  // The codes are the same, number by number.
}

cudaError_t entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* result) {
  if (symbol == nullptr || function == nullptr) return cudaErrorInvalidValue;
  *function = nullptr;
  if (std::strcmp(symbol, "cuGraphExecKernelNodeSetParams") == 0) {
    *function = reinterpret_cast<void*>(&set_kernel_node);
  } else if (std::strcmp(symbol, "cuCtxGetCurrent") == 0) {
    *function = reinterpret_cast<void*>(&current_context);
  }
  if (result != nullptr) {
    *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGetFuncBySymbol(cudaFunction_t* functionPtr, const void* symbolPtr) {
  return enter(Function::kGetFuncBySymbol, [&](const Call&) {
    if (functionPtr == nullptr || find_kernel(symbolPtr) == nullptr) return cudaErrorInvalidDeviceFunction;
    *functionPtr = reinterpret_cast<cudaFunction_t>(const_cast<void*>(symbolPtr));
    return cudaSuccess;
  });
}

#if CUDART_VERSION >= 12050
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** funcPtr, unsigned int,
                                                       unsigned long long,
                                                       enum cudaDriverEntryPointQueryResult* driverStatus) {
  return enter(Function::kGetDriverEntryPoint, [&](const Call&) { return entry_point(symbol, funcPtr, driverStatus); });
}
#else
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** funcPtr, unsigned long long,
                                              enum cudaDriverEntryPointQueryResult* driverStatus) {
  return enter(Function::kGetDriverEntryPoint, [&](const Call&) { return entry_point(symbol, funcPtr, driverStatus); });
}
#endif

}  // extern "C"
