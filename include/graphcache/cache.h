// A cache of CUDA graphs, keyed by launch configuration.
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
//
// The first run of a key captures what `fn` enqueues, instantiates it and launches it; every later run replays it: one
// runtime call if nothing changed, one more for each node whose values did. When the executable is evicted, what was
// captured is kept as a template, so that a later run of the key does not call `fn`. Only a key whose `fn` calls
// Recorder::on_device() is captured again then. Keys whose graphs differ in kernels, launch shapes and values alone
// share executables, where that is cheaper (Options::share).
//
// What the caller owns. A graph holds the arguments that were captured: memory that they point to must stay valid until
// the entry is gone (erase, clear, destruction, or Options::max_templates) and the last launch is over, or be passed as
// a slot, or be part of the key. Memory that `fn` allocates by cudaMallocAsync is best freed in `fn`. If `fn` hands it
// out instead, each run allocates it anew, at the same place while the key keeps its executable, and the caller frees
// it before the next run, or sets cudaGraphInstantiateFlagAutoFreeOnLaunch. Such a key calls `fn` again, which hands
// out the new memory, when it has lost its executable or has run directly. Whatever decides which work `fn` enqueues
// must be in the key: on a hit `fn` is not called. Options::verify_every finds where either was forgotten.
//
// Which runs are the same. An entry belongs to a key and a place in the program: the type of `fn` (each lambda has its
// own), and for function pointers and std::function the function they hold. Callables of one type that call different
// functions otherwise (std::bind, a functor with a function pointer, another type-erased callable) look alike: name the
// function in the key.
//
// Threads. All members may be called from any number of threads at once. Runs of one entry exclude each other from
// look-up to launch, except runs that call `fn` directly; a cold key met by many threads is captured once, while the
// others wait; runs of different entries do not wait for each other, except where one reads another's graph for the
// first time, to find what they could share. Launches of one entry from several streams are put in order by the driver.
// `fn` must not wait for another thread that runs the same key. If it adds a graph of the caller's as a child node by
// hand, only one thread at a time may run the cache, or add, clone, instantiate or destroy that graph
// (docs/semantics.md, fact 35). A cache must outlive its runs.
//
// What a run leaves alone. Afterwards the stream is as it was and takes work; the thread's current device and capture
// mode are the caller's, while `fn` has the cache's device current; the runtime's last-error slot holds what it held.
// The runtime lets that slot be read and emptied, not filled, so an error that stood there before is replaced by a
// later one if a CUDA call of the run fails, is gone if it was the launch of a hit, and hides one of the same kind that
// `fn` leaves. Exceptions of `fn` pass through, the capture having been ended. One that `fn` throws while its capture
// is broken is dropped, because checked code throws what a forbidden call returns: `fn` is called again, directly.
//
// Out of device memory, a run waits for the device, destroys what waits for its destruction, and tries once more.
//
// Out of host memory. A run or warm() for which the library cannot allocate returns ResourceExhausted, without a
// message if there is no memory even for that. Its key may have lost its executable by then.
// Other keys have been evicted at most, so they need `fn` again only if it calls Recorder::on_device(). Nothing
// here throws std::bad_alloc except the constructor and what returns a key or a text: key(), to_string(). A
// std::bad_alloc of `fn` is `fn`'s own, and passes through.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>
#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/adopt.h"
#include "graphcache/advice.h"
#include "graphcache/detail/call.h"
#include "graphcache/events.h"
#include "graphcache/graph_info.h"
#include "graphcache/key.h"
#include "graphcache/options.h"
#include "graphcache/params.h"
#include "graphcache/recorder.h"
#include "graphcache/stats.h"
#include "graphcache/step.h"

