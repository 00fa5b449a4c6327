// The kernel of update_answers_cublas_test.cc. For GPUs only.
#include <cuda_runtime.h>

#include "update_kernels.h"

namespace graphcache::test {

__global__ void fill_matrix(float* p, int n, int seed) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned mixed = (static_cast<unsigned>(i) + 7919u * static_cast<unsigned>(seed)) * 2654435761u;
    p[i] = static_cast<float>(static_cast<int>((mixed >> 16) % 5u) - 2);
  }
}

}  // namespace graphcache::test
