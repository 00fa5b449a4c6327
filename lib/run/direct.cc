// Runs that launch no graph of their own: inside another capture, or by calling `fn` directly.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <new>
#include <utility>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "graph/own_graph.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {
namespace {

absl::Status failed_inside() noexcept try {
  return absl::FailedPreconditionError("a run inside another run's fn failed");
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace

// A run inside another run's capture. Nothing here may wait for another run, or change the capture except by enqueuing
// on its streams.
absl::StatusOr<Outcome> Cache::Impl::run_nested(const Request& request) {
  // The outer `fn` may ignore a failure, and its graph would lack this work.
  absl::Cleanup fails = [outer = active_recording] { outer->refuse_capture(failed_inside()); };
  auto outcome = run_inside(request);
  if (outcome.ok()) std::move(fails).Cancel();
  return outcome;
}

absl::StatusOr<Outcome> Cache::Impl::run_inside(const Request& request) {
  LastErrorGuard last_error;
  CaptureInfo info;
  if (request.stream != cudaStreamLegacy) {
    const cudaError_t error = capture_info(request.stream, &info);
    if (error != cudaSuccess) return failed(request, cuda_failure("cudaStreamGetCaptureInfo", error));
  }
  const bool inside = info.status != cudaStreamCaptureStatusNone && info.id == active_recording->capture_id();
  if (!inside) {
    if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
    // Its work would be done now, and never again when the outer graph is replayed. Instead the outer `fn` is called
    // again, directly, and repeats this run.
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "a run was made inside another run's fn on a stream that is not part of its capture"));
    return count_inlined();
  }

  if (request.call.makes_graph()) {
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "a key whose fn returns a graph was run inside another run's fn, whose capture cannot hold that graph"));
    return count_inlined();
  }
  if (request.call.values_size != 0 && request.call.unfit() == nullptr) {
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "a run with params was made inside another run's fn: a graph of the outer run could not update its values"));
  }
  return run_inlined(request);
}

// Adds the work of a run to the capture that its stream is part of.
absl::StatusOr<Outcome> Cache::Impl::run_inlined(const Request& request) {
  if (absl::Status lost = status(); !lost.ok()) return failed(request, std::move(lost));
  if (request.call.makes_graph()) {
    return failed(request, absl::FailedPreconditionError("a graph that fn returns cannot run inside a capture: add it "
                                                         "there as a child graph node"));
  }
  if (const char* const unfit = request.call.unfit(); unfit != nullptr) {
    return failed(request, absl::InvalidArgumentError(unfit));
  }
  absl::Status status = enqueue_inlined(request.stream, request.call, device_->setter);
  if (!status.ok()) return failed(request, std::move(status));
  return count_inlined();
}

Outcome Cache::Impl::count_inlined() {
  hits_->counts.add(Outcome::kInlined);
  return Outcome::kInlined;
}

absl::StatusOr<Outcome> Cache::Impl::run_disabled(const Request& request) {
  if (!invalid_.ok()) return failed(request, invalid_);
  {
    LastErrorGuard last_error;
    if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  }
  Held none(*this, nullptr);
  auto outcome = run_directly(none, EagerReason::kDisabled, request);
  if (request.call.makes_graph()) {
    DeviceGuard device(options_.device);
    device_->graveyard.collect(request.stream);
  }
  return outcome;
}

// Calls `fn` directly. The entry, which may be null, is unlocked first, so that runs of other threads need not wait.
absl::StatusOr<Outcome> Cache::Impl::run_directly(Held& held, EagerReason reason, const Request& request) {
  if (request.report != nullptr) request.report->reason = reason;
  Entry* const entry = held.get();
  if (entry != nullptr) {
    MutexLock lock(mutex_);
    ++entry->users;
  }
  held.release();
  User user(*this, entry);
  LastErrorGuard last_error;
  DeviceGuard device(options_.device);
  absl::Status status = device.status();
  last_error.settle();
  if (status.ok()) {
    status = request.call.makes_graph() ? launch_once(request) : enqueue(request.given, request.call, device_->setter);
  }
  if (!status.ok()) return failed(request, std::move(status));
  if (entry == nullptr) return count_eager(reason);
  user.eager = reason;
  return Outcome::kEager;
}

