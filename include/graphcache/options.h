// Options of a cache, given to its constructor. Most programs change none; docs/guide/sizes.md says when to.
//
//   graphcache::Cache cache({.max_executables = 256, .share = graphcache::Share::kAlways});
//
// GRAPHCACHE_DISABLE=1 in the environment when a cache is made overrides them: its runs then call `fn` directly, as
// with max_executables = 0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "graphcache/listener.h"
#include "graphcache/share.h"
#include "graphcache/stream.h"

namespace graphcache {

// What a run does whose `fn` cannot be captured. One that enqueues nothing on its stream is done, and no failure.
enum class OnCaptureFailure {
  kRunDirectly,  // The run calls `fn` again, uncaptured. The next capture is tried after 1, 2, 4, ... 1024 direct runs.
  kReturnError,  // The run returns the error, and what was captured does not run. The next run tries again.
};

// What a run does when verify mode (Options::verify_every) finds that the graph of its key is stale.
enum class OnStale {
  kReport,       // It counts the finding (Stats::stale), keeps its text (EntryInfo::stale), and replays the graph.
  kForget,       // It reports as above, drops the key's executable and template, and captures `fn` again.
  kReturnError,  // It reports as above, launches nothing, and returns FailedPrecondition with the text. The key stays.
};

struct Options {
  // The cache's device, numbered as for cudaSetDevice. kCurrentDevice: that of the first stream of a run or warm() that
  // is not capturing.
  static constexpr int kCurrentDevice = -1;
  int device = kCurrentDevice;

  // The stream of runs that name none. The default belongs to the calling thread and its current device, which must be
  // the cache's; hits do not check that. A null stream is the legacy default stream of the current device.
  StreamArg stream = cudaStreamPerThread;

  // ---- Executables and templates -----------------------------------------------------------------------------------

  // The largest number of executables. docs/policy.md says which key gives way beyond it. 0: nothing is captured, and
  // every run calls `fn` directly. Negative: every run fails. An evicted executable may exist until its last launch is
  // over, or another thread has destroyed it.
  int max_executables = 64;

  // The most device memory that executables may take, in bytes, by estimate (Stats::estimated_device_bytes). A key
  // whose executable alone exceeds it runs directly.
  std::size_t max_device_bytes = SIZE_MAX;

  // How many keys keep their template, the captured graph from which an evicted key gets an executable without a
  // capture. It takes host memory: about 2 KiB a node, and the key's bytes. Templates of keys with executables count
  // and stay; beyond the limit, the other one that was used longest ago is dropped. Of keys with neither, the cache
  // remembers the counts of at most 4096, of at most 16 MiB together. Negative: every run fails.
  int max_templates = 512;

  // When keys share executables (share.h).
  Share share = Share::kWhenFull;

  // ---- Captures ----------------------------------------------------------------------------------------------------

  // What other threads, and `fn`, may do during a capture, as for cudaStreamBeginCapture. By default, calls such as
  // cudaMalloc break a capture only in the thread that runs `fn`. In every mode, cudaDeviceSynchronize breaks it from
  // any thread, and so does a use of the legacy stream while a blocking stream is captured (capture_gate.h).
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeThreadLocal;

  // Flags for cudaGraphInstantiate: 0 or cudaGraphInstantiateFlagUseNodePriority. With any other, every run fails.
  unsigned long long instantiate_flags = 0;

  // How many times a new key runs `fn` directly before its first capture. A key that the cache has forgotten is new
  // again. Cache::warm() captures without these runs.
  int capture_after = 0;

  // What a run does on a stream that other code captures. False: it returns an error. True: the work of `fn` becomes
  // part of that capture, with its present values (kInlined), and each hit makes one more runtime call, to find out.
  // Recorder::write() and conditional nodes fail in such a run.
  bool inline_in_foreign_capture = false;

  // What a run does when its capture breaks, when `fn` fails under capture, or when the graph would not do what a
  // direct call does (Recorder::memcpy).
  OnCaptureFailure on_capture_failure = OnCaptureFailure::kRunDirectly;

  // ---- Watching ----------------------------------------------------------------------------------------------------

  // Who follows what the cache does, in the order of their calls (listener.h).
  Listeners listeners = {};

  // Verify mode, for finding mistakes: every n-th hit of a key calls `fn` under capture again, launches none of that,
  // and compares it with the key's graph. What differs and is neither a value nor a slot is a finding (Stats::stale).
  // So `fn` must do nothing on the host that must not happen twice. It may be called five times, with 64 KiB of stack.
  // 0: off, at no cost, unless the environment variable GRAPHCACHE_VERIFY holds n when the cache is made. A negative
  // number, or a variable that holds neither a number nor no, off or false, makes every run fail.
  // docs/guide/mistakes.md says what it finds.
  int verify_every = 0;

  // What a run does when verify mode finds that its graph is stale.
  OnStale on_stale = OnStale::kReport;

  // Watches the CUDA calls of all threads during captures, and names the call that breaks a capture (EntryInfo::error,
  // Listener::message(), the returned error; at a key's first, a line to stderr as well) and work outside the capture
  // (EntryInfo::stray_work). Results and outcomes stay the same. But a process that has used it launches each graph
  // tens of microseconds later from then on, so use it to find mistakes only.
  //
  // It needs the component libgraphcache_diagnose.so, which the first run loads. If that fails, listeners get one line,
  // and the cache works without it. The environment variable GRAPHCACHE_DIAGNOSE, unless empty, 0, no, off or false,
  // switches it on also; a value with a slash is the component's path. docs/capture-errors.md shows the reports.
  bool diagnose = false;
};

}  // namespace graphcache
