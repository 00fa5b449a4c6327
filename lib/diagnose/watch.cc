#include "diagnose/watch.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/caller.h"

namespace graphcache::diagnose {
namespace {

constexpr std::size_t kMaxStrays = 32;  // Limit for the kinds of strays that are kept.

struct Seen {
  std::string name, caller, kernel, last_kernel;
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaSuccess;
  bool in_other_thread = false;
  bool broke = false;

  detail::WatchedCall view() const {
    return {name.c_str(), caller.c_str(), kernel.c_str(),          last_kernel.c_str(),
            stream,       error,          in_other_thread ? 1 : 0, broke ? 1 : 0};
  }
};

// Distinguishes strays without looking up symbols, which is slow.
struct Stray {
  std::string name, kernel;
  cudaStream_t stream;
  Frames frames;

  bool operator==(const Stray& other) const {
    return name == other.name && kernel == other.kernel && stream == other.stream &&
           std::equal(frames.addresses, frames.addresses + frames.count, other.frames.addresses,
                      other.frames.addresses + other.frames.count);
  }
};

struct Watch {
  cudaStream_t stream = nullptr;
  std::string last_kernel;
  std::optional<Seen> refused;  // The thread's first call that failed because of the capture.
  std::optional<Seen> broke;
  std::vector<Seen> strays;
  std::vector<Stray> places;  // The places of `strays`.
  // Number of threads that are querying its stream, or have yet to tell what they found. The watch must not end
  // meanwhile.
  int users = 0;
  void* to = nullptr;
  void (*noticed)(void* to, const detail::WatchedCall*) = nullptr;
  Watch* next_to_tell = nullptr;  // Of the thread that broke it.
};

struct Watches {
  std::mutex mutex;
  std::condition_variable answered;
  std::list<Watch> all;
  std::atomic<int> count{0};
};

// Never destroyed, because other threads may call CUDA while the process exits.
Watches& watches() {
  static auto& watches = *new Watches;
  return watches;
}

// The watch of this thread's capture. Only this thread adds and removes it.
constinit thread_local Watch* mine = nullptr;

// The captures that this thread broke and has yet to tell about.
constinit thread_local Watch* to_tell = nullptr;

bool is_capture_error(cudaError_t error) {
  return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
}

}  // namespace

void* begin(cudaStream_t stream, void* to, void (*noticed)(void* to, const detail::WatchedCall*)) {
  Watches& world = watches();
  const std::lock_guard<std::mutex> lock(world.mutex);
  Watch& watch = world.all.emplace_back();
  watch.stream = stream;
  watch.to = to;
  watch.noticed = noticed;
  mine = &watch;
  ++world.count;
  return mine;
}

void end(void* watch, void* to, void (*broke)(void* to, const detail::WatchedCall*),
         void (*stray)(void* to, const detail::WatchedCall*)) {
  Watches& world = watches();
  std::list<Watch> ended;
  {
    std::unique_lock<std::mutex> lock(world.mutex);
    const auto found =
        std::find_if(world.all.begin(), world.all.end(), [&](const Watch& each) { return &each == watch; });
    if (found == world.all.end()) return;
    world.answered.wait(lock, [&] { return found->users == 0; });
    ended.splice(ended.end(), world.all, found);
    --world.count;
    if (mine == watch) mine = nullptr;
  }
  const Watch& seen = ended.front();
  if (const std::optional<Seen>& fault = seen.broke ? seen.broke : seen.refused) {
    const detail::WatchedCall call = fault->view();
    broke(to, &call);
  }
  for (const Seen& each : seen.strays) {
    const detail::WatchedCall call = each.view();
    stray(to, &call);
  }
}

bool watches_any() { return watches().count.load(std::memory_order_relaxed) != 0; }
bool watches_this_thread() { return mine != nullptr; }

// The state is queried without the lock, because CUDA has locks of its own.
void failed(const Call& call, QueryState query) {
  // This error reports only that something else has broken the capture before.
  if (call.error == cudaErrorStreamCaptureInvalidated) return;
  struct Queried {
    Watch* watch;  // It does not end before its query has returned.
    bool is_own;
    CaptureState state = CaptureState::kUnknown;
    bool is_certain = true;
  };
  std::vector<Queried> queried;
  Watches& world = watches();
  {
    const std::lock_guard<std::mutex> lock(world.mutex);
    queried.reserve(world.all.size());
    for (Watch& watch : world.all) {
      if (watch.broke) continue;
      queried.push_back({&watch, &watch == mine});
      ++watch.users;
    }
  }
  // If memory runs out, what was found is lost, and the watches may end all the same.
  struct Users {
    Watches& world;
    const std::vector<Queried>& queried;
    ~Users() {
      {
        const std::lock_guard<std::mutex> lock(world.mutex);
        for (const Queried& each : queried) --each.watch->users;
      }
      world.answered.notify_all();
    }
  } const users{world, queried};
  bool broke_own = false;
  for (Queried& each : queried) {
    each.state = query(each.watch->stream, !each.is_own);
    broke_own |= each.is_own && each.state == CaptureState::kBroken;
  }
  // A capture of another thread may have been broken by a call of that thread which has not returned yet. A call that
  // breaks the captures of others gets an error of captures itself. If this thread cannot query the stream, that error
  // alone decides. A thread that ends the capture of another one gets an error of its own (docs/semantics.md).
  const bool may_break_others = is_capture_error(call.error) && !broke_own;
  for (Queried& each : queried) {
    if (each.is_own) continue;
    const bool was_ended = each.state == CaptureState::kOver && call.error == cudaErrorStreamCaptureWrongThread;
    each.is_certain = each.state == CaptureState::kBroken || was_ended;
    const bool broke = each.is_certain || each.state == CaptureState::kUnknown;
    each.state = broke && may_break_others ? CaptureState::kBroken : CaptureState::kActive;
  }
  const auto breaks = [](const Queried& one) {
    return one.state == CaptureState::kBroken || (one.state == CaptureState::kOver && one.is_own);
  };
  const bool is_refusal = is_capture_error(call.error) || call.error == cudaErrorIllegalState;
  const auto refuses = [&](const Queried& one) { return one.is_own && is_refusal; };
  // Looked up without the lock, because the dynamic loader has its own lock, under which CUDA may be called.
  std::string called_by;
  const bool concerns_any =
      std::any_of(queried.begin(), queried.end(), [&](const Queried& one) { return breaks(one) || refuses(one); });
  if (concerns_any) called_by = caller_of(frames(call.address), call.by_runtime, {});
  const std::lock_guard<std::mutex> lock(world.mutex);
  for (const Queried& each : queried) {
    Watch& watch = *each.watch;
    const bool broke = breaks(each);
    std::optional<Seen>& seen = broke ? watch.broke : watch.refused;
    if (watch.broke || seen || !(broke || refuses(each))) continue;
    seen = Seen{call.name, called_by, {}, watch.last_kernel, nullptr, call.error, !each.is_own, broke};
    if (!broke || !each.is_certain) continue;
    ++watch.users;
    watch.next_to_tell = std::exchange(to_tell, &watch);
  }
}

// `noticed` may call CUDA, which calls failed() and this function again.
void tell() noexcept {
  Watches& world = watches();
  while (to_tell != nullptr) {
    Watch& watch = *std::exchange(to_tell, to_tell->next_to_tell);
    const detail::WatchedCall call = watch.broke->view();  // No longer changes.
    watch.noticed(watch.to, &call);
    const std::lock_guard<std::mutex> lock(world.mutex);
    --watch.users;
    world.answered.notify_all();
  }
}

void launched(const char* kernel) {
  if (mine == nullptr) return;
  const std::lock_guard<std::mutex> lock(watches().mutex);
  if (!mine->broke) mine->last_kernel = kernel;
}

void strayed(const Call& call, cudaStream_t stream, const char* kernel) {
  if (mine == nullptr) return;
  Stray place{call.name, kernel, stream, frames(call.address)};
  {
    const std::lock_guard<std::mutex> lock(watches().mutex);
    const auto& known = mine->places;
    if (mine->broke || known.size() == kMaxStrays || std::find(known.begin(), known.end(), place) != known.end())
      return;
  }
  Seen seen{call.name, caller_of(place.frames, call.by_runtime, kernel), kernel, {}, stream, call.error};
  const std::lock_guard<std::mutex> lock(watches().mutex);
  mine->places.push_back(std::move(place));
  mine->strays.push_back(std::move(seen));
}

}  // namespace graphcache::diagnose
