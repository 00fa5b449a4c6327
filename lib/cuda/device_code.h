// Device code that is embedded in the library.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "cuda/handles.h"
#include "cuda/mutex.h"

namespace graphcache {

// The kernels of an embedded image, which is loaded at the first use. Thread-safe.
template <std::size_t kCount>
class DeviceCode {
 public:
  using Names = std::array<const char*, kCount>;
  using Kernels = std::array<cudaKernel_t, kCount>;

  DeviceCode(const unsigned char* image, const Names& names) : image_(image), names_(names) {}

  // Whatever runs the kernels must hold `code`. Unloading waits for launches.
  CallResult load(Kernels* out, std::shared_ptr<void>* code) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (library_ == nullptr) {
      LastErrorGuard last_error;
      RelaxedCaptureMode relaxed;
      cudaLibrary_t library = nullptr;
      const cudaError_t error = cudaLibraryLoadData(&library, image_, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (error != cudaSuccess) return {"cudaLibraryLoadData", error, /*latches=*/false};
      auto loaded = std::make_shared<Library>(library);
      for (std::size_t i = 0; i < kCount; ++i) {
        if (const cudaError_t none = cudaLibraryGetKernel(&kernels_[i], library, names_[i]); none != cudaSuccess) {
          if (is_fatal(none)) loaded->release();
          return {"cudaLibraryGetKernel", none, /*latches=*/false};
        }
      }
      library_ = std::move(loaded);
    }
    *out = kernels_;
    *code = library_;
    return {};
  }
  // Drops the handles, because their context is lost.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (library_ != nullptr) library_->release();
    library_ = nullptr;
  }

 private:
  using Library = Owned<cudaLibrary_t, cudaLibraryUnload>;

  const unsigned char* const image_;
  const Names names_;
  Mutex mutex_;
  std::shared_ptr<Library> library_ ABSL_GUARDED_BY(mutex_);
  Kernels kernels_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace graphcache
