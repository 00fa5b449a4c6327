// Options of a cache, given to its constructor. The defaults suit a program with some tens of launch configurations on
// one device; most programs change none of them.
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

enum class OnCaptureFailure {
  kRunDirectly,  // The run calls `fn` again, uncaptured. The next capture is tried after 1, 2, 4, ... 1024 direct runs.
  kReturnError,  // The run returns the error, and nothing was enqueued. The next run tries again.
};

// What a run does when verify mode (Options::verify_every) finds that the graph of its key is stale.
enum class OnStale {
  kReport,       // It counts the finding (Stats::stale), keeps its text (EntryInfo::stale), and replays the graph.
  kForget,       // It reports as above, drops the key's executable and template, and captures `fn` again.
  kReturnError,  // It reports as above, launches nothing, and returns FailedPrecondition with the text. The key stays.
};

struct Options {
  // The device whose work the cache records, numbered as for cudaSetDevice. A cache serves one device. kCurrentDevice
  // means the device of the stream of the first run or warm().
  static constexpr int kCurrentDevice = -1;
  int device = kCurrentDevice;

  // The stream of runs that name none. The default, cudaStreamPerThread, belongs to the calling thread and its current
  // device, which must be the cache's device. Hits do not check that; all other runs do. A null stream is the legacy
  // default stream of the current device (Cache::run).
  StreamArg stream = cudaStreamPerThread;

  // ---- Executables and templates -----------------------------------------------------------------------------------

  // The largest number of executables. A key that needs one beyond it borrows one, or the one that was used longest ago
  // gives way (docs/policy.md). 0: nothing is captured, and every run calls `fn` directly. Negative: every run fails.
  //
  // Device-updated executables (docs/design.md) are evicted last, because destroying one waits for work that other
  // threads have in flight (docs/semantics.md). An evicted executable may exist a little longer, until its last launch
  // is over or another thread has destroyed it.
  int max_executables = 64;

  // The most device memory that executables may take, in bytes, by estimate (Stats::estimated_device_bytes). A key
  // whose executable alone exceeds this runs directly.
  std::size_t max_device_bytes = SIZE_MAX;

  // How many keys keep their template, which is their captured graph. From its template, a key whose executable was
  // evicted gets another one without a capture. A template takes host memory only: about 2 KiB a node, and the bytes of
  // the key. Negative: every run fails.
  //
  // Templates of keys with executables count as well, but are not dropped. Beyond the limit, the cache drops the
  // template of the key without an executable that was used, or lost its executable, longest ago.
  //
  // For a key with neither executable nor template, the cache remembers its counts. It remembers at most 4096 such
  // keys, of at most 16 MiB together. Beyond that, it forgets the one that was used, or lost its template, longest ago.
  int max_templates = 512;

  // When keys share executables (share.h).
  Share share = Share::kWhenFull;

  // ---- Captures ----------------------------------------------------------------------------------------------------

  // What other threads, and `fn`, may do during a capture, as for cudaStreamBeginCapture. With the default, calls such
  // as cudaMalloc or cudaStreamSynchronize break a capture only if they are made by the thread that runs `fn`.
  //
  // In every mode, two kinds of calls from any thread break a capture: cudaDeviceSynchronize, and, while a blocking
  // stream is captured, each call that uses the legacy stream (cudaMemcpy, a launch without a stream). The call itself
  // fails as well. So where other threads use the legacy stream, run on streams that were made with
  // cudaStreamNonBlocking. cudaStreamPerThread is a blocking stream.
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeThreadLocal;

  // Flags for cudaGraphInstantiate: 0 or cudaGraphInstantiateFlagUseNodePriority. With any other flag every run fails,
  // because those need arguments or launches that a cache does not make, or graphs that it does not keep.
  unsigned long long instantiate_flags = 0;

  // How many times a new key runs `fn` directly before its first capture. This suits libraries that initialise
  // themselves at their first call, and programs with many keys that are used once. A key that the cache has forgotten
  // (see max_templates) counts as new. Cache::warm() captures without these runs.
  int capture_after = 0;

