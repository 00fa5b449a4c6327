// The kernel of the demo. Host code takes its address by this declaration; nvcc's host stub has the same name.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace demo {

// Each of the grid's threads works on its own element: state[i] becomes a hash of itself, the bits of `value`, `salt`,
// `step` and the number of blocks. No value, no grid and no order of launches is forgotten, and the result is exact on
// every machine.
void mix(std::uint32_t* state, int count, std::uint32_t step, float value, std::uint32_t salt);

}  // namespace demo
