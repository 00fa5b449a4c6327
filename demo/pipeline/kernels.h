// The kernels of the demo. Host code takes their addresses by these declarations; nvcc's host stubs have the same
// names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace demo {

// data[i] becomes stirred(data[i], salt + round, i), which is exact on every machine and differs for every salt and
// order.
void stir(std::uint32_t* data, int count, std::uint32_t salt, std::uint32_t round);
// out[i] = stirred(a[i], salt, i).
void stir_into(std::uint32_t* out, const std::uint32_t* a, int count, std::uint32_t salt);
// out[i] = 31 * a[i] + b[i].
void combine(std::uint32_t* out, const std::uint32_t* a, const std::uint32_t* b, int count);

// The function that the kernels compute, for the host reference.
inline std::uint32_t stirred_on_host(std::uint32_t value, std::uint32_t salt, int i) {
  return (value ^ salt) * 16777619u + static_cast<std::uint32_t>(i);
}

}  // namespace demo
