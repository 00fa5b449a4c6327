// A run: find the entry, decide, bring its executable over, launch.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <chrono>
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

// Distinguishes the cudaStreamPerThread of each thread; all of them have one handle.
cudaError_t stream_id(cudaStream_t stream, unsigned long long* id) {
  const LastErrorGuard last_error;
  return cudaStreamGetId(stream, id);
}

// The facts about a graph that has not been read.
GraphFacts facts_of(const Content& content) {
  const std::size_t nodes = content.node_count + content.inner_node_count;
  // An updater node needs a clone, and CUDA cannot clone a graph with conditional nodes.
  const bool is_clonable = content.conditional_count == 0;
  return {.shape = content.shape,
          .nodes = nodes,
          .bytes = estimated_device_bytes(nodes, content.conditional_count),
          .slot_kernels = is_clonable ? UpdaterNode::writable_nodes(content.slots) : 0};
}

}  // namespace

absl::StatusOr<Outcome> Cache::Impl::run(const Key& key, cudaStream_t stream, const detail::Call& call) {
  Request request{.key = key, .stream = name_of(stream), .given = stream, .call = call};
  return without_throwing(request, [&] { return run(request); });
}

absl::StatusOr<Outcome> Cache::Impl::run_step(const Key& key, cudaStream_t stream, const detail::Call& call,
                                              detail::Remembered* remembered, cudaError_t error) {
  Request request{.key = key, .stream = name_of(stream), .given = stream, .call = call, .remembered = remembered};
  return without_throwing(request, [&] { return error == cudaSuccess ? run(request) : step_failed(request, error); });
}

absl::StatusOr<Outcome> Cache::Impl::run(Request& request) {
  Entry* known = nullptr;
  if (hits_->are_usual()) {
    known = claim_known(request);
    const bool is_ready =
        known != nullptr && known->is_ready_for(request.stream, request.call.values, request.call.values_size);
    if (is_ready) return hit(known, request);
  } else {
    if (absl::Status status = begin(request.stream); !status.ok()) return failed(request, std::move(status));
    if (request.report == nullptr && hits_->is_sampled()) return run_sampled(request);
    if (active_recording != nullptr) return run_nested(request);
    if (options_.inline_in_foreign_capture && is_in_foreign_capture(request)) return run_inlined(request);
    if (!enabled_) return run_disabled(request);
  }

  Objects dropped;
  request.dropped = &dropped;
  Held entry(*this, known != nullptr ? claimed(known, request) : claim(request));
  if (options_.verify_every != 0 && !request.call.makes_graph()) {
    if (auto outcome = verify_hit(entry, request)) return *std::move(outcome);
  }
  if (entry->executable != nullptr && !device_->memory->has_late_error() &&
      (entry->stream.handle == request.stream || known_streams_.contains(request.stream))) {
    entry->stream = LaunchStream::of(request.stream);
    return replay(entry, request);
  }
  return reported(entry, request, [&] { return run_slowly(entry, request); });
}

// A run that some listener wants, also if it is a hit.
absl::StatusOr<Outcome> Cache::Impl::run_sampled(Request& request) {
  Reported report = {.is_sampled = true, .uses = detail::this_thread.uses};
  request.report = &report;
  Audience::Span span(*audience_, {.kind = EventKind::kRun, .key = request.key},
                      {Audience::Filter::Kind::kSampled, report.uses});
  return span.end_with(run(request), report.reason);
}

// A hit on an entry that is ready for it.
absl::StatusOr<Outcome> Cache::Impl::hit(Entry* locked, Request& request) {
  Held entry(*this, locked);
  remember(locked, request);
  const cudaError_t error = hits_->launch(*locked);
  if (error == cudaSuccess) return Outcome::kReplayed;
  return replay_failed(entry, {"cudaGraphLaunch", error}, EagerReason::kLaunchFailed, request);
}

// The same for a step whose launch has failed. The step has locked the entry.
absl::StatusOr<Outcome> Cache::Impl::step_failed(Request& request, cudaError_t error) {
  Held entry(*this, static_cast<Entry*>(request.remembered->entry));
  return replay_failed(entry, {"cudaGraphLaunch", error}, EagerReason::kLaunchFailed, request);
}

// A hit that may need patches.
absl::StatusOr<Outcome> Cache::Impl::replay(Held& entry, Request& request) {
  return launch(entry, request, Outcome::kReplayed, Outcome::kPatched);
}

