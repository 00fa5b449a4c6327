// graphcache_diagnose_v2(): the interface to a watcher, which observes CUDA calls during captures (Options::diagnose).
// The component libgraphcache_diagnose.so is a watcher based on CUPTI, and hostrt is another one. Not for users.
#pragma once

#include <cuda_runtime_api.h>

namespace graphcache::detail {

// A CUDA call that a watcher observed. The texts live until the callback that receives them returns.
struct WatchedCall {
  const char* name;         // "cudaMalloc", or "cuMemAlloc_v2" if the driver was called directly.
  const char* caller;       // The function that made the call, or "module+0xoffset". Empty if unknown.
  const char* kernel;       // The launched kernel, as the runtime names it. Empty if the call is not a launch.
  const char* last_kernel;  // The kernel that the capturing thread had launched last. Empty if there was none.
  cudaStream_t stream;      // The stream on which work was enqueued. The legacy stream is cudaStreamLegacy.
  cudaError_t error;        // The error that the call returned.
  int in_other_thread;      // Whether a thread other than the capturing one made the call.
  int broke;                // Whether this call broke the capture.
};

// The functions of a watcher. Any thread may call them.
struct DiagnoseInterface {
  // Prepares for watching. Returns null on success, otherwise the reason why calls cannot be watched in this process.
  // After a failure, another call tries again.
  const char* (*open)();
  // Starts watching the capture of a stream that the calling thread is about to begin. Returns null if there is no
  // memory. When a call is seen to break the capture, `noticed` is called once, in the thread that made the call,
  // before that call returns. No lock of the watcher is held then. `noticed` must not throw, nor end this watch. It is
  // not called for a call that only may have broken the capture.
  void* (*begin)(cudaStream_t stream, void* to, void (*noticed)(void* to, const WatchedCall*));
  // Ends watching, in the same thread, before the capture ends. First waits until `noticed` has returned. Then calls
  // `broke` at most once, with the call that broke the capture; if that is unknown, with the first call of this thread
  // that failed because of the capture. Then calls `stray` for work that this thread enqueued outside of any capture,
  // once for each kind, in order.
  void (*end)(void* watch, void* to, void (*broke)(void* to, const WatchedCall*),
              void (*stray)(void* to, const WatchedCall*));
};

}  // namespace graphcache::detail

// Defined by the watcher. The result lives as long as the process, and any thread may use it. The version is part of
// the name, so a component of another version is not found.
extern "C" const graphcache::detail::DiagnoseInterface* graphcache_diagnose_v2();
