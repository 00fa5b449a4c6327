// Cache: runs work as CUDA graphs, which it keeps by key. docs/guide.md explains what is promised here.
//
//   graphcache::Cache cache({.max_executables = 64});
//   absl::StatusOr<graphcache::Outcome> outcome = cache.run(
//       graphcache::key("train_step", batch, grid, block), stream,  // which graph
//       graphcache::values(learning_rate, data),                    // with which values
//       [&](cudaStream_t s, float lr, const float* batch_data) {
//         forward<<<grid, block, 0, s>>>(weights, batch_data, hidden);
//         sgd<<<grid, block, 0, s>>>(weights, gradient, lr);
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
#include "graphcache/detail/no_call.h"
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
// graph: one runtime call, and at most one more for each changed node and two for each copy from or to the host. All
// members are thread-safe.
//
// REQUIRES, for right results:
//   - Everything that decides which work `fn` enqueues is in the key. What else changes is a value or a slot.
//   - `fn` only enqueues, on the stream that it gets, and may be called several times in one run.
//   - No other thread uses `stream` while a run may capture it.
//   - Memory and code that the work uses stay valid until the entry is gone and its last launch is over.
//   - The CUDA context of the first run is current, until clear() ends it (docs/guide/threads.md, "Contexts").
//
// The place. An entry belongs to a key and to a place in the program, which is the type of `fn` in its executable or
// shared object: each lambda expression has its own. The target of a function pointer, of a std::function and of a
// virtual call counts as well. Types that hide what they call are refused (docs/guide/sizes.md, "One key, two places").
class Cache {
 public:
  // Makes no CUDA call. Invalid options make status() and each run return an error. Throws std::bad_alloc.
  explicit Cache(const Options& options = {});
  // Destroys every executable, and waits for the work of the device. Inside another cache's capture, both are done
  // when that is over. REQUIRES: no run is under way.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Runs the work of `fn` once on `stream`, behind what is already enqueued there. A null stream is the default stream
  // of the calling code (StreamArg). Where none is given, the stream is Options::stream.
  //
  // `fn` takes a cudaStream_t or a Recorder&, and then the values. With params it takes a Recorder& and one Slot<T> for
  // each. It returns nothing, a cudaError_t or an absl::Status. Or it takes nothing and returns a Graph (graph.h).
  // If `fn` cannot be captured or fails under capture, it is called directly, and that call's result or exception
  // counts. Not repeated are misuse of the recorder, an order to stop (stop.h), and runs with
  // OnCaptureFailure::kReturnError. Inside the `fn` of another run, the work becomes part of that run (kInlined).
  // REQUIRES: nobody but a run of a cache captures `stream` (or Options::inline_in_foreign_capture is set). A hit does
  // not check that: its launch fails and invalidates the capture. `fn` does not wait for a thread that runs the same
  // key, because runs of one entry exclude each other.
  //
  // Errors: InvalidArgument (options, a stream of another device, a slot of another run, a hidden `fn`),
  // FailedPrecondition (a capturing stream, a context that is gone), ResourceExhausted (host memory), the status or
  // CUDA error of `fn`, or a CUDA error of the library's own calls. The library itself throws nothing, and has launched
  // none of the work. What `fn` enqueued directly before it failed may have been launched. The stream, current device,
  // capture mode and last CUDA error stay as they were; but a failed CUDA call may replace or clear an older error.
  template <class Fn, std::enable_if_t<!std::is_convertible_v<Fn&&, cudaStream_t>, int> = 0>
  absl::StatusOr<Outcome> run(const Key& key, Fn&& fn) {
    return run(key, default_stream(), Params<>(), std::forward<Fn>(fn));
  }
  template <class Fn>
  absl::StatusOr<Outcome> run(const Key& key, StreamArg stream, Fn&& fn) {
    return run(key, stream, Params<>(), std::forward<Fn>(fn));
  }
  template <class Given, class Fn, detail::IfGiven<Given> = 0>
  absl::StatusOr<Outcome> run(const Key& key, const Given& given, Fn&& fn) {
    return run(key, default_stream(), given, std::forward<Fn>(fn));
  }
  template <class Given, class Fn, detail::IfGiven<Given> = 0>
  absl::StatusOr<Outcome> run(const Key& key, StreamArg stream, const Given& given, Fn&& fn) {
    return detail::with_call(given, fn, [&](const detail::Call& call) { return run_call(key, stream, call); });
  }
  // Calls without a key, or in another order, do not compile, with advice.
  template <class... Args, detail::IfNoCall<Args...> = 0>
  absl::StatusOr<Outcome> run(Args&&...) {
    return detail::NoCall<Args...>::status();
  }

  // Returns a step, which runs this key and a copy of `fn` in a hot loop as run() does (step.h). Makes no CUDA call.
  template <class Fn>
  Step<std::decay_t<Fn>> prepare(Key key, Fn&& fn) {
    return Step<std::decay_t<Fn>>(hits(), default_stream(), std::move(key), std::forward<Fn>(fn));
  }
  template <class T, class Fn, detail::IfNoCall<T, Fn> = 0>
  Step<std::decay_t<Fn>> prepare(T&&, Fn&& fn) {
    return prepare(detail::NoCall<T, Fn>::key(), std::forward<Fn>(fn));
  }
  template <class Fn>
  void prepare(const Key&, StreamArg, Fn&&) = delete;  // Pass the stream to Step::run().

