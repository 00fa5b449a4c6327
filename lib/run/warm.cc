// A key made ready ahead of its first run.
#include <absl/cleanup/cleanup.h>

#include <utility>

#include "cuda/errors.h"
#include "run/impl.h"

namespace graphcache {

// Like the first run of a key, up to the launch. No executable leaves for it.
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
  if (in_background != nullptr) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    touch(entry.get());
  }
  LastErrorGuard last_error;
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  entry->stream = LaunchStream::of(stream);
  if (entry->executable != nullptr) return absl::OkStatus();
  DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());
  const absl::Cleanup tidy = [&] {
    entry.release();
    tidy_up(stream);
  };
  memory_->trim_if_much();
  if (entry->content == nullptr) {
    auto why = NoTemplate::kFailed;
    if (absl::Status status = capture_template(entry, request, &why); !status.ok()) {
      return failed(request, std::move(status));
    }
  }
  entry->direct_left = 0;
  entry->seen = true;
  if (absl::Status lost = join_stream(entry, request); !lost.ok()) return failed(request, std::move(lost));
  if (!background_.empty()) {
    MutexLock lock(mutex_);
    add_task(entry.give_away(), Task::kWarm);
    return absl::OkStatus();
  }
  const CallResult result = prepare(entry, Task::kWarm).result;
  if (result.error == cudaSuccess) return absl::OkStatus();
  if (!is_fatal(result.error)) {
    MutexLock lock(mutex_);
    demote(entry.get());
  }
  return failed(request, cuda_failure(result.call, result.error));
}

}  // namespace graphcache
