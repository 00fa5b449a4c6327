// A run: find the entry, decide, bring its executable over, launch.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "graphcache/cache.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {
namespace {

// Tells cudaStreamPerThread of each thread apart, which is one handle.
cudaError_t stream_id(cudaStream_t stream, unsigned long long* id) {
  const LastErrorGuard last_error;
  return cudaStreamGetId(stream, id);
}

// A null stream is the legacy stream: this library is compiled without per-thread default streams.
cudaStream_t name_of(cudaStream_t stream) { return stream == nullptr ? cudaStreamLegacy : stream; }

// What is known of a graph that has not been read.
GraphFacts facts_of(const Content& content) {
  const std::size_t nodes = content.node_count + content.body_node_count;
  // An updater node needs a clone, and CUDA clones no graph that has conditional nodes.
  const bool is_clonable = content.conditional_count == 0;
  return {.nodes = nodes,
          .bytes = estimated_device_bytes(nodes, content.conditional_count),
          .slot_kernels = is_clonable ? UpdaterNode::writable_nodes(content.slots) : 0};
}

}  // namespace

template <class F>
auto Cache::Impl::without_throwing(const Request& request, F&& f) -> decltype(f()) {
  const auto count = [this] {
    MutexLock lock(mutex_);
    ++totals_.failed;
  };
  try {
    return f();
  } catch (const std::bad_alloc&) {
    if (!request.call.threw) return failed(request, out_of_memory());
    count();
    throw;
  } catch (...) {
    count();
    throw;
  }
}

absl::StatusOr<Outcome> Cache::Impl::run(const Key& key, cudaStream_t stream, const detail::Call& call) {
  const Request request{key, name_of(stream), stream, call};
  return without_throwing(request, [&] { return run(request); });
}

absl::Status Cache::Impl::warm(const Key& key, cudaStream_t stream, const detail::Call& call) {
  const Request request{key, name_of(stream), stream, call};
  return without_throwing(request, [&] { return warm(request); });
}

absl::StatusOr<Outcome> Cache::Impl::run(const Request& request) {
  if (active_recording != nullptr) return run_nested(request);
  const bool is_usual = is_usual_;  // One question, since a hit asks it.
  if (!is_usual) {
    if (options_.inline_in_foreign_capture && is_in_foreign_capture(request)) return run_inlined(request);
    if (!enabled_) return run_disabled(request);
  }

  Held entry(*this, claim(request));
  if (!is_usual && options_.verify_every != 0) {
    if (absl::Status status = verify_hit(entry, request); !status.ok()) return status;
  }
  if (entry->executable != nullptr && !memory_->has_late_error() &&
      (entry->stream.handle == request.stream || is_known(request.stream))) {
    entry->stream = LaunchStream::of(request.stream);
    return replay(entry, request);
  }
  return run_slowly(entry, request);
}

// Finds or makes the request's entry and locks it.
Entry* Cache::Impl::claim(const Request& request) {
  MutexLock lock(mutex_);
  for (;;) {
    Entry* entry = index_.find(request.key, request.call.site);
    if (entry == nullptr) {
      sweep();
      policy_.add(index_.next_id());
      entry = index_.insert(request.key, request.call.site);
    }
    if (entry->lock.try_lock()) {
      index_.touch(entry);
      policy_.used(entry->id);
      return entry;
    }
    if (entry->lock.announce_wait()) unlocked_.wait(mutex_);
  }
}

// All waiters look again, each for its own entry. The lock makes sure that who announced a wait does wait by now.
// Whoever erased the entry meanwhile announced a wait, too: it is gone by the end of the run.
void Cache::Impl::wake() {
  bool gone = false;
  {
    MutexLock lock(mutex_);
    gone = sweep();
  }
  unlocked_.notify_all();
  if (gone) graveyard_.collect_all();
}

// A hit.
absl::StatusOr<Outcome> Cache::Impl::replay(Held& entry, const Request& request) {
  return launch(entry, request, Outcome::kReplayed, Outcome::kPatched);
}

