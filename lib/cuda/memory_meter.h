// Measures how much the device's free memory shrinks while executables are made and destroyed
// (Options::measure_device_bytes).
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/errors.h"
#include "cuda/handles.h"
#include "cuda/mutex.h"

namespace graphcache {

// Thread-safe. If spans of several threads overlap, the time from the begin of the first to the end of the last is
// measured once.
class MemoryMeter {
 public:
  MemoryMeter(bool is_on, int device) : is_on_(is_on), device_(device) {}

  class Span {
   public:
    explicit Span(MemoryMeter* meter) : meter_(meter != nullptr && meter->is_on_ ? meter : nullptr) {
      if (meter_ != nullptr) meter_->begin();
    }
    ~Span() {
      if (meter_ != nullptr) meter_->end();
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    MemoryMeter* const meter_;
  };

  // Never waits for a driver call.
  std::int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // Negative if unknown.
  std::int64_t free_bytes() const {
    const LastErrorGuard last_error;
    RelaxedCaptureMode relaxed;
    const DeviceGuard current(device_);
    std::size_t free = 0, total = 0;
    const bool is_known = current.result().error == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess;
    return is_known ? static_cast<std::int64_t>(free) : -1;
  }
  void begin() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (spans_++ == 0) free_before_ = free_bytes();
  }
  void end() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (--spans_ != 0) return;
    const std::int64_t free_after = free_bytes();
    if (free_before_ >= 0 && free_after >= 0) bytes_.fetch_add(free_before_ - free_after, std::memory_order_relaxed);
  }

  const bool is_on_;
  const int device_;
  Mutex mutex_;
  int spans_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t free_before_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<std::int64_t> bytes_{0};
};

}  // namespace graphcache
