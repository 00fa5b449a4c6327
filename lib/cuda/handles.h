// Owning handles of CUDA objects, and their destruction.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

#include "cuda/errors.h"
#include "cuda/mutex.h"
#include "cuda/this_thread.h"

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
    if (on == cudaStreamPerThread) id = kOwn + detail::number_of_this_thread();
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

// Cloning, instantiating and destroying a graph or its relatives writes to a graph that they share, so two threads that
// do so at once crash (fact 35). Clones and executables of one graph therefore share a lock.
using Kin = std::shared_ptr<Mutex>;

template <class Handle, cudaError_t (*Destroy)(Handle)>
struct Destroyer {
  Kin kin;  // Null as long as it has no clones or executables.

  void operator()(Handle handle) const {
    if (kin == nullptr) return destroy_quietly(handle, Destroy);
    MutexLock lock(*kin);
    destroy_quietly(handle, Destroy);
  }
};

// Owns a handle. It must not be destroyed while this thread is inside a capture (fact 6): see exec/graveyard.h. After a
// fatal error, release() drops the handle without destroying it (fact 32).
template <class Handle, cudaError_t (*Destroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyer<Handle, Destroy>>;

using OwnedGraph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

// Whether the graph has clones or executables that are not destroyed, by whichever thread.
inline bool has_relatives(const OwnedGraph& graph) { return graph.get_deleter().kin.use_count() > 1; }

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