// Patches what changed, and launches. The outcome is the first one if nothing had changed.
absl::StatusOr<Outcome> Cache::Impl::launch(Held& entry, const Request& request, Outcome outcome, Outcome if_patched) {
  Executable& executable = *entry->executable;
  if (const cudaError_t error = executable.take_device_error(); error != cudaSuccess) {
    {
      MutexLock lock(mutex_);
      refuse_device_updates(entry.get());
      demote(entry.get());
    }
    return failed(
        request,
        cuda_failure("an update of a node by the device, in an earlier run of the key or of a sibling", error));
  }
  if (!executable.holds(request.call)) {
    std::size_t patched = 0;
    auto threw = demoting(entry);  // Some nodes hold new values then, and some old ones.
    const CallResult result = executable.patch(request.call, &patched);
    std::move(threw).Cancel();
    run_counts_.add_patched_nodes(patched);
    if (result.error != cudaSuccess) return replay_failed(entry, result, EagerReason::kRefused, request);
    if (patched != 0) outcome = if_patched;
  }
  if (const CallResult result = executable.get_ready(request.stream); result.error != cudaSuccess) {
    return replay_failed(entry, result, EagerReason::kLaunchFailed, request);
  }
  if (const cudaError_t error = executable.launch(request.stream); error != cudaSuccess) {
    return replay_failed(entry, {"cudaGraphLaunch", error}, EagerReason::kLaunchFailed, request);
  }
  entry->outcomes[static_cast<int>(outcome)].add(1);
  run_counts_.add(outcome);
  return outcome;
}

// Whatever is not a hit on a stream that the cache knows.
absl::StatusOr<Outcome> Cache::Impl::run_slowly(Held& entry, const Request& request) {
  LastErrorGuard last_error;
  request.last_error = &last_error;
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  entry->stream = LaunchStream::of(request.stream);
  if (const cudaError_t late = memory_->take_late_error(); late != cudaSuccess) {
    return failed(request, cuda_failure("an update of a node by the device, in an executable that has left", late));
  }
  if (entry->executable != nullptr) return replay(entry, request);

  if (!std::exchange(entry->seen, true)) entry->direct_left = options_.capture_after;
  if (entry->direct_left > 0) {
    --entry->direct_left;
    return run_directly(entry, entry->direct_why, request);
  }
  DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());
  memory_->trim_if_much();  // Before any work of this run, which the rest of the program may have to go on for.
  const absl::Cleanup tidy = [&] {
    entry.release();
    tidy_up(request.stream);
  };
  if (entry->content != nullptr) return bring_back(entry, request, Outcome::kSwitched, Outcome::kRestored);
  if (!has_room(*entry.get())) return run_directly(entry, EagerReason::kBudget, request);
  return record(entry, request);
}

// A miss: capture, then as if the template had been there. What cannot be captured is enqueued directly.
absl::StatusOr<Outcome> Cache::Impl::record(Held& entry, const Request& request) {
  auto why = NoTemplate::kFailed;
  if (absl::Status status = capture_template(entry, request, &why); !status.ok()) {
    if (why == NoTemplate::kEmpty) {  // The work of `fn`, if there was any, was enqueued elsewhere.
      MutexLock lock(mutex_);
      return count_eager(entry.get(), EagerReason::kNothingCaptured);
    }
    // A call that a capture forbids fails, or breaks the capture, but works outside of one.
    if (why == NoTemplate::kBroke && options_.on_capture_failure == OnCaptureFailure::kRunDirectly) {
      return run_directly(entry, EagerReason::kCaptureFailed, request);
    }
    return failed(request, std::move(status));
  }
  return bring_back(entry, request, Outcome::kUpdated, Outcome::kInstantiated);
}

