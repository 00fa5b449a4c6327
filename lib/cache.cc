// A run: find the entry, decide, bring its executable over, launch.
#include "graphcache/cache.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "compat.h"
#include "errors.h"
#include "graphcache/status.h"
#include "impl.h"

namespace graphcache {

// Calls what calls `fn`; a run that ends by `fn`'s exception has failed.
template <class F>
auto Cache::Impl::call_fn(F&& f) {
  absl::Cleanup threw = [this] {
    MutexLock lock(mutex_);
    ++totals_.failed;
  };
  auto result = f();
  std::move(threw).Cancel();
  return result;
}

absl::StatusOr<Outcome> Cache::Impl::run(const Key& key, cudaStream_t stream,
                                         const detail::Call& call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const Request request{key, stream, call};
  if (active_recording != nullptr) return run_nested(request);
  if (!enabled_) return run_disabled(request);

  Held entry(*this, claim(request));
  if (entry->executable != nullptr && (entry->stream == stream || is_known(stream))) {
    entry->stream = stream;
    return replay(entry, request);
  }
  return run_slowly(entry, request);
}

// Finds or makes the request's entry and locks it.
Entry* Cache::Impl::claim(const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(mutex_);
  for (;;) {
    Entry* entry = index_.find(request.key, request.call.site);
    if (entry == nullptr) {
      sweep();
      entry = index_.insert(request.key, request.call.site);
    }
    if (entry->lock.try_lock()) {
      index_.touch(entry);
      return entry;
    }
    if (entry->lock.announce_wait()) unlocked_.wait(mutex_);
  }
}

// All waiters look again, each for its own entry. The lock makes sure that who announced a wait does wait by now.
// Whoever erased the entry meanwhile announced a wait, too: it is gone by the end of the run.
void Cache::Impl::wake() {
  {
    MutexLock lock(mutex_);
    sweep();
  }
  unlocked_.notify_all();
  retire_.collect();
}

// A hit: patch what changed, launch.
absl::StatusOr<Outcome> Cache::Impl::replay(Held& entry, const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Executable& executable = *entry->executable;
  Outcome outcome = Outcome::kReplayed;
  if (!executable.holds(request.call)) {
    std::size_t patched = 0;
    const CallResult result = executable.patch(request.call, &patched);
    entry->patched_nodes.add(patched);
    if (result.error != cudaSuccess) return replay_failed(entry, result, EagerReason::kRefused, request);
    if (patched != 0) outcome = Outcome::kPatched;
  }
  if (const cudaError_t error = executable.launch(request.stream); error != cudaSuccess) {
    return replay_failed(entry, {"cudaGraphLaunch", error}, EagerReason::kLaunchFailed, request);
  }
  entry->outcomes[static_cast<int>(outcome)].add(1);
  return outcome;
}

// Whatever is not a hit on a stream that the cache knows.
absl::StatusOr<Outcome> Cache::Impl::run_slowly(Held& entry, const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const absl::Cleanup collect = [this] { retire_.collect(); };
  LastErrorGuard last_error;
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  entry->stream = request.stream;
  if (entry->executable != nullptr) return replay(entry, request);

  if (!std::exchange(entry->seen, true)) entry->eager_left = options_.capture_after;
  if (entry->eager_left > 0) {
    --entry->eager_left;
    return run_eagerly(entry, entry->eager_why, request);
  }
  if (!has_room()) return run_eagerly(entry, EagerReason::kBudget, request);
  DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());
  return record(entry, request);
}

// A miss: capture, make room, instantiate, launch. What cannot be captured is enqueued directly.
absl::StatusOr<Outcome> Cache::Impl::record(Held& entry, const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  bool broke = false;
  absl::Cleanup threw = [&] {
    if (broke) back_off(entry.get());
    MutexLock lock(mutex_);
    ++totals_.capture_failures;
  };
  Captured captured = call_fn([&] { return capture(request.stream, options_.capture_mode, request.call, &broke); });
  std::move(threw).Cancel();

  broke = !captured.capture.ok();
  const bool usable = !broke && captured.fn.ok();
  {
    MutexLock lock(mutex_);
    totals_.capture_time += captured.time;
    ++(usable ? totals_.captures : totals_.capture_failures);
  }
  for (const absl::Status& status : {captured.capture, captured.fn}) {
    if (!is_fatal(cuda_error(status))) continue;
    captured.content.graph.release();  // Handles are dropped now, not destroyed.
    return failed(request, status);
  }
  if (broke || is_capture_error(cuda_error(captured.fn))) {
    // A call that a capture forbids fails, or breaks the capture, but works outside of one.
    captured.content = Template();
    back_off(entry.get());
    return run_eagerly(entry, EagerReason::kCaptureFailed, request);
  }
  if (!usable) return failed(request, captured.fn);

  if (!reserve(entry.get())) {
    captured.content = Template();
    return run_eagerly(entry, EagerReason::kBudget, request);
  }
  std::unique_ptr<Executable> executable;
  const cudaError_t error = instantiate(captured.content, &executable);
  if (error != cudaSuccess) {
    if (is_fatal(error)) {
      captured.content.graph.release();
      return failed(request, cuda_failure("cudaGraphInstantiate", error));
    }
    captured.content = Template();
    drop(entry.get());
    back_off(entry.get());
    const bool out_of_memory = error == cudaErrorMemoryAllocation;
    return run_eagerly(entry, out_of_memory ? EagerReason::kOutOfMemory : EagerReason::kRefused, request);
  }
  entry->executable = std::move(executable);
  entry->nodes = entry->executable->node_count();
  entry->slot_nodes = entry->executable->slot_node_count();
  entry->ready = true;
  entry->failures = 0;
  if (const cudaError_t launched = entry->executable->launch(request.stream); launched != cudaSuccess) {
    return replay_failed(entry, {"cudaGraphLaunch", launched}, EagerReason::kLaunchFailed, request);
  }
  entry->outcomes[static_cast<int>(Outcome::kInstantiated)].add(1);
  return Outcome::kInstantiated;
}