  // What a run does on a stream that other code is capturing, such as torch.cuda.graph around the program's code.
  // False: it returns an error. True: the work of `fn` becomes part of that capture, with its present values
  // (kInlined). Each hit then makes one more runtime call, to find out. Recorder::write() and conditional nodes
  // fail in such a run.
  bool inline_in_foreign_capture = false;

  // What a run does when its capture breaks, because `fn` or another thread made a call that a capture forbids, or when
  // `fn` fails under capture. The same applies to a graph that would not do what a direct call of `fn` does
  // (Recorder::memcpy).
  OnCaptureFailure on_capture_failure = OnCaptureFailure::kRunDirectly;

  // ---- Watching ----------------------------------------------------------------------------------------------------

  // Who follows what the cache does (listener.h).
  Listeners listeners = {};

  // Verify mode, for finding mistakes. Every n-th hit of a key calls `fn` under capture again, compares this recording
  // with the key's graph, and launches none of it. A difference that is not a slot would be replayed with its old
  // value: it must become a slot, or part of the key. The finding names the node, the kernel, the argument's index,
  // both values, and what they point to. 0: off, unless the environment variable GRAPHCACHE_VERIFY holds n when the
  // cache is made. A negative number, or a variable that is not a number from 0 up, makes every run fail.
  //
  // It finds values that `fn` captured by reference or changes itself (in structures, and addresses, if a value
  // returns), memory that moved or was freed or unregistered, host memory that `fn` fills for a copy, branches and
  // functions that are not in the key, launches that left the run's stream, and data of host functions that moved. It
  // finds work that was elsewhere in the first run as well, such as a cudaMemcpy, only together with `diagnose`.
  //
  // `fn` is called more often in this mode, so it must not do anything on the host that must not happen twice, such as
  // allocating memory that a replay uses. Work of `fn` outside the capture would be done again. If something differs,
  // `fn` is called twice more, deeper in the stack, to leave out undefined bytes. These calls take 64 KiB of stack.
  //
  // If `fn` fails under capture, it is called again, directly, as in a miss. A call of `fn` that breaks the recording
  // is a finding. If another thread's call may have broken it (cudaErrorStreamCaptureInvalidated without another
  // error), the hit goes on unverified. A verified hit costs the host a capture and two readings of the graph, about as
  // much as an instantiation. Hits that restore or switch an executable are verified as well. Switched off, the mode
  // costs nothing.
  int verify_every = 0;

  // What a run does when verify mode finds that its graph is stale.
  OnStale on_stale = OnStale::kReport;

  // Watches the CUDA calls of all threads during captures, and names the call that breaks a capture: its error, its
  // thread, the kernel launched before it, and the function that made it. The report goes to EntryInfo::error, to
  // Listener::message(), and into the returned error. At a key's first broken capture the line also goes to stderr,
  // before the call at fault returns, in the thread that made it. Work that `fn` enqueues on a stream outside the
  // capture goes to EntryInfo::stray_work and to the listeners. If nothing else was captured,
  // `fn` runs directly each time, and EntryInfo::error names it. docs/capture-errors.md shows the reports.
  //
  // This needs the optional component libgraphcache_diagnose.so, which uses CUPTI and is loaded by the first run.
  // hostrt needs no component. If it cannot be loaded, or if CUPTI refuses, as it does under a profiler, the cache
  // works without it, and the listeners get one line with the reason. Results and outcomes stay the same. But once a
  // process has used CUPTI, each launch of a graph takes tens of microseconds longer (docs/semantics.md), and captures
  // take longer. So switch it on to find mistakes only.
  //
  // The environment variable GRAPHCACHE_DIAGNOSE also switches it on, if it is neither empty nor 0. A value with a
  // slash is the path of the component.
  bool diagnose = false;
};

}  // namespace graphcache