// Gives the entry a template, or says why there is none.
absl::Status Cache::Impl::capture_template(Held& entry, const Request& request, NoTemplate* none) {
  absl::Cleanup threw = [&] {
    MutexLock lock(mutex_);
    ++totals_.capture_failures;
  };
  Captured captured = capture_fn(request);
  std::move(threw).Cancel();

  if (captured.capture.ok() && captured.fn.ok() && captured.content.node_count == 0) {
    *none = NoTemplate::kEmpty;
    captured.fn = absl::FailedPreconditionError(
        "fn enqueued nothing on its stream, so there is no graph: enqueue on the stream that fn is given, or on "
        "rec.stream()" +
        list_of(captured.strays));
  } else if (!captured.capture.ok() || is_capture_error(cuda_error(captured.fn))) {
    *none = NoTemplate::kBroke;
  }
  const bool usable = captured.capture.ok() && captured.fn.ok();
  {
    MutexLock lock(mutex_);
    totals_.capture_time += captured.time;
    ++(usable ? totals_.captures : totals_.capture_failures);
  }
  if (absl::Status fatal = take_fatal_error(captured); !fatal.ok()) {
    *none = NoTemplate::kFailed;
    return fatal;
  }
  if (!usable) {
    absl::Status why = captured.capture.ok() ? captured.fn : captured.capture;
    if (*none == NoTemplate::kEmpty) {
      entry->direct_left = std::numeric_limits<int>::max();
      entry->direct_why = EagerReason::kNothingCaptured;
    } else if (*none == NoTemplate::kBroke && options_.on_capture_failure == OnCaptureFailure::kRunDirectly) {
      back_off(entry.get());
    }
    if (*none != NoTemplate::kFailed) {
      bool is_first = false;
      {
        MutexLock lock(mutex_);
        is_first = entry->error.ok();
        entry->error = why;
      }
      if (is_first) log(request.key, message_of(why));
    }
    return why;
  }

  note_strays(entry.get(), request, captured.strays);
  auto content = std::make_shared<const Content>(std::move(captured.content));
  MutexLock lock(mutex_);
  policy_.captured(entry->id, facts_of(*content));
  // Nothing throws from here on.
  entry->is_read = false;
  entry->nodes = content->node_count + content->body_node_count;
  entry->slot_nodes = content->slots.nodes.size();
  entry->content = std::move(content);
  entry->graph = std::move(captured.graph);
  entry->error = absl::OkStatus();
  index_.set_state(entry.get(), State::kRecorded);
  return absl::OkStatus();
}

// The entry, which has a template and no executable, joins the family of the stream, if it can have siblings. Launches
// of one executable follow each other (fact 15), so one for keys of several streams would keep these from running side
// by side.
absl::Status Cache::Impl::find_family(Held& entry, const Request& request) {
  bool reads = false;
  {
    MutexLock lock(mutex_);
    // Nobody else can have what an erased entry gets.
    reads = !entry->is_read && !entry->erased && policy_.reads_graph(entry->id);
    if (!reads && entry->signature == nullptr) return absl::OkStatus();
  }
  unsigned long long stream = 0;
  if (Policy::tells_streams_apart(options_.mechanisms)) {
    const cudaError_t error = stream_id(request.stream, &stream);
    if (is_fatal(error)) return cuda_failure("cudaStreamGetId", error);
    if (error != cudaSuccess) return absl::OkStatus();
  }
  if (reads) {
    read_graph(entry, stream);
  } else {
    MutexLock lock(mutex_);
    policy_.moved(entry->id, stream);
  }
  return absl::OkStatus();
}

void Cache::Impl::read_graph(Held& entry, std::uint64_t stream) {
  auto content = std::make_shared<Content>(*entry->content);
  std::optional<Signature> signature;
  // Memory of on_device() is one executable's.
  if (content->device_values.memory.empty()) signature = describe(entry->graph, content.get());
  if (!signature) {
    entry->is_read = true;
    return;
  }
  GraphFacts facts = facts_of(*content);
  facts.stream = stream;
  facts.table_class = ParameterTable::class_of(*content);
  facts.table_bytes = UpdaterNode::estimated_device_bytes(*content);
  facts.set_bytes = ParameterTable::estimated_set_bytes(*content);
  MutexLock lock(mutex_);
  entry->signature = signatures_.add(*signature);
  absl::Cleanup threw = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    signatures_.remove(std::exchange(entry->signature, nullptr));
  };
  facts.signature = entry->signature->second.number;
  policy_.described(entry->id, facts);
  std::move(threw).Cancel();
  entry->content = std::move(content);
  entry->is_read = true;
}

