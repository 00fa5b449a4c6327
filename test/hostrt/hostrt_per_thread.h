// The runtime functions that two translation units of a program call: hostrt_per_thread_unit.cc is compiled with
// CUDA_API_PER_THREAD_DEFAULT_STREAM, where stream 0 is the per-thread stream, and without it.
#pragma once

#include <cuda_runtime_api.h>

namespace graphcache::test {

struct Unit {
  decltype(&cudaEventRecord) event_record;
  decltype(&cudaFreeAsync) free_async;
  decltype(&cudaGraphLaunch) graph_launch;
  decltype(&cudaGraphUpload) graph_upload;
  decltype(&cudaLaunchHostFunc) launch_host_func;
  decltype(&cudaLaunchKernel) launch_kernel;
  decltype(&cudaLaunchKernelExC) launch_kernel_by_config;
  decltype(&cudaMallocAsync) malloc_async;
  decltype(&cudaMemcpy) memcpy;
  decltype(&cudaMemcpyAsync) memcpy_async;
  decltype(&cudaMemset) memset;
  decltype(&cudaMemsetAsync) memset_async;
  decltype(&cudaStreamBeginCapture) begin_capture;
  decltype(&cudaStreamEndCapture) end_capture;
  decltype(&cudaStreamIsCapturing) is_capturing;
  decltype(&cudaStreamGetId) get_id;
  decltype(&cudaStreamQuery) query;
  decltype(&cudaStreamSynchronize) synchronize;
  decltype(&cudaStreamWaitEvent) wait_event;
  // The driver's function of this name, as cudaGetDriverEntryPoint finds it with these flags.
  void* (*entry_point)(const char* name, unsigned long long flags);
};

extern const Unit per_thread_unit;
extern const Unit plain_unit;

}  // namespace graphcache::test
