// The kernels that the recorder itself enqueues: for Recorder::on_device() (setter.cu) and for conditional nodes.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "cuda/device_code.h"
#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "graph/conditional.h"

namespace graphcache {

// The kernels that write a value of up to 16 or up to 256 bytes to device memory. Each cache has one, for its device.
// Thread-safe.
class Setter {
 public:
  struct Kernel {
    const void* symbol = nullptr;   // The kernel for runtime launches.
    CUfunction function = nullptr;  // The kernel for driver calls, or null if the driver does not report it.
  };

  // `mode` is the mode of the cache's captures.
  Setter(int device, std::shared_ptr<DeviceMemory> memory, cudaStreamCaptureMode mode);

  int device() const { return device_; }
  // Allocates `bytes` bytes. REQUIRES: the setter's device is current.
  CallResult take(std::size_t bytes, DeviceMemory::Block* out);
  CallResult load(std::size_t bytes, Kernel* out);
  std::shared_ptr<void> code() { return code_.code(); }
  Conditions& conditions() { return conditions_; }
  void abandon() {
    code_.abandon();
    conditions_.abandon();
  }

 private:
  const int device_;
  const std::shared_ptr<DeviceMemory> memory_;
  DeviceCode<2> code_;
  Conditions conditions_;
};

}  // namespace graphcache
