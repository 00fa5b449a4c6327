// Device memory that launches use in addition to the caller's: for updater nodes and their sets, and for values that
// kernels read through pointers.
//
// Freed blocks are kept until it is safe to block (erase, clear, destruction), or until 16 MiB have accumulated. They
// are never reused. The reason is that CUDA gives no notification when the last launch that uses a block has finished.
// An event would need the stream, which may be gone, and a user object of the graph would make every launch slower
// (docs/semantics.md). Freeing device memory blocks until all work of the device is done, and that work may wait for
// what the caller does next.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "cuda/handles.h"
#include "cuda/mutex.h"

namespace graphcache {

// Shared by a cache and the blocks that it has returned, which may outlive the cache. Thread-safe.
class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  // Freed with its last owner, even while a launch that uses it is in flight.
  using Block = std::shared_ptr<void>;

  explicit DeviceMemory(int device) : device_(device) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  // Allocates memory of the current device.
  CallResult take(std::size_t bytes, Block* out) ABSL_LOCKS_EXCLUDED(mutex_);
  // A word of host memory in which the device can store an error. If nobody reads the error, take_late_error() returns
  // it.
  CallResult take_error_word(Block* out) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for all work of the device, as cudaFree does. That does not break captures, while cudaDeviceSynchronize may
  // (docs/semantics.md).
  CallResult wait() const;
  // Waits for the device, and then releases freed blocks and makes freed words available again.
  void trim() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether anything has been freed, or more than may accumulate.
  bool has_freed(bool much) ABSL_LOCKS_EXCLUDED(mutex_);
  void tell_late(cudaError_t error) { late_error_ = error; }
  const std::atomic<int>& late_error() const { return late_error_; }
  bool has_late_error() const { return late_error_.load(std::memory_order_relaxed) != cudaSuccess; }
  // The error that a launch has stored in a freed word.
  cudaError_t take_late_error() { return static_cast<cudaError_t>(late_error_.exchange(cudaSuccess)); }
  // Drops everything that has been taken so far, because its context is lost.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr std::size_t kMaxWaiting = std::size_t{16} << 20;
  static constexpr std::size_t kWords = 512;  // Number of words in a page.
  // The minimum that a block counts, because each block takes a call to free.
  static constexpr std::size_t kLeast = 4096;

  struct Waiting {
    void* at = nullptr;
    std::size_t bytes = 0;  // What the block counts towards kMaxWaiting.
    bool is_word = false;
    int context = 0;  // Number of the contexts that were lost before it was taken.
    Waiting* next = nullptr;
  };

  void own(std::unique_ptr<Waiting> block, Block* out) ABSL_LOCKS_EXCLUDED(mutex_);
  void give(Waiting* block) noexcept ABSL_LOCKS_EXCLUDED(mutex_);

  const int device_;
  Mutex mutex_;
  Waiting* waiting_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<void*> pages_ ABSL_GUARDED_BY(mutex_);  // The pages of words.
  std::vector<int*> words_ ABSL_GUARDED_BY(mutex_);   // The free words. Its capacity suffices for all words.
  int lost_contexts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int> late_error_{cudaSuccess};
};

}  // namespace graphcache
