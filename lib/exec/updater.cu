// The updater's kernels, linked with the device runtime for each architecture and embedded into the library.
#include "updater.h"

namespace graphcache::updater {
namespace {

__device__ void report(int* error, cudaError_t what) {
  if (what != cudaSuccess) *static_cast<volatile int*>(error) = static_cast<int>(what);
}

template <unsigned kBytes>
__device__ void update(const Values<kBytes>& values) {
  const Plan& plan = values.plan;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  // Both loads are issued before either result is used.
  const Written held = plan.written[blockIdx.x];
  const Piece piece = plan.pieces[min(i, plan.piece_count - 1)];
  __syncthreads();
  if (held.token == values.token) return;
  if (threadIdx.x == 0) plan.written[blockIdx.x] = {values.set, values.token};
  if (i >= plan.piece_count) return;
  update_piece(plan, i, piece, held.set, values.set, values.bytes,
               [&](cudaGraphDeviceNode_t node, unsigned offset, const unsigned char* value, unsigned size) {
                 if (offset == kGrid) {
                   const auto* const grid = reinterpret_cast<const unsigned*>(value);
                   report(plan.error, cudaGraphKernelNodeSetGridDim(node, dim3(grid[0], grid[1], grid[2])));
                 } else {
                   report(plan.error, cudaGraphKernelNodeSetParam(node, offset, value, size));
                 }
               });
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

extern "C" __global__ void graphcache_update_huge(
    const __grid_constant__ graphcache::updater::Values<graphcache::updater::kHuge> values) {
  graphcache::updater::update(values);
}

extern "C" __global__ void graphcache_plain() {}