// Patches what has changed and launches. Returns `outcome` if nothing had changed, else `if_patched`.
absl::StatusOr<Outcome> Cache::Impl::launch(Held& entry, Request& request, Outcome outcome, Outcome if_patched) {
  Executable& executable = *entry->executable;
  if (const cudaError_t error = executable.take_device_error(); error != cudaSuccess) {
    refuse(*entry.get(), Refused::kDeviceUpdates);
    give_up(*entry.get(), Loss::kFailed);
    return failed(
        request,
        cuda_failure("an update of a node by the device, in an earlier run of the key or of a sibling", error));
  }
  if (!executable.holds(request.call)) {
    std::size_t patched = 0;
    auto threw = evicting(entry);  // Some nodes then hold new values and some old ones.
    const CallResult result = executable.patch(request.call, &patched);
    std::move(threw).Cancel();
    hits_->counts.add_patched_nodes(patched);
    if (result.error != cudaSuccess) return replay_failed(entry, result, EagerReason::kRefused, request);
    if (patched != 0) outcome = if_patched;
  }
  if (const CallResult result = executable.get_ready(request.stream); result.error != cudaSuccess) {
    return replay_failed(entry, result, EagerReason::kLaunchFailed, request);
  }
  const auto start = [&] {
    return executable.is_in_place() ? executable.launch(request.stream) : launch_first(*entry.get(), request.stream);
  };
  cudaError_t error = cudaSuccess;
  if (audience_->wants_launches()) {
    CacheEvent event = event_of(EventKind::kLaunch, *entry.get());
    event.stream = request.given;
    Audience::Span span(*audience_, event, {Audience::Filter::Kind::kLaunches});
    if (!span.refused().ok()) return failed(request, span.refused());
    error = start();
    if (error != cudaSuccess) span.event.status = cuda_failure("cudaGraphLaunch", error);
  } else {
    error = start();
  }
  if (error != cudaSuccess) {
    return replay_failed(entry, {"cudaGraphLaunch", error}, EagerReason::kLaunchFailed, request);
  }
  if (!executable.formers().empty()) device_->graveyard.keep_until_done(executable.formers(), request.stream);
  // The errors of an updater node must be checked before each launch. The handle of the per-thread stream is another
  // stream in each thread.
  const bool is_plain = !executable.has_updater_node() && request.stream != cudaStreamPerThread;
  if (is_usual_ && is_plain) {
    entry->be_ready_on(request.stream);
  } else {
    entry->exec = nullptr;  // Its last launch is on another stream than the one it is ready on.
  }
  entry->retry.failures = 0;
  entry->outcomes[static_cast<int>(outcome)].add(1);
  hits_->counts.add(outcome);
  return outcome;
}

cudaError_t Cache::Impl::launch_first(Entry& entry, cudaStream_t stream) {
  Audience::Span span(*audience_, event_of(EventKind::kUpload, entry));
  const auto begin = std::chrono::steady_clock::now();
  const cudaError_t error = entry.executable->launch(stream);
  if (error != cudaSuccess) span.event.status = cuda_failure("cudaGraphLaunch", error);
  Totals::add(totals_.first_launch_time, begin);
  return error;
}

// Returns whether an entry that has no graph could have an executable now, so that no capture is wasted.
bool Cache::Impl::begin_slowly(Entry* entry) {
  if (entry->retry.left == Retry::kNew) entry->retry.left = options_.capture_after;
  MutexLock lock(mutex_);
  touch(entry);
  return entry->content != nullptr || entry->retry.left > 0 || has_room(*entry);
}

// A run that is not a hit on a known stream.
absl::StatusOr<Outcome> Cache::Impl::run_slowly(Held& entry, Request& request) {
  LastErrorGuard last_error;
  request.last_error = &last_error;
  const bool may_run_a_graph = begin_slowly(entry.get());
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  entry->stream = LaunchStream::of(request.stream);
  if (const cudaError_t late = device_->memory->take_late_error(); late != cudaSuccess) {
    return failed(request, cuda_failure("an update of a node by the device, in an executable that was evicted", late));
  }
  if (entry->executable != nullptr) return replay(entry, request);

  DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());
  const absl::Cleanup tidy = [&] {
    entry.release();
    tidy_up(request.stream);
  };
  Retry& retry = entry->retry;
  if (retry.left > 0) {
    --retry.left;
    return run_directly(entry, retry.why, request);
  }
  // Before any work of this run, because the rest of the program may need that work to go on.
  trim(/*if_much=*/true);
  if (entry->content != nullptr) return bring_back(entry, request, Outcome::kSwitched, Outcome::kRestored);
  if (!may_run_a_graph) return run_directly(entry, EagerReason::kBudget, request);
  return record(entry, request);
}

