// The kernels of nested_launch_test.cc, linked with the device runtime and embedded into the suite by lib/embed. For
// GPUs only.
#include <cuda_runtime.h>

namespace {

// For block `block` of `grid`. The sums do not depend on the order of the children, and differ between blocks and
// grids.
__device__ void add_one(int* p, int n, int i, int block, int grid, int value) {
  atomicAdd(&p[(i + 5 * block) % n], value + (block + 1) * grid);
}

}  // namespace

extern "C" __global__ void nested_child(int* p, int n, int block, int grid, int value) {
  add_one(p, n, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), block, grid, value);
}

// Each block launches children of 32 threads.
extern "C" __global__ void nested_add(int* p, int n, int children, int value) {
  if (threadIdx.x != 0) return;
  const int block = static_cast<int>(blockIdx.x), grid = static_cast<int>(gridDim.x);
  nested_child<<<static_cast<unsigned>(children), 32>>>(p, n, block, grid, value);
}

// The same, with children that are not waited for.
extern "C" __global__ void nested_add_forgotten(int* p, int n, int children, int value) {
  if (threadIdx.x != 0) return;
  const int block = static_cast<int>(blockIdx.x), grid = static_cast<int>(gridDim.x);
  nested_child<<<static_cast<unsigned>(children), 32, 0, cudaStreamFireAndForget>>>(p, n, block, grid, value);
}

// The same, with the value in memory.
extern "C" __global__ void nested_add_from(int* p, int n, int children, const int* value) {
  if (threadIdx.x != 0) return;
  const int block = static_cast<int>(blockIdx.x), grid = static_cast<int>(gridDim.x);
  nested_child<<<static_cast<unsigned>(children), 32>>>(p, n, block, grid, *value);
}

// Has the parameters of nested_add, launches nothing, and adds something else.
extern "C" __global__ void plain_add(int* p, int n, int children, int value) {
  if (threadIdx.x != 0) return;
  const int block = static_cast<int>(blockIdx.x), grid = static_cast<int>(gridDim.x);
  for (int i = 0; i < 32 * children; ++i) add_one(p, n, i, block, grid, 3 * value + 1);
}
