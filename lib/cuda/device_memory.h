// Memory that launches use beside the caller's: of updater nodes and their sets, and of values that kernels read
// through pointers.
//
// Freed blocks are kept until it is safe to block (erase, clear, destruction), or until 16 MiB have accumulated. They
// are never reused. The reason is that CUDA gives no notification when the last launch that uses a block has finished.
// An event would need the stream, which may be gone, and a user object of the graph would make every launch slower
// (docs/design.md). Freeing device memory blocks until all work of the device is done, and that work may wait for what
// the caller does next.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "cuda/handles.h"
#include "cuda/mutex.h"

namespace graphcache {

// Shared by a cache and what it has given, which may outlive it. Thread-safe.
class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  // Given back when nobody holds it any more; a launch that uses it may be in flight then.
  using Block = std::shared_ptr<void>;

  explicit DeviceMemory(int device) : device_(device) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  // So many bytes of the device, which is the current one.
  CallResult take(std::size_t bytes, Block* out) ABSL_LOCKS_EXCLUDED(mutex_);
  // A word of the host's that the device can write: an error, for take_late_error() if nobody else reads it.
  CallResult take_error_word(Block* out) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for all work of the device, as cudaFree does, which does not break captures, while cudaDeviceSynchronize may
  // (docs/semantics.md).
  CallResult wait() const;
  // Frees what was given back, or of words makes it free for others. Waits for the device.
  void trim() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, if it is more than may wait.
  void trim_if_much() ABSL_LOCKS_EXCLUDED(mutex_);
  void tell_late(cudaError_t error) { late_error_ = error; }
  const std::atomic<int>& late_error() const { return late_error_; }
  bool has_late_error() const { return late_error_.load(std::memory_order_relaxed) != cudaSuccess; }
  // What launches have written to words that were given back.
  cudaError_t take_late_error() { return static_cast<cudaError_t>(late_error_.exchange(cudaSuccess)); }
  // Of a cache that ends inside a capture: what launches in flight may need is let go with the memory.
  void keep(std::list<std::shared_ptr<void>> owners) { kept_ = std::move(owners); }
  // After a fatal error: drops what was given back, and what still will be.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr std::size_t kMaxWaiting = std::size_t{16} << 20;
  static constexpr std::size_t kWords = 512;   // In a page.
  static constexpr std::size_t kLeast = 4096;  // A small block counts as so much, since each takes a call to free.

  struct Waiting {
    void* at = nullptr;
    std::size_t bytes = 0;  // What it counts as.
    bool is_word = false;
    Waiting* next = nullptr;
  };

  void own(std::unique_ptr<Waiting> block, Block* out);
  void give(Waiting* block) noexcept ABSL_LOCKS_EXCLUDED(mutex_);

  const int device_;
  Mutex mutex_;
  Waiting* waiting_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<void*> pages_ ABSL_GUARDED_BY(mutex_);  // The pages of words.
  std::vector<int*> words_ ABSL_GUARDED_BY(mutex_);   // The free words. There is room for all.
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int> late_error_{cudaSuccess};
  std::list<std::shared_ptr<void>> kept_;
};

}  // namespace graphcache
