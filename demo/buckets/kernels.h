// The kernels of the demo. Host code takes their addresses by these declarations; nvcc's host stubs have the same
// names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace demo {

// Each thread of the grid updates its own element: state[i] becomes a hash. It covers state[i], the bits of `value`,
// `salt`, `step` and the number of blocks. So every value, grid and order of launches affects the result, which is
// exact on every machine.
void mix(std::uint32_t* state, int count, std::uint32_t step, float value, std::uint32_t salt);

// The threads of the grid hash all bits of the product's `size` numbers into their elements of the state. So a product
// that was left out, or wrong in one bit, shows at the end.
void absorb(std::uint32_t* state, int count, const float* product, int size);

}  // namespace demo
