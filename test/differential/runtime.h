// Differences between the two runtimes, except kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "graphcache/stream.h"

namespace graphcache::test::differential {

// On hostrt: resets it to a fresh process, with deferred execution in every other world.
void begin_world(std::uint64_t seed);

// What the world has left alive or misused, as far as the runtime knows; empty if nothing.
std::string left_by_world();

// hostrt has neither. There, device memory replaces managed memory, and a 2-D set is one set for each row.
cudaError_t allocate_managed(void** out, std::size_t bytes);
cudaError_t set_2d(void* address, std::size_t pitch, int value, std::size_t width, std::size_t height,
                   StreamArg stream);

}  // namespace graphcache::test::differential
