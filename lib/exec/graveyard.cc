#include "exec/graveyard.h"

#include <iterator>
#include <new>
#include <utility>

#include "graph/capture.h"

namespace graphcache {

void Graveyard::add(std::unique_ptr<Executable> executable, Template graph, LaunchStream stream) noexcept {
  if (executable == nullptr && graph.empty()) return;
  if (executable != nullptr) stream = executable->stream();
  try {
    std::list<Item> one;
    one.emplace_back(std::move(executable), std::move(graph), stream, device_);
    MutexLock lock(mutex_);
    waiting_.splice(waiting_.end(), one);
  } catch (const std::bad_alloc&) {
    Item(std::move(executable), std::move(graph), stream, device_);  // Then they go here and now.
  }
}

bool Graveyard::is_done(Item& item, LaunchStream stream) {
  if (item.stream.handle == nullptr) return true;  // Never launched.
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  if (item.done.get() == nullptr) {
    if (item.stream != stream) return false;
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return true;
    item.done = Event(event);
    if (cudaEventRecord(event, stream.handle) != cudaSuccess) return true;
  }
  const cudaError_t found = cudaEventQuery(item.done.get());
  if (found == cudaSuccess && item.executable != nullptr) item.executable->launches_are_over();
  return found != cudaErrorNotReady;
}

// Allocates nothing: it is called while a run is being left.
void Graveyard::collect(cudaStream_t handle) {
  if (active_recording != nullptr) return;
  const LaunchStream stream = LaunchStream::of(handle);
  orphans().collect(stream, device_);
  collect(stream, device_);
}

void Graveyard::collect(LaunchStream stream, int device) {
  std::list<Item> waiting;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return;
    waiting.swap(waiting_);
  }
  int destroyed = 0;
  LaunchStream busy;  // With work that is not done, nor is what came there later.
  for (auto item = waiting.begin(); item != waiting.end();) {
    const bool later = item->done.get() != nullptr && item->stream == busy;
    const bool done = item->device == device && destroyed < kMaxDestroyed && !later && is_done(*item, stream);
    if (!done && item->done.get() != nullptr) busy = item->stream;
    destroyed += done ? 1 : 0;
    item = done ? waiting.erase(item) : std::next(item);
  }
  // The oldest of too many leave.
  std::size_t executables = 0, in_flight = 0, graphs = 0;
  for (auto item = waiting.end(); item != waiting.begin();) {
    --item;
    if (item->device != device) continue;
    const bool known = item->done.get() != nullptr;
    const bool too_many = item->executable == nullptr ? ++graphs > kMaxGraphs
                          : known                     ? ++in_flight > kMaxInFlight
                                                      : ++executables > kMaxExecutables;
    if (too_many) item = waiting.erase(item);
  }
  MutexLock lock(mutex_);
  waiting_.splice(waiting_.begin(), waiting);
}

void Graveyard::collect_all() {
  if (active_recording != nullptr) return;
  orphans().collect_all(device_);
  collect_all(device_);
}

void Graveyard::collect_all(int device) {
  // Let go without the lock, and memory behind what uses it.
  Memories memories;
  std::list<Item> waiting;
  const auto take = [&](auto& from, auto& to, const auto& wanted) {
    for (auto one = from.begin(); one != from.end();) {
      const auto next = std::next(one);
      if (wanted(*one)) to.splice(to.end(), from, one);
      one = next;
    }
  };
  MutexLock lock(mutex_);
  take(waiting_, waiting, [&](const Item& item) { return item.device == device; });
  // Others hold it as long as their cache has not ended.
  take(memories_, memories,
       [&](const auto& memory) { return memory.first == device && memory.second.use_count() == 1; });
}

void Graveyard::leave_behind(Memories memory) {
  std::list<Item> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  Graveyard& others = orphans();
  MutexLock lock(others.mutex_);
  others.waiting_.splice(others.waiting_.end(), waiting);
  others.memories_.splice(others.memories_.end(), memory);
}

void Graveyard::abandon() {
  ++last_generation;
  std::list<Item> waiting;
  MutexLock lock(mutex_);
  waiting.swap(waiting_);
}

Graveyard::Item::~Item() {
  if (generation != last_generation) {
    if (executable != nullptr) executable->abandon();
    graph.graph.release();
    done.release();
  } else if (executable != nullptr) {
    executable->keep_alive(graph);
  }
}

Graveyard& Graveyard::orphans() {
  // Never destroyed, since the runtime may be gone first, and not allocated, since runs come here without memory.
  alignas(Graveyard) static unsigned char storage[sizeof(Graveyard)];
  static Graveyard& orphans = *new (storage) Graveyard(-1);
  return orphans;
}

}  // namespace graphcache
