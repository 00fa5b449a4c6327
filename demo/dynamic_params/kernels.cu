#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace demo {

__device__ void mix_one(std::uint32_t* state, int count, float value, std::uint32_t salt) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  state[i] = (state[i] ^ bits) * 16777619u + salt;
}

__global__ void mix(std::uint32_t* state, int count, float value, std::uint32_t salt) {
  mix_one(state, count, value, salt);
}

__global__ void mix_pointed(std::uint32_t* state, int count, const float* value, std::uint32_t salt) {
  mix_one(state, count, *value, salt);
}

}  // namespace demo
