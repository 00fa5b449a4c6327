#include "retire.h"

#include <utility>

#include "recording.h"

namespace graphcache {

void Retire::add(std::unique_ptr<Executable> executable) {
  if (executable == nullptr) return;
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(executable));
}

void Retire::collect() {
  if (active_recording != nullptr) return;
  std::vector<std::unique_ptr<Executable>> ready;
  {
    MutexLock lock(mutex_);
    ready.swap(waiting_);
  }
}

}  // namespace graphcache
