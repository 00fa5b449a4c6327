// The frames of the pipeline, and its streams. main.cc describes the steps of a frame.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <vector>

namespace demo {

inline constexpr int kChunks = 3;   // chunks of a frame: while one is copied in, one is processed and one is copied out
inline constexpr int kFrames = 4;   // number of host buffers, used in turn, so pointers change from frame to frame
inline constexpr int kBlock = 256;  // threads

using ChunksIn = std::array<const std::uint32_t*, kChunks>;
using ChunksOut = std::array<std::uint32_t*, kChunks>;

// Owns pinned buffers for input and output, a device buffer for each chunk, streams and events.
class Frames {
 public:
  Frames(int count, int rounds);
  ~Frames();
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  int count() const { return count_; }    // elements of a chunk
  int rounds() const { return rounds_; }  // number of kernels that process a chunk, one after another
  unsigned grid() const { return static_cast<unsigned>((count_ + kBlock - 1) / kBlock); }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(std::uint32_t); }
  std::uint32_t* chunk(int c) const { return device_[static_cast<std::size_t>(c)]; }

  ChunksIn input(int iteration) const;
  ChunksOut output(int iteration) const;
  // Changes from frame to frame.
  static std::uint32_t salt(int iteration) { return 2u * static_cast<std::uint32_t>(iteration) + 1u; }

  cudaStream_t main = nullptr, copies_in = nullptr, copies_out = nullptr;

  // Makes `later` wait for the work that `earlier` has now. Each place of the pipeline has its own event.
  void order(int place, cudaStream_t earlier, cudaStream_t later) const;
  static constexpr int kFork = 0, kJoin = 1, kPlaces = 2 + 2 * kChunks;
  static constexpr int arrived(int c) { return 2 + 2 * c; }
  static constexpr int worked(int c) { return 3 + 2 * c; }

  // Whether the last frames of `iterations` have the host reference's results; prints the first place that has not.
  bool equals_reference(int iterations, const char* way, const char* phase) const;
  void clear_outputs();

 private:
  const int count_, rounds_;
  std::vector<std::uint32_t*> in_, out_;  // kFrames of kChunks chunks, pinned
  std::vector<std::uint32_t*> device_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace demo
