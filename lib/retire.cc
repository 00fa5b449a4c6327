#include "retire.h"

#include <algorithm>
#include <new>
#include <utility>

#include "recording.h"

namespace graphcache {

void Retire::add(std::unique_ptr<Executable> executable, Template graph, cudaStream_t stream) noexcept {
  if (executable == nullptr && graph.empty()) return;
  if (executable != nullptr) stream = executable->stream();
  try {
    std::list<Item> one;
    one.emplace_back(std::move(executable), std::move(graph), stream);
    MutexLock lock(mutex_);
    waiting_.splice(waiting_.end(), one);
  } catch (const std::bad_alloc&) {
    Item(std::move(executable), std::move(graph), stream);  // Then they go here and now.
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
  if (this != &orphans()) orphans().collect(stream);
  std::list<Item> waiting;
  std::uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return;
    waiting.swap(waiting_);
    generation = generation_;
  }
  const auto is_of = [](bool executable) {
    return [executable](const Item& item) { return (item.executable != nullptr) == executable; };
  };
  std::size_t executables = static_cast<std::size_t>(std::count_if(waiting.begin(), waiting.end(), is_of(true)));
  std::size_t graphs = waiting.size() - executables;
  int destroyed = 0;
  for (auto item = waiting.begin(); item != waiting.end();) {
    if (generation_ != generation) break;  // The context is lost.
    std::size_t& of_its_kind = item->executable != nullptr ? executables : graphs;
    const bool too_many = of_its_kind > (item->executable != nullptr ? kMaxExecutables : kMaxGraphs);
    if (too_many || (destroyed < kMaxDestroyed && is_done(*item, stream))) {
      --of_its_kind;
      ++destroyed;
      item = waiting.erase(item);
    } else {
      ++item;
    }
  }
  MutexLock lock(mutex_);
  if (generation_ != generation) {
    for (Item& item : waiting) item.abandon();
  } else {
    waiting_.splice(waiting_.begin(), waiting);
  }
}

void Retire::collect_all() {
  if (active_recording != nullptr) return;
  if (this != &orphans()) orphans().collect_all();
  std::list<std::shared_ptr<DeviceMemory>> memories;  // Let go behind what uses it, and without the lock.
  std::list<Item> waiting;
  MutexLock lock(mutex_);
  waiting.swap(waiting_);
  memories.swap(memories_);
}

void Retire::leave_behind(std::shared_ptr<DeviceMemory> memory) noexcept {
  std::list<Item> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  Retire& others = orphans();
  try {
    std::list<std::shared_ptr<DeviceMemory>> one{std::move(memory)};
    MutexLock lock(others.mutex_);
    others.memories_.splice(others.memories_.end(), one);
  } catch (const std::bad_alloc&) {  // Then it goes here and now.
  }
  MutexLock lock(others.mutex_);
  others.waiting_.splice(others.waiting_.end(), waiting);
}

void Retire::abandon() {
  if (this != &orphans()) orphans().abandon();
  MutexLock lock(mutex_);
  ++generation_;
  for (Item& item : waiting_) item.abandon();
  waiting_.clear();
}

void Retire::Item::abandon() {
  if (executable != nullptr) executable->abandon();
  graph.graph.release();
  done.release();
}

Retire& Retire::orphans() {
  static Retire& retire = *new Retire;  // Never destroyed: the runtime may be gone first.
  return retire;
}

}  // namespace graphcache
