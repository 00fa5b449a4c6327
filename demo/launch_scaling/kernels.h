// The kernel of the demo. Host code takes its address by this declaration; nvcc's host stub has the same name.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace demo {

// `*value` becomes a hash of itself and `salt`. One thread does it, so that a node takes the minimum time. Every node
// and the order of nodes affect the result.
void mix(std::uint32_t* value, std::uint32_t salt);

}  // namespace demo
