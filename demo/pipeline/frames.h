// The frames that the pipeline works on, and its streams; the top of main.cc says what a frame goes through.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <vector>

namespace demo {

inline constexpr int kChunks = 3;   // Of a frame: one is copied in while one is worked on and one is copied out.
inline constexpr int kFrames = 4;   // Host buffers, taken in turn: pointers change from frame to frame.
inline constexpr int kBlock = 256;  // Threads.

using ChunksIn = std::array<const std::uint32_t*, kChunks>;
using ChunksOut = std::array<std::uint32_t*, kChunks>;

// Owns pinned buffers for input and output, a device buffer for each chunk, streams and events.
class Frames {
 public:
  Frames(int count, int rounds);
  ~Frames();
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  int count() const { return count_; }    // Elements of a chunk.
  int rounds() const { return rounds_; }  // Kernels that work on a chunk, one after another.
  unsigned grid() const { return static_cast<unsigned>((count_ + kBlock - 1) / kBlock); }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(std::uint32_t); }
  std::uint32_t* chunk(int c) const { return device_[static_cast<std::size_t>(c)]; }

  ChunksIn input(int iteration) const;
  ChunksOut output(int iteration) const;
  // Changes from frame to frame.
  static std::uint32_t salt(int iteration) { return 2u * static_cast<std::uint32_t>(iteration) + 1u; }

  cudaStream_t main = nullptr, copies_in = nullptr, copies_out = nullptr;

  // `later` waits for what `earlier` has got so far. Each place of the pipeline has an event of its own.
  void order(int place, cudaStream_t earlier, cudaStream_t later) const;
  static constexpr int kFork = 0, kJoin = 1, kPlaces = 2 + 2 * kChunks;
  static constexpr int arrived(int c) { return 2 + 2 * c; }
  static constexpr int worked(int c) { return 3 + 2 * c; }

  // Whether the last frames of so many left what the host's reference does; else says where not.
  bool equals_reference(int iterations, const char* way, const char* phase) const;
  void clear_outputs();

 private:
  const int count_, rounds_;
  std::vector<std::uint32_t*> in_, out_;  // kFrames of kChunks chunks, pinned.
  std::vector<std::uint32_t*> device_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace demo
