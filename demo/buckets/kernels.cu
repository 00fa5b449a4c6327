#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace demo {

__global__ void mix(std::uint32_t* state, int count, std::uint32_t step, float value, std::uint32_t salt) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  state[i] = (state[i] ^ bits) * 16777619u + salt * gridDim.x + step;
}

__global__ void absorb(std::uint32_t* state, int count, const float* product, int size) {
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  std::uint32_t hash = state[i];
  for (int j = i; j < size; j += threads) {
    std::uint32_t bits;
    memcpy(&bits, &product[j], sizeof(bits));
    hash = (hash ^ bits) * 16777619u;
  }
  state[i] = hash;
}

}  // namespace demo
