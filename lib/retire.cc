#include "retire.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "recording.h"

namespace graphcache {

void Retire::add(std::unique_ptr<Executable> executable, Template graph, cudaStream_t stream) noexcept {
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

// cudaStreamPerThread is another stream in each thread, and looks the same: there this is no more than a guess.
bool Retire::is_done(Item& item, cudaStream_t stream) {
  if (item.stream == nullptr) return true;  // Never launched.
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  if (item.done.get() == nullptr) {
    if (item.stream != stream) return false;
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return true;
    item.done = Event(event);
    if (cudaEventRecord(event, stream) != cudaSuccess) return true;
  }
  const cudaError_t found = cudaEventQuery(item.done.get());
  if (found == cudaSuccess && item.executable != nullptr) item.executable->launches_are_over();
  return found != cudaErrorNotReady;
}

// Allocates nothing: it is called while a run is being left.
void Retire::collect(cudaStream_t stream) {
  if (active_recording != nullptr) return;
  orphans().collect(stream, device_);
  collect(stream, device_);
}

void Retire::collect(cudaStream_t stream, int device) {
  std::list<Item> waiting;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return;
    waiting.swap(waiting_);
  }
  const auto count = [&](bool executables) {
    return static_cast<std::size_t>(std::count_if(waiting.begin(), waiting.end(), [&](const Item& item) {
      return item.device == device && (item.executable != nullptr) == executables;
    }));
  };
  std::size_t executables = count(true), graphs = count(false);
  int destroyed = 0;
  for (auto item = waiting.begin(); item != waiting.end();) {
    std::size_t& of_its_kind = item->executable != nullptr ? executables : graphs;
    const bool too_many = of_its_kind > (item->executable != nullptr ? kMaxExecutables : kMaxGraphs);
    if (item->device == device && (too_many || (destroyed < kMaxDestroyed && is_done(*item, stream)))) {
      --of_its_kind;
      ++destroyed;
      item = waiting.erase(item);
    } else {
      ++item;
    }
  }
  MutexLock lock(mutex_);
  waiting_.splice(waiting_.begin(), waiting);
}

void Retire::collect_all() {
  if (active_recording != nullptr) return;
  orphans().collect_all(device_);
  collect_all(device_);
}

void Retire::collect_all(int device) {
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

void Retire::leave_behind(Memories memory) {
  std::list<Item> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  Retire& others = orphans();
  MutexLock lock(others.mutex_);
  others.waiting_.splice(others.waiting_.end(), waiting);
  others.memories_.splice(others.memories_.end(), memory);
}

void Retire::abandon() {
  ++last_generation;
  std::list<Item> waiting;
  MutexLock lock(mutex_);
  waiting.swap(waiting_);
}

Retire::Item::~Item() {
  if (generation != last_generation) {
    if (executable != nullptr) executable->abandon();
    graph.graph.release();
    done.release();
  } else if (executable != nullptr) {
    executable->keep_alive(graph);
  }
}

Retire& Retire::orphans() {
  // Never destroyed, since the runtime may be gone first, and not allocated, since runs come here without memory.
  alignas(Retire) static unsigned char storage[sizeof(Retire)];
  static Retire& orphans = *new (storage) Retire(-1);
  return orphans;
}

}  // namespace graphcache
