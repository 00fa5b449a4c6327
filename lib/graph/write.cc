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

}  // namespace graphcache
