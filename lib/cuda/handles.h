// Owning handles of CUDA objects, and their destruction.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "cuda/mutex.h"

namespace graphcache {

// A null stream is the legacy stream here: StreamArg has named the per-thread stream.
inline cudaStream_t name_of(cudaStream_t stream) { return stream == nullptr ? cudaStreamLegacy : stream; }

// A stream that was launched on. Its handle may be another stream in another thread (cudaStreamPerThread), and after
// the stream has been destroyed. Its id may not.
struct LaunchStream {
  cudaStream_t handle = nullptr;
  unsigned long long id = 0;  // 0 if it is not known.

  LaunchStream() = default;
  // Makes no call. The ids of ordinary streams are left out.
  explicit LaunchStream(cudaStream_t on) : handle(on) {
    constexpr auto kOwn = 1ull << 63;  // CUDA counts from 0.
    if (on == cudaStreamLegacy) id = kOwn;
    if (on == cudaStreamPerThread) id = kOwn + this_thread();
  }
  // Finds the id of a stream that exists, if there is one.
  cudaError_t find_id() {
    if (id != 0 || handle == nullptr) return cudaSuccess;
    const LastErrorGuard last_error;
    return cudaStreamGetId(handle, &id);
  }
  bool is(const LaunchStream& other) const { return id != 0 && id == other.id; }
  // The next launch is there. An id that is too old is of no stream that exists.
  void follow(const LaunchStream& next) {
    if (next.handle != handle || next.id != 0) *this = next;
  }

 private:
  static std::uint64_t this_thread() {
    static std::atomic<std::uint64_t> last = 0;
    thread_local const std::uint64_t number = ++last;
    return number;
  }
};

// During its lifetime this thread may make calls that a capture in global mode forbids to other threads, without
// breaking that capture (law 9, fact 2).
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

// Destroys a handle and leaves the last-error slot unchanged. Errors are ignored: the object is no longer needed, and
// when a process exits the runtime may be unloaded first (fact 34).
template <class Handle>
void destroy_quietly(Handle handle, cudaError_t (*destroy)(Handle)) {
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  destroy(handle);
}

// Owns a handle. It must not be destroyed while this thread is inside a capture (fact 6): see exec/graveyard.h.
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
  // Releases the handle without destroying it, as is needed after a fatal error (fact 32).
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Handle handle_ = nullptr;
};

// Cloning, instantiating and destroying a graph or its relatives writes to a graph that they share, so two threads that
// do so at once crash (fact 35). Clones and executables of one graph therefore share a lock.
template <class Handle, cudaError_t (*Destroy)(Handle)>
class Related {
 public:
  using Kin = std::shared_ptr<Mutex>;

  Related() = default;
  explicit Related(Handle handle, Kin kin = nullptr) : kin_(std::move(kin)), handle_(handle) {}
  Related(Related&&) = default;
  Related& operator=(Related&& other) noexcept {
    std::swap(kin_, other.kin_);
    handle_ = std::move(other.handle_);
    return *this;
  }
  ~Related() {
    if (handle_.get() == nullptr || kin_ == nullptr) return;
    MutexLock lock(*kin_);
    handle_ = {};
  }

  Handle get() const { return handle_.get(); }
  Handle release() { return handle_.release(); }
  // Whether the graph has clones or executables that are not destroyed, by whichever thread.
  bool has_relatives() const { return kin_.use_count() > 1; }
  // Hold this mutex while cloning or instantiating the graph. The result shares it.
  const Kin& kin() {
    if (kin_ == nullptr) kin_ = std::make_shared<Mutex>();
    return kin_;
  }

 private:
  Kin kin_;  // Null as long as it has no clones or executables.
  Owned<Handle, Destroy> handle_;
};

using OwnedGraph = Related<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Related<cudaGraphExec_t, cudaGraphExecDestroy>;

// The results must be empty. If memory runs out, these throw and change nothing.
cudaError_t clone(OwnedGraph& original, OwnedGraph* out);
cudaError_t instantiate(OwnedGraph& base, unsigned long long flags, GraphExec* out);

using Event = Owned<cudaEvent_t, cudaEventDestroy>;

using OwnedStream = Owned<cudaStream_t, cudaStreamDestroy>;

// Makes a stream of the current device. `flags` are those of cudaStreamCreateWithFlags.
inline CallResult make_stream(unsigned flags, OwnedStream* out) {
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, flags);
  if (error == cudaSuccess) *out = OwnedStream(stream);
  return {"cudaStreamCreateWithFlags", error};
}

// Creates an event of the current device, without timing.
inline cudaError_t make_event(Event* out) {
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error == cudaSuccess) *out = Event(event);
  return error;
}

}  // namespace graphcache