// A miss: captures, and then goes on as if the template had existed. Work that cannot be captured is enqueued directly.
absl::StatusOr<Outcome> Cache::Impl::record(Held& entry, Request& request) {
  NoTemplate none;
  if (absl::Status status = capture_template(entry, request, &none); !status.ok()) {
    if (none.why == NoTemplate::Why::kEmpty) {  // Any work of `fn` was enqueued elsewhere.
      if (request.report != nullptr) request.report->reason = EagerReason::kNothingCaptured;
      MutexLock lock(mutex_);
      return count_eager(entry.get(), EagerReason::kNothingCaptured);
    }
    if (none.why == NoTemplate::Why::kNotUnderCapture) return call_again(entry, request);
    if (none.why == NoTemplate::Why::kHandsOutMemory) {
      return run_directly(entry, EagerReason::kHandsOutMemory, request);
    }
    return no_template(request, std::move(status), none);
  }
  return bring_back(entry, request, Outcome::kUpdated, Outcome::kInstantiated);
}

// Calls `fn` directly after it failed under capture: a call that captures forbid works outside of one. If `fn` fails
// again, its captures are not to blame, so the next run captures.
absl::StatusOr<Outcome> Cache::Impl::call_again(Held& held, const Request& request) {
  Entry* const entry = held.get();
  const std::uint64_t life = entry->life;
  absl::Cleanup fails_again = [&] {
    if (!entry->lock.try_lock()) return;
    if (entry->life == life && entry->retry.failures > 0) {
      --entry->retry.failures;
      entry->retry.at_once();
    }
    unlock(entry);
  };
  auto outcome = run_directly(held, EagerReason::kCaptureFailed, request);
  if (outcome.ok()) std::move(fails_again).Cancel();
  return outcome;
}

// The end of a run or warm() that has no template and does not run directly.
absl::Status Cache::Impl::no_template(const Request& request, absl::Status why, const NoTemplate& none) {
  if (none.thrown != nullptr) {
    request.call.threw = true;
    std::rethrow_exception(none.thrown);
  }
  return failed(request, std::move(why));
}

// Captures a template for the entry, or sets why there is none.
absl::Status Cache::Impl::capture_template(Held& entry, const Request& request, NoTemplate* none) {
  using Why = NoTemplate::Why;
  absl::Cleanup in_vain = [&] { ++totals_.capture_failures; };
  Captured captured;
  const absl::Cleanup dropped = [&] { add_to(request.dropped, captured.kept); };
  Report report;
  const bool is_first = entry->error.ok(), is_first_break = !entry->broke;
  {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Cleanup timed = [&] { Totals::add(totals_.capture_time, begin); };
    captured = capture_fn(*entry.get(), request, is_first_break ? teller_of(request) : nullptr, &report);
  }

  bool usable = captured.capture.ok() && captured.fn.ok();
  const bool was_called = !report || report->refused().ok();
  if (usable && captured.content.node_count == 0) {
    usable = false;
    none->why = Why::kEmpty;
    captured.fn = absl::FailedPreconditionError(
        "fn enqueued nothing on its stream, so there is no graph: enqueue on the stream that fn is given, or on "
        "rec.stream()" +
        list_of(captured.strays));
  } else if (usable && captured.content.leaves_memory) {
    usable = false;
    none->why = options_.on_capture_failure == OnCaptureFailure::kRunDirectly ? Why::kHandsOutMemory : Why::kFailed;
    captured.fn = absl::FailedPreconditionError(
        "fn hands out memory that the graph would allocate: cudaMallocAsync in fn has no cudaFreeAsync there. So the "
        "key runs directly. Free the memory in fn, or allocate it before the run");
  } else if (!usable && was_called && !captured.is_misuse &&
             options_.on_capture_failure == OnCaptureFailure::kRunDirectly) {
    none->why = Why::kNotUnderCapture;
  }
  if (absl::Status fatal = take_fatal_error(captured); !fatal.ok()) {
    none->why = Why::kFailed;
    return fatal;
  }
  if (!usable) {
    absl::Status why = captured.capture.ok() ? captured.fn : captured.capture;
    none->thrown = std::move(captured.thrown);
    if (none->why == Why::kEmpty) entry->retry.never(EagerReason::kNothingCaptured);
    if (none->why == Why::kHandsOutMemory) entry->retry.never(EagerReason::kHandsOutMemory);
    if (none->why == Why::kNotUnderCapture) entry->retry.later();
    if (none->why != Why::kFailed || !captured.capture.ok()) {
      {
        MutexLock lock(mutex_);
        entry->error = why;
        entry->broke = entry->broke || !captured.capture.ok();
      }
      const bool was_told = captured.was_told && !captured.capture.ok();
      if ((captured.capture.ok() ? is_first : is_first_break) && !was_told) log(request.key, message_of(why));
    }
    return why;
  }

  note_strays(entry.get(), request, captured.strays);
  auto content = std::make_shared<Content>(std::move(captured.content));
  {
    MutexLock lock(mutex_);
    keep_template(entry.get(), std::move(content), &captured);
  }
  std::move(in_vain).Cancel();
  if (report) {
    report->event.graph = entry->content->id;
    report->event.captured = entry->graph.graph.get();
  }
  return absl::OkStatus();
}

