#include "graphcache/hostrt.h"
#include "runtime.h"

namespace graphcache::test::differential {

void begin_world(std::uint64_t seed) {
  hostrt::reset();
  if (seed % 2 == 0) hostrt::defer(seed);
}

std::string left_by_world() {
  if (hostrt::misuses() != 0) return "a misuse: " + hostrt::last_misuse();
  return hostrt::ledger() == hostrt::Ledger{} ? "" : "objects were left alive";
}

cudaError_t allocate_managed(void** out, std::size_t bytes) { return cudaMalloc(out, bytes); }

cudaError_t set_2d(void* address, std::size_t pitch, int value, std::size_t width, std::size_t height,
                   StreamArg stream) {
  cudaError_t error = cudaSuccess;
  for (std::size_t row = 0; row < height && error == cudaSuccess; ++row) {
    error = cudaMemsetAsync(static_cast<char*>(address) + row * pitch, value, width, stream);
  }
  return error;
}

}  // namespace graphcache::test::differential
