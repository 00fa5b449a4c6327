#include <cuda_runtime.h>

#include <cstdint>

namespace demo {

__device__ std::uint32_t stirred(std::uint32_t value, std::uint32_t salt, int i) {
  return (value ^ salt) * 16777619u + static_cast<std::uint32_t>(i);
}

__global__ void stir(std::uint32_t* data, int count, std::uint32_t salt, std::uint32_t round) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) data[i] = stirred(data[i], salt + round, i);
}

__global__ void stir_into(std::uint32_t* out, const std::uint32_t* a, int count, std::uint32_t salt) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = stirred(a[i], salt, i);
}

__global__ void combine(std::uint32_t* out, const std::uint32_t* a, const std::uint32_t* b, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = 31u * a[i] + b[i];
}

}  // namespace demo