// Gives a template to an entry that had none. If it throws, nothing has changed.
void Cache::Impl::keep_template(Entry* entry, std::shared_ptr<Content> content, Captured* captured) {
  content->key = entry->key;
  content->entry = entry->number();
  policy_.captured(entry->id, facts_of(*content));
  entry->nodes = content->node_count + content->inner_node_count;
  entry->slot_nodes = content->slots.nodes.size();
  entry->content = std::move(content);
  entry->kept = std::move(captured->kept);
  entry->graph = std::move(captured->graph);
  entry->error = absl::OkStatus();
  entry->broke = false;
  index_.set_state(entry, State::kRecorded);
  has_surplus_ = index_.templates() > static_cast<std::size_t>(options_.max_templates);
  ++totals_.captures;
}

// An entry that has a template and no executable joins the family of the stream, if it can have siblings. Launches of
// one executable follow each other (fact 15), so an executable shared by keys of several streams would keep these from
// running concurrently.
absl::Status Cache::Impl::find_family(Held& entry, const Request& request) {
  unsigned long long stream = 0;
  const cudaError_t error = stream_id(request.stream, &stream);
  if (is_fatal(error)) return cuda_failure("cudaStreamGetId", error);
  if (error != cudaSuccess) return absl::OkStatus();
  Policy::ToRead to_read;
  Held other(*this, nullptr);
  {
    MutexLock lock(mutex_);
    if (entry->erased) return absl::OkStatus();  // Other keys cannot get what an erased entry gets.
    policy_.moved(entry->id, stream);
    to_read = policy_.to_read(entry->id, last_use_of());
    Entry* const found = to_read.other == kNoKey ? nullptr : index_.of(to_read.other);
    if (found != nullptr && found->lock.try_lock()) other.reset(found);
  }
  if (other.get() != nullptr) read_graph(*other.get());
  other.release();
  if (to_read.itself) read_graph(*entry.get());
  return absl::OkStatus();
}

void Cache::Impl::read_graph(Entry& entry) {
  Content& content = *entry.content;
  const std::optional<Signature> signature =
      describe(entry.graph.empty() ? entry.executable->base() : entry.graph, &content);
  GraphFacts facts = facts_of(content);
  if (signature) {
    facts.table_class = ParameterTable::class_of(content);
    facts.table_bytes = UpdaterNode::estimated_device_bytes(content);
    facts.set_bytes = ParameterTable::estimated_set_bytes(content);
  }
  MutexLock lock(mutex_);
  if (signature) entry.signature = signatures_.add(*signature);
  absl::Cleanup threw = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (signature) signatures_.remove(std::exchange(entry.signature, nullptr));
  };
  if (signature) facts.signature = entry.signature->second.number;
  policy_.described(entry.id, facts);
  std::move(threw).Cancel();
}

// Gets an executable for an entry that has a template, and launches it.
absl::StatusOr<Outcome> Cache::Impl::bring_back(Held& entry, Request& request, Outcome by_sibling, Outcome by_own) {
  if (absl::Status lost = find_family(entry, request); !lost.ok()) return failed(request, std::move(lost));
  const Obtained obtained = obtain(entry, request);
  if (obtained.result.error != cudaSuccess) {
    return replay_failed(entry, obtained.result, obtained.why, request, obtained.is_unfit);
  }
  if (entry->executable == nullptr) return run_directly(entry, obtained.why, request);
  // A new executable holds the captured values, and is patched.
  const Outcome outcome = obtained.of_sibling ? by_sibling : by_own;
  return launch(entry, request, outcome, outcome);
}

}  // namespace graphcache
