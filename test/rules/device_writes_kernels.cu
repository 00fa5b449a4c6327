// The kernels of device_writes_test.cc, linked with the device runtime and embedded into the suite by lib/embed. For
// GPUs only.
#include <cuda_runtime.h>

#include "device_writes.h"

namespace graphcache::test {
namespace {

__device__ void record(Seen* seen, int value) {
  unsigned shared_bytes = 0;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared_bytes));
  if (threadIdx.x != 0) return;
  atomicAdd(&seen->blocks, 1);
  if (blockIdx.x != 0) return;
  seen->grid = static_cast<int>(gridDim.x);
  seen->block = static_cast<int>(blockDim.x);
  seen->value = value;
  seen->shared_bytes = static_cast<int>(shared_bytes);
}

}  // namespace
}  // namespace graphcache::test

extern "C" __global__ void record_values(graphcache::test::Seen* seen, int value) {
  graphcache::test::record(seen, value);
}

extern "C" __global__ void record_negative(graphcache::test::Seen* seen, int value) {
  graphcache::test::record(seen, -value);
}

// One thread for each node.
extern "C" __global__ void write_nodes(const cudaGraphDeviceNode_t* nodes, const graphcache::test::Write* write,
                                       int* error) {
  const cudaGraphDeviceNode_t node = nodes[threadIdx.x];
  cudaError_t failed = cudaSuccess;
  if (write->value) failed = cudaGraphKernelNodeSetParam(node, sizeof(void*), &write->new_value, sizeof(int));
  if (failed == cudaSuccess && write->grid) failed = cudaGraphKernelNodeSetGridDim(node, dim3(write->new_grid));
  if (failed == cudaSuccess && write->disable) failed = cudaGraphKernelNodeSetEnabled(node, false);
  if (failed != cudaSuccess) *error = static_cast<int>(failed);
}

extern "C" __global__ void record_parameter(graphcache::test::Parameter value, graphcache::test::Parameter* seen) {
  *seen = value;
}

// One thread. `value` and `in_memory` hold the same bytes.
extern "C" __global__ void write_span(const __grid_constant__ graphcache::test::Parameter value,
                                      const graphcache::test::Parameter* in_memory, cudaGraphDeviceNode_t node,
                                      const graphcache::test::Span* span, int* error) {
  using graphcache::test::ValueIn;
  graphcache::test::Parameter local;
  for (unsigned i = 0; i < sizeof local.v; ++i) local.v[i] = in_memory->v[i];
  const unsigned char* const from = span->in == ValueIn::kParameters    ? value.v
                                    : span->in == ValueIn::kLocalMemory ? local.v
                                                                        : in_memory->v;
  *error = static_cast<int>(cudaGraphKernelNodeSetParam(node, span->offset, from + span->at, span->size));
}
