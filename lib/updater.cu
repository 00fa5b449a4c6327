// The updater: compiled and linked with the device runtime for each architecture, and embedded into the library.
#include "updater.h"

namespace graphcache::updater {
namespace {

__device__ void report(int* error, cudaError_t what) {
  if (what != cudaSuccess) *static_cast<volatile int*>(error) = static_cast<int>(what);
}

template <unsigned kBytes>
__device__ void update(const Values<kBytes>& values) {
  const Plan& plan = values.plan;
  const bool has_changed = plan.tokens[blockIdx.x] != values.token;
  __syncthreads();
  if (!has_changed) return;
  if (threadIdx.x == 0) plan.tokens[blockIdx.x] = values.token;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= plan.node_count) return;
  const Node node = plan.nodes[i];
  for (unsigned k = node.first; k < node.first + node.count; ++k) {
    const Update one = plan.updates[k];
    const unsigned char* const value = values.bytes + one.source;
    if (one.offset == Update::kGrid) {
      const auto* const grid = reinterpret_cast<const unsigned*>(value);
      report(plan.error, cudaGraphKernelNodeSetGridDim(node.handle, dim3(grid[0], grid[1], grid[2])));
    } else {
      report(plan.error, cudaGraphKernelNodeSetParam(node.handle, one.offset, value, one.size));
    }
  }
}

}  // namespace
}  // namespace graphcache::updater

extern "C" __global__ void graphcache_update_small(
    const __grid_constant__ graphcache::updater::Values<graphcache::updater::kSmall> values) {
  graphcache::updater::update(values);
}

extern "C" __global__ void graphcache_update_large(
    const __grid_constant__ graphcache::updater::Values<graphcache::updater::kLarge> values) {
  graphcache::updater::update(values);
}
