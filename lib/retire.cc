#include "retire.h"

#include <utility>

#include "recording.h"

namespace graphcache {

void Retire::add(std::unique_ptr<Executable> executable, Template graph, cudaStream_t stream) {
  if (executable == nullptr && graph.empty()) return;
  if (executable != nullptr) stream = executable->stream();
  MutexLock lock(mutex_);
  waiting_.emplace_back(std::move(executable), std::move(graph), stream);
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
  return cudaEventQuery(item.done.get()) != cudaErrorNotReady;
}

void Retire::collect(cudaStream_t stream) {
  if (active_recording != nullptr) return;
  std::deque<Item> waiting;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return;
    waiting.swap(waiting_);
  }
  std::deque<Item> still;
  int destroyed = 0;
  while (!waiting.empty()) {
    Item item = std::move(waiting.front());
    waiting.pop_front();
    const bool too_many = still.size() + waiting.size() >= kMaxWaiting;
    if (too_many || (destroyed < kMaxDestroyed && is_done(item, stream))) {
      ++destroyed;  // And here it goes.
    } else {
      still.push_back(std::move(item));
    }
  }
  MutexLock lock(mutex_);
  for (; !still.empty(); still.pop_back()) waiting_.push_front(std::move(still.back()));
}

void Retire::collect_all() {
  if (active_recording != nullptr) return;
  std::deque<Item> waiting;
  MutexLock lock(mutex_);
  waiting.swap(waiting_);
}

void Retire::abandon() {
  MutexLock lock(mutex_);
  for (Item& item : waiting_) {
    if (item.executable != nullptr) item.executable->abandon();
    item.graph.graph.release();
    item.done.release();
  }
  waiting_.clear();
}

Retire& Retire::of_process() {
  static Retire& retire = *new Retire;  // Never destroyed: the runtime may be gone first.
  return retire;
}

}  // namespace graphcache
