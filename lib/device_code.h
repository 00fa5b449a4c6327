// The device code that is part of the library (updater.cu, setter.cu), and what is asked of a kernel before it may
// write to it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>

#include "compat.h"
#include "device_memory.h"
#include "errors.h"
#include "graph.h"
#include "mutex.h"

namespace graphcache {

// Kernels of an embedded image, loaded at the first use. Thread-safe.
template <std::size_t kCount>
class DeviceCode {
 public:
  using Names = std::array<const char*, kCount>;
  using Kernels = std::array<cudaKernel_t, kCount>;

  DeviceCode(const unsigned char* image, const Names& names) : image_(image), names_(names) {}

  CallResult load(Kernels* out) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    const CallResult done = library_ == nullptr ? load() : CallResult{};
    *out = kernels_;
    return done;
  }
  // The loaded code, to be held by what runs it. Unloading waits for launches of it (tried).
  std::shared_ptr<void> code() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return library_;
  }
  // After a fatal error: drops the handles.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (library_ != nullptr) library_->release();
  }

 private:
  using Library = Owned<cudaLibrary_t, cudaLibraryUnload>;

  CallResult load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LastErrorGuard last_error;
    RelaxedCaptureMode relaxed;
    cudaLibrary_t library = nullptr;
    const cudaError_t error = cudaLibraryLoadData(&library, image_, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error != cudaSuccess) return {"cudaLibraryLoadData", error, /*latches=*/false};
    auto loaded = std::make_shared<Library>(library);
    Kernels kernels = {};
    for (std::size_t i = 0; i < kCount; ++i) {
      if (const cudaError_t none = cudaLibraryGetKernel(&kernels[i], library, names_[i]); none != cudaSuccess) {
        if (is_fatal(none)) loaded->release();
        return {"cudaLibraryGetKernel", none, /*latches=*/false};
      }
    }
    library_ = std::move(loaded);
    kernels_ = kernels;
    return {};
  }

  const unsigned char* const image_;
  const Names names_;
  Mutex mutex_;
  std::shared_ptr<Library> library_ ABSL_GUARDED_BY(mutex_);
  Kernels kernels_ ABSL_GUARDED_BY(mutex_) = {};
};

// The updater's kernels, by the bytes of values that they take, and one that does nothing. One a cache. Thread-safe.
class Updater {
 public:
  enum Kernel : std::size_t { kSmall, kLarge, kHuge, kPlain, kCount };
  using Kernels = DeviceCode<kCount>::Kernels;

  explicit Updater(std::shared_ptr<DeviceMemory> memory);

  // A failure stays: what the driver refuses once is not offered again.
  CallResult load(Kernels* out) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (failed_.error == cudaSuccess) failed_ = code_.load(out);
    return failed_;
  }
  std::shared_ptr<void> code() { return code_.code(); }
  const std::shared_ptr<DeviceMemory>& memory() const { return memory_; }
  // Whether the device can set the grid of a kernel node; loaded before. It must not for kernels with clusters,
  // cooperative ones, and those that launch kernels themselves: other blocks would run than were set, without an error
  // (docs/semantics.md). `asked` holds what is known of the functions of one graph.
  using Asked = std::unordered_map<const void*, bool>;
  CallResult can_set_grid(cudaGraphNode_t node, Asked* asked, bool* can);
  // After a fatal error: drops the handles.
  void abandon() { code_.abandon(); }

 private:
  CallResult ask(const CUDA_KERNEL_NODE_PARAMS& params, bool* can);

  DeviceCode<kCount> code_;
  Mutex mutex_;
  CallResult failed_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<DeviceMemory> memory_;
};

// The kernels that write a value to device memory: of 16 bytes, and of 256. One a cache, of its device. Thread-safe.
class Setter {
 public:
  struct Kernel {
    const void* symbol = nullptr;   // As a launch takes it,
    CUfunction function = nullptr;  // and the driver; null if it cannot be had.
  };

  Setter(int device, std::shared_ptr<DeviceMemory> memory);

  int device() const { return device_; }
  // So many bytes. Its device is current.
  CallResult take(std::size_t bytes, DeviceMemory::Block* out);
  CallResult load(std::size_t bytes, Kernel* out);
  std::shared_ptr<void> code() { return code_.code(); }
  void abandon() { code_.abandon(); }

 private:
  const int device_;
  const std::shared_ptr<DeviceMemory> memory_;
  DeviceCode<2> code_;
};

}  // namespace graphcache
