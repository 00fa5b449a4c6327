// What a hit needs, so that a prepared step (step.h) can make one without a call into the library. Not for users.
#pragma once

#include <absl/base/attributes.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "graphcache/stats.h"

namespace graphcache {

class Cache;
namespace detail {
class Recording;
}
// The recording whose capture this thread is inside of, or null. A run made inside it must know without launching: a
// launch into a capturing stream is refused and breaks the capture (docs/semantics.md). Visible, as is what follows, so
// that a program has one, whatever its parts are compiled with.
[[gnu::visibility("default")]] ABSL_CONST_INIT inline thread_local detail::Recording* active_recording = nullptr;

namespace detail {

struct ThisThread {
  // Threads that live at the same time have different numbers, from 1, as long as they are few: a number is given again
  // when its thread has ended. Others have kMany.
  static constexpr unsigned kMany = 64;
  unsigned number = 0;     // 0: none yet.
  std::uint64_t uses = 0;  // Runs of all caches.

  static unsigned take_number();
};
[[gnu::visibility("default")]] ABSL_CONST_INIT inline thread_local ThisThread this_thread;

// A number that one thread at a time writes, and that others may read at any time.
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

// The lock of one entry, held from look-up to launch. A hit takes it by one atomic exchange, gives it back by a store,
// and holds no other lock. Who finds it held waits under the cache's lock, by the cache's condition variable.
class RunLock {
 public:
  // Begins held, if that is asked for.
  explicit RunLock(bool held = false) : held_(held) {}

  // False if somebody holds it, this thread included.
  bool try_lock() { return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire); }
  // Whether nobody holds it at this moment.
  bool is_free() const { return !held_.load(std::memory_order_relaxed); }
  // Asks the holder, under the cache's lock, to wake those who wait. A holder that is just unlocking may not see it, so
  // who waits looks again after a while.
  void announce_wait() { awaited_.store(true, std::memory_order_seq_cst); }
  // By the holder, with or without the cache's lock. True if somebody waits: wake them under the cache's lock.
  [[nodiscard]] bool unlock() {
    held_.store(false, std::memory_order_release);
    return awaited_.load(std::memory_order_relaxed) && awaited_.exchange(false, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> held_;
  std::atomic<bool> awaited_{false};
};

// What an entry of the cache has that hits read and write. Its memory is an entry's as long as the cache lives.
struct HotEntry {
  explicit HotEntry(bool held) : lock(held) {}

  RunLock lock;
  std::atomic<bool> erased{false};  // No longer found: deleted once it is idle, or free already.
  // Guarded by `lock`:
  std::uint64_t life = 0;          // How many keys it has served.
  cudaGraphExec_t exec = nullptr;  // Launched as it is on `ready_on`, if it holds the run's values: else null.
  cudaStream_t ready_on = nullptr;
  const unsigned char* values = nullptr;  // That `exec` holds.
  // Written under `lock`. When it was used last (policy.h, Use):
  Counter used_in;
  Counter used_at;
  Counter replayed;

  bool is_ready_for(cudaStream_t on, const unsigned char* wanted, std::size_t size) const {
    return exec != nullptr && ready_on == on && (size == 0 || std::memcmp(values, wanted, size) == 0);
  }
};

// What all runs of a cache came to, counted without its lock, so that nobody has to add up the entries' counts.
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
  // One for each thread, which adds to it without an atomic exchange, and one for those that are too many.
  struct alignas(128) Stripe {
    std::array<std::atomic<std::uint64_t>, kOutcomeCount + 1> counts{};
  };

  void add(std::size_t which, std::uint64_t n) {
    unsigned number = this_thread.number;
    if (number == 0) number = ThisThread::take_number();
    std::atomic<std::uint64_t>& count = stripes_[number].counts[which];
    if (number == ThisThread::kMany) {
      count.fetch_add(n, std::memory_order_relaxed);
    } else {
      count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
  }

  std::array<Stripe, ThisThread::kMany + 1> stripes_;
};

// What a cache shares with its steps, which may outlive it.
struct Hits {
  std::atomic<Cache*> cache{nullptr};            // Null when the cache has ended.
  const std::atomic<int>* late_error = nullptr;  // Of the device, in an executable that has been evicted.
  std::atomic<std::uint64_t> epoch{1};           // How many runs were no hits until now.
  RunCounts counts;

  // Which of a thread's runs are timed (Options::time_hits): those whose number ends with these bits.
  static constexpr std::uint64_t kSampleMask = 1023, kNeverSampled = kSampleMask + 1;
  std::uint64_t sampled_at = kNeverSampled;
  bool is_sampled() const { return (this_thread.uses & kSampleMask) == sampled_at; }

  // Whether this thread may make a hit now by launching what an entry is ready for.
  bool are_usual() const {
    return active_recording == nullptr && late_error->load(std::memory_order_relaxed) == cudaSuccess && !is_sampled();
  }
  // Of an entry that is_ready_for() the run, whose lock is held, and stays so.
  cudaError_t launch(HotEntry& entry) {
    if (const cudaError_t error = cudaGraphLaunch(entry.exec, entry.ready_on); error != cudaSuccess) return error;
    // A store less, which the next lock need not wait for.
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
