// Hits: what a cache shares with its steps, and how a hit launches.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/this_thread.h"
#include "graph/recording.h"
#include "store/hot_entry.h"

namespace graphcache {

class Cache;

namespace detail {

// The state that a cache shares with its steps, which may outlive the cache.
struct Hits {
  std::atomic<Cache*> cache{nullptr};  // Null once the cache has been destroyed.
  // A device-side error of an evicted executable. Until the first run, and in caches whose hits need more than a
  // launch, a value that is never cudaSuccess.
  static inline const std::atomic<cudaError_t> kUnusual{cudaErrorUnknown};
  std::atomic<const std::atomic<cudaError_t>*> late_error{&kUnusual};
  std::atomic<std::uint64_t> epoch{1};  // Grows with each run that is not a hit.

  // A run is sampled if the upper bits of a product are all set, as many as Audience::hits_mask() has. By the lower
  // bits of its number, one of two caches that a program runs in turn would have no sample.
  static constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
  std::uint64_t hits_skipped = 0;  // The bits that do not count.
  bool is_sampled() const { return (this_thread.uses * kGolden | hits_skipped) == UINT64_MAX; }

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
    return cudaSuccess;
  }
};

}  // namespace detail
}  // namespace graphcache
