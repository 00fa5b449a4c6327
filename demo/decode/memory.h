// Owners of memory, streams and events, and launches of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "../support.h"

namespace demo {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() {
    for (void* memory : allocations_) DEMO_CUDA(cudaFree(memory));
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  template <class T>
  T* allocate(std::size_t count) {
    void* memory = nullptr;
    DEMO_CUDA(cudaMalloc(&memory, count * sizeof(T)));
    allocations_.push_back(memory);
    return static_cast<T*>(memory);
  }

 private:
  std::vector<void*> allocations_;
};

template <class T>
class Pinned {
 public:
  explicit Pinned(std::size_t count) {
    void* memory = nullptr;
    DEMO_CUDA(cudaMallocHost(&memory, count * sizeof(T)));
    memory_ = static_cast<T*>(memory);
  }
  ~Pinned() { DEMO_CUDA(cudaFreeHost(memory_)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  T* get() const { return memory_; }

 private:
  T* memory_;
};

class Stream {
 public:
  Stream() { DEMO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { DEMO_CUDA(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { DEMO_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { DEMO_CUDA(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

inline std::size_t size(int number) { return static_cast<std::size_t>(number); }

// A block of `wanted` threads, or of one on hostrt (kernels.h).
inline dim3 threads(unsigned wanted) { return dim3(on_gpu() ? wanted : 1); }

template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, std::type_identity_t<P>... args) {
  void* arguments[] = {&args...};
  DEMO_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, 0, stream));
}

// One thread for each of `count`.
template <class... P>
void launch_over(std::size_t count, void (*kernel)(P...), cudaStream_t stream, std::type_identity_t<P>... args) {
  constexpr unsigned kThreads = 128;
  launch(kernel, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), stream, args...);
}

}  // namespace demo