  // Makes a key ready without running it. Captures `fn`, and instantiates and uploads its graph if there is room. Waits
  // for the upload. Evicts no executable. Keeps at most Options::max_templates keys, or those with executables if these
  // are more. REQUIRES: the device does not wait for this thread. Errors: those of run(), of the capture and the
  // instantiation.
  template <class Fn>
  absl::Status warm(const Key& key, Fn&& fn) {
    return warm(key, default_stream(), Params<>(), std::forward<Fn>(fn));
  }
  template <class Fn>
  absl::Status warm(const Key& key, StreamArg stream, Fn&& fn) {
    return warm(key, stream, Params<>(), std::forward<Fn>(fn));
  }
  template <class Given, class Fn, detail::IfGiven<Given> = 0>
  absl::Status warm(const Key& key, const Given& given, Fn&& fn) {
    return warm(key, default_stream(), given, std::forward<Fn>(fn));
  }
  template <class Given, class Fn, detail::IfGiven<Given> = 0>
  absl::Status warm(const Key& key, StreamArg stream, const Given& given, Fn&& fn) {
    return detail::with_call(given, fn, [&](const detail::Call& call) { return warm_call(key, stream, call); });
  }
  template <class... Args, detail::IfNoCall<Args...> = 0>
  absl::Status warm(Args&&...) {
    return detail::NoCall<Args...>::status();
  }

  // Protects the entries that the key has now from eviction by other keys, until unpin(). Returns false for an unknown
  // key. Pins do not nest, and count against the limits. A pinned key does not borrow executables.
  bool pin(const Key& key);
  bool unpin(const Key& key);

  // Whether the key has been recorded at some place of the program, so that a run there calls no `fn`, or only for want
  // of room or for changed values that are not found.
  bool contains(const Key& key) const;
  // Forgets the key at every place, pinned or not. Returns false if there was none. Runs and launches in flight end
  // normally. The executable and what the graph keeps are released once these are over: by this call, which waits up to
  // 1 ms, or by a later erase(), clear(), or run that is not a hit. REQUIRES: where the capture retains user objects by
  // itself, as some libraries do, the last launch is over.
  bool erase(const Key& key);
  // The same for every key for which `predicate` is true. Returns their number. The predicate is called without a lock,
  // perhaps several times for a key, before anything is forgotten. A key that is new meanwhile may be missed. Throws
  // std::bad_alloc, and what the predicate throws.
  std::size_t erase_if(const std::function<bool(const Key&)>& predicate);
  // Forgets every key, destroys its executables, and waits for the work of the device. The counters stay. The next run
  // may be in another CUDA context.
  void clear();

  // The counters. Its time grows by about 20 ns for each executable, and not with the keys.
  Stats stats() const;
  // All entries, the one used last first; none appears twice. A key that is new or forgotten meanwhile may be missing.
  // Empty if there is no memory for them. Runs of other threads go on.
  std::vector<EntryInfo> entries() const;

  // The graph that the key keeps; of several entries, that of the one used last. Runs of the key wait meanwhile.
  // Errors: NotFound (no such key or no graph), Unavailable (a run holds the graph for longer than 0.1 s, or this is
  // called in its `fn`), ResourceExhausted (host memory), FailedPrecondition (another context), Internal (CUDA could
  // not report the nodes), that of status(), or a CUDA error.
  absl::StatusOr<GraphInfo> graph(const Key& key) const;
  // The same for the entry with this EntryInfo::id.
  absl::StatusOr<GraphInfo> graph(std::uint64_t entry) const;

  // Ok, or the reason why every run fails: invalid options, an unknown device, or a CUDA error that was fatal.
  absl::Status status() const;
  // The options. From the first run or warm() on, they name the actual device.
  const Options& options() const;

 private:
  friend class StructureChecker;  // Defined by the tests.
  template <class Fn>
  friend class Step;
  StreamArg default_stream() const;
  absl::StatusOr<Outcome> run_call(const Key& key, cudaStream_t stream, const detail::Call& call);
  absl::Status warm_call(const Key& key, cudaStream_t stream, const detail::Call& call);
  const std::shared_ptr<detail::Hits>& hits() const;
  static absl::StatusOr<Outcome> run_step(detail::Hits& hits, const Key& key, cudaStream_t stream,
                                          const detail::Call& call, detail::Remembered* remembered);

  std::unique_ptr<Core> core_;
};

// The cache of a device that the whole process shares, with default options. It is made at the first call and never
// destroyed. Thread-safe. If the device does not exist, all runs fail. Throws std::bad_alloc.
Cache& cache_for(int device);

template <class Fn>
template <class... Ts>
absl::StatusOr<Outcome> Step<Fn>::run(StreamArg stream, const Params<Ts...>& params) {
  return Cache::run_step(*hits_, key_, stream, detail::make_call(params, fn_), &remembered_);
}
template <class Fn>
template <class... Ts>
absl::StatusOr<Outcome> Step<Fn>::run(StreamArg stream, const Values<Ts...>& values) {
  return Cache::run_step(*hits_, key_, stream, detail::make_call(values, fn_), &remembered_);
}

}  // namespace graphcache
