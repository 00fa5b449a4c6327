// Options of a cache. The defaults suit a program that runs some tens of different launch configurations on one device.
// With GRAPHCACHE_DISABLE=1 in the environment when a cache is made, its runs call `fn` directly, as with
// max_executables = 0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "graphcache/detail/mechanisms.h"
#include "graphcache/hooks.h"
#include "graphcache/prefer.h"

namespace graphcache {

enum class OnCaptureFailure {
  kRunDirectly,  // The run calls `fn` again, uncaptured. The next capture is tried after 1, 2, 4, ... 1024 direct runs.
  kReturnError,  // The run returns what broke the capture, and nothing was enqueued. The next run tries again.
};

// What a run does when verify mode (Options::verify_every) finds that its key's graph is stale.
enum class OnStale {
  kReport,       // It counts the finding (Stats::stale), keeps its text (EntryInfo::stale), and replays all the same.
  kForget,       // It reports; the key loses its executable and its template, and is captured again by this run.
  kReturnError,  // It reports, returns FailedPrecondition with the finding, and launches nothing. The key stays.
};

struct Options {
  // The device whose work the cache records, as counted by cudaGetDeviceCount; kCurrentDevice is the one that is
  // current in the thread that constructs the cache. A cache serves one device.
  static constexpr int kCurrentDevice = -1;
  int device = kCurrentDevice;

  // The stream of runs that name none. The default is that of the calling thread and its current device, which must be
  // the cache's: runs that are not hits look, hits do not. A null stream is the legacy default stream of the current
  // device (Cache::run).
  cudaStream_t stream = cudaStreamPerThread;

  // At most this many keys have an executable at any time; the least recently used leaves before a new one is
  // instantiated, though it may still wait for its last launch, or another thread be busy destroying it. Those that the
  // device updates (docs/design.md) leave last, because to destroy one waits for what other threads have in flight
  // (docs/semantics.md). One with a parameter table counts one more for each executable's worth of memory that the
  // table takes. 0: nothing is captured, every run calls `fn` directly. Negative: an error of every run.
  int max_executables = 64;

  // At most so much device memory is taken by executables, by estimate (Stats::estimated_device_bytes). What needs more
  // by itself is run by calling `fn` directly.
  std::size_t max_device_bytes = SIZE_MAX;

  // At most this many keys keep their captured graph, the template. From it a key that has lost its executable gets
  // another without a capture. A key that uses Recorder::on_device() loses its template with its executable. A template
  // costs host memory alone, about 2 KiB a node, and the bytes of the key. Those of keys that have an executable count,
  // too, and stay. Of the others, the one whose key was used or lost its executable the longest ago is forgotten.
  // Negative: an error of every run. Of a key that has neither, the cache remembers its counts, while these keys are at
  // most 4096 and take at most 16 MiB; the one that was used or lost its template the longest ago is dropped.
  int max_templates = 512;

  // A key may have so many executables, one for each stream that it runs on, so that its runs on several streams go on
  // side by side: launches of one executable follow each other, whatever their streams. Each is captured by a call of
  // `fn` of its own, has its own EntryInfo, and counts against the budgets. Runs on further streams share the first
  // one. A key whose `fn` hands out memory of cudaMallocAsync has one alone. Less than 1: an error of every run.
  int executables_per_key = 1;

  // How many threads the cache has that make executables, so that runs do not wait for that. A run then captures `fn`,
  // replays, and brings over what siblings share, as it does without them. But where a new executable is needed, it
  // calls `fn` directly (kPreparing), and so do further runs of the key until a background thread has instantiated and
  // uploaded the executable. Such a first run calls `fn` twice, and pays for a capture beside the work itself. If all
  // of these threads are busy, the run is direct without a capture, and a later run asks again. Outcomes depend on time
  // then. Cache::warm() leaves the same to these threads, and Cache::wait_until_ready() waits for it.
  // docs/performance.md ("The start of a program") says where that pays.
  //
  // Runs of a key whose `fn` hands out memory of cudaMallocAsync instantiate themselves. An `fn` that adds a graph of
  // the caller's as a child node by hand must not be used with background threads, because they destroy graphs, too
  // (docs/semantics.md, fact 35). The threads end with the cache, and tasks that have not begun are dropped; a forked
  // child must not destroy the cache. If fewer threads can be had, the cache has fewer, and `log` has a line that says
  // so. Negative: an error of every run.
  int background_threads = 0;

  // Whether keys of one family share executables where that is cheaper. A family is the keys whose graphs have the same
  // topology and the same of everything else that an update cannot change; kernels, launch shapes and values may
  // differ. False: each key has its own executable, and graphs are not compared.
  bool share = true;

  Prefer prefer = Prefer::kTotalTime;

  // What other threads, and `fn`, may do during a capture; the meaning is cudaStreamBeginCapture's. With the default,
  // cudaMalloc, a synchronization of a stream and the like break a capture only if `fn`'s own thread makes them. Two
  // kinds of calls of any thread break it in every mode: cudaDeviceSynchronize, and, while a blocking stream is
  // captured, whatever uses the legacy stream (cudaMemcpy, a launch without a stream); that call fails, too. So run on
  // streams made with cudaStreamNonBlocking where other threads use the legacy stream. cudaStreamPerThread is a
  // blocking stream.
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeThreadLocal;

