// Owning handles of what the runtime makes, and how they are destroyed.
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

// A stream as the thread that launches on it knows it: cudaStreamPerThread is another one in each.
struct LaunchStream {
  cudaStream_t handle = nullptr;
  std::uint64_t thread = 0;

  static LaunchStream of(cudaStream_t handle) { return {handle, handle == cudaStreamPerThread ? this_thread() : 0}; }
  friend bool operator==(const LaunchStream&, const LaunchStream&) = default;

 private:
  static std::uint64_t this_thread() {
    static std::atomic<std::uint64_t> last = 0;
    thread_local const std::uint64_t number = ++last;
    return number;
  }
};

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

// Owns a handle. Never to be destroyed while this thread is inside a capture (fact 6): see exec/graveyard.h.
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

// Graphs that were cloned from one another, and executables instantiated from them: making and destroying one writes to
// the graph that it is of, so two threads that do so at once crash (fact 35). They share a lock for that.
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
  // Hold this mutex while cloning or instantiating the graph. The result shares it.
  const Kin& kin() {
    if (kin_ == nullptr) kin_ = std::make_shared<Mutex>();
    return kin_;
  }

 private:
  Kin kin_;  // Null while it has no relatives.
  Owned<Handle, Destroy> handle_;
};

using Graph = Related<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Related<cudaGraphExec_t, cudaGraphExecDestroy>;

// Into empty ones. Throw without memory, and have then done nothing.
cudaError_t clone(Graph& original, Graph* out);
cudaError_t instantiate(Graph& base, unsigned long long flags, GraphExec* out);

using Event = Owned<cudaEvent_t, cudaEventDestroy>;

using OwnedStream = Owned<cudaStream_t, cudaStreamDestroy>;

// For the current device; flags as cudaStreamCreateWithFlags takes them.
inline CallResult make_stream(unsigned flags, OwnedStream* out) {
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, flags);
  if (error == cudaSuccess) *out = OwnedStream(stream);
  return {"cudaStreamCreateWithFlags", error};
}

// A stream of the library's own. Thread-safe.
class OwnStream {
 public:
  // Makes it at the first call, for the device that is current then.
  CallResult get(cudaStream_t* out) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (stream_.get() == nullptr) {
      if (const CallResult made = make_stream(cudaStreamNonBlocking, &stream_); made.error != cudaSuccess) return made;
    }
    *out = stream_.get();
    return {};
  }
  // After a fatal error: drops the handle.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    stream_.release();
  }

 private:
  Mutex mutex_;
  OwnedStream stream_ ABSL_GUARDED_BY(mutex_);
};

// Streams of the library's own, for the current device, each lent to one thread at a time. Thread-safe.
class OwnStreams {
 public:
  class Loan {
   public:
    explicit Loan(OwnStreams& of) : of_(of), result_(of.lend(&stream_)) {}
    ~Loan() {
      if (stream_.get() != nullptr) of_.give_back(std::move(stream_));
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    const CallResult& result() const { return result_; }
    cudaStream_t get() const { return stream_.get(); }

   private:
    OwnStreams& of_;
    OwnedStream stream_;
    const CallResult result_;
  };

  // As cudaStreamCreateWithFlags takes them.
  explicit OwnStreams(unsigned flags) : flags_(flags) {}
  // After a fatal error: drops the handles.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    for (auto& stream : free_) stream.release();
    free_.clear();
  }

 private:
  CallResult lend(OwnedStream* out) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!free_.empty()) {
        *out = std::move(free_.back());
        free_.pop_back();
        return {};
      }
    }
    return make_stream(flags_, out);
  }
  // Without memory to keep it, the stream is destroyed.
  void give_back(OwnedStream stream) noexcept ABSL_LOCKS_EXCLUDED(mutex_) try {
    MutexLock lock(mutex_);
    free_.push_back(std::move(stream));
  } catch (const std::bad_alloc&) {
  }

  const unsigned flags_;
  Mutex mutex_;
  std::vector<OwnedStream> free_ ABSL_GUARDED_BY(mutex_);
};

// Of the current device; without a time.
inline cudaError_t make_event(Event* out) {
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error == cudaSuccess) *out = Event(event);
  return error;
}

}  // namespace graphcache
