// The kernels of the library: those of Recorder::write() (setter.cu), of components and of updater nodes.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <utility>

#include "cuda/device_memory.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "cuda/handles.h"
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
  // Finds a kernel of an embedded image, which is loaded at the first use. Whatever runs it must hold `code`. Unloading
  // waits for launches.
  CallResult find(const unsigned char* image, const char* name, cudaKernel_t* kernel, std::shared_ptr<void>* code)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    LastErrorGuard last_error;
    RelaxedCaptureMode relaxed;
    std::shared_ptr<Library>& library = libraries_[image];
    if (library == nullptr) library = std::make_shared<Library>();
    if (*library == nullptr) {
      CUlibrary made = nullptr;
      const cudaError_t error = driver().load_library(&made, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (error != cudaSuccess) return {"cuLibraryLoadData", error};
      library->reset(made);
    }
    *code = library;
    return {"cuLibraryGetKernel", driver().library_kernel(kernel, library->get(), name)};
  }
  // Drops the handles, because their context is lost.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    for (auto& [image, library] : libraries_) {
      if (library != nullptr) library->release();
    }
    libraries_.clear();
  }

 private:
  static cudaError_t unload(CUlibrary library) { return driver().unload_library(library); }
  using Library = Owned<CUlibrary, unload>;

  const int device_;
  const std::shared_ptr<DeviceMemory> memory_;
  const cudaStreamCaptureMode mode_;
  Mutex mutex_;
  std::map<const unsigned char*, std::shared_ptr<Library>> libraries_ ABSL_GUARDED_BY(mutex_);  // By their images.
};

}  // namespace graphcache