// A run inside another run's capture. Nothing here may wait for another run, nor touch the capture but through its
// streams.
absl::StatusOr<Outcome> Cache::Impl::run_nested(const Request& request) {
  LastErrorGuard last_error;
  CaptureInfo info;
  if (request.stream != nullptr && request.stream != cudaStreamLegacy) {
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

  if (request.call.empty(request.call.fn)) return failed(request, absl::InvalidArgumentError("fn is empty"));
  if (request.call.values_size != 0) {
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "a run with params was made inside another run's fn: a graph of the outer run could not follow its values"));
  }
  absl::Status status = call_fn([&] { return enqueue_inlined(request.stream, request.call); });
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
  return run_eagerly(no_entry, EagerReason::kDisabled, request);
}

// Calls `fn` directly. The entry is let go first, so that other threads' runs of it need not wait; it may be null.
absl::StatusOr<Outcome> Cache::Impl::run_eagerly(Held& held, EagerReason reason, const Request& request) {
  Entry* const entry = held.get();
  if (entry != nullptr) {
    MutexLock lock(mutex_);
    ++entry->pins;
  }
  held.release();

  const absl::Cleanup let_go = [&] {
    MutexLock lock(mutex_);
    if (entry != nullptr) --entry->pins;
  };
  LastErrorGuard last_error;
  DeviceGuard device(options_.device);
  absl::Status status = device.status();
  last_error.settle();
  if (status.ok()) status = call_fn([&] { return enqueue(request.stream, request.call); });
  if (!status.ok()) return failed(request, std::move(status));

  MutexLock lock(mutex_);  // Released before let_go takes it.
  ++totals_.eager_reasons[static_cast<int>(reason)];
  if (entry != nullptr) {
    entry->outcomes[static_cast<int>(Outcome::kEager)].add(1);
  } else {
    ++totals_.outcomes[static_cast<int>(Outcome::kEager)];
  }
  return Outcome::kEager;
}

// A failed patch leaves the executable in a state that nobody knows. A failed launch leaves it whole if the stream is
// at fault, and its state unknown otherwise.
absl::StatusOr<Outcome> Cache::Impl::replay_failed(Held& entry, const CallResult& result, EagerReason reason,
                                                   const Request& request) {
  if (result.latches && cudaPeekAtLastError() == result.error) cudaGetLastError();
  if (is_fatal(result.error)) return failed(request, cuda_failure(result.call, result.error));
  LastErrorGuard last_error;
  const bool launched = reason == EagerReason::kLaunchFailed;
  if (launched) {
    if (is_capture_error(result.error)) return failed(request, cuda_failure(result.call, result.error));
    MutexLock lock(mutex_);
    known_streams_.erase(request.stream);
  }
  absl::Status unfit = check(request);
  if (launched && !unfit.ok()) return failed(request, std::move(unfit));
  drop(entry.get());
  back_off(entry.get());
  if (!unfit.ok()) return failed(request, std::move(unfit));
  auto outcome = run_eagerly(entry, reason, request);
  retire_.collect();
  return outcome;
}

