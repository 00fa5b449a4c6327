// Device code that is embedded in the library.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "cuda/driver.h"
#include "cuda/errors.h"
#include "cuda/handles.h"
#include "cuda/mutex.h"

namespace graphcache {

// An embedded image, which is loaded at the first use. Thread-safe.
class DeviceCode {
 public:
  explicit DeviceCode(const unsigned char* image) : image_(image) {}

  // Finds a kernel by its name. Whatever runs it must hold `code`. Unloading waits for launches.
  CallResult find(const char* name, cudaKernel_t* kernel, std::shared_ptr<void>* code) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    LastErrorGuard last_error;
    RelaxedCaptureMode relaxed;
    if (library_ == nullptr) {
      auto loaded = std::make_shared<Library>();
      CUlibrary library = nullptr;
      const CUresult result = driver().load_library(&library, image_, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (result != CUDA_SUCCESS) return {"cuLibraryLoadData", static_cast<cudaError_t>(result), /*latches=*/false};
      loaded->reset(library);
      library_ = std::move(loaded);
    }
    *code = library_;
    const CUresult result = driver().library_kernel(kernel, library_->get(), name);
    return {"cuLibraryGetKernel", static_cast<cudaError_t>(result), /*latches=*/false};
  }
  // Drops the handles, because their context is lost.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (library_ != nullptr) library_->release();
    library_ = nullptr;
  }

 private:
  static cudaError_t unload(CUlibrary library) { return static_cast<cudaError_t>(driver().unload_library(library)); }
  using Library = Owned<CUlibrary, unload>;

  const unsigned char* const image_;
  Mutex mutex_;
  std::shared_ptr<Library> library_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace graphcache
