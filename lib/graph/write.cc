#include "graph/write.h"

#include <utility>

#include "graph/setter.h"
#include "setter_image.h"

namespace graphcache {

Setter::Setter(int device, std::shared_ptr<DeviceMemory> memory, cudaStreamCaptureMode mode)
    : device_(device),
      memory_(std::move(memory)),
      code_(setter_image, {setter::kSmallName, setter::kLargeName}),
      mode_(mode) {}

CallResult Setter::load(std::size_t bytes, cudaKernel_t* out) {
  DeviceCode<2>::Kernels kernels = {};
  const CallResult loaded = code_.load(&kernels);
  *out = kernels[bytes <= setter::kSmall ? 0 : 1];
  return loaded;
}

}  // namespace graphcache
