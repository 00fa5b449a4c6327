// Options of a cache. The defaults suit a program that runs some tens of different launch configurations on one device.
#pragma once

#include <cuda_runtime_api.h>

namespace graphcache {

struct Options {
  // The device whose work the cache records, as counted by cudaGetDeviceCount; kCurrentDevice is the one that is
  // current in the thread that constructs the cache. A cache serves one device.
  static constexpr int kCurrentDevice = -1;
  int device = kCurrentDevice;

  // The stream of runs that name none. The default is that of the calling thread and its current device, which must be
  // the cache's. cudaStreamLegacy and a null stream cannot be captured and are refused.
  cudaStream_t stream = cudaStreamPerThread;

  // At most this many keys have an executable at any time; the least recently used leaves before a new one is
  // instantiated, though another thread may still be busy destroying it. 0: nothing is captured, every run calls `fn`
  // directly. Negative: an error of every run.
  int max_executables = 64;

  // What other threads, and `fn`, may do during a capture; the meaning is cudaStreamBeginCapture's. With the default,
  // calls that a capture forbids (cudaMalloc, a synchronization) break it only if `fn`'s own thread makes them.
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeThreadLocal;

  // Passed to cudaGraphInstantiate: cudaGraphInstantiateFlagAutoFreeOnLaunch, cudaGraphInstantiateFlagUseNodePriority,
  // or both. The others need arguments or launches that a cache does not make, and are refused.
  unsigned long long instantiate_flags = 0;

  // A new key runs `fn` directly this many times before its first capture: for libraries that initialise themselves
  // at their first call, and for programs with many keys that come once.
  int capture_after = 0;
};

}  // namespace graphcache
