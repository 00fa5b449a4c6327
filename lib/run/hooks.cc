// Options::hooks: what the program does around captures and launches.
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <new>
#include <utility>
#include <vector>

#include "run/impl.h"

namespace graphcache {

// Calls a hook and drops its exceptions.
template <class Hook, class... Args>
void Cache::Impl::call_hook(const char* name, const Key& key, const Hook& hook, const Args&... args) const noexcept {
  if (!hook) return;
  try {
    hook(key, args...);
  } catch (...) {
    log(key, name);
  }
}

Captured Cache::Impl::capture_on(cudaStream_t stream, const Request& request, const TellBreak& tell) {
  const Hooks& hooks = options_.hooks;
  Captured captured;
  if (hooks.before_capture) {
    captured.fn = hooks.before_capture(request.key, stream);
    if (!captured.fn.ok()) return captured;
  }
  request.is_open = true;
  absl::Cleanup threw = [&] { close_capture(request, nullptr); };
  captured = capture(stream, options_.capture_mode, request.call, setter_, diagnoser_, tell);
  std::move(threw).Cancel();
  return captured;
}

// Calls after_capture once after a capture. `graph` is null unless it has become the key's graph.
void Cache::Impl::close_capture(const Request& request, cudaGraph_t graph) const noexcept {
  if (!std::exchange(request.is_open, false)) return;
  call_hook("the hook after_capture threw", request.key, options_.hooks.after_capture, graph);
}

// Records a call of on_evict or on_forget, which are called when no lock is held.
void Cache::Impl::note(const Entry& entry, bool is_forgotten) noexcept try {
  const Hooks& hooks = options_.hooks;
  if (is_forgotten ? !hooks.on_forget : !hooks.on_evict) return;
  notices_.push_back({entry.key, is_forgotten});
} catch (const std::bad_alloc&) {
}

void Cache::Impl::notify(bool at_end) noexcept {
  if (!notifies_ || (active_recording != nullptr && !at_end)) return;  // A later call does this.
  std::vector<Notice> notices;
  {
    MutexLock lock(mutex_);
    notices.swap(notices_);
  }
  const Hooks& hooks = options_.hooks;
  for (const Notice& notice : notices) {
    if (notice.is_forgotten) {
      call_hook("the hook on_forget threw", notice.key, hooks.on_forget);
    } else {
      call_hook("the hook on_evict threw", notice.key, hooks.on_evict);
    }
  }
}

// A run that reports its evictions to the hooks at its end, when it has unlocked its entry.
absl::StatusOr<Outcome> Cache::Impl::run_and_notify(const Request& request) {
  request.notifies = true;
  const absl::Cleanup notified = [&] { notify(); };
  return run(request);
}

}  // namespace graphcache
