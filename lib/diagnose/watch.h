// The captures that are watched, and what was seen of them. hostrt and the component feed it, each with the calls that
// it sees and with its own answer to what became of a capture. All functions may be called by any thread.

#ifndef GRAPHCACHE_LIB_DIAGNOSE_WATCH_H_
#define GRAPHCACHE_LIB_DIAGNOSE_WATCH_H_

#include <cuda_runtime_api.h>

#include "graphcache/detail/diagnose.h"

namespace graphcache::diagnose {

// A call that has returned.
struct Call {
  const char* name;
  cudaError_t error = cudaSuccess;
  const void* address = nullptr;  // Where it returns to, if that is known.
  bool by_runtime = false;        // Whether a function of the runtime lies between the program and who sees the call.
};

enum class CaptureState { kActive, kBroken, kOver, kUnknown };

// The state of a stream's capture, asked by the thread that made the call.
using AskState = CaptureState (*)(cudaStream_t stream, bool in_other_thread);

// As DiagnoseInterface has them. `begin` throws std::bad_alloc.
void* begin(cudaStream_t stream);
void end(void* watch, void* to, void (*broke)(void* to, const detail::WatchedCall*),
         void (*stray)(void* to, const detail::WatchedCall*));

// Whether any capture is watched: if not, nothing below needs to be called.
bool watches_any();
// Whether this thread's is.
bool watches_this_thread();

// A call that failed, or that ended a capture: may have broken those that are watched.
void failed(const Call& call, AskState ask);
// This thread has launched a kernel.
void launched(const char* kernel);
// This thread has enqueued work outside of captures; `kernel` is empty if it is none.
void strayed(const Call& call, cudaStream_t stream, const char* kernel);

}  // namespace graphcache::diagnose

#endif  // GRAPHCACHE_LIB_DIAGNOSE_WATCH_H_
