// The device code that is part of the library (updater.cu), and what is asked of a kernel before it may write to it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "errors.h"
#include "graph.h"
#include "mutex.h"

namespace graphcache {

// Memory of head nodes. To free any would wait for all work of the device, which may wait for what the caller does
// next; and that a launch is over can only be guessed (retire.h). So what executables leave is kept until somebody may
// wait, or it is too much. Shared by a cache and its heads, which may outlive it. Thread-safe.
class HeadMemory {
 public:
  HeadMemory() = default;
  HeadMemory(const HeadMemory&) = delete;
  HeadMemory& operator=(const HeadMemory&) = delete;
  ~HeadMemory();

  CallResult take(std::size_t bytes, void** out) ABSL_LOCKS_EXCLUDED(mutex_);
  // A word of the host's memory that the device can write. Each is used once.
  CallResult take_word(int** out) ABSL_LOCKS_EXCLUDED(mutex_);
  // A launch that uses it may be in flight.
  void give(void* block) noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees what was given. Waits for the device.
  void trim() ABSL_LOCKS_EXCLUDED(mutex_);
  // After a fatal error: drops the handles.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // So many blocks wait for a trim() before a run has to do it after all.
  static constexpr std::size_t kMaxWaiting = 256;
  static constexpr std::size_t kWords = 512;

  Mutex mutex_;
  std::vector<void*> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> pages_ ABSL_GUARDED_BY(mutex_);         // Of words,
  std::size_t used_words_ ABSL_GUARDED_BY(mutex_) = kWords;  // and how many of the last one are in use.
};

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
  const std::shared_ptr<HeadMemory>& memory() const { return memory_; }
  // The loaded code, for as long as an executable runs it.
  std::shared_ptr<void> code() ABSL_LOCKS_EXCLUDED(mutex_);
  // After a fatal error: drops the handles.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  CallResult ask(const CUDA_KERNEL_NODE_PARAMS& params, bool* plain) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  using Library = Owned<cudaLibrary_t, cudaLibraryUnload>;
  std::shared_ptr<Library> library_ ABSL_GUARDED_BY(mutex_);
  Kernels kernels_ ABSL_GUARDED_BY(mutex_);
  CallResult failed_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<HeadMemory> memory_ = std::make_shared<HeadMemory>();
  const std::shared_ptr<std::atomic<int>> late_error_ = std::make_shared<std::atomic<int>>(cudaSuccess);
  std::unordered_map<const void*, bool> is_plain_ ABSL_GUARDED_BY(mutex_);  // By the function.
};

}  // namespace graphcache
