#include "graph/write.h"

#include <utility>

#include "cuda/driver.h"
#include "graph/setter.h"
#include "setter_image.h"

namespace graphcache {

Setter::Setter(int device, std::shared_ptr<DeviceMemory> memory, cudaStreamCaptureMode mode)
    : device_(device),
      memory_(std::move(memory)),
      code_(setter_image, {setter::kSmallName, setter::kLargeName}),
      mode_(mode) {}

CallResult Setter::load(std::size_t bytes, Kernel* out) {
  DeviceCode<2>::Kernels kernels = {};
  const CallResult loaded = code_.load(&kernels);
  if (loaded.error != cudaSuccess) return loaded;
  const cudaKernel_t kernel = kernels[bytes <= setter::kSmall ? 0 : 1];
  out->symbol = reinterpret_cast<const void*>(kernel);
  out->function = function_of_library(out->symbol);
  return {};
}

}  // namespace graphcache
