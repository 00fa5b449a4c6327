// Runs that launch no graph of their own: inside another capture, or by calling `fn` directly.
#include <absl/cleanup/cleanup.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "graph/recording.h"
#include "run/run.h"

namespace graphcache {

// A run inside another run's capture. Nothing here may wait for another run, or change the capture except by enqueuing
// on its streams.
absl::StatusOr<Outcome> Run::run_nested() {
  // The outer `fn` may ignore a failure, and its graph would lack this work. If memory runs out, the text is missing.
  absl::Cleanup fails = [outer = active_recording] {
    outer->refuse_capture(with_more(absl::FailedPreconditionError(""), "", "a run inside another run's fn failed"));
  };
  LastErrorGuard last_error;
  CaptureInfo info;
  if (stream_ != cudaStreamLegacy) {
    const cudaError_t error = capture_info(stream_, &info);
    if (error != cudaSuccess) return failed(cuda_failure("cudaStreamGetCaptureInfo", error));
  }
  if (info.status == cudaStreamCaptureStatusInvalidated) {
    return failed(cuda_failure("the capture of the run around it", cudaErrorStreamCaptureInvalidated));
  }
  const bool inside = info.status != cudaStreamCaptureStatusNone && info.id == active_recording->capture_id();
  const auto refuse = [](const char* why) { active_recording->refuse_capture(absl::FailedPreconditionError(why)); };
  if (!inside) {
    if (absl::Status unfit = check(); !unfit.ok()) return failed(std::move(unfit));
    // Its work would be done now, and never again when the outer graph is replayed. Instead the outer `fn` is called
    // again, directly, and repeats this run.
    refuse("a run was made inside another run's fn on a stream that is not part of its capture: pass rec.stream()");
  } else if (call_.makes_graph()) {
    refuse("a key whose fn returns a graph was run inside another run's fn, whose capture cannot hold that graph");
  } else if (call_.values_size != 0 && call_.unfit() == nullptr) {
    refuse(
        "a run with params or values was made inside another run's fn: a graph of the outer run could not update them, "
        "so pass them to the outer run, or do the work without a run where cudaStreamIsCapturing says so");
  }
  auto outcome = inside && !call_.makes_graph() ? run_inlined() : inlined();
  if (outcome.ok()) std::move(fails).Cancel();
  return outcome;
}

// Adds the work of a run to the capture that its stream is part of.
absl::StatusOr<Outcome> Run::run_inlined() {
  const LastErrorGuard last_error;
  if (absl::Status lost = core_.status(); !lost.ok()) return failed(std::move(lost));
  absl::Status other = core_.check_context();
  if (other.ok() && is_of_current_device(stream_)) other = check_device();
  if (!other.ok()) return failed(std::move(other));
  if (call_.makes_graph()) {
    return failed(
        absl::FailedPreconditionError("a graph that fn returns cannot run inside a capture: add it there as "
                                      "a child graph node"));
  }
  if (const char* const unfit = call_.unfit(); unfit != nullptr) return failed(absl::InvalidArgumentError(unfit));
  std::optional<Setter> unbound;
  if (!core_.has_begun()) {
    int current = -1;
    cudaGetDevice(&current);  // If it fails, so does invoke().
    unbound.emplace(current, std::make_shared<DeviceMemory>(current), core_.options.capture_mode);
  }
  Setter& setter = unbound ? *unbound : core_.device->setter;
  absl::Status status = detail::Recording(stream_, call_, detail::Recording::Mode::kInlined, setter).invoke();
  if (!status.ok()) return failed(std::move(status));
  return inlined();
}

absl::StatusOr<Outcome> Run::run_disabled() {
  Scope scope(*this);
  if (absl::Status unfit = check(); !unfit.ok()) return failed(std::move(unfit));
  if (call_.makes_graph()) {  // Such a run leaves an executable.
    if (absl::Status other = scope.enter_device(); !other.ok()) return failed(std::move(other));
  }
  return run_directly(EagerReason::kDisabled);
}

// Calls `fn` directly. The entry is unlocked first, if there is one, so that runs of other threads need not wait. It
// may be erased meanwhile.
absl::StatusOr<Outcome> Run::run_directly(EagerReason reason) {
  reason_ = reason;
  const std::uint64_t entry = number();
  entry_.reset();
  LastErrorGuard last_error;
  DeviceGuard device(core_.options.device);
  absl::Status status = device.status();
  last_error.settle();
  if (status.ok() && call_.makes_graph()) {
    status = launch_once();
  } else if (status.ok()) {
    status = detail::Recording(given_, call_, detail::Recording::Mode::kDirect, core_.device->setter).invoke();
  }
  if (!status.ok()) return failed(std::move(status));
  core_.store.count_direct(entry, reason);
  return Outcome::kEager;
}

// Makes an executable of the graph that `fn` returns, for one launch. Called without the entry's lock.
absl::Status Run::launch_once() {
  Captured made = make_graph(call_, core_.options.device);
  if (absl::Status fatal = take_fatal_error(made); !fatal.ok()) return fatal;
  if (absl::Status failure = made.failure(); !failure.ok()) return failure;
  const auto content = std::make_shared<Content>(std::move(made.content));
  content->key = key_;
  (void)where_.find_id();
  core_.device->graveyard.limit(where_);
  const auto event_of = [&](EventKind kind) {
    return CacheEvent{.kind = kind, .key = key_, .graph = content->id, .stream = given_};
  };
  std::unique_ptr<Executable> once;
  std::list<Grave> grave(1);
  {
    Audience::Span span(*core_.audience, event_of(EventKind::kInstantiate));
    const absl::Cleanup timed = [this, begin = std::chrono::steady_clock::now()] {
      core_.store.count(&Stats::instantiate_time, std::chrono::steady_clock::now() - begin);
    };
    const auto instantiate = [&] {
      const RelaxedCaptureMode relaxed;
      return Executable::instantiate(made.graph, content, core_.options.instantiate_flags, *core_.device->memory,
                                     &once);
    };
    CallResult done = instantiate();
    if (done.error == cudaErrorMemoryAllocation && core_.collect_all().error == cudaSuccess) done = instantiate();
    if (is_fatal(done.error)) made.graph.graph.release();
    if (done.error != cudaSuccess) return span.event.status = done.status();
  }
  const absl::Cleanup destroy = [&] {
    core_.device->graveyard.add(std::move(grave), std::move(once), {}, {}, {}, {content});
  };
  core_.store.count(&Stats::instantiations);
  Audience::Span span(*core_.audience, event_of(EventKind::kLaunch));
  if (!span.event.status.ok()) return span.event.status;
  span.event.status = once->launch(where_).status();
  return span.event.status;
}

}  // namespace graphcache