// What must hold before `fn` is called on a stream. The order matters: asking a capturing stream for its device breaks
// its capture (compat.h).
absl::Status Cache::Impl::check(const Request& request) {
  if (absl::Status lost = status(); !lost.ok()) return lost;
  if (request.stream == nullptr || request.stream == cudaStreamLegacy) {
    return absl::InvalidArgumentError(
        "the legacy default stream cannot be captured: pass cudaStreamPerThread or a stream of your own");
  }
  if (request.call.empty(request.call.fn)) return absl::InvalidArgumentError("fn is empty");
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(request.stream, &capturing);
  if (error != cudaSuccess) return cuda_failure("cudaStreamIsCapturing", error);
  if (capturing != cudaStreamCaptureStatusNone) {
    return cuda_failure("the stream is already capturing", cudaErrorStreamCaptureUnsupported);
  }
  if (is_known(request.stream)) return absl::OkStatus();
  if (absl::Status other = check_device(request.stream); !other.ok()) return other;
  constexpr std::size_t kMaxKnownStreams = 1024;  // Handles of streams that are gone collect here.
  MutexLock lock(mutex_);
  if (known_streams_.size() >= kMaxKnownStreams) known_streams_.clear();
  known_streams_.insert(request.stream);
  return absl::OkStatus();
}

// cudaStreamPerThread stands for another stream under each current device, so there it is the current device that
// counts.
absl::Status Cache::Impl::check_device(cudaStream_t stream) const {
  int device = -1;
  if (stream == cudaStreamPerThread) {
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
      return cuda_failure("cudaGetDevice", error);
    }
  } else {
    DeviceGuard current(options_.device);  // What older toolkits compare with (compat.h).
    if (!current.status().ok()) return current.status();
    if (const cudaError_t error = stream_device(stream, &device); error != cudaSuccess) {
      return cuda_failure("cudaStreamGetDevice", error);
    }
  }
  if (device == options_.device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      stream == cudaStreamPerThread ? "cudaStreamPerThread is that of the current device, and so of "
                                    : "the stream is of ",
      device < 0 ? "another device" : absl::StrCat("device ", device), ", the cache of device ", options_.device));
}

bool Cache::Impl::is_known(cudaStream_t stream) const {
  MutexLock lock(mutex_);
  return known_streams_.contains(stream);
}

// Makes the entry count against the budget; false if no room can be made. Evicts before anything is instantiated.
bool Cache::Impl::reserve(Entry* entry) {
  {
    MutexLock lock(mutex_);
    sweep();
    while (index_.live() >= static_cast<std::size_t>(options_.max_executables)) {
      if (!evict_one()) return false;
    }
    index_.set_live(entry, true);
  }
  retire_.collect();
  return true;
}

// The least recently used executable leaves; its entry stays, and knows that it is not new.
bool Cache::Impl::evict_one() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Entry* const victim = index_.lock_victim();
  if (victim == nullptr) return false;
  ++totals_.evictions;
  victim->ready = false;
  retire_.add(std::move(victim->executable));
  index_.set_live(victim, false);
  (void)victim->lock.unlock();  // Idle, so awaited by nobody.
  return true;
}

// Whether an executable could be reserved now, so that no capture is made in vain. Nothing leaves for a capture that
// may yet fail.
bool Cache::Impl::has_room() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(mutex_);
  if (index_.live() < static_cast<std::size_t>(options_.max_executables)) return true;
  Entry* const victim = index_.lock_victim();
  if (victim != nullptr) (void)victim->lock.unlock();
  return victim != nullptr;
}

// Out of memory: one more executable leaves, what the device keeps for graphs is given back, and it is tried once more.
cudaError_t Cache::Impl::instantiate(Template& content, std::unique_ptr<Executable>* executable) {
  const auto begin = std::chrono::steady_clock::now();
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  cudaError_t error = Executable::instantiate(content, options_.instantiate_flags, options_.device, executable);
  if (error == cudaErrorMemoryAllocation) {
    {
      MutexLock lock(mutex_);
      evict_one();
    }
    retire_.collect();
    cudaDeviceGraphMemTrim(options_.device);
    error = Executable::instantiate(content, options_.instantiate_flags, options_.device, executable);
  }
  MutexLock lock(mutex_);
  totals_.instantiate_time += std::chrono::steady_clock::now() - begin;
  if (error == cudaSuccess) ++totals_.instantiations;
  return error;
}

// A key whose captures break is tried again, but ever more rarely: it may have been a passing cause, such as a library
// that initialises itself at its first call.
void Cache::Impl::back_off(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kMaxDoublings = 10;
  entry->eager_left = 1 << std::min(entry->failures, kMaxDoublings);
  entry->eager_why = EagerReason::kBackoff;
  ++entry->failures;
}

// The entry loses its executable, or the promise of one.
void Cache::Impl::drop(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  entry->ready = false;
  retire_.add(std::move(entry->executable));
  MutexLock lock(mutex_);
  index_.set_live(entry, false);
}

absl::Status Cache::Impl::failed(const Request& request, absl::Status why) {
  if (is_fatal(cuda_error(why))) lose(why);
  MutexLock lock(mutex_);
  ++totals_.failed;
  return with_key(why, request.key);
}

absl::StatusOr<Outcome> Cache::run_call(const Key& key, cudaStream_t stream, const detail::Call& call) {
  return impl_->run(key, stream, call);
}

}  // namespace graphcache
