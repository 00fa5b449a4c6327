// What the recorder enqueues by itself: for Recorder::on_device() (setter.cu), and for conditional nodes.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "cuda/device_code.h"
#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "graph/conditional.h"

namespace graphcache {

// The kernels that write a value to device memory: of 16 bytes, and of 256. One a cache, of its device. Thread-safe.
class Setter {
 public:
  struct Kernel {
    const void* symbol = nullptr;   // The kernel for launches by the runtime.
    CUfunction function = nullptr;  // The kernel for calls of the driver; null if the driver does not report it.
  };

  // Captures are made in that mode.
  Setter(int device, std::shared_ptr<DeviceMemory> memory, cudaStreamCaptureMode mode);

  int device() const { return device_; }
  // So many bytes. Its device is current.
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
