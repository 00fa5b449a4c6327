// Threads of the cache that make executables while the runs that need them call `fn` directly
// (Options::background_threads).
//
// A run decides as it does without such threads. If its plan is to instantiate, it calls `fn` directly and hands the
// entry, locked, to a background thread. All runs of the key are direct until that thread unlocks the entry. If no
// thread is free, there is no such plan. The driver delays launches while it instantiates, so a run should be delayed
// by at most one instantiation, and should not pay for a capture at the same time.
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <new>
#include <utility>

#include "cuda/errors.h"
#include "cuda/give_way.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {
namespace {

absl::Status too_late(std::size_t left, std::size_t all) noexcept try {
  return absl::DeadlineExceededError(absl::StrCat(left, " of ", all, " keys are not ready"));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace

// If no thread can be started, runs do all the work themselves.
void Cache::Impl::start_background() try {
  background_.reserve(static_cast<std::size_t>(options_.background_threads));
  for (int i = 0; i < options_.background_threads; ++i) background_.emplace_back([this] { work_in_background(); });
} catch (const std::exception&) {
  log("graphcache: there are fewer background threads than Options::background_threads: the system refused more");
}

// Drops tasks that have not begun.
void Cache::Impl::stop_background() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  has_tasks_.notify_all();
  for (std::thread& thread : background_) thread.join();
  background_.clear();
}

void Cache::Impl::add_task(Entry* locked, Task task) {
  locked->task = task;
  locked->next_task = nullptr;
  (first_task_ == nullptr ? first_task_ : last_task_->next_task) = locked;
  last_task_ = locked;
  ++tasks_;
  has_tasks_.notify_one();
}

// Calls `fn` directly, and then hands the entry, which was promised an executable, to a background thread. The launches
// of the run come first.
absl::StatusOr<Outcome> Cache::Impl::run_meanwhile(Held& held, const Request& request) {
  Entry* const entry = held.give_away();
  {
    MutexLock lock(mutex_);
    entry->task = Task::kRun;  // Other runs need not wait from here on.
    ++entry->users;
  }
  const absl::Cleanup give = [&] {
    MutexLock lock(mutex_);
    add_task(entry, Task::kRun);
  };
  const User user(*this, entry);
  return call_directly(entry, EagerReason::kPreparing, request);
}

// A run of an entry that a background thread has or will have.
absl::StatusOr<Outcome> Cache::Impl::run_beside(Entry* in_background, const Request& request) {
  const User user(*this, in_background);
  LastErrorGuard last_error;
  {
    MutexLock lock(mutex_);
    claimed(in_background, request);
    touch(in_background);
  }
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  return call_directly(in_background, EagerReason::kPreparing, request);
}

void Cache::Impl::work_in_background() {
  gives_way_to = &direct_runs_;
  for (;;) {
    Held entry(*this, nullptr);
    Task task = Task::kNone;
    {
      MutexLock lock(mutex_);
      while (first_task_ == nullptr && !stopping_) has_tasks_.wait(mutex_);
      if (first_task_ == nullptr) return;
      entry.reset(std::exchange(first_task_, first_task_->next_task));
      task = entry->task;
      ++busy_threads_;
      if (entry->erased || lost_ || stopping_) {  // The executable is not needed any more.
        task = Task::kNone;
        demote(entry.get(), Loss::kFailed);
      }
    }
    carry_out(entry, task);
  }
}

// The device is not restored: the thread belongs to the cache, and making device 0 current would create a context
// there.
CallResult Cache::Impl::make_device_current() const {
  int device = -1;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess || device == options_.device) return {"cudaGetDevice", error};
  return {"cudaSetDevice", cudaSetDevice(options_.device)};
}

// Makes the executable, unless it is no longer needed (kNone), and unlocks the entry in any case.
void Cache::Impl::carry_out(Held& entry, Task task) {
  LastErrorGuard last_error;
  const CallResult current = make_device_current();
  absl::Status failure;
  if (task != Task::kNone) {
    Obtained obtained;
    try {
      obtained.result = current;
      if (current.error == cudaSuccess) obtained = instantiate_ahead(entry, task);
      const CallResult& result = obtained.result;
      if (result.error != cudaSuccess) failure = cuda_failure(result.call, result.error);
    } catch (const std::bad_alloc&) {
      failure = out_of_memory();
    }
    if (!failure.ok()) {
      log(entry->key, message_of(failure));
      const bool forgets = obtained.result.call == kInstantiate && obtained.why != EagerReason::kOutOfMemory;
      is_fatal(cuda_error(failure)) ? lose(failure) : give_up(entry.get(), failure, forgets);
      failure = with_key(failure, entry->key);
    }
  }
  {
    MutexLock lock(mutex_);
    entry->task = Task::kNone;
  }
  entry.release();
  if (current.error == cudaSuccess) tidy_up(nullptr);
  {
    MutexLock lock(mutex_);
    --busy_threads_;
    ++tasks_done_;
    // Keeps the first failure since the last wait, except that a fatal one must not be missed.
    if (!failure.ok() && (task_failed_ <= tasks_awaited_ || is_fatal(cuda_error(failure)))) {
      task_failure_ = failure;
      task_failed_ = tasks_done_;
    }
  }
  task_done_.notify_all();
  notify();
}

// Instantiates and uploads the executable that was promised to the entry.
Cache::Impl::Obtained Cache::Impl::instantiate_ahead(Held& entry, Task task) {
  Obtained obtained;
  cudaStream_t stream = nullptr;
  {
    RelaxedCaptureMode relaxed;
    obtained.result = upload_stream_.get(&stream);
  }
  give_way();
  if (obtained.result.error == cudaSuccess) buy(entry, /*may_evict=*/task == Task::kRun, stream, &obtained);
  give_way();
  if (obtained.result.error == cudaSuccess) {
    const Observer::Span span(observer_, EventKind::kUpload, entry->key);
    const MemoryMeter::Span measured(&meter_);
    const auto begin = std::chrono::steady_clock::now();
    obtained.result = entry->executable->put_in_place(stream);
    add_time(&Stats::first_launch_time, begin);
  }
  return obtained;
}

absl::Status Cache::Impl::wait_until_ready(std::chrono::nanoseconds timeout, const Cache::Progress& progress) {
  if (active_recording != nullptr) {
    return absl::FailedPreconditionError("wait_until_ready was called inside a run's fn");
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = timeout < Clock::time_point::max() - begin ? begin + timeout : Clock::time_point::max();
  std::size_t awaited = 0, reported = 0;
  {
    MutexLock lock(mutex_);
    awaited = reported = tasks_awaited_;
  }
  for (;;) {
    std::size_t done = 0, all = 0;
    bool is_late = false;
    {
      MutexLock lock(mutex_);
      while (tasks_done_ != tasks_ && tasks_done_ == reported && !is_late) {
        is_late = task_done_.wait_until(mutex_, end) == std::cv_status::timeout;
      }
      done = tasks_done_;
      all = tasks_;
    }
    if (progress && done != reported) progress(done - awaited, all - awaited);
    reported = done;
    if (done == all) {
      MutexLock lock(mutex_);
      tasks_awaited_ = std::max(tasks_awaited_, done);
      return task_failed_ > awaited ? task_failure_ : absl::OkStatus();
    }
    if (is_late) return too_late(all - done, all - awaited);
  }
}

}  // namespace graphcache
