// Owning handles of what the runtime makes, and how they are destroyed.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "errors.h"

namespace graphcache {

// While it lives, calls of this thread that a capture in global mode forbids other threads are allowed and leave that
// capture whole (law 9, fact 2).
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() : exchanged_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}
  ~RelaxedCaptureMode() {
    if (exchanged_) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  const bool exchanged_;
};

// Destroys a handle and leaves the last-error slot as it was. A failing destruction is nobody's error: it has nothing
// left to lose, and at the end of a process the runtime may be gone first (fact 34).
template <class Handle>
void destroy_quietly(Handle handle, cudaError_t (*destroy)(Handle)) {
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  destroy(handle);
}

// Owns a handle. Never to be destroyed while this thread is inside a capture (fact 6): see retire.h.
template <class Handle, cudaError_t (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) destroy_quietly(handle_, Destroy);
  }

  Handle get() const { return handle_; }
  // Gives the handle up without destroying it, as is due after a fatal error (fact 32).
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Handle handle_ = nullptr;
};

using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;

}  // namespace graphcache
