#include "memory.h"
#include "runtime.h"

namespace graphcache::test::differential {

// Turns off a reuse of memory that is wrong in the driver when the default stream runs beside non-blocking streams
// (docs/semantics.md, "Single calls").
void begin_world(std::uint64_t) {
  cudaMemPool_t pool = nullptr;
  int no = 0;
  check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseFollowEventDependencies, &no), "cudaMemPoolSetAttribute");
}

std::string left_by_world() { return {}; }

cudaError_t allocate_managed(void** out, std::size_t bytes) {
  return cudaMallocManaged(out, bytes, cudaMemAttachGlobal);
}

cudaError_t set_2d(void* address, std::size_t pitch, int value, std::size_t width, std::size_t height,
                   StreamArg stream) {
  return cudaMemset2DAsync(address, pitch, value, width, height, stream);
}

}  // namespace graphcache::test::differential
