// Runs that launch no graph of their own: inside another capture, or by calling `fn` directly.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <new>
#include <utility>

#include "cuda/compat.h"
#include "cuda/errors.h"
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

  if (request.call.is_adopted) {
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "the graph of an adopted key was run inside another run's fn, whose capture cannot hold it"));
    return count_inlined();
  }
  if (request.call.values_size != 0 && request.call.unfit(request.call.fn) == nullptr) {
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "a run with params was made inside another run's fn: a graph of the outer run could not update its values"));
  }
  return run_inlined(request);
}

// Adds the work of a run to the capture that its stream is part of.
absl::StatusOr<Outcome> Cache::Impl::run_inlined(const Request& request) {
  if (absl::Status lost = status(); !lost.ok()) return failed(request, std::move(lost));
  if (request.call.is_adopted) {
    return failed(request, absl::FailedPreconditionError("the graph of an adopted key cannot run inside a capture: add "
                                                         "it there as a child graph node"));
  }
  if (const char* const unfit = request.call.unfit(request.call.fn); unfit != nullptr) {
    return failed(request, absl::InvalidArgumentError(unfit));
  }
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
  if (!request.call.is_adopted) {
    Held none(*this, nullptr);
    return run_directly(none, EagerReason::kDisabled, request);
  }
  Held entry(*this, claim(request));  // The graph belongs to the entry.
  const absl::Cleanup tidy = [&] {
    entry.release();
    tidy_up(request.stream);  // For example, the executable of the last run.
  };
  return run_directly(entry, EagerReason::kDisabled, request);
}

// Calls `fn` directly. The entry, which may be null, is unlocked first, so that runs of other threads need not wait.
absl::StatusOr<Outcome> Cache::Impl::run_directly(Held& held, EagerReason reason, const Request& request) {
  if (request.report != nullptr) request.report->reason = reason;
  Entry* const entry = held.get();
  if (entry != nullptr && entry->content != nullptr && entry->content->is_adopted) {
    return run_once(held, reason, request);
  }
  if (entry != nullptr) {
    MutexLock lock(mutex_);
    ++entry->users;
    // `fn` will hand out other memory, so the captured graph must not be replayed.
    if (entry->content != nullptr && entry->content->leaves_memory) forget_template(entry, Loss::kMemory);
  }
  held.release();
  const User user(*this, entry);
  LastErrorGuard last_error;
  DeviceGuard device(options_.device);
  absl::Status status = device.status();
  last_error.settle();
  if (status.ok()) status = enqueue(request.given, request.call, setter_);
  if (!status.ok()) return failed(request, std::move(status));

  MutexLock lock(mutex_);
  return count_eager(entry, reason);
}

Cache::Impl::User::~User() {
  if (entry_ == nullptr) return;
  bool gone = false;
  {
    MutexLock lock(impl_.mutex_);
    --entry_->users;
    if (entry_->erased) gone = impl_.sweep();
  }
  if (gone) impl_.graveyard_.collect_all();
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

// A failed patch leaves the executable in an unknown state. So does a failed launch, unless the stream is at fault;
// then the executable is intact.
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
  // A template that cannot be instantiated is dropped.
  give_up(entry.get(), std::move(error), result.call == kInstantiate && reason != EagerReason::kOutOfMemory);
  if (!unfit.ok()) return failed(request, std::move(unfit));
  auto outcome = reported(entry, request, [&] { return run_directly(entry, reason, request); });
  DeviceGuard device(options_.device);
  graveyard_.collect(request.stream);
  return outcome;
}

// The entry has lost its executable, or the promise of one, by an error. With `forgets` it loses its template as well.
void Cache::Impl::give_up(Entry* entry, absl::Status error, bool forgets) {
  {
    MutexLock lock(mutex_);
    entry->error = std::move(error);
    if (entry->state == State::kLive) demote(entry, Loss::kFailed);
    if (forgets && entry->state != State::kCold && !entry->is_adopted) forget_template(entry, Loss::kFailed);
  }
  back_off(entry);
}

// A key whose captures break is captured again, but ever more rarely. The cause may be temporary, such as a library
// that initialises itself at its first call.
void Cache::Impl::back_off(Entry* entry) {
  constexpr int kMaxDoublings = 10;
  entry->direct_left = 1 << std::min(entry->failures, kMaxDoublings);
  entry->direct_why = EagerReason::kBackoff;
  ++entry->failures;
}

}  // namespace graphcache
