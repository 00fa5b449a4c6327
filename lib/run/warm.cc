// Makes a key ready before its first run.
#include <absl/cleanup/cleanup.h>

#include <utility>

#include "cuda/errors.h"
#include "run/impl.h"

namespace graphcache {

// Does what the first run of a key does, up to the launch. Evicts no executable.
absl::Status Cache::Impl::warm(const Request& request) {
  const cudaStream_t stream = request.stream;
  if (active_recording != nullptr) {
    return failed(request, absl::FailedPreconditionError("warm was called inside another run's fn"));
  }
  if (!enabled_) {
    absl::Status why = status();
    return why.ok() ? why : failed(request, std::move(why));
  }
  Entry* in_background = nullptr;
  Held entry(*this, claim(request, &in_background));
  const User user(*this, in_background);
  if (in_background == nullptr) {
    MutexLock lock(mutex_);
    touch(entry.get());
  }
  LastErrorGuard last_error;
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  if (in_background != nullptr) return absl::OkStatus();
  entry->stream = LaunchStream::of(stream);
  if (entry->executable != nullptr) return absl::OkStatus();
  DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());
  const absl::Cleanup tidy = [&] {
    entry.release();
    tidy_up(stream);
  };
  trim(/*if_much=*/true);
  if (entry->content == nullptr) {
    NoTemplate none;
    if (absl::Status status = capture_template(entry, request, &none); !status.ok()) {
      return no_template(request, std::move(status), none);
    }
  }
  entry->direct_left = 0;
  entry->seen = true;
  if (absl::Status lost = find_family(entry, request); !lost.ok()) return failed(request, std::move(lost));
  {
    MutexLock lock(mutex_);
    sweep();
    if (policy_.has_to_borrow(entry->id)) return absl::OkStatus();
    const Plan plan = policy_.plan_ahead(entry->id);
    if (plan.action == Plan::Action::kDirect) return absl::OkStatus();
    begin(entry.get(), plan);
    if (is_left_to_background(*entry.get())) {
      add_task(entry.give_away(), Task::kWarm);
      return absl::OkStatus();
    }
  }
  const CallResult result = instantiate_ahead(entry, Task::kWarm).result;
  if (result.error == cudaSuccess) return absl::OkStatus();
  if (!is_fatal(result.error)) {
    MutexLock lock(mutex_);
    demote(entry.get(), Loss::kFailed);
  }
  return failed(request, cuda_failure(result.call, result.error));
}

}  // namespace graphcache