namespace graphcache {

class Cache {
 public:
  // Options that make no sense (a negative max_executables, an unknown device) are reported by status() and by each
  // run. Throws std::bad_alloc.
  explicit Cache(const Options& options = {});
  // Destroys every executable. No run may be under way. Waits for the device's work, as cudaFree does, since
  // executables in flight cannot be destroyed; inside a capture, other caches of the device destroy them later. Waits
  // for what background threads have begun.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Runs `fn`'s work once on `stream`, after what is enqueued there: by replay if `key` is known here, else by
  // capturing `fn`, or by calling `fn` uncaptured where that cannot be done (stats() counts the reasons). `fn` only
  // enqueues: it takes a cudaStream_t, or a Recorder& and then one Slot<T> for each value of `params`, and returns
  // nothing, a cudaError_t or an absl::Status. If a capture breaks, `fn` is called a second time, uncaptured.
  //
  // Without a stream, Options::stream. Called inside another run's `fn` on a stream of its capture, the work becomes
  // part of that run (kInlined); with params, which the outer graph could not follow, the outer run is not captured.
  //
  // The legacy default stream (a null stream is that) cannot be captured. A run on it captures `fn` on a stream of the
  // cache's own, which `fn` is given, and launches the graph on the legacy stream, where it waits for all blocking
  // streams and they wait for it. The other stream does not wait for the legacy one, so that other threads can go on
  // using that. So `fn` must enqueue on the stream that it is given: a launch without a stream would run once, and not
  // at a hit. Verify mode (Options::verify_every) reports that, and captures on a blocking stream for it. If `fn`
  // enqueues nothing where it should, each run calls it directly (kNothingCaptured).
  //
  // Errors: ResourceExhausted if the host's memory runs out; InvalidArgument for options, a stream of another device,
  // an empty `fn`, a slot of another run; FailedPrecondition for a stream that is capturing already;
  // what `fn` returned; an error that a CUDA call of `fn` left behind; a CUDA error of our own calls after which
  // nothing could be run. After an error none of this run's work was launched through the cache; work that `fn`
  // enqueued directly before it failed may have been.
  //
  // A stream that is capturing is noticed before anything is enqueued, but for a hit: it makes one runtime call, the
  // launch, which a capturing stream refuses and which ends that capture.
  template <class Fn, std::enable_if_t<!std::is_convertible_v<Fn&&, cudaStream_t>, int> = 0>
  absl::StatusOr<Outcome> run(const Key& key, Fn&& fn) {
    return run(key, default_stream(), Params<>(), std::forward<Fn>(fn));
  }
  template <class Fn>
  absl::StatusOr<Outcome> run(const Key& key, cudaStream_t stream, Fn&& fn) {
    return run(key, stream, Params<>(), std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::StatusOr<Outcome> run(const Key& key, const Params<Ts...>& params, Fn&& fn) {
    return run(key, default_stream(), params, std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::StatusOr<Outcome> run(const Key& key, cudaStream_t stream, const Params<Ts...>& params, Fn&& fn);

  // Makes a graph that somebody else captured or built the key's: later runs of it replay the graph (adopt.h). Nothing
  // is launched, and what the graph holds is neither run nor changed, but that bound arguments get the values of
  // `params`. These have the types of later runs' params.
  //
  // Errors, after which the graph and its owner are as they were: AlreadyExists if the key has a graph, by adoption or
  // by a capture; InvalidArgument for no graph, one without nodes or of another device alone, and for arguments that
  // cannot be bound; FailedPrecondition inside a run's `fn`, and for a graph that CUDA cannot clone; ResourceExhausted
  // if the host's memory runs out; a CUDA error. A graph that cannot be instantiated is adopted, and its runs fail.
  absl::Status adopt(const Key& key, cudaGraph_t graph, Adoption adoption = {}) {
    return adopt(key, graph, Params<>(), std::move(adoption));
  }
  template <class... Ts>
  absl::Status adopt(const Key& key, cudaGraph_t graph, const Params<Ts...>& params, Adoption adoption) {
    std::size_t index = 0;
    const std::array<detail::ValuePlace, sizeof...(Ts)> places = {
        detail::ValuePlace{Params<Ts...>::offset(index++), sizeof(Ts)}...};
    detail::AdoptedFn fn;
    return adopt_call(key, graph, make_call(params, fn), places, std::move(adoption));
  }
  // Replays the graph that was adopted for the key. NotFound if there is none. With values that change:
  // run(key, stream, params, graphcache::adopted).
  absl::StatusOr<Outcome> run(const Key& key, cudaStream_t stream) { return run(key, stream, adopted); }

  // A step that runs this key and `fn` as run() does, for a hot loop (step.h). It makes no call and holds no graph. It
  // has a copy of `fn`, or takes it over.
  template <class Fn>
  Step<std::decay_t<Fn>> prepare(Key key, Fn&& fn) {
    return Step<std::decay_t<Fn>>(hits(), default_stream(), std::move(key), std::forward<Fn>(fn));
  }

  // Makes a key ready without running it: captures `fn` if the key is not known, and instantiates and uploads its graph
  // while there is room for another executable; none leaves for it, so that any number of keys can be recorded before
  // the first run. It waits for the upload, which is made on a stream of the cache's own, so do not call it while the
  // device waits for what this thread does next. The values of `params` are those of a later run, and need not be its.
  // No outcome is counted. Options::capture_after does not count here; where Options::max_executables is 0 nothing is
  // done. Errors: as run() has them, and what broke the capture or the instantiation.
  //
  // With Options::background_threads, it returns when `fn` is captured. Those threads instantiate and upload the graphs
  // in the order of the calls, and wait_until_ready() reports their errors.
  template <class Fn>
  absl::Status warm(const Key& key, Fn&& fn) {
    return warm(key, default_stream(), Params<>(), std::forward<Fn>(fn));
  }
  template <class Fn>
  absl::Status warm(const Key& key, cudaStream_t stream, Fn&& fn) {
    return warm(key, stream, Params<>(), std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::Status warm(const Key& key, const Params<Ts...>& params, Fn&& fn) {
    return warm(key, default_stream(), params, std::forward<Fn>(fn));
  }
  template <class... Ts, class Fn>
  absl::Status warm(const Key& key, cudaStream_t stream, const Params<Ts...>& params, Fn&& fn) {
    if constexpr (std::is_function_v<std::remove_reference_t<Fn>>) {
      return warm(key, stream, params, &fn);
    } else {
      return warm_call(key, stream, make_call(params, fn));
    }
  }

  // How many executables the background threads have finished, of how many that they were asked for since the last
  // call of wait_until_ready() that returned neither DeadlineExceeded nor FailedPrecondition. Those that failed count.
  using Progress = std::function<void(std::size_t ready, std::size_t all)>;
  // Waits until the background threads (Options::background_threads) have nothing left to do for warm() and runs. Ok,
  // or the first error that they met meanwhile, which names its key. Such a key runs directly for a while, and
  // EntryInfo::error says why. DeadlineExceeded if the time has passed before: the threads go on. FailedPrecondition
  // inside a capture of a run's `fn`; do not call it in a direct call of `fn` either. Without background threads it
  // returns at once.
  //
  // `progress` is called in this thread each time that more is finished, and its exceptions pass. A run gives its key
  // to the threads when its direct call of `fn` has returned, so keys of runs that are under way may not be waited for.
  // The threads wait for uploads, as warm() does without them, so do not call this while the device waits for what this
  // thread does next.
  absl::Status wait_until_ready(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max(),
                                const Progress& progress = nullptr);

  // Keeps what the key has, an executable or a template, from leaving for others until unpin(); false if the key is not
  // known. A pinned key does not rent. Pins do not nest. Pinned executables count against the budgets: when nothing
  // else can leave, other keys run directly.
  bool pin(const Key& key);
  bool unpin(const Key& key);

  // Whether some place of the program has recorded this key, so that a run there would not call `fn`.
  bool contains(const Key& key) const;
  // Forgets the key, at every place of the program, pinned or not; false if there was none. A run of it that is under
  // way ends as it would have, and so do launches in flight: the executable is destroyed by this call, or by a later
  // run that is no hit, erase() or clear(), once these are known to be over. But what `fn` has given its capture to
  // keep alive (user objects, as some libraries do) may be released at once if the key, or another one that was
  // forgotten, has lost its executable since its last launch, or shares one with a table: synchronize first where there
  // is such. If an adopted key has an owner, erase() waits for the device's work and releases it (Adoption::owner).
  bool erase(const Key& key);
  // Forgets every key, and destroys what they had. Waits for the device's work, as cudaFree does. The counters go on.
  // What a background thread is making at this moment is destroyed by that thread: call wait_until_ready() before the
  // code of a kernel is unloaded.
  void clear();

  // Takes no longer with many keys than with few.
  Stats stats() const;
  // What each entry is and did, the one used last first. Entries are read about 256 at a time, fewer if their keys are
  // long, so that runs of other threads go on: these are of one moment, but the next ones are of a later one. A key
  // that is new or forgotten meanwhile may be missing; none appears twice. Empty if there is no memory for it.
  std::vector<EntryInfo> entries() const;

  // What the key's entries have, what their last runs did, and why, in sentences for people. The format is not fixed.
  // It says why a key was captured again, why it runs directly, whether it shares executables, and in what its graph
  // differs from the nearest one of the same label. For the last it reads a few graphs, as graph() does. Empty if there
  // is no memory for it.
  std::string explain(const Key& key) const;

  // The last events, the one that ended first before the others (Options::keep_events). Runs go on meanwhile. Empty if
  // there is no memory for it.
  std::vector<CacheEvent> events() const;

  // The runs of all keys, by the label of the key: the first 64 labels that the cache has met, in that order, and one
  // for all others if there are others. It reads as entries() does. Runs inside another run's capture, disabled runs,
  // and failed runs have no entry, and count in Stats alone.
  std::vector<LabelStats> labels() const;

  // The graph that the key keeps; of several entries of the key, that of the one used last. NotFound if the key is not
  // known or has no graph. Unavailable if its runs hold it for longer than 0.1 s, or if called inside its `fn`. The
  // runtime's getters are called, and runs of this key wait meanwhile. Other errors: of these calls; ResourceExhausted
  // if there is no memory.
  absl::StatusOr<GraphInfo> graph(const Key& key) const;
  // The same of an entry by its EntryInfo::id.
  absl::StatusOr<GraphInfo> graph(std::uint64_t entry) const;

  // What could be better about the use of this cache, what concerns the most runs first. It looks at all entries, some
  // at a time as entries() does, and reads a few graphs as graph() does: it is for people who ask, and not for each
  // run. Empty if there is nothing to say, or no memory for it.
  std::vector<Finding> advise() const;

  // The keys that have an executable or a template and have been replayed, those with the most runs first, at most
  // `most` of them: the text for read_manifest() (manifest.h). Keys that hold an address are left out. Reads as
  // entries() does. Empty if there is no memory for it.
  std::string manifest(std::size_t most = SIZE_MAX) const;

  // Ok, or why every run fails: options that make no sense, or a CUDA error that was fatal to the context.
  absl::Status status() const;
  // As given, the device filled in.
  const Options& options() const;

 private:
  friend class Verifier;  // Of the library itself.
  template <class Fn>
  friend class Step;
  class Impl;
  cudaStream_t default_stream() const;
  template <class... Ts, class Fn>
  static detail::Call make_call(const Params<Ts...>& params, Fn& fn);
  absl::StatusOr<Outcome> run_call(const Key& key, cudaStream_t stream, const detail::Call& call);
  absl::Status adopt_call(const Key& key, cudaGraph_t graph, const detail::Call& call,
                          absl::Span<const detail::ValuePlace> places, Adoption adoption);
  absl::Status warm_call(const Key& key, cudaStream_t stream, const detail::Call& call);
  const std::shared_ptr<detail::Hits>& hits() const;
  // A run of a step that is no hit, or whose launch has failed with this error: it holds the entry's lock then.
  absl::StatusOr<Outcome> run_step(const Key& key, cudaStream_t stream, const detail::Call& call,
                                   detail::Remembered* remembered, cudaError_t error);
  void wake();

  std::unique_ptr<Impl> impl_;
};

// The process-wide cache of a device, made at its first use with default options and never destroyed. Thread-safe. For
// a device that does not exist, negative numbers included, a cache whose runs all fail. Throws std::bad_alloc if there
// is no memory to make it.
Cache& cache_for(int device);

template <class... Ts, class Fn>
detail::Call Cache::make_call(const Params<Ts...>& params, Fn& fn) {
  using Invoker = detail::Invoker<Fn, Ts...>;
  constexpr bool can_be_called = Invoker::kTakesRecorder || Invoker::kTakesStream;
  static_assert(can_be_called,
                "graphcache: fn must take a cudaStream_t, or a graphcache::Recorder& and one graphcache::Slot<T> for "
                "each value of params, of the same types in the same order");
  if constexpr (can_be_called) {
    const void* address = std::addressof(fn);
    const detail::Site site{&detail::site_tag<std::remove_cv_t<Fn>, Ts...>, detail::target(fn)};
    return {site,
            const_cast<void*>(address),
            &Invoker::invoke,
            &detail::is_empty<Fn>,
            params.data(),
            params.size(),
            std::is_same_v<std::remove_cv_t<Fn>, detail::AdoptedFn>};
  } else {
    return {};
  }
}

template <class... Ts, class Fn>
absl::StatusOr<Outcome> Cache::run(const Key& key, cudaStream_t stream, const Params<Ts...>& params, Fn&& fn) {
  if constexpr (std::is_function_v<std::remove_reference_t<Fn>>) {
    return run(key, stream, params, &fn);
  } else {
    return run_call(key, stream, make_call(params, fn));
  }
}

template <class Fn>
template <class... Ts>
absl::StatusOr<Outcome> Step<Fn>::run(cudaStream_t stream, const Params<Ts...>& params) {
  Cache* const cache = hits_->cache.load(std::memory_order_relaxed);
  if (cache == nullptr) return absl::FailedPreconditionError("the cache of this step has ended");
  cudaError_t error = cudaSuccess;
  detail::HotEntry* const entry = remembered_.entry;
  const bool is_known = entry != nullptr && remembered_.type == &detail::site_tag<Fn, Ts...>;
  if (is_known && hits_->are_usual() && entry->lock.try_lock()) {
    const cudaStream_t on = stream == nullptr ? cudaStreamLegacy : stream;
    const bool is_hit = entry->life == remembered_.life && !entry->erased.load(std::memory_order_relaxed) &&
                        entry->is_ready_for(on, params.data(), params.size());
    if (is_hit) error = hits_->launch(*entry);
    if (error == cudaSuccess) {
      if (entry->lock.unlock() || entry->erased.load(std::memory_order_relaxed)) cache->wake();
      if (is_hit) return Outcome::kReplayed;
    }
  }
  return cache->run_step(key_, stream, Cache::make_call(params, fn_), &remembered_, error);
}

}  // namespace graphcache
