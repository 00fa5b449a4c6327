// Streams that were found to be of a cache's device. Thread-safe, without a lock.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace graphcache {

// It forgets one that shares its place with another: then it is checked again. So handles of streams that are gone do
// not collect here.
class KnownStreams {
 public:
  bool contains(cudaStream_t stream) const { return place(stream).load(std::memory_order_relaxed) == stream; }
  void insert(cudaStream_t stream) { place(stream).store(stream, std::memory_order_relaxed); }
  void erase(cudaStream_t stream) { place(stream).compare_exchange_strong(stream, nullptr, std::memory_order_relaxed); }

 private:
  static constexpr int kBits = 8;

  static std::size_t number(cudaStream_t stream) {
    return reinterpret_cast<std::uintptr_t>(stream) * 0x9e3779b97f4a7c15u >> (64 - kBits);
  }
  std::atomic<cudaStream_t>& place(cudaStream_t stream) { return places_[number(stream)]; }
  const std::atomic<cudaStream_t>& place(cudaStream_t stream) const { return places_[number(stream)]; }

  std::array<std::atomic<cudaStream_t>, std::size_t{1} << kBits> places_{};
};

}  // namespace graphcache
