// The kernels of Recorder::write() (setter.cu).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/device_code.h"
#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "cuda/mutex.h"

namespace graphcache {

// What other calls of a recorder need for each cache, such as the kernels of conditional nodes.
class Component {
 public:
  virtual ~Component() = default;
  virtual void abandon() = 0;
};

// The kernels that write a value of up to 16 or up to 256 bytes to device memory. Each cache has one, for its device.
// Thread-safe.
class Setter {
 public:
  // `mode` is the mode of the cache's captures.
  Setter(int device, std::shared_ptr<DeviceMemory> memory, cudaStreamCaptureMode mode);

  int device() const { return device_; }
  // The kernel for small values, and that for large ones.
  DeviceCode<2>& code() { return code_; }
  // Made by the first call. There is one type of them.
  template <class T>
  T& component() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (component_ == nullptr) component_ = std::make_unique<T>(mode_, memory_);
    return static_cast<T&>(*component_);
  }
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    code_.abandon();
    MutexLock lock(mutex_);
    if (component_ != nullptr) component_->abandon();
  }

 private:
  const int device_;
  const std::shared_ptr<DeviceMemory> memory_;
  DeviceCode<2> code_;
  const cudaStreamCaptureMode mode_;
  Mutex mutex_;
  std::unique_ptr<Component> component_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace graphcache
