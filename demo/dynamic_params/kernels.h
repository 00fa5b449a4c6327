// The kernels of the demo. Host code takes its address by these declarations; nvcc's host stubs have the same names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace demo {

// state[i] becomes a hash of itself, the bits of `value` and `salt`: no value and no order of launches is forgotten,
// and the result is exact on every machine.
void mix(std::uint32_t* state, int count, float value, std::uint32_t salt);
// The same with a value in device memory.
void mix_pointed(std::uint32_t* state, int count, const float* value, std::uint32_t salt);

}  // namespace demo
