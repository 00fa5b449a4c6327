// Numbers that host and device compute in the same way: bf16 by its bits, and weights from a counter.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

namespace demo {

struct Bf16 {
  std::uint16_t bits;
};

__host__ __device__ inline float to_float(Bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

// Rounds to nearest even. The value is never NaN.
__host__ __device__ inline Bf16 to_bf16(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

// The weight with a number: uniformly distributed between offset - scale and offset + scale. Every operation but the
// last is exact if the offset is 0 or the scale a power of two, so a fused multiply-add changes nothing.
__host__ __device__ inline Bf16 weight(std::uint32_t number, float offset, float scale) {
  std::uint32_t hash = number * 0x9e3779b9u + 1u;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  hash ^= hash >> 16;
  const float even = static_cast<float>(hash >> 8) * (1.0f / 8388608.0f) - 1.0f;
  return to_bf16(offset + scale * even);
}

}  // namespace demo
