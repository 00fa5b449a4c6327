#include "device_memory.h"

#include <algorithm>
#include <utility>

#include "graph.h"

namespace graphcache {

DeviceMemory::~DeviceMemory() {
  trim();
  for (void* const page : pages_) destroy_quietly(page, &cudaFreeHost);
}

CallResult DeviceMemory::take(std::size_t bytes, Block* out) {
  auto block = std::make_unique<Waiting>(Waiting{nullptr, std::max(bytes, kLeast), nullptr});
  RelaxedCaptureMode relaxed;
  const CallResult allocated{"cudaMalloc", cudaMalloc(&block->at, bytes)};
  if (allocated.error == cudaSuccess) own(std::move(block), out);
  return allocated;
}

CallResult DeviceMemory::take_error_word(Block* out) {
  auto block = std::make_unique<Waiting>(Waiting{nullptr, 0, nullptr});
  {
    MutexLock lock(mutex_);
    if (words_.empty()) {
      pages_.reserve(pages_.size() + 1);
      words_.reserve((pages_.size() + 1) * kWords);
      RelaxedCaptureMode relaxed;
      void* page = nullptr;
      if (const cudaError_t error = cudaMallocHost(&page, kWords * sizeof(int)); error != cudaSuccess) {
        return {"cudaMallocHost", error};
      }
      pages_.push_back(page);
      for (std::size_t i = 0; i < kWords; ++i) words_.push_back(static_cast<int*>(page) + i);
    }
    block->at = words_.back();
    words_.pop_back();
  }
  *static_cast<int*>(block->at) = cudaSuccess;
  own(std::move(block), out);
  return {};
}

void DeviceMemory::own(std::unique_ptr<Waiting> block, Block* out) {
  Waiting* const given = block.release();
  *out =
      Block(given->at, [self = shared_from_this(), given](void*) { self->give(given); });  // Gives back if it throws.
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
  for (Waiting* block = all; block != nullptr; block = block->next) {
    if (block->bytes != 0) destroy_quietly(block->at, &cudaFree);
  }
  // Behind that no launch writes an error any more.
  MutexLock lock(mutex_);
  while (all != nullptr) {
    const std::unique_ptr<Waiting> block(std::exchange(all, all->next));
    if (block->bytes != 0) continue;
    auto* const word = static_cast<int*>(block->at);
    if (*word != cudaSuccess) late_error_ = *word;
    words_.push_back(word);
  }
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
  pages_.clear();
  words_.clear();
  while (waiting_ != nullptr) delete std::exchange(waiting_, waiting_->next);
}

}  // namespace graphcache
