// HotEntry: the part of an entry that a hit reads and writes.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace graphcache {

struct Entry;

namespace detail {

// A number that one thread at a time may write, while others read it.
class Counter {
 public:
  void operator=(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::uint64_t n) { *this = value() + n; }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// The lock of one entry, held from look-up to launch, and as long as the entry is free. A hit takes it by one atomic
// exchange, releases it by a store, and holds no other lock. A thread that finds it held waits on the cache's condition
// variable, under the cache's lock.
class RunLock {
 public:
  // Returns false if any thread holds it, including this one.
  bool try_lock() { return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire); }
  // Whether no thread holds it at this moment.
  bool is_free() const { return !held_.load(std::memory_order_relaxed); }
  // Requests that the holder wakes the waiting threads. Call it under the cache's lock. A holder that is just unlocking
  // may miss the request, so a waiting thread must look again after a while.
  void announce_wait() { awaited_.store(true, std::memory_order_seq_cst); }
  // Called by the holder, with or without the cache's lock. Returns true if threads wait: wake them under the cache's
  // lock.
  [[nodiscard]] bool unlock() {
    held_.store(false, std::memory_order_release);
    return awaited_.load(std::memory_order_relaxed) && awaited_.exchange(false, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> held_{true};
  std::atomic<bool> awaited_{false};
};

// The part of an entry that hits read and write. Its memory stays an entry's as long as the cache lives; it may serve
// several keys one after the other.
struct HotEntry {
  RunLock lock;
  // Whether look-ups no longer find it. It is free, or will be cleared once no run uses it.
  std::atomic<bool> erased{true};

  // The following are guarded by `lock`.
  std::uint64_t life = 0;  // The number of keys that it has served.
  // The executable, if a run on `ready_on` with the same values can launch it without further work; otherwise null.
  cudaGraphExec_t exec = nullptr;
  cudaStream_t ready_on = nullptr;
  const unsigned char* values = nullptr;  // The values that `exec` holds.

  // The following are written under `lock`, and may be read without it.
  Counter used_in;   // The epoch of the last use (policy.h, Use).
  Counter used_at;   // The thread's ThisThread::uses at the last use (policy.h, Use).
  Counter replayed;  // The number of kReplayed runs.

  // The following may be read without `lock`, whether the entry is in use, erased or free. Index writes them.
  std::atomic<std::size_t> tag{0};  // A hash of key and place, so equal entries have equal tags.
  std::atomic<Entry*> next_of_bucket{nullptr};

  // Whether launching `exec` is all that a run on this stream with these values needs.
  bool is_ready_for(cudaStream_t on, const unsigned char* wanted, std::size_t size) const {
    return exec != nullptr && ready_on == on && (size == 0 || std::memcmp(values, wanted, size) == 0);
  }
};

}  // namespace detail
}  // namespace graphcache
