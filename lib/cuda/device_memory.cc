#include "cuda/device_memory.h"

#include <algorithm>
#include <utility>

namespace graphcache {

DeviceMemory::~DeviceMemory() {
  trim();
  for (void* const page : pages_) destroy_quietly(page, &cudaFreeHost);
  abandon();  // The rest, which could not be waited for.
}

CallResult DeviceMemory::take(std::size_t bytes, Block* out) {
  auto block = std::make_unique<Waiting>();
  block->bytes = std::max(bytes, kLeast);
  RelaxedCaptureMode relaxed;
  const CallResult allocated{"cudaMalloc", cudaMalloc(&block->at, bytes)};
  if (allocated.error == cudaSuccess) own(std::move(block), out);
  return allocated;
}

CallResult DeviceMemory::take_error_word(Block* out) {
  auto block = std::make_unique<Waiting>();
  block->is_word = true;
  const auto take = [&] {
    MutexLock lock(mutex_);
    if (words_.empty()) return false;
    block->at = words_.back();
    words_.pop_back();
    return true;
  };
  while (!take()) {
    RelaxedCaptureMode relaxed;
    void* page = nullptr;
    if (const cudaError_t error = cudaMallocHost(&page, kWords * sizeof(int)); error != cudaSuccess) {
      return {"cudaMallocHost", error};
    }
    Owned<void*, cudaFreeHost> owned(page);
    MutexLock lock(mutex_);
    pages_.reserve(pages_.size() + 1);
    words_.reserve((pages_.size() + 1) * kWords);
    pages_.push_back(owned.release());
    for (std::size_t i = 0; i < kWords; ++i) words_.push_back(static_cast<int*>(page) + i);
  }
  *static_cast<int*>(block->at) = cudaSuccess;
  own(std::move(block), out);
  return {};
}

void DeviceMemory::own(std::unique_ptr<Waiting> block, Block* out) {
  {
    MutexLock lock(mutex_);
    block->context = lost_contexts_;
  }
  Waiting* const given = block.release();
  *out =
      // If this throws, the memory is freed.
      Block(given->at, [self = shared_from_this(), given](void*) { self->give(given); });
}

void DeviceMemory::give(Waiting* block) noexcept {
  MutexLock lock(mutex_);
  if (block->context != lost_contexts_) {
    delete block;
    return;
  }
  block->next = std::exchange(waiting_, block);
  waiting_bytes_ += block->bytes;
}

CallResult DeviceMemory::wait() const {
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  const DeviceGuard current(device_);
  if (current.result().error != cudaSuccess) return current.result();
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, 1); error != cudaSuccess) return {"cudaMalloc", error};
  return {"cudaFree", cudaFree(memory)};
}

void DeviceMemory::trim() {
  Waiting* all = nullptr;
  {
    MutexLock lock(mutex_);
    all = std::exchange(waiting_, nullptr);
    waiting_bytes_ = 0;
  }
  bool is_over = false, has_words = false;
  for (Waiting* one = all; one != nullptr; one = one->next) {
    has_words |= one->is_word;
    if (one->is_word) continue;
    LastErrorGuard last_error;
    RelaxedCaptureMode relaxed;
    is_over |= cudaFree(one->at) == cudaSuccess;
  }
  is_over = is_over || !has_words || wait().error == cudaSuccess;
  MutexLock lock(mutex_);
  while (all != nullptr) {
    std::unique_ptr<Waiting> one(std::exchange(all, all->next));
    if (!one->is_word) continue;
    if (!is_over) {
      one->next = waiting_;
      waiting_ = one.release();
      continue;
    }
    auto* const word = static_cast<int*>(one->at);
    if (*word != cudaSuccess) late_error_ = *word;
    words_.push_back(word);
  }
}

bool DeviceMemory::has_freed(bool much) {
  MutexLock lock(mutex_);
  return much ? waiting_bytes_ > kMaxWaiting : waiting_ != nullptr;
}

void DeviceMemory::abandon() {
  MutexLock lock(mutex_);
  ++lost_contexts_;
  late_error_ = cudaSuccess;
  pages_.clear();
  words_.clear();
  while (waiting_ != nullptr) delete std::exchange(waiting_, waiting_->next);
}

}  // namespace graphcache
