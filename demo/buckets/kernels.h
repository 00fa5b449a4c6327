// The kernels of the demo. Host code takes their addresses by these declarations; nvcc's host stubs have the same
// names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace demo {

// Each of the grid's threads works on its own element: state[i] becomes a hash of itself, the bits of `value`, `salt`,
// `step` and the number of blocks. No value, no grid and no order of launches is forgotten, and the result is exact on
// every machine.
void mix(std::uint32_t* state, int count, std::uint32_t step, float value, std::uint32_t salt);

// The grid's threads hash all bits of the product's `size` numbers into their elements of the state, so that a product
// that was ever wrong in one bit, or left out, shows at the end.
void absorb(std::uint32_t* state, int count, const float* product, int size);

}  // namespace demo
