// The interface between the library and what watches CUDA calls for it while it captures: the component
// libgraphcache_diagnose.so, by CUPTI, or hostrt. Whoever provides it defines graphcache_diagnose_v1(). What it returns
// may be used by any thread, and lives as long as the process.
#pragma once

#include <cuda_runtime_api.h>

namespace graphcache::detail {

// A call that was seen. The texts live until the receiver returns.
struct WatchedCall {
  const char* name;         // "cudaMalloc"; "cuMemAlloc_v2" if it went to the driver directly.
  const char* caller;       // The function that made it, or "module+0xoffset"; empty if nothing is known.
  const char* kernel;       // What a launch launched, as the runtime names it; else empty.
  const char* last_kernel;  // What the capturing thread had launched last; empty if nothing.
  cudaStream_t stream;      // Of work: where it was enqueued. The legacy stream is cudaStreamLegacy.
  cudaError_t error;        // What it returned.
  int in_other_thread;      // Whether another thread than the capturing one made it.
  int broke;                // Whether the capture was lost by it.
};

struct DiagnoseInterface {
  // Null if calls can be watched in this process, else why they cannot. May be called again, which tries again if it
  // had failed.
  const char* (*open)();
  // Starts to watch the capture of a stream that this thread is about to begin. Null: for want of memory.
  void* (*begin)(cudaStream_t stream);
  // Ends it, in the same thread, before the capture is ended. Calls `broke` once at most, with the call that broke the
  // capture, else with the first one of this thread that was refused because of it; then `stray` for pieces of work
  // that this thread enqueued outside of any capture, each kind once, in their order.
  void (*end)(void* watch, void* to, void (*broke)(void* to, const WatchedCall*),
              void (*stray)(void* to, const WatchedCall*));
};

}  // namespace graphcache::detail

// The version is part of the name, so that a component of another one is not found.
extern "C" const graphcache::detail::DiagnoseInterface* graphcache_diagnose_v1();
