// The streams that are known to belong to a cache's device. Thread-safe, without a lock.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace graphcache {

// Forgets some streams when there are many; they are checked again at their next run. So handles of destroyed streams
// do not accumulate.
class KnownStreams {
 public:
  bool contains(cudaStream_t stream) const {
    const Set& set = sets_[number(stream)];
    return std::any_of(set.begin(), set.end(),
                       [&](const Place& place) { return place.load(std::memory_order_relaxed) == stream; });
  }
  void insert(cudaStream_t stream) {
    if (contains(stream)) return;
    Set& set = sets_[number(stream)];
    for (Place& place : set) {
      cudaStream_t none = nullptr;
      if (place.compare_exchange_strong(none, stream, std::memory_order_relaxed)) return;
    }
    set[next_.fetch_add(1, std::memory_order_relaxed) % kWays].store(stream, std::memory_order_relaxed);
  }
  void erase(cudaStream_t stream) {
    for (Place& place : sets_[number(stream)]) {
      cudaStream_t wanted = stream;
      place.compare_exchange_strong(wanted, nullptr, std::memory_order_relaxed);
    }
  }
  void clear() {
    for (Set& set : sets_) {
      for (Place& place : set) place.store(nullptr, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr int kBits = 6;
  static constexpr std::size_t kWays = 8;  // A cache line.
  using Place = std::atomic<cudaStream_t>;
  using Set = std::array<Place, kWays>;

  static std::size_t number(cudaStream_t stream) {
    return reinterpret_cast<std::uintptr_t>(stream) * 0x9e3779b97f4a7c15u >> (64 - kBits);
  }

  std::array<Set, std::size_t{1} << kBits> sets_{};
  std::atomic<unsigned> next_{0};
};

}  // namespace graphcache
