#include "frames.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "../support.h"
#include "kernels.h"

namespace demo {
namespace {

std::uint32_t initial(int frame, int index) {
  return static_cast<std::uint32_t>(frame + 1) * 2654435761u + static_cast<std::uint32_t>(index);
}

std::uint32_t* pinned(std::size_t bytes) {
  void* memory = nullptr;
  DEMO_CUDA(cudaMallocHost(&memory, bytes));
  return static_cast<std::uint32_t*>(memory);
}

}  // namespace

Frames::Frames(int count, int rounds) : count_(count), rounds_(rounds) {
  for (cudaStream_t* stream : {&main, &copies_in, &copies_out}) {
    DEMO_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  for (int i = 0; i < kPlaces; ++i) {
    cudaEvent_t event = nullptr;
    DEMO_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    events_.push_back(event);
  }
  for (int c = 0; c < kChunks; ++c) {
    void* memory = nullptr;
    DEMO_CUDA(cudaMalloc(&memory, bytes()));
    device_.push_back(static_cast<std::uint32_t*>(memory));
  }
  for (int frame = 0; frame < kFrames; ++frame) {
    in_.push_back(pinned(kChunks * bytes()));
    out_.push_back(pinned(kChunks * bytes()));
    for (int i = 0; i < kChunks * count_; ++i) in_.back()[i] = initial(frame, i);
  }
  clear_outputs();
}

Frames::~Frames() {
  for (const auto& buffers : {in_, out_}) {
    for (std::uint32_t* const buffer : buffers) DEMO_CUDA(cudaFreeHost(buffer));
  }
  for (std::uint32_t* const buffer : device_) DEMO_CUDA(cudaFree(buffer));
  for (const cudaEvent_t event : events_) DEMO_CUDA(cudaEventDestroy(event));
  for (const cudaStream_t stream : {main, copies_in, copies_out}) DEMO_CUDA(cudaStreamDestroy(stream));
}

ChunksIn Frames::input(int iteration) const {
  ChunksIn chunks;
  for (int c = 0; c < kChunks; ++c) chunks[c] = in_[static_cast<std::size_t>(iteration % kFrames)] + c * count_;
  return chunks;
}

ChunksOut Frames::output(int iteration) const {
  ChunksOut chunks;
  for (int c = 0; c < kChunks; ++c) chunks[c] = out_[static_cast<std::size_t>(iteration % kFrames)] + c * count_;
  return chunks;
}

void Frames::order(int place, cudaStream_t earlier, cudaStream_t later) const {
  DEMO_CUDA(cudaEventRecord(events_[static_cast<std::size_t>(place)], earlier));
  DEMO_CUDA(cudaStreamWaitEvent(later, events_[static_cast<std::size_t>(place)], 0));
}

bool Frames::equals_reference(int iterations, const char* way, const char* phase) const {
  for (int iteration = std::max(0, iterations - kFrames); iteration < iterations; ++iteration) {
    const ChunksIn from = input(iteration);
    const ChunksOut found = output(iteration);
    for (int c = 0; c < kChunks; ++c) {
      for (int i = 0; i < count_; ++i) {
        std::uint32_t expected = from[c][i];
        for (std::uint32_t round = 0; round < static_cast<std::uint32_t>(rounds_); ++round) {
          expected = stirred_on_host(expected, salt(iteration) + round, i);
        }
        if (found[c][i] == expected) continue;
        absl::FPrintF(stderr, "%s, %s: frame %d, chunk %d, element %d is %08x, the host reference %08x\n", way, phase,
                      iteration, c, i, found[c][i], expected);
        return false;
      }
    }
  }
  return true;
}

void Frames::clear_outputs() {
  for (std::uint32_t* const buffer : out_) std::fill(buffer, buffer + kChunks * count_, 0u);
}

}  // namespace demo