// Makes an executable of the graph that `fn` returns, for one launch. Called without the entry's lock.
absl::Status Cache::Impl::launch_once(const Request& request) {
  Captured made = make_graph(request.call, options_.device);
  if (absl::Status fatal = take_fatal_error(made); !fatal.ok()) return fatal;
  if (!made.fn.ok() || !made.capture.ok()) return made.fn.ok() ? made.capture : made.fn;
  const auto content = std::make_shared<Content>(std::move(made.content));
  content->key = request.key;
  device_->graveyard.limit(request.stream);
  const auto event_of = [&](EventKind kind) {
    return CacheEvent{.kind = kind, .key = request.key, .graph = content->id, .stream = request.given};
  };
  std::unique_ptr<Executable> once;
  {
    Audience::Span span(*audience_, event_of(EventKind::kInstantiate));
    const auto instantiate = [&] {
      const RelaxedCaptureMode relaxed;
      return Executable::instantiate(made.graph, content, options_.instantiate_flags, device_->scratch, &once);
    };
    cudaError_t error = instantiate();
    if (error == cudaErrorMemoryAllocation &&
        device_->graveyard.collect_all(device_->memory.get()).error == cudaSuccess) {
      error = instantiate();
    }
    if (is_fatal(error)) made.graph.graph.release();
    if (error != cudaSuccess) return span.event.status = cuda_failure("cudaGraphInstantiate", error);
  }
  const absl::Cleanup destroy = [&] {
    Epitaph epitaph;
    if (!audience_->empty()) epitaph = {.audience = audience_, .content = content};
    device_->graveyard.add(std::move(once), {}, {}, std::move(epitaph));
  };
  ++totals_.instantiations;
  Audience::Span span(*audience_, event_of(EventKind::kLaunch), {Audience::Filter::Kind::kLaunches});
  if (!span.refused().ok()) return span.refused();
  const cudaError_t error = once->launch(request.stream);
  if (error != cudaSuccess) span.event.status = cuda_failure("cudaGraphLaunch", error);
  return span.event.status;
}

Cache::Impl::User::~User() {
  if (entry_ == nullptr) return;
  bool gone = false;
  {
    MutexLock lock(impl_.mutex_);
    --entry_->users;
    if (eager) impl_.count_eager(entry_, *eager);
    if (entry_->erased) gone = impl_.sweep();
  }
  if (gone) impl_.device_->graveyard.collect_all();
}

Outcome Cache::Impl::count_eager(Entry* entry, EagerReason reason) {
  entry->outcomes[static_cast<int>(Outcome::kEager)].add(1);
  entry->eager_reason = reason;
  return count_eager(reason);
}

Outcome Cache::Impl::count_eager(EagerReason reason) {
  ++totals_.eager_reasons[static_cast<std::size_t>(reason)];
  return Outcome::kEager;
}

// A failed patch leaves the executable in an unknown state. So does a failed launch, unless the stream is at fault;
// then the executable is intact.
absl::StatusOr<Outcome> Cache::Impl::replay_failed(Held& entry, const CallResult& result, EagerReason reason,
                                                   Request& request, bool is_unfit) {
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
    known_streams_.erase(request.stream);
  }
  auto threw = evicting(entry);
  absl::Status unfit = check(request);
  std::move(threw).Cancel();
  if (launched && !unfit.ok()) return failed(request, std::move(unfit));
  absl::Status error = cuda_failure(result.call, result.error);
  give_up(*entry.get(), Loss::kFailed, /*and_template=*/is_unfit, std::move(error));
  entry->retry.later();
  if (!unfit.ok()) return failed(request, std::move(unfit));
  auto outcome = reported(entry, request, [&] { return run_directly(entry, reason, request); });
  DeviceGuard device(options_.device);
  tidy_up(request.stream);
  return outcome;
}

}  // namespace graphcache
