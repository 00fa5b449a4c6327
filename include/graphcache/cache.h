// Cache: runs work as CUDA graphs, which it keeps by key.
//
//   graphcache::Cache cache({.max_executables = 64});
//   absl::StatusOr<graphcache::Outcome> outcome = cache.run(
//       graphcache::key("train_step", batch, grid, block),   // discrete: which graph
//       stream,
//       graphcache::params(learning_rate, data),             // continuous: which values
//       [&](graphcache::Recorder& rec, graphcache::Slot<float> lr, graphcache::Slot<const float*> data) {
//         forward<<<grid, block, 0, rec.stream()>>>(weights, hidden);
//         rec.launch(sgd, {grid, block}, weights, gradient, data, lr);
//       });
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/detail/call.h"
#include "graphcache/graph.h"
#include "graphcache/graph_info.h"
#include "graphcache/key.h"
#include "graphcache/options.h"
#include "graphcache/params.h"
#include "graphcache/recorder.h"
#include "graphcache/stats.h"
#include "graphcache/step.h"
#include "graphcache/stream.h"
#include "graphcache/values.h"

namespace graphcache {

class Core;  // Not for users.

// The first run of a key captures the work that `fn` enqueues, and launches it as a graph. Every later run replays the
// graph: one runtime call if no value has changed, and at most one more for each node whose values have. All members
// are thread-safe. "Rules" after the class says what callers must observe.
class Cache {
 public:
  // Makes no CUDA call: the first run or warm() finds the device, so a process can make caches and then fork. Invalid
  // options (a negative max_executables) make status() and each run return an error. Throws std::bad_alloc.
  explicit Cache(const Options& options = {});
  // Destroys every executable. REQUIRES: no run is under way. Waits for the work of the device, as cudaFree does,
  // because executables in flight cannot be destroyed. Inside a capture it does not wait: other caches of the device
  // destroy them later.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Runs the work of `fn` once on `stream`, behind the work that is already enqueued there. If the key is known, its
  // graph is replayed; otherwise `fn` is captured. Where a capture is impossible or breaks, `fn` is called directly,
  // and stats() counts the reason. The default stream is Options::stream.
  //
  // `fn` takes a cudaStream_t, or a Recorder& and one Slot<T> for each value of `params`. With `values` it takes a
  // cudaStream_t or a Recorder&, and the values (values.h). It returns nothing, a
  // cudaError_t or an absl::Status. It must only enqueue, because a hit does not call it, and a run calls it twice if
  // it fails under capture: under capture, and directly. An `fn` that takes nothing returns a Graph, or an
  // absl::StatusOr<Graph>, that was made in another way (graph.h).
  //
  // REQUIRES: `stream` is not capturing (but see "Nested runs" and Options::inline_in_foreign_capture). Violations are
  // detected before any work is enqueued, except on a hit: there the launch fails and invalidates the caller's capture.
  //
  // Errors:
  //   - ResourceExhausted: host memory ran out.
  //   - InvalidArgument: invalid options, a stream of another device, a slot of another run, or an `fn` that is empty
  //     or hides what it calls ("The place" below).
  //   - FailedPrecondition: the stream is capturing already.
  //   - The status that the last call of `fn` returned, or a CUDA error that it left behind.
  //   - A CUDA error of the library's own calls, if the work could not be run in another way.
  // After an error, the library has launched none of the run's work. Work that `fn` enqueued directly before it failed
  // may have been launched.
  //
  // Nested runs: if run() is called inside the `fn` of another run, on a stream of its capture, the work becomes part
  // of that run (kInlined). If the inner run has params, the outer run is not captured, because its graph could not
  // update these values. On such a stream, a run by another thread that `fn` has started fails, and the graph lacks it.
  //
  // A null stream is the default stream of the calling code (StreamArg). The legacy default stream cannot be captured.
  // A run on it captures `fn` on a stream of the cache's own, which it passes to `fn`, and launches the graph on the
  // legacy stream. There the graph and all blocking streams wait for each other as usual. The cache's own stream is a
  // non-blocking one, so other threads may use the legacy stream during the capture. So a launch without a stream in
  // `fn` is not captured: it runs once, and hits do not repeat it. Verify mode (Options::verify_every) reports such a
  // launch, and captures on a blocking stream to find it. If `fn` enqueues nothing on the stream that it is given, each
  // run calls it directly (kNothingCaptured).
  template <class Fn, std::enable_if_t<!std::is_convertible_v<Fn&&, cudaStream_t>, int> = 0>
  absl::StatusOr<Outcome> run(const Key& key, Fn&& fn) {
    return run(key, default_stream(), Params<>(), std::forward<Fn>(fn));
  }
  template <class Fn>
  absl::StatusOr<Outcome> run(const Key& key, StreamArg stream, Fn&& fn) {
    return run(key, stream, Params<>(), std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::StatusOr<Outcome> run(const Key& key, const Params<Ts...>& params, Fn&& fn) {
    return run(key, default_stream(), params, std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::StatusOr<Outcome> run(const Key& key, StreamArg stream, const Params<Ts...>& params, Fn&& fn) {
    return run_with(key, stream, params, fn);
  }
  template <class... Ts, class Fn>
  absl::StatusOr<Outcome> run(const Key& key, const Values<Ts...>& values, Fn&& fn) {
    return run(key, default_stream(), values, std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::StatusOr<Outcome> run(const Key& key, StreamArg stream, const Values<Ts...>& values, Fn&& fn) {
    return run_with(key, stream, values, fn);
  }

  // Returns a step, which runs this key and `fn` in a hot loop as run() does (step.h). The step copies `fn`, or moves
  // it if it is an rvalue. This makes no CUDA call.
  template <class Fn>
  Step<std::decay_t<Fn>> prepare(Key key, Fn&& fn) {
    return Step<std::decay_t<Fn>>(hits(), default_stream(), std::move(key), std::forward<Fn>(fn));
  }

  // Makes a key ready without running it. Captures `fn` if the key is not known, and instantiates and uploads its graph
  // if there is room for another executable. If there is none, but keys like it share one by a parameter table, its set
  // is written there, on the given stream. Nothing is evicted for it, so any number of keys can be recorded before the
  // first run. The params or values may differ from those of later runs. Calls with other values find where these
  // stand, as runs do.
  //
  // It waits for the upload, which runs on a stream of the cache's own. So do not call it while the device waits for
  // something that this thread does next. No outcome is counted, and Options::capture_after does not apply. If
  // Options::max_executables is 0, nothing is done. Errors: those of run(), and errors that broke the capture or the
  // instantiation.
  template <class Fn>
  absl::Status warm(const Key& key, Fn&& fn) {
    return warm(key, default_stream(), Params<>(), std::forward<Fn>(fn));
  }
  template <class Fn>
  absl::Status warm(const Key& key, StreamArg stream, Fn&& fn) {
    return warm(key, stream, Params<>(), std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::Status warm(const Key& key, const Params<Ts...>& params, Fn&& fn) {
    return warm(key, default_stream(), params, std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::Status warm(const Key& key, StreamArg stream, const Params<Ts...>& params, Fn&& fn) {
    return warm_with(key, stream, params, fn);
  }
  template <class... Ts, class Fn>
  absl::Status warm(const Key& key, const Values<Ts...>& values, Fn&& fn) {
    return warm(key, default_stream(), values, std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::Status warm(const Key& key, StreamArg stream, const Values<Ts...>& values, Fn&& fn) {
    return warm_with(key, stream, values, fn);
  }

  // Protects the key's executable or template from eviction by other keys, until unpin(). Returns false if the key is
  // not known. Pins do not nest. A pinned key does not borrow executables of siblings. Pinned executables count against
  // the limits: if nothing else can be evicted, other keys run directly.
  bool pin(const Key& key);
  bool unpin(const Key& key);

  // Whether the key has been recorded at some place of the program, so that a run there would not call `fn`.
  bool contains(const Key& key) const;
  // Forgets the key at every place of the program, pinned or not. Returns false if there was none. A run of the key
  // that is under way ends normally, and so do launches in flight. The executable is destroyed once these are over: by
  // this call, which waits up to 1 ms for them, or by a later erase(), clear(), or run that is not a hit. The same
  // holds for what the key keeps (Recorder::keep, Graph::owner).
  //
  // Synchronize before erase() if the capture of `fn` retains user objects, as some libraries do. They may be released
  // at once in two cases: a forgotten key, such as this one, lost its executable after its last launch; or this key
  // shares an executable that has a table.
  bool erase(const Key& key);
  // The same for every key for which `predicate` is true, such as those of a model that is replaced. Returns their
  // number. The predicate may be called several times for a key. It is called without a lock and before anything is
  // forgotten, so its exceptions pass through and change nothing. A key that is new meanwhile may be missed. Throws
  // std::bad_alloc.
  std::size_t erase_if(const std::function<bool(const Key&)>& predicate);
  // Forgets every key and destroys its executables. Waits for the work of the device, as cudaFree does. The counters
  // stay. The next run begins anew, and may be in another CUDA context: see "Contexts" below.
  void clear();

  // The counters. The call takes the same time for many keys as for few.
  Stats stats() const;
  // All entries, the one used last first. Empty if there is no memory for them. About 256 entries are read at a time,
  // or fewer if their keys are long, so that runs of other threads go on in between. Entries read together are of one
  // moment; the next ones are of a later moment. A key that is new or forgotten meanwhile may be missing, and none
  // appears twice.
  std::vector<EntryInfo> entries() const;

  // The graph that the key keeps. If the key has several entries, it is that of the one used last. Runs of the key wait
  // while the graph is read.
  //
  // Errors:
  //   - NotFound: the key is not known or has no graph.
  //   - Unavailable: runs of the key hold the graph for longer than 0.1 s, or the call was made inside its `fn`.
  //   - ResourceExhausted: host memory ran out.
  //   - An error of the runtime's functions that read the graph.
  absl::StatusOr<GraphInfo> graph(const Key& key) const;
  // The same for the entry with this EntryInfo::id.
  absl::StatusOr<GraphInfo> graph(std::uint64_t entry) const;

  // Ok, or the reason why every run fails: invalid options, an unknown device once a run has looked for it, or a CUDA
  // error that was fatal to the context. It does not ask which context is current.
  absl::Status status() const;
  // The options of the cache. From the first run or warm() on, they name the actual device.
  const Options& options() const;

 private:
  friend class StructureChecker;  // Defined by the tests.
  template <class Fn>
  friend class Step;
  StreamArg default_stream() const;
  template <class... Ts, class Fn>
  static detail::Call make_call(const Params<Ts...>& params, Fn& fn);
  template <class... Ts, class Fn>
  static detail::Call make_call(const Values<Ts...>& values, Fn& fn);
  template <class Invoker, class Given, class Fn>
  static detail::Call make_call_by(const Given& given, Fn& fn);
  // Calls use(call). A function is called by its address.
  template <class Given, class Fn, class Use>
  static auto with_call(const Given& given, Fn& fn, Use&& use) {
    if constexpr (std::is_function_v<Fn>) {
      auto* const address = &fn;
      return use(make_call(given, address));
    } else {
      return use(make_call(given, fn));
    }
  }
  template <class Given, class Fn>
  absl::StatusOr<Outcome> run_with(const Key& key, StreamArg stream, const Given& given, Fn& fn) {
    return with_call(given, fn, [&](const detail::Call& call) { return run_call(key, stream, call); });
  }
  template <class Given, class Fn>
  absl::Status warm_with(const Key& key, StreamArg stream, const Given& given, Fn& fn) {
    return with_call(given, fn, [&](const detail::Call& call) { return warm_call(key, stream, call); });
  }
  absl::StatusOr<Outcome> run_call(const Key& key, cudaStream_t stream, const detail::Call& call);
  absl::Status warm_call(const Key& key, cudaStream_t stream, const detail::Call& call);
  const std::shared_ptr<detail::Hits>& hits() const;
  static absl::StatusOr<Outcome> run_step(detail::Hits& hits, const Key& key, cudaStream_t stream,
                                          const detail::Call& call, detail::Remembered* remembered);

  std::unique_ptr<Core> core_;
};

// ---- Rules --------------------------------------------------------------------------------------------------------
//
// A cache must outlive its runs. Four rules keep results right; the paragraphs below explain them.
//   - Everything that decides which work `fn` enqueues is in the key.
//   - Values that change from run to run are values() or slots, or part of the key.
//   - `fn` enqueues its work on the stream that it is given.
//   - Memory that the work uses stays valid as long as the entry.
//
// The key. A hit does not call `fn`, so everything that decides which work `fn` enqueues must be in the key.
// Options::verify_every finds parts of keys, slots and memory that were forgotten.
//
// The place. An entry belongs to a key and to a place in the program, which is the type of `fn` in its executable or
// shared object: each lambda expression has its own. For function pointers and std::function, the function that they
// hold counts as well, and for virtual functions the class of the object. Callables of one type that may call different
// functions, and do not show which, are refused. When the program is compiled these are std::bind, type-erased
// callables other than std::function, and aggregates with a pointer to a function or member function, or a
// std::function, among their first 32 members. Other callables of std and Abseil, and function pointers of another
// signature in a std::function, are an InvalidArgument. Pass a lambda, and name the function in the key. The same holds
// for what is not noticed: function pointers that a lambda captures, that are private, or that are in an aggregate
// which a std::function holds. The code of an inline function that a program and its library both contain has a place
// in each.
//
// Memory. A graph contains the arguments that were captured. Memory to which they point must stay valid until the entry
// is gone (by erase(), clear(), destruction, or Options::max_templates) and the last launch is over. Otherwise pass the
// pointer as a slot, or put it into the key. The data of a host function must stay valid as well. A key runs directly
// if a copy has pageable host memory at an end that is no slot (Recorder::memcpy), or if a host function has its data
// there, unless `fn` keeps that memory (Recorder::keep). Static data counts as pinned for host functions; and if such a
// function is in another shared object than `fn`, as those of NCCL are, only data on a stack makes the key run
// directly.
//
// Three changes of memory are not noticed, because only a second call at each hit would show them:
//   - Pinned memory that is freed or unregistered (cudaHostUnregister): the launch fails.
//   - Code that is unloaded (dlclose, cudaLibraryUnload, cuModuleUnload). Erase the keys whose `fn` or kernels it has
//     before it goes: erase_if() finds them. Otherwise not only these keys crash. A run of another key whose graph has
//     the same shape reads theirs, and so do graph() and the reports. clear() and the destructor do not.
//   - A stack limit that is raised (cudaDeviceSetLimit with cudaLimitStackSize). An executable keeps the limit that it
//     was instantiated with, so kernels that need more stack then access illegal addresses. Raise it before the first
//     run, or clear() behind it.
//
// Memory from cudaMallocAsync in `fn` is freed in `fn`. If `fn` hands it out instead, the key runs directly
// (kHandsOutMemory).
//
// Eviction. A key whose executable was evicted keeps its template, the captured graph. Its next run makes an executable
// from that, without calling `fn`. A key is captured again if its template was dropped (Options::max_templates). Keys
// whose graphs differ only in kernels, launch shapes and values can share executables (Options::share).
//
// Threads. Runs of one entry exclude each other from look-up to launch, except runs that call `fn` directly. If several
// threads run a cold key, one captures it and the others wait. Runs of different entries do not wait for each other,
// with one exception: a run may read another entry's graph, once, to find out whether they can share. The driver
// serialises launches of one entry on several streams. If they are to overlap, put an index of the stream into the key.
// `fn` must not wait for another thread that runs the same key. If `fn` adds the caller's own graph as a child node by
// hand, only one thread at a time may run the cache, or add, clone, instantiate or destroy that graph
// (docs/semantics.md, fact 35).
//
// The caller's state. After a run, the stream is as it was and accepts work, and the thread has its current device and
// capture mode back. `fn` runs with the cache's device current. A run leaves the runtime's last error as it found it,
// also if it fails, with two exceptions. CUDA cannot set that error. So if a CUDA call fails in the run, an older error
// comes back by a call that fails with it: cudaErrorInvalidValue, MemoryAllocation, InvalidDeviceFunction,
// InvalidDevice and InvalidResourceHandle have one, and any other is replaced by the newer error. And if CUDA refuses
// the launch or a value of a hit, an older error is cleared. While an older error is there, an equal error that `fn`
// leaves behind is not noticed.
//
// Contexts. A cache belongs to the CUDA context of its first run, and clear() ends that. To reset the device, call
// clear() while no run is under way, and then cudaDeviceReset: the next run begins anew in the new context. Without
// clear(), every run but a hit returns FailedPrecondition from then on, or cudaErrorContextIsDestroyed where there is
// no context yet, until clear() is called. Nothing of the old context is touched: clear() and the destructor drop its
// handles, and release what graphs keep. A hit, also with new values, asks nothing: it launches what is gone, which may
// crash. The same holds for a run while another context of the device is current (cuCtxSetCurrent), and there clear()
// and the destructor would drop what is alive: make the cache's own context current again instead.
//
// Failures under capture. If `fn` throws, returns an error or leaves one behind under capture, the capture is dropped
// and `fn` is called again, directly. The result of that call counts: some code refuses to work under capture, and a
// true failure fails again. So what `fn` does on the host must allow two calls. Not repeated are misuse of the
// recorder, an order to stop (stop.h), and runs with OnCaptureFailure::kReturnError: there an exception passes through,
// unless a CUDA call had broken the capture before. If a run inside `fn` fails, the outer run is direct.
//
// Out of device memory. The run waits for the device, destroys everything that waits for its destruction, and tries
// once more.
//
// Out of host memory. If the library cannot allocate memory, run() and warm() return ResourceExhausted, without a
// message if there is no memory even for that. The key may have lost its executable, and other keys may have been
// evicted. std::bad_alloc is thrown only by the
// constructor and by functions that return a key or a text: key(), to_string(). A std::bad_alloc of `fn` itself passes
// through.

// The cache of a device that the whole process shares. It is made at the first call, with default options, and never
// destroyed. Thread-safe. If the device does not exist, all runs of the cache fail. Throws std::bad_alloc if there is
// no memory to make it.
Cache& cache_for(int device);

template <class... Ts, class Fn>
detail::Call Cache::make_call(const Params<Ts...>& params, Fn& fn) {
  using Invoker = detail::Invoker<Fn, Ts...>;
  constexpr bool can_be_called = Invoker::kTakesRecorder || Invoker::kTakesStream || detail::kMakesGraph<Fn>;
  static_assert(can_be_called,
                "graphcache: fn must take a cudaStream_t, or a graphcache::Recorder& and one graphcache::Slot<T> for "
                "each value of params, of the same types in the same order; or take nothing and return a "
                "graphcache::Graph");
  if constexpr (can_be_called) {
    return make_call_by<Invoker>(params, fn);
  } else {
    return {};
  }
}

template <class... Ts, class Fn>
detail::Call Cache::make_call(const Values<Ts...>& values, Fn& fn) {
  using Invoker = detail::ValuesInvoker<Fn, Ts...>;
  constexpr bool can_be_called = Invoker::kTakesRecorder || Invoker::kTakesStream;
  static_assert(can_be_called,
                "graphcache: fn must take a cudaStream_t or a graphcache::Recorder&, and then the values, of the same "
                "types in the same order");
  constexpr bool takes_values = detail::kTakesValues<std::remove_cv_t<Fn>>;
  static_assert(takes_values,
                "graphcache: fn takes a value as an integer, an enumerator or a bool, and so decides by it: put that "
                "into the key, or make it a slot by params()");
  if constexpr (can_be_called && takes_values) {
    detail::Call call = make_call_by<Invoker>(values, fn);
    call.site.identity = values.identity();
    call.list = values.list();
    return call;
  } else {
    return {};
  }
}

template <class Invoker, class Given, class Fn>
detail::Call Cache::make_call_by(const Given& given, Fn& fn) {
  using Bare = std::remove_cv_t<Fn>;
  constexpr bool can_be_told_apart = !detail::Target<Bare>::kIsHidden;
  static_assert(can_be_told_apart,
                "graphcache: objects of fn's type may call different functions, whose graphs would be taken for each "
                "other: pass a lambda that makes the call, and name the function in the key");
  if constexpr (can_be_told_apart) {
    const void* const address = std::addressof(fn);
    return {{&Invoker::template Tag<Bare>::value, detail::Target<Bare>::of(fn), detail::loaded_at},
            const_cast<void*>(address),
            &detail::CalleeOf<Invoker>::value,
            given.data(),
            given.size()};
  } else {
    return {};
  }
}

template <class Fn>
template <class... Ts>
absl::StatusOr<Outcome> Step<Fn>::run(StreamArg stream, const Params<Ts...>& params) {
  return Cache::run_step(*hits_, key_, stream, Cache::make_call(params, fn_), &remembered_);
}
template <class Fn>
template <class... Ts>
absl::StatusOr<Outcome> Step<Fn>::run(StreamArg stream, const Values<Ts...>& values) {
  return Cache::run_step(*hits_, key_, stream, Cache::make_call(values, fn_), &remembered_);
}

}  // namespace graphcache
