// Threads of the cache that make executables, while the runs that need them call `fn` directly
// (Options::background_threads).
//
// A run decides as it does without them, up to a plan to instantiate. Then it gives the entry, locked, to a background
// thread and calls `fn` directly; so do all runs of the key until that thread lets the entry go. What a run does not do
// itself is to read graphs for the first time, so a key whose siblings are not known yet gets its plan made there, too.
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <chrono>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "cuda/errors.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {

// Where no thread can be had, runs do it all by themselves.
void Cache::Impl::start_background() try {
  background_.reserve(static_cast<std::size_t>(options_.background_threads));
  for (int i = 0; i < options_.background_threads; ++i) background_.emplace_back([this] { work_in_background(); });
} catch (const std::system_error&) {
  log(absl::StrCat("graphcache: ", background_.size(), " of ", options_.background_threads,
                   " background threads could be made"));
}

// What is not begun yet is not done.
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

// Calls `fn` directly, and gives the entry to a background thread then: the launches of the run come first.
absl::StatusOr<Outcome> Cache::Impl::run_meanwhile(Held& held, Task task, const Request& request) {
  Entry* const entry = held.give_away();
  {
    MutexLock lock(mutex_);
    entry->task = task;  // Other runs need not wait from here on.
    ++entry->users;
  }
  const absl::Cleanup give = [&] {
    MutexLock lock(mutex_);
    add_task(entry, task);
  };
  const User user(*this, entry);
  return call_directly(entry, EagerReason::kPreparing, request);
}

// A run of an entry that a background thread has, or is to have.
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
  for (;;) {
    Held entry(*this, nullptr);
    Task task = Task::kNone;
    {
      MutexLock lock(mutex_);
      while (first_task_ == nullptr && !stopping_) has_tasks_.wait(mutex_);
      if (first_task_ == nullptr) return;
      entry.reset(std::exchange(first_task_, first_task_->next_task));
      task = entry->task;
    }
    carry_out(entry, task);
  }
}

// The entry's task, whatever comes of it. The entry is let go.
void Cache::Impl::carry_out(Held& entry, Task task) {
  LastErrorGuard last_error;
  const DeviceGuard device(options_.device);
  absl::Status failure = device.status();
  bool forgets = false;
  if (failure.ok()) {
    try {
      const Obtained obtained = prepare(entry, task);
      const CallResult& result = obtained.result;
      if (result.error != cudaSuccess) failure = cuda_failure(result.call, result.error);
      forgets = result.call == kInstantiate && obtained.why != EagerReason::kOutOfMemory;
    } catch (const std::bad_alloc&) {
      failure = out_of_memory();
    }
  }
  if (!failure.ok()) {
    log(entry->key, message_of(failure));
    if (is_fatal(cuda_error(failure))) {
      lose(failure);
    } else {
      give_up(entry.get(), failure, forgets);
    }
  }
  {
    MutexLock lock(mutex_);
    if (!failure.ok()) task_failure_.Update(with_key(failure, entry->key));
    entry->task = Task::kNone;
    ++tasks_done_;
  }
  entry.release();
  if (device.result().error == cudaSuccess) tidy_up(nullptr);
  task_done_.notify_all();
}

// What is left of a run, or of warm(), before the launch.
Cache::Impl::Obtained Cache::Impl::prepare(Held& entry, Task task) {
  Obtained obtained;
  {
    MutexLock lock(mutex_);
    if (entry->erased || lost_ || stopping_) {  // Nobody needs it.
      if (entry->state == State::kLive) demote(entry.get());
      return obtained;
    }
  }
  cudaStream_t stream = nullptr;
  {
    RelaxedCaptureMode relaxed;
    obtained.result = upload_stream_.get(&stream);
  }
  if (obtained.result.error != cudaSuccess) return obtained;
  switch (task) {
    case Task::kNone:
      break;
    case Task::kObtain: {
      read_siblings(entry);
      const std::shared_ptr<const Content> content = entry->content;  // What comes over is to hold the captured values.
      const detail::Call call{entry->site, nullptr, nullptr, nullptr, content->values.data(), content->values.size()};
      obtained = obtain(entry, {entry->key, stream, stream, call}, /*may_instantiate=*/true);
      break;
    }
    case Task::kInstantiate:
      buy(entry, /*may_evict=*/true, stream, &obtained);
      break;
    case Task::kWarm: {
      read_siblings(entry);
      {
        MutexLock lock(mutex_);
        sweep();
        if (policy_.has_to_borrow(entry->id)) return obtained;
        const Plan plan = policy_.plan_ahead(entry->id);
        if (plan.action == Plan::Action::kDirect) return obtained;
        begin(entry.get(), plan);
      }
      buy(entry, /*may_evict=*/false, stream, &obtained);
      break;
    }
  }
  const bool is_new = entry->executable != nullptr && !obtained.of_sibling;
  if (obtained.result.error == cudaSuccess && is_new) obtained.result = entry->executable->put_in_place(stream);
  return obtained;
}

absl::Status Cache::Impl::wait_until_ready(std::chrono::nanoseconds timeout, const Cache::Progress& progress) {
  if (active_recording != nullptr) {
    return absl::FailedPreconditionError("wait_until_ready was called inside a run's fn");
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = timeout < Clock::time_point::max() - begin ? begin + timeout : Clock::time_point::max();
  for (std::size_t told = 0;;) {
    std::size_t done = 0, all = 0;
    bool is_late = false;
    absl::Status failure;
    {
      MutexLock lock(mutex_);
      while (tasks_done_ != tasks_ && tasks_done_ == told && !is_late) {
        is_late = task_done_.wait_until(mutex_, end) == std::cv_status::timeout;
      }
      done = tasks_done_;
      all = tasks_;
      if (done == all) {
        tasks_ = tasks_done_ = 0;
        failure = std::exchange(task_failure_, absl::OkStatus());
      }
    }
    if (progress && done != std::exchange(told, done)) progress(done, all);
    if (done == all) return failure;
    if (is_late) return absl::DeadlineExceededError(absl::StrCat(all - done, " of ", all, " keys are not ready"));
  }
}

}  // namespace graphcache
