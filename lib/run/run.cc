#include "run/run.h"

#include <absl/cleanup/cleanup.h>

#include <new>
#include <utility>

#include "cuda/driver.h"
#include "cuda/this_thread.h"
#include "graph/outside.h"
#include "graphcache/status.h"

namespace graphcache {

absl::StatusOr<Outcome> run(Core& core, const Key& key, cudaStream_t given, const detail::Call& call,
                            detail::Remembered* remembered) {
  const cudaStream_t stream = name_of(given);
  Entry* const known = core.hits->are_usual() ? core.store.find_free(key, call.site) : nullptr;
  cudaError_t error = cudaSuccess;
  if (known != nullptr && known->is_ready_for(stream, call.values, call.values_size)) {
    if (remembered != nullptr) *remembered = {known, known->life, call.site};
    error = core.hits->launch(*known);
    if (error == cudaSuccess) {
      core.unlock(known);
      return Outcome::kReplayed;
    }
  }
  return Run(core, key, given, call, remembered, known).run(error);
}

Run::Run(Core& core, const Key& key, cudaStream_t stream, const detail::Call& call, detail::Remembered* remembered,
         Entry* found)
    : core_(core), key_(key), given_(stream), call_(call), remembered_(remembered), entry_(found, {core}) {}

// The store may have found entries that are gone, also if the run has failed early.
Run::~Run() {
  entry_.reset();
  core_.destroy_gone();
}

// Turns the library's own exceptions, when memory runs out, into errors of the run. Exceptions of `fn` pass through.
absl::Status Run::threw() try {
  if (call_.threw) core_.store.count(&Stats::failed);
  throw;
} catch (const std::bad_alloc&) {
  if (call_.threw) throw;
  return failed(out_of_memory());
}

absl::StatusOr<Outcome> Run::run(cudaError_t launched) try {
  if (launched == cudaSuccess) return find_and_run();
  return replay_failed({"cudaGraphLaunch", launched}, EagerReason::kLaunchFailed);
} catch (...) {
  return threw();
}

absl::StatusOr<Outcome> Run::find_and_run() {
  const Options& options = core_.options;
  if (entry_ == nullptr) {
    absl::Status begun = core_.begin(stream_);
    // A cache that knows no device gets none from a capturing stream. An inlined run needs none.
    if (!begun.ok() && !is_capture_error(cuda_error(begun))) return failed(std::move(begun));
    // Some listener wants this run, also if it is a hit.
    if (!is_reported_ && core_.hits->is_sampled()) return reported([this] { return find_and_run(); });
    const bool is_nested = active_recording != nullptr;
    const bool is_foreign = !is_nested && options.inline_in_foreign_capture && is_in_foreign_capture();
    if (!begun.ok() && !is_nested && !is_foreign) return failed(std::move(begun));
    if (is_nested || is_foreign || !core_.enabled) {
      ++detail::this_thread.uses;  // Else claim() counts it.
      return is_nested ? run_nested() : is_foreign ? run_inlined() : run_disabled();
    }
  }
  if (absl::Status held = claim(); !held.ok()) return failed(std::move(held));
  if (options.verify_every != 0 && !call_.makes_graph()) {
    if (auto outcome = verify_hit()) return *std::move(outcome);
  }
  if (executable() != nullptr && core_.device->memory->late_error == cudaSuccess &&
      (own().stream.handle == stream_ || core_.known_streams.contains(stream_)) && can_replay()) {
    return launch(Outcome::kReplayed);
  }
  return reported([&] { return run_slowly(); });
}

// Locks the run's entry, unless it is locked already, and counts the use. Fails if this thread has locked it before.
absl::Status Run::claim() {
  if (call_.gets_values()) {
    if (const std::uint64_t memory = memory_of_values(); memory != 0) {
      site_.identity = detail::mix(site_.identity, memory) | 1;
    }
    if (entry_ != nullptr && !(entry_->site == site_)) entry_.reset();
  }
  if (entry_ == nullptr) entry_.reset(core_.store.find_free(key_, site_));
  if (entry_ == nullptr) entry_.reset(core_.store.claim(key_, site_, detail::number_of_this_thread()));
  if (entry_ == nullptr) {
    return absl::FailedPreconditionError(
        "the key was run inside its own run, by an fn that returns a graph or a listener");
  }
  entry_->holder = detail::number_of_this_thread();
  if (entry_->retry.left == Retry::kNew) entry_->retry.left = core_.options.capture_after;
  entry_->used_in = core_.hits->epoch.load(std::memory_order_relaxed);
  entry_->used_at = ++detail::this_thread.uses;
  // A step compares neither sizes nor kinds of memory, by which other entries than that of its site are chosen.
  const bool is_for_step = remembered_ != nullptr && entry_->site == call_.site;
  if (is_for_step) *remembered_ = {entry_.get(), entry_->life, call_.site};
  return absl::OkStatus();
}

// A run that is not a hit on a known stream.
absl::StatusOr<Outcome> Run::run_slowly() {
  Scope scope(*this);
  const bool may_run_a_graph =
      core_.store.begin(entry_.get(), /*captures=*/executable() == nullptr && !covers_values());
  if (absl::Status unfit = check(); !unfit.ok()) return failed(std::move(unfit));
  if (const cudaError_t late = core_.device->memory->late_error.exchange(cudaSuccess); late != cudaSuccess) {
    return failed(cuda_failure("an update of a node by the device, in an executable that was evicted", late));
  }
  if (can_replay()) return launch(Outcome::kReplayed);
  if (executable() != nullptr && covers_values()) core_.give_up(*entry_, Loss::kStale);
  if (absl::Status other = scope.enter_device(); !other.ok()) return failed(std::move(other));
  Retry& retry = entry_->retry;
  if (retry.left > 0) {
    --retry.left;
    return run_directly(retry.why);
  }
  if (entry_->graphs != nullptr && covers_values()) return bring_back(Outcome::kSwitched, Outcome::kRestored);
  return may_run_a_graph ? record() : run_directly(EagerReason::kBudget);
}

// Captures, and then goes on as if the template had existed. Work that cannot be captured is enqueued directly.
absl::StatusOr<Outcome> Run::record() {
  if (absl::Status why = capture_template(); !why.ok()) {
    if (!reason_) return no_template(std::move(why));
    if (*reason_ == EagerReason::kCaptureFailed) return call_again(why);
    if (*reason_ != EagerReason::kNothingCaptured) return run_directly(*reason_);
    // All work of `fn` was enqueued elsewhere, so it is done.
    core_.store.count_direct(number(), *reason_);
    return Outcome::kEager;
  }
  if (executable() != nullptr) return launch(Outcome::kUpdated);
  return bring_back(Outcome::kUpdated, Outcome::kInstantiated);
}

// Captures a template for the entry, or returns why there is none. It takes the place of one that the entry has. Then
// the entry keeps its executable only if that could be updated.
absl::Status Run::capture_template() {
  Captured captured;
  std::unique_ptr<Recorded> made;
  const absl::Cleanup dropped = [&] { drop(made != nullptr ? made->kept : captured.kept); };
  const bool is_first = entry_->graphs == nullptr;
  absl::Cleanup in_vain = [&] {
    core_.store.count(&Stats::capture_failures);
    if (made != nullptr && made->content != nullptr) core_.bury(*made, Loss::kFailed);
  };
  if (!is_first) core_.store.count(&Stats::value_captures);
  if (absl::Status status = capture_usable(&captured); !status.ok()) return status;
  made = std::make_unique<Recorded>();
  made->kept = std::move(captured.kept);
  made->content = std::make_shared<Content>(std::move(captured.content));
  made->content->key = entry_->key;
  made->content->entry = entry_->number();
  made->recorded_on = stream_;
  made->graph = std::move(captured.graph);
  if (!is_first) {
    if (own().values != nullptr) made->values = std::make_unique<FoundValues>(*own().values);
    if (absl::Status fatal = learn(made.get()); !fatal.ok()) return fatal;
  } else if (call_.gets_values() && entry_->site.identity != kManyIdentities) {
    made->values = std::make_unique<FoundValues>(call_.places());
  }
  Content& content = *made->content;
  if (core_.options.verify_every != 0 && !call_.makes_graph()) note_allocations(made->graph, &content);
  std::vector<ValueInfo> infos;
  if (made->values != nullptr) infos = made->values->infos(content);
  if (!is_first && !update_to(*made)) core_.give_up(*entry_, Loss::kValues, /*and_template=*/true);
  // If it throws, the entry has none.
  core_.store.captured(entry_.get(), facts_of(content), content.node_count, content.slots.nodes.size(),
                       std::move(infos));
  entry_->graphs = std::move(made);
  std::move(in_vain).Cancel();
  has_new_graph_ = true;
  return absl::OkStatus();
}

// Gets an executable for the entry, which has a template, and launches it.
absl::StatusOr<Outcome> Run::bring_back(Outcome by_sibling, Outcome by_own) {
  if (const CallResult renewed = renew(); renewed.error != cudaSuccess) {
    return replay_failed(renewed, EagerReason::kRefused);
  }
  if (absl::Status lost = find_family(); !lost.ok()) return failed(std::move(lost));
  bool is_own = false;
  std::optional<CallResult> got;
  while (!got) {  // Repeats after each refusal.
    Held lender(nullptr, {core_});
    ParameterTable::Set set;
    std::optional<Plan> plan = decide(lender, set, /*may_evict=*/true);
    if (!plan) {
      if (!make_set(lender, &set)) continue;
      plan = decide(lender, set, /*may_evict=*/true);
    }
    is_own = plan->action != Plan::Action::kBorrow;
    if (is_own) lender.reset();
    if (plan->action == Plan::Action::kDirect) return run_directly(EagerReason::kBudget);
    got = is_own ? buy(*plan, /*may_evict=*/true) : take_over(lender, *plan, set);
  }
  if (got->error != cudaSuccess) {
    const bool is_of_memory = is_own && got->error == cudaErrorMemoryAllocation;
    return replay_failed(*got, is_of_memory ? EagerReason::kOutOfMemory : EagerReason::kRefused,
                         /*is_unfit=*/is_own && !is_of_memory);
  }
  // A new executable holds the captured values, and is patched.
  return launch(is_own ? by_own : by_sibling);
}

// Patches what has changed and launches. Returns `outcome`, or kPatched if that is kReplayed and something had changed.
absl::StatusOr<Outcome> Run::launch(Outcome outcome) {
  Executable& executable = *own().executable;
  own().stream.follow(where_);
  if (const cudaError_t error = executable.take_device_error(); error != cudaSuccess) {
    core_.store.refuse(entry_.get(), &Policy::refuse_device_updates);
    core_.give_up(*entry_, Loss::kFailed);
    return failed(
        cuda_failure("an update of a node by the device, in an earlier run of the key or of a sibling", error));
  }
  if (!executable.holds(call_)) {
    entry_->exec = nullptr;  // Until a launch succeeds, nothing is known of the memory of copies that move.
    std::size_t patched = 0;
    // Some nodes then hold new values and some old ones.
    absl::Cleanup threw = [this] { core_.give_up(*entry_, Loss::kFailed); };
    CallResult result{"cuCtxGetCurrent", cudaErrorDeviceUninitialized};
    if (has_context()) result = executable.patch(call_, &patched);  // Without one the driver would crash.
    std::move(threw).Cancel();
    entry_->patched_nodes.add(patched);
    if (result.error != cudaSuccess) return replay_failed(result, EagerReason::kRefused);
    if (patched != 0 && outcome == Outcome::kReplayed) outcome = Outcome::kPatched;
  }
  std::optional<Audience::Span> span;
  if (core_.audience->wants_launches()) {
    CacheEvent event = Core::event_of(EventKind::kLaunch, *entry_);
    event.stream = given_;
    span.emplace(*core_.audience, event);
    if (!span->event.status.ok()) return failed(span->event.status);
  }
  std::optional<Operation> first;
  if (!executable.is_in_place()) {
    first.emplace(core_, EventKind::kUpload, *entry_, &Stats::first_launch_time);
  }
  const CallResult launched = executable.launch(where_);
  if (first) first->done(launched);
  first.reset();
  if (span) span->event.status = launched.status();
  span.reset();
  if (launched.error != cudaSuccess) return replay_failed(launched, EagerReason::kLaunchFailed);
  if (!executable.formers().empty()) core_.device->graveyard.keep_until_done(executable.formers(), own().stream);
  // From now on hits on this stream launch the executable as it is, if it holds their values. But the errors of an
  // updater node and the memory of copies must be checked before each launch, and cudaStreamPerThread is another stream
  // in each thread.
  const bool is_ready =
      executable.updated() == nullptr && stream_ != cudaStreamPerThread && !executable.asks_for_memory();
  entry_->exec = is_ready ? executable.exec() : nullptr;
  entry_->ready_on = stream_;
  entry_->values = executable.values();
  entry_->retry.failures = 0;
  entry_->outcomes[static_cast<int>(outcome)].add(1);
  return outcome;
}

// A failed patch leaves the executable in an unknown state. So does a failed launch, unless the stream is at fault;
// then the executable is intact.
absl::StatusOr<Outcome> Run::replay_failed(const CallResult& result, EagerReason reason, bool is_unfit) {
  if (last_error_ != nullptr) {
    last_error_->settle();
  } else if (cudaPeekAtLastError() == result.error) {
    cudaGetLastError();
  }
  if (is_fatal(result.error)) return failed(cuda_failure(result.call, result.error));
  LastErrorGuard last_error;
  const bool launched = reason == EagerReason::kLaunchFailed;
  if (launched) core_.known_streams.erase(stream_);
  absl::Cleanup threw = [this] { core_.give_up(*entry_, Loss::kFailed); };
  absl::Status unfit = check();
  std::move(threw).Cancel();
  if (launched && unfit.ok() && is_capture_error(result.error)) unfit = cuda_failure(result.call, result.error);
  if (launched && !unfit.ok()) return failed(std::move(unfit));
  absl::Status error = cuda_failure(result.call, result.error);
  core_.give_up(*entry_, Loss::kFailed, /*and_template=*/is_unfit, std::move(error));
  entry_->retry.later();
  if (!unfit.ok()) return failed(std::move(unfit));
  auto outcome = reported([&] { return run_directly(reason); });
  DeviceGuard device(core_.options.device);
  core_.tidy_up(where_);
  return outcome;
}

// Calls `fn` directly after it failed under capture: a call that captures forbid works outside of one. If `fn` fails
// again, its captures are not to blame, so the next run captures. `why` it failed then may name the place.
absl::StatusOr<Outcome> Run::call_again(const absl::Status& why) {
  Entry* const entry = entry_.get();
  const std::uint64_t life = entry->life;
  absl::Cleanup fails_again = [&] {
    if (!entry->lock.try_lock()) return;
    if (entry->life == life && entry->retry.failures > 0) {
      --entry->retry.failures;
      entry->retry.at_once();
    }
    core_.unlock(entry);
  };
  auto outcome = run_directly(EagerReason::kCaptureFailed);
  if (!outcome.ok()) return with_more(outcome.status(), "; under capture: ", why.message());
  std::move(fails_again).Cancel();
  if (tells_) core_.log(key_, message_of(why));
  return outcome;
}

// Does what the first run of a key does, up to the launch. Evicts no executable and borrows none.
absl::Status Run::warm() try {
  if (active_recording != nullptr) {
    return failed(absl::FailedPreconditionError("warm was called inside another run's fn"));
  }
  if (absl::Status why = core_.begin(stream_); !why.ok()) return failed(std::move(why));
  if (absl::Status lost = core_.status(); !lost.ok()) return failed(std::move(lost));
  if (!core_.enabled) return absl::OkStatus();
  if (absl::Status held = claim(); !held.ok()) return failed(std::move(held));
  (void)core_.store.begin(entry_.get());
  Scope scope(*this);
  if (absl::Status unfit = check(); !unfit.ok()) return failed(std::move(unfit));
  const bool is_covered = covers_values();
  if (can_replay()) return absl::OkStatus();
  if (executable() != nullptr && is_covered) core_.give_up(*entry_, Loss::kStale);
  if (absl::Status other = scope.enter_device(); !other.ok()) return failed(std::move(other));
  if (entry_->graphs == nullptr || !is_covered) {
    if (absl::Status why = capture_template(); !why.ok()) return no_template(std::move(why));
  }
  entry_->retry.at_once();
  if (executable() != nullptr) return absl::OkStatus();
  CallResult result = renew();
  if (result.error == cudaSuccess) {
    if (absl::Status lost = find_family(); !lost.ok()) return failed(std::move(lost));
    Held lender(nullptr, {core_});
    std::optional<Plan> plan = decide(lender, {}, /*may_evict=*/false);
    if (!plan || plan->action == Plan::Action::kDirect) return absl::OkStatus();
    result = buy(*plan, /*may_evict=*/false);
  }
  if (result.error == cudaSuccess) {
    Operation upload(core_, EventKind::kUpload, *entry_, &Stats::first_launch_time);
    const RelaxedCaptureMode relaxed;
    cudaStream_t stream = nullptr;
    result = core_.device->memory->stream(&stream);
    if (result.error == cudaSuccess) result = executable()->put_in_place(stream);
    upload.done(result);
  }
  if (result.error == cudaSuccess) return absl::OkStatus();
  if (!is_fatal(result.error)) core_.give_up(*entry_, Loss::kFailed);
  return failed(cuda_failure(result.call, result.error));
} catch (...) {
  return threw();
}

}  // namespace graphcache
