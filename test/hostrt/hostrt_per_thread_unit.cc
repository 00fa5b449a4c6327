// GRAPHCACHE_TEST_UNIT is the name of the unit. No inline function of other headers may be called here, because the two
// compilations would define it differently.
#include "hostrt_per_thread.h"

namespace graphcache::test {
namespace {

void* entry_point(const char* name, unsigned long long flags) {
  void* function = nullptr;
#if CUDART_VERSION >= 12050
  return cudaGetDriverEntryPointByVersion(name, &function, 12040, flags, nullptr) == cudaSuccess ? function : nullptr;
#else
  return cudaGetDriverEntryPoint(name, &function, flags, nullptr) == cudaSuccess ? function : nullptr;
#endif
}

}  // namespace

const Unit GRAPHCACHE_TEST_UNIT = {
    &cudaEventRecord,  &cudaFreeAsync,       &cudaGraphLaunch,        &cudaGraphUpload,      &cudaLaunchHostFunc,
    &cudaLaunchKernel, &cudaLaunchKernelExC, &cudaMallocAsync,        &cudaMemcpy,           &cudaMemcpyAsync,
    &cudaMemset,       &cudaMemsetAsync,     &cudaStreamBeginCapture, &cudaStreamEndCapture, &cudaStreamIsCapturing,
    &cudaStreamGetId,  &cudaStreamQuery,     &cudaStreamSynchronize,  &cudaStreamWaitEvent,  &entry_point,
};

}  // namespace graphcache::test
