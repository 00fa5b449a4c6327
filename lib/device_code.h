// The device code that is part of the library (updater.cu), and what is asked of a kernel before it may write to it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <unordered_map>

#include "errors.h"
#include "graph.h"
#include "mutex.h"

namespace graphcache {

// The updater's kernels, loaded at the first use. One a cache. Thread-safe.
class Updater {
 public:
  struct Kernels {
    cudaKernel_t small = nullptr;
    cudaKernel_t large = nullptr;
    cudaKernel_t plain = nullptr;
  };

  // A failure stays: a device binary that the driver refuses once is not offered again.
  CallResult load(Kernels* out) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the device can set the grid of a kernel node. It must not for kernels with clusters, cooperative ones, and
  // those that launch kernels themselves: other blocks would run than were set, without an error (docs/semantics.md).
  CallResult can_set_grid(cudaGraphNode_t node, bool* can) ABSL_LOCKS_EXCLUDED(mutex_);
  // What the heads of executables that are gone had to tell, and nobody was told.
  cudaError_t take_late_error() { return static_cast<cudaError_t>(late_error_->exchange(cudaSuccess)); }
  const std::shared_ptr<std::atomic<int>>& late_error() const { return late_error_; }
  // After a fatal error: drops the handles.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  CallResult ask(const CUDA_KERNEL_NODE_PARAMS& params, bool* plain) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  Owned<cudaLibrary_t, cudaLibraryUnload> library_ ABSL_GUARDED_BY(mutex_);
  Kernels kernels_ ABSL_GUARDED_BY(mutex_);
  CallResult failed_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<std::atomic<int>> late_error_ = std::make_shared<std::atomic<int>>(cudaSuccess);
  std::unordered_map<const void*, bool> is_plain_ ABSL_GUARDED_BY(mutex_);  // By the function.
};

}  // namespace graphcache
