// The watched captures, and what was observed during them. hostrt and the component feed this with the calls that they
// observe, each with its own query for the state of a capture. All functions are thread-safe.

#ifndef GRAPHCACHE_LIB_DIAGNOSE_WATCH_H_
#define GRAPHCACHE_LIB_DIAGNOSE_WATCH_H_

#include <cuda_runtime_api.h>

#include "diagnose/interface.h"

namespace graphcache::diagnose {

// A call that has returned.
struct Call {
  const char* name;
  cudaError_t error = cudaSuccess;
  const void* address = nullptr;  // Its return address, if known.
  // Whether a runtime function lies between the program and the observer.
  bool by_runtime = false;
};

enum class CaptureState { kActive, kBroken, kOver, kUnknown };

// Queries the state of a stream's capture, in the thread that made the call.
using QueryState = CaptureState (*)(cudaStream_t stream, bool in_other_thread);

// The functions of DiagnoseInterface. `begin` throws std::bad_alloc.
void* begin(cudaStream_t stream, void* to, void (*noticed)(void* to, const detail::WatchedCall*));
void end(void* watch, void* to, void (*broke)(void* to, const detail::WatchedCall*),
         void (*stray)(void* to, const detail::WatchedCall*));

// Whether any capture is watched. If not, nothing below needs to be called.
bool watches_any();
// Whether this thread's capture is watched.
bool watches_this_thread();

// Report a call that failed or that ended a capture. It may have broken watched captures. The thread must call tell()
// afterwards, even if this throws std::bad_alloc, when it holds no lock and before the call returns to the program.
void failed(const Call& call, QueryState query);
// Calls `noticed` of the captures that failed() has found broken in this thread.
void tell() noexcept;
// Report that this thread has launched a kernel.
void launched(const char* kernel);
// Report that this thread has enqueued work outside of captures. `kernel` is empty unless the work is a kernel.
void strayed(const Call& call, cudaStream_t stream, const char* kernel);

}  // namespace graphcache::diagnose

#endif  // GRAPHCACHE_LIB_DIAGNOSE_WATCH_H_
