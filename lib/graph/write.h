// The kernels of the library: those of Recorder::write() (setter.cu), of components and of updater nodes.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <utility>

#include "cuda/device_code.h"
#include "cuda/device_memory.h"
#include "cuda/mutex.h"

namespace graphcache {

// Each cache has one, for its device. Thread-safe.
class Setter {
 public:
  // `mode` is the mode of the cache's captures.
  Setter(int device, std::shared_ptr<DeviceMemory> memory, cudaStreamCaptureMode mode)
      : device_(device), memory_(std::move(memory)), mode_(mode) {}

  int device() const { return device_; }
  DeviceMemory& memory() { return *memory_; }
  cudaStreamCaptureMode mode() const { return mode_; }
  // The code of an embedded image.
  DeviceCode& code(const unsigned char* image) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return codes_.try_emplace(image, image).first->second;
  }
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    for (auto& [image, code] : codes_) code.abandon();
  }

 private:
  const int device_;
  const std::shared_ptr<DeviceMemory> memory_;
  const cudaStreamCaptureMode mode_;
  Mutex mutex_;
  std::map<const unsigned char*, DeviceCode> codes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace graphcache
