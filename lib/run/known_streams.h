// The streams that are known to belong to a cache's device. Thread-safe, without a lock.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace graphcache {

// A stream may be forgotten for another one; it is checked again at its next run. So handles of destroyed streams do
// not accumulate.
class KnownStreams {
 public:
  bool contains(cudaStream_t stream) const { return places_[number(stream)].load(std::memory_order_relaxed) == stream; }
  void insert(cudaStream_t stream) { places_[number(stream)].store(stream, std::memory_order_relaxed); }
  void erase(cudaStream_t stream) {
    places_[number(stream)].compare_exchange_strong(stream, nullptr, std::memory_order_relaxed);
  }
  void clear() {
    for (auto& place : places_) place.store(nullptr, std::memory_order_relaxed);
  }

 private:
  static constexpr int kBits = 12;  // Two of 64 streams seldom have one place.

  static std::size_t number(cudaStream_t stream) {
    return reinterpret_cast<std::uintptr_t>(stream) * 0x9e3779b97f4a7c15u >> (64 - kBits);
  }

  std::array<std::atomic<cudaStream_t>, std::size_t{1} << kBits> places_{};
};

}  // namespace graphcache