  // Passed to cudaGraphInstantiate: cudaGraphInstantiateFlagAutoFreeOnLaunch, cudaGraphInstantiateFlagUseNodePriority,
  // or both. The others need arguments or launches that a cache does not make, and are refused.
  unsigned long long instantiate_flags = 0;

  // A new key runs `fn` directly this many times before its first capture: for libraries that initialise themselves
  // at their first call, and for programs with many keys that come once. A key that the cache has dropped (see
  // max_templates) counts as new. Cache::warm does not wait for it.
  int capture_after = 0;

  // What a run does on a stream that somebody else captures, such as torch.cuda.graph around the program's code. False:
  // it is an error. True: the work of `fn` becomes part of that capture, with the values that it has now (kInlined).
  // Each hit then makes one more runtime call, to ask. Recorder::on_device() and conditional nodes fail in such
  // a run.
  bool inline_in_foreign_capture = false;

  // What a run does whose capture breaks: `fn` made a call that a capture forbids, or another thread did. The same
  // holds for a graph that would not do what `fn` does when it is called directly (Recorder::memcpy).
  OnCaptureFailure on_capture_failure = OnCaptureFailure::kRunDirectly;

  // Called with a line of text for what is worth one: the first broken capture of a key, what verify mode and
  // Options::diagnose find, a refused update, a failure of a background thread, many evictions, a fatal error. Called
  // during runs, while the cache is made, and by background threads, so it must be thread-safe, and must not use the
  // cache. Exceptions of it are dropped. GRAPHCACHE_LOG=1 in the environment prints these lines to stderr.
  std::function<void(std::string_view)> log = nullptr;

  // Times one run of 1024 of each thread, and counts the hits among them in Stats::hit_latency. Such a run reads the
  // clock twice.
  bool time_hits = false;

  // Measures what executables take of the device's memory (Stats::measured_device_bytes): asks for the free memory
  // before and after each instantiation, update, first launch and destruction. Each question takes the host 10 us and
  // more.
  bool measure_device_bytes = false;

  // So many events are kept, the last ones, for Cache::events(). Each takes 96 bytes. If it is not 0, each run, a hit
  // too, makes one, reads the clock twice and takes a lock that all runs share. Negative: an error of every run.
  int keep_events = 0;

  // Ranges and marks for NVIDIA's profilers, in a domain called graphcache (NVTX 3): a range for each run, capture,
  // instantiation, update and upload, and a mark for each eviction and each template that is dropped. Each is named by
  // what is done and the label of the key. Where no profiler listens when the cache is made, or the library was
  // compiled without NVTX's headers, it does nothing and costs nothing.
  bool nvtx = false;

  // Verify mode, for finding mistakes: every n-th hit of a key calls `fn` under capture again, launches nothing of
  // that, and compares the recording with what the key was captured with. What differs and is no slot would be replayed
  // with its old value: it has to become a slot, or part of the key. The finding names the node, the kernel, the
  // argument's index, both values, and what they point to. Found are values that `fn` captured by reference, memory
  // that moved, branches and functions that are not in the key, launches that left the run's stream, and data of host
  // functions that moved. Not found is a launch that was not on the run's stream in the first run either.
  //
  // 0: off, unless the environment variable GRAPHCACHE_VERIFY holds an n when the cache is made. Negative, or a
  // variable that is no number from 0: an error of every run. Hits that restore or switch an executable count as
  // well. Keys whose `fn` hands out memory of cudaMallocAsync are not verified, because another call of `fn` would hand
  // out other memory. A verified hit costs the host a capture and two readings of the graph, about as much as an
  // instantiation. Off, the mode costs nothing.
  //
  // `fn` is called more often then than without verify mode. So it must do nothing on the host that must not happen
  // twice, such as to allocate what a replay uses; it should have no work outside the capture. Where an argument
  // differs, `fn` is called once more, deeper in the stack, and only what stays the same counts: so undefined bytes of
  // structures are no finding. It takes 64 KiB of stack. What `fn` returns or throws then is the run's, as in a miss. A
  // recording that a call of `fn` breaks is a finding. If another thread's call may have broken it
  // (cudaErrorStreamCaptureInvalidated, and no other error is left), the hit goes on unverified.
  int verify_every = 0;
  OnStale on_stale = OnStale::kReport;

  // Watches the CUDA calls of all threads while the cache captures, and names the call that breaks a capture: its
  // error, its thread, the kernel before it and the function that made it (EntryInfo::error, the log, the returned
  // error). Work that `fn` enqueues on a stream outside of the capture gets a line of the log, and stands in
  // EntryInfo::stray_work; if nothing else was captured, each run repeats it, and EntryInfo::error has it.
  // docs/capture-errors.md shows what is said.
  //
  // It needs the optional component libgraphcache_diagnose.so, which uses CUPTI and is loaded when the cache is made;
  // hostrt does the same by itself. If the component cannot be loaded, or if CUPTI refuses, as it does under a
  // profiler, the cache works without it, and the log has one line that says why. What runs do stays the same. But once
  // CUPTI has been used, each launch of a graph in the process takes tens of microseconds longer (docs/semantics.md),
  // and captures take longer. So this is for finding mistakes.
  //
  // The environment variable GRAPHCACHE_DIAGNOSE also asks for it, if it is neither empty nor 0. If it has a slash it
  // is the component's path.
  bool diagnose = false;

  // What to call around captures and launches (hooks.h).
  Hooks hooks = {};

  // For the library's own tests and benchmarks: leave it alone.
  detail::Mechanisms mechanisms = {};
};

}  // namespace graphcache