// An entry that has a template, but no executable: it gets one, and is launched.
absl::StatusOr<Outcome> Cache::Impl::bring_back(Held& entry, const Request& request, Outcome by_sibling,
                                                Outcome by_own) {
  if (absl::Status lost = find_family(entry, request); !lost.ok()) return failed(request, std::move(lost));
  const Obtained obtained = obtain(entry, request);
  if (obtained.result.error != cudaSuccess) {
    return replay_failed(entry, obtained.result, obtained.why, request);
  }
  if (entry->executable == nullptr) return run_directly(entry, obtained.why, request);
  // One of its own holds the values of the capture, and is patched.
  const Outcome outcome = obtained.of_sibling ? by_sibling : by_own;
  absl::StatusOr<Outcome> done = launch(entry, request, outcome, outcome);
  if (done.ok() && *done == outcome) entry->failures = 0;
  return done;
}

// A run inside another run's capture. Nothing here may wait for another run, nor touch the capture but through its
// streams.
absl::StatusOr<Outcome> Cache::Impl::run_nested(const Request& request) {
  LastErrorGuard last_error;
  CaptureInfo info;
  if (request.stream != cudaStreamLegacy) {
    const cudaError_t error = capture_info(request.stream, &info);
    if (error != cudaSuccess) return failed(request, cuda_failure("cudaStreamGetCaptureInfo", error));
  }
  const bool inside = info.status != cudaStreamCaptureStatusNone && info.id == active_recording->capture_id();
  if (!inside) {
    if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
    // Its work would be done now and never again by a replay of the outer graph. The outer `fn` is called again
    // instead, directly, and this run comes back with it.
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "a run was made inside another run's fn on a stream that is not part of its capture"));
    return count_inlined();
  }

  if (request.call.values_size != 0 && !request.call.empty(request.call.fn)) {
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "a run with params was made inside another run's fn: a graph of the outer run could not follow its values"));
  }
  return run_inlined(request);
}

// The work of a run becomes part of the capture that its stream is part of.
absl::StatusOr<Outcome> Cache::Impl::run_inlined(const Request& request) {
  if (absl::Status lost = status(); !lost.ok()) return failed(request, std::move(lost));
  if (request.call.empty(request.call.fn)) return failed(request, absl::InvalidArgumentError("fn is empty"));
  absl::Status status = enqueue_inlined(request.stream, request.call, setter_);
  if (!status.ok()) return failed(request, std::move(status));
  return count_inlined();
}

Outcome Cache::Impl::count_inlined() {
  MutexLock lock(mutex_);
  ++totals_.outcomes[static_cast<int>(Outcome::kInlined)];
  return Outcome::kInlined;
}

absl::StatusOr<Outcome> Cache::Impl::run_disabled(const Request& request) {
  if (!invalid_.ok()) return failed(request, invalid_);
  {
    LastErrorGuard last_error;
    if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  }
  Held no_entry(*this, nullptr);
  return run_directly(no_entry, EagerReason::kDisabled, request);
}

