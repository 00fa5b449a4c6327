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
#include <vector>

#include "diagnose/caller.h"

namespace graphcache::diagnose {
namespace {

constexpr std::size_t kMaxStrays = 32;  // Kinds that are kept; who makes more has the first to go by.

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

// What tells strays apart without looking up symbols, which takes its time.
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
  cudaStream_t stream;
  std::string last_kernel;
  std::optional<Seen> refused;  // The first call of the thread that failed because of the capture.
  std::optional<Seen> broke;
  std::vector<Seen> strays;
  std::vector<Stray> places;  // Of the strays.
  int asking = 0;             // Threads that ask about its stream, which must not end meanwhile.
};

struct Watches {
  std::mutex mutex;
  std::condition_variable asked;
  std::list<Watch> all;
  std::atomic<int> count{0};
};

// Never destroyed: other threads may call CUDA while the process ends.
Watches& watches() {
  static auto& watches = *new Watches;
  return watches;
}

// The watch of this thread's capture, which it alone adds and removes.
constinit thread_local Watch* mine = nullptr;

bool is_capture_error(cudaError_t error) {
  return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
}

}  // namespace

void* begin(cudaStream_t stream) {
  Watches& world = watches();
  const std::lock_guard<std::mutex> lock(world.mutex);
  mine = &world.all.emplace_back(Watch{stream, {}, {}, {}, {}, {}, 0});
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
    world.asked.wait(lock, [&] { return found->asking == 0; });
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

// The question is asked without the lock, since CUDA has locks of its own.
void failed(const Call& call, AskState ask) {
  // Says no more than that something else broke the capture before.
  if (call.error == cudaErrorStreamCaptureInvalidated) return;
  struct Asked {
    Watch* watch;  // It does not end before its question is answered.
    bool is_own;
    CaptureState state = CaptureState::kUnknown;
  };
  std::vector<Asked> asked;
  Watches& world = watches();
  {
    const std::lock_guard<std::mutex> lock(world.mutex);
    asked.reserve(world.all.size());
    for (Watch& watch : world.all) {
      if (watch.broke) continue;
      asked.push_back({&watch, &watch == mine});
      ++watch.asking;
    }
  }
  bool broke_own = false;
  for (Asked& each : asked) {
    each.state = ask(each.watch->stream, !each.is_own);
    broke_own |= each.is_own && each.state == CaptureState::kBroken;
  }
  // A capture of another thread may be lost by a call of that thread, which goes on and has not been noted. A call that
  // breaks others' captures gets an error of captures itself. Of a stream that this thread cannot ask about, that error
  // alone has to tell.
  const bool may_break_others = is_capture_error(call.error) && !broke_own;
  for (Asked& each : asked) {
    if (each.is_own) continue;
    const bool broke = each.state == CaptureState::kBroken || each.state == CaptureState::kUnknown;
    each.state = broke && may_break_others ? CaptureState::kBroken : CaptureState::kActive;
  }
  const auto breaks = [](const Asked& one) {
    return one.state == CaptureState::kBroken || (one.state == CaptureState::kOver && one.is_own);
  };
  const auto refuses = [&](const Asked& one) { return one.is_own && is_capture_error(call.error); };
  // Looked up without the lock, since the loader of programs has one, under which CUDA may be called.
  std::string called_by;
  const bool concerns_any =
      std::any_of(asked.begin(), asked.end(), [&](const Asked& one) { return breaks(one) || refuses(one); });
  if (concerns_any) called_by = caller_of(frames(call.address), call.by_runtime, {});
  {
    const std::lock_guard<std::mutex> lock(world.mutex);
    for (const Asked& each : asked) {
      Watch& watch = *each.watch;
      --watch.asking;
      const bool broke = breaks(each);
      std::optional<Seen>& seen = broke ? watch.broke : watch.refused;
      if (watch.broke || seen || !(broke || refuses(each))) continue;
      seen = Seen{call.name, called_by, {}, watch.last_kernel, nullptr, call.error, !each.is_own, broke};
    }
  }
  world.asked.notify_all();
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
