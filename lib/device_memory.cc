#include "device_memory.h"

#include <algorithm>
#include <utility>

#include "graph.h"

namespace graphcache {

CallResult DeviceMemory::take(std::size_t bytes, Block* out) {
  auto block = std::make_unique<Waiting>(Waiting{nullptr, std::max(bytes, kLeast), nullptr});
  RelaxedCaptureMode relaxed;
  const CallResult allocated{"cudaMalloc", cudaMalloc(&block->at, bytes)};
  return own(std::move(block), allocated, out);
}

CallResult DeviceMemory::take_error_word(Block* out) {
  auto block = std::make_unique<Waiting>(Waiting{nullptr, 0, nullptr});
  RelaxedCaptureMode relaxed;
  const CallResult allocated{"cudaMallocHost", cudaMallocHost(&block->at, sizeof(int))};
  if (allocated.error == cudaSuccess) *static_cast<int*>(block->at) = cudaSuccess;
  return own(std::move(block), allocated, out);
}

CallResult DeviceMemory::own(std::unique_ptr<Waiting> block, const CallResult& allocated, Block* out) {
  if (allocated.error != cudaSuccess) return allocated;
  Waiting* const given = block.release();
  *out =
      Block(given->at, [self = shared_from_this(), given](void*) { self->give(given); });  // Gives back if it throws.
  return allocated;
}

void DeviceMemory::give(Waiting* block) noexcept {
  MutexLock lock(mutex_);
  if (abandoned_) {
    delete block;
    return;
  }
  block->next = std::exchange(waiting_, block);
  waiting_bytes_ += block->bytes;
}

void DeviceMemory::trim() {
  Waiting* all = nullptr;
  {
    MutexLock lock(mutex_);
    all = std::exchange(waiting_, nullptr);
    waiting_bytes_ = 0;
  }
  // Device memory first: behind that no launch writes an error any more.
  for (const bool words : {false, true}) {
    for (Waiting* block = all; block != nullptr; block = block->next) {
      if ((block->bytes == 0) != words) continue;
      if (words && *static_cast<const int*>(block->at) != cudaSuccess)
        late_error_ = *static_cast<const int*>(block->at);
      destroy_quietly(block->at, words ? &cudaFreeHost : &cudaFree);
    }
  }
  while (all != nullptr) delete std::exchange(all, all->next);
}

void DeviceMemory::trim_if_much() {
  {
    MutexLock lock(mutex_);
    if (waiting_bytes_ <= kMaxWaiting) return;
  }
  trim();
}

void DeviceMemory::abandon() {
  MutexLock lock(mutex_);
  abandoned_ = true;
  while (waiting_ != nullptr) delete std::exchange(waiting_, waiting_->next);
}

}  // namespace graphcache