// Calls `fn` directly. The entry is let go first, so that other threads' runs of it need not wait; it may be null.
absl::StatusOr<Outcome> Cache::Impl::run_directly(Held& held, EagerReason reason, const Request& request) {
  Entry* const entry = held.get();
  if (entry != nullptr) {
    MutexLock lock(mutex_);
    ++entry->users;
    // `fn` hands out other memory now, so what was captured must not be replayed.
    if (entry->content != nullptr && entry->content->leaves_memory) forget_template(entry);
  }
  held.release();

  const absl::Cleanup let_go = [&] {
    if (entry == nullptr) return;
    bool gone = false;
    {
      MutexLock lock(mutex_);
      --entry->users;
      if (entry->erased) gone = sweep();
    }
    if (gone) graveyard_.collect_all();
  };
  LastErrorGuard last_error;
  DeviceGuard device(options_.device);
  absl::Status status = device.status();
  last_error.settle();
  if (status.ok()) status = enqueue(request.given, request.call, setter_);
  if (!status.ok()) return failed(request, std::move(status));

  MutexLock lock(mutex_);  // Released before let_go takes it.
  return count_eager(entry, reason);
}

Outcome Cache::Impl::count_eager(Entry* entry, EagerReason reason) {
  ++totals_.eager_reasons[static_cast<int>(reason)];
  ++totals_.outcomes[static_cast<int>(Outcome::kEager)];
  if (entry != nullptr) {
    entry->outcomes[static_cast<int>(Outcome::kEager)].add(1);
    entry->eager_reason = reason;
  }
  return Outcome::kEager;
}

// A failed patch leaves the executable in a state that nobody knows. A failed launch leaves it whole if the stream is
// at fault, and its state unknown otherwise.
absl::StatusOr<Outcome> Cache::Impl::replay_failed(Held& entry, const CallResult& result, EagerReason reason,
                                                   const Request& request) {
  if (request.last_error != nullptr) {
    request.last_error->settle();
  } else if (result.latches && cudaPeekAtLastError() == result.error) {
    cudaGetLastError();
  }
  if (is_fatal(result.error)) return failed(request, cuda_failure(result.call, result.error));
  LastErrorGuard last_error;
  const bool launched = reason == EagerReason::kLaunchFailed;
  if (launched) {
    if (is_capture_error(result.error)) return failed(request, cuda_failure(result.call, result.error));
    MutexLock lock(mutex_);
    known_streams_.erase(request.stream);
  }
  auto threw = demoting(entry);
  absl::Status unfit = check(request);
  std::move(threw).Cancel();
  if (launched && !unfit.ok()) return failed(request, std::move(unfit));
  absl::Status error = cuda_failure(result.call, result.error);
  const bool frees_itself = (options_.instantiate_flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0;
  if (launched && result.error == cudaErrorInvalidValue && entry->content->leaves_memory && !frees_itself) {
    reason = EagerReason::kMemoryInUse;
    error = cuda_failure(
        "cudaGraphLaunch, of a graph whose memory from an earlier launch was not freed (free it in fn, or before the "
        "next run, or set cudaGraphInstantiateFlagAutoFreeOnLaunch in Options::instantiate_flags)",
        result.error);
  }
  {
    MutexLock lock(mutex_);
    entry->error = std::move(error);
    demote(entry.get());
    // A graph that cannot be instantiated is of no use.
    const bool useless = result.call == kInstantiate && reason != EagerReason::kOutOfMemory;
    if (useless && entry->state != State::kCold) forget_template(entry.get());
  }
  back_off(entry.get());
  if (!unfit.ok()) return failed(request, std::move(unfit));
  auto outcome = run_directly(entry, reason, request);
  DeviceGuard device(options_.device);
  graveyard_.collect(request.stream);
  return outcome;
}

// A key whose captures break is tried again, but ever more rarely: it may have been a passing cause, such as a library
// that initialises itself at its first call.
void Cache::Impl::back_off(Entry* entry) {
  constexpr int kMaxDoublings = 10;
  entry->direct_left = 1 << std::min(entry->failures, kMaxDoublings);
  entry->direct_why = EagerReason::kBackoff;
  ++entry->failures;
}

absl::Status Cache::Impl::failed(const Request& request, absl::Status why) {
  if (is_fatal(cuda_error(why))) {
    log(request.key, message_of(why));
    lose(why);
  }
  MutexLock lock(mutex_);
  ++totals_.failed;
  return with_key(why, request.key);
}

}  // namespace graphcache
