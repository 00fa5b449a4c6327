// The kernels of the demo. Host code takes their addresses by these declarations; nvcc's host stubs have the same
// names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace demo {

// state[i] becomes a hash of itself and the bits of `value` and `salt`. So every value and every order of launches
// affects the result, which is exact on every machine.
void mix(std::uint32_t* state, int count, float value, std::uint32_t salt);
// The same with a value in device memory.
void mix_pointed(std::uint32_t* state, int count, const float* value, std::uint32_t salt);

}  // namespace demo
