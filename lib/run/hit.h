// HotEntry and Hits: the data that a hit reads and writes.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/this_thread.h"
#include "graph/recording.h"
#include "graphcache/stats.h"

namespace graphcache {

class Cache;

namespace detail {

// A number that one thread at a time may write, while others read it.
class Counter {
 public:
  Counter(std::uint64_t value = 0) : value_(value) {}  // NOLINT(google-explicit-constructor): it is a number.
  Counter(const Counter& other) : value_(other.value()) {}
  Counter& operator=(const Counter& other) {
    value_.store(other.value(), std::memory_order_relaxed);
    return *this;
  }
  void add(std::uint64_t n) { *this = value() + n; }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_;
};

// The lock of one entry, held from look-up to launch. A hit takes it by one atomic exchange, releases it by a store,
// and holds no other lock. A thread that finds it held waits on the cache's condition variable, under the cache's lock.
class RunLock {
 public:
  // `held` is the initial state.
  explicit RunLock(bool held = false) : held_(held) {}

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
  std::atomic<bool> held_;
  std::atomic<bool> awaited_{false};
};

// The part of an entry that hits read and write. Its memory stays an entry's as long as the cache lives; it may serve
// several keys one after the other.
struct HotEntry {
  explicit HotEntry(bool held) : lock(held) {}

  RunLock lock;
  // Whether look-ups no longer find it. It is free, or will be cleared once no run uses it.
  std::atomic<bool> erased{false};

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

  // Whether launching `exec` is all that a run on this stream with these values needs.
  bool is_ready_for(cudaStream_t on, const unsigned char* wanted, std::size_t size) const {
    return exec != nullptr && ready_on == on && (size == 0 || std::memcmp(values, wanted, size) == 0);
  }
};

// Counts the outcomes of all runs of a cache without its lock. So stats() need not walk over the entries.
class RunCounts {
 public:
  void add(Outcome outcome) { add(static_cast<std::size_t>(outcome), 1); }
  void add_patched_nodes(std::uint64_t nodes) { add(kOutcomeCount, nodes); }

  void add_to(Stats& stats) const {
    for (const Stripe& stripe : stripes_) {
      for (int i = 0; i < kOutcomeCount; ++i) stats.outcomes[i] += stripe.counts[i].load(std::memory_order_relaxed);
      stats.patched_nodes += stripe.counts[kOutcomeCount].load(std::memory_order_relaxed);
    }
  }

 private:
  // The counts of one thread, which adds to them without an atomic exchange. The last stripe serves all threads with
  // the number kMany.
  struct alignas(128) Stripe {
    std::array<std::atomic<std::uint64_t>, kOutcomeCount + 1> counts{};
  };

  void add(std::size_t which, std::uint64_t n) {
    const unsigned number = number_of_this_thread();
    std::atomic<std::uint64_t>& count = stripes_[number].counts[which];
    if (number == ThisThread::kMany) {
      count.fetch_add(n, std::memory_order_relaxed);
    } else {
      count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
  }

  std::array<Stripe, ThisThread::kMany + 1> stripes_;
};

// The state that a cache shares with its steps, which may outlive the cache.
struct Hits {
  std::atomic<Cache*> cache{nullptr};  // Null once the cache has been destroyed.
  // A device-side error of an evicted executable. Until the first run, and in caches whose hits need more than a
  // launch, a value that is never cudaSuccess.
  static inline const std::atomic<int> kUnusual{-1};
  std::atomic<const std::atomic<int>*> late_error{&kUnusual};
  std::atomic<std::uint64_t> epoch{1};  // Grows with each run that is not a hit.
  RunCounts counts;

  // The complement of Audience::hits_mask(): with it, a sampled number of runs has all bits set.
  std::uint64_t hits_skipped = 0;
  bool is_sampled() const { return (this_thread.uses | hits_skipped) == UINT64_MAX; }

  // Whether this thread may make a hit by a mere launch now. If not, the run takes the way through the library.
  bool are_usual() const {
    return active_recording == nullptr &&
           late_error.load(std::memory_order_acquire)->load(std::memory_order_relaxed) == cudaSuccess && !is_sampled();
  }
  // Launches an entry that is_ready_for() the run. The caller holds the entry's lock before and after.
  cudaError_t launch(HotEntry& entry) {
    if (const cudaError_t error = cudaGraphLaunch(entry.exec, entry.ready_on); error != cudaSuccess) return error;
    // Skipping an unneeded store is cheaper, because the next atomic exchange of a lock waits for stores.
    if (const std::uint64_t now = epoch.load(std::memory_order_relaxed); entry.used_in.value() != now)
      entry.used_in = now;
    entry.used_at = ++this_thread.uses;
    entry.replayed.add(1);
    counts.add(Outcome::kReplayed);
    return cudaSuccess;
  }
};

}  // namespace detail
}  // namespace graphcache
