#include <cuda_runtime.h>

#include <cstdint>

namespace demo {

__global__ void mix(std::uint32_t* value, std::uint32_t salt) { *value = (*value ^ salt) * 16777619u + salt; }

}  // namespace demo
