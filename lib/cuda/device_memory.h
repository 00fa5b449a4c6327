// Device memory that launches use in addition to the caller's: for updater nodes and their sets, for values that
// kernels read through pointers, and for copies and sets of 0 bytes.
//
// A block comes back once no launch needs it, because its owners are executables and what graphs keep
// (exec/graveyard.h). It is then used again. Freeing device memory would wait for all work of the device, and that work
// may wait for what the caller does next. All copies to blocks are on one stream, so they follow each other.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "cuda/errors.h"
#include "cuda/handles.h"
#include "cuda/mutex.h"

namespace graphcache {

// Where a device number is expected, these stand for host memory, pageable memory, and memory that was not asked for.
inline constexpr int kHostMemory = -1, kPageableMemory = -2, kUnknownMemory = -3;

// Shared by a cache and the blocks that it has taken, which may outlive the cache. Thread-safe.
class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  // Comes back with its last owner.
  using Block = std::shared_ptr<void>;

  std::atomic<cudaError_t> late_error{cudaSuccess};  // Of a launch whose executable is gone.

  explicit DeviceMemory(int device, bool has_other_devices = true)
      : device_(device), has_other_devices_(has_other_devices) {}
  ~DeviceMemory();

  // How much take() takes for so many bytes: a power of two, so that few sizes differ.
  static std::size_t taken(std::size_t bytes) { return std::bit_ceil(std::max(bytes, kLeast)); }
  // Takes memory of the current device, or host memory that it can write to.
  CallResult take(std::size_t bytes, Block* out, bool of_host = false) ABSL_LOCKS_EXCLUDED(mutex_);

  // Two bytes of a device or of the host (negative), which are the same at each call. Copies and sets of 0 bytes
  // write one byte there instead (docs/semantics.md). Disabling such nodes would be wrong: a disabled set does not
  // order what follows it after what precedes it (docs/semantics.md).
  CallResult scratch(int device, unsigned char** out) ABSL_LOCKS_EXCLUDED(mutex_);

  // The stream of copies, and of warm()'s uploads: the caller's may be busy for long. It is of the device that was
  // current at the first call.
  CallResult stream(cudaStream_t* out) ABSL_LOCKS_EXCLUDED(mutex_);
  // Enqueues a copy to a block, and marks its end by an event, which it makes if there is none. The bytes may be gone
  // when it returns.
  CallResult copy(void* to, const void* from, std::size_t bytes, Event* end);

  // Whether memory may be of another device.
  bool has_other_devices() const { return has_other_devices_; }

  // Frees what has come back, and waits for the device.
  void trim() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops everything that has been taken so far, because its context is lost.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr std::size_t kLeast = 512;  // CUDA takes no less.

  struct Piece {
    void* at = nullptr;
    std::size_t bytes = 0;
    bool of_host = false;
    bool is_lost = false;       // Whether its context is.
    std::uint64_t context = 0;  // Its id, of scratch memory of another device.
  };
  using Pieces = std::list<Piece>;

  static CallResult allocate(Piece* piece);
  static void free(const Piece& piece);
  bool is_far(int device) const { return device != kHostMemory && device != device_; }
  void give(Pieces::iterator piece) noexcept ABSL_LOCKS_EXCLUDED(mutex_);

  const int device_;
  const bool has_other_devices_;
  Mutex mutex_;
  OwnedStream stream_ ABSL_GUARDED_BY(mutex_);  // Made at its first use.
  Pieces free_ ABSL_GUARDED_BY(mutex_), taken_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int, Piece> scratch_ ABSL_GUARDED_BY(mutex_);  // Keyed by device.
};

}  // namespace graphcache
