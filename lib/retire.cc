#include "retire.h"

#include <utility>

#include "recording.h"

namespace graphcache {

void Retire::add(std::unique_ptr<Executable> executable) {
  if (executable == nullptr) return;
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(executable));
}

std::vector<std::unique_ptr<Executable>> Retire::take() {
  MutexLock lock(mutex_);
  return std::exchange(waiting_, {});
}

void Retire::collect() {
  if (active_recording == nullptr) take();
}

void Retire::abandon() {
  for (const auto& executable : take()) executable->abandon();
}

Retire& Retire::of_process() {
  static Retire& retire = *new Retire;  // Never destroyed: the runtime may be gone first.
  return retire;
}

}  // namespace graphcache
