#include "cuda/device_memory.h"

#include <algorithm>
#include <utility>

namespace graphcache {

using Kind = DeviceMemory::Waiting::Kind;

namespace {

void drop(DeviceMemory::Waiting* block) {
  block->executable.release();
  block->base.release();
  delete block;
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  trim();
  for (void* const page : pages_) destroy_quietly(page, &cudaFreeHost);
  abandon();  // What could not be waited for.
}

CallResult DeviceMemory::take(std::size_t bytes, Block* out) {
  auto block = prepare();
  block->bytes = std::max(bytes, kLeast);
  RelaxedCaptureMode relaxed;
  const CallResult allocated{"cudaMalloc", cudaMalloc(&block->at, bytes)};
  if (allocated.error == cudaSuccess) own(std::move(block), out);
  return allocated;
}

CallResult DeviceMemory::take_error_word(Block* out) {
  auto block = prepare();
  block->kind = Kind::kWord;
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

std::unique_ptr<DeviceMemory::Waiting> DeviceMemory::prepare() { return std::make_unique<Waiting>(); }

void DeviceMemory::own(std::unique_ptr<Waiting> block, Block* out) {
  Waiting* const given = block.release();
  *out =
      Block(given->at, [self = shared_from_this(), given](void*) { self->give(given); });  // Gives back if it throws.
}

void DeviceMemory::keep(std::unique_ptr<Waiting> waiting, GraphExec executable, Graph base,
                        std::size_t bytes) noexcept {
  waiting->kind = Kind::kExecutable;
  waiting->bytes = bytes;
  waiting->executable = std::move(executable);
  waiting->base = std::move(base);
  give(waiting.release());
}

void DeviceMemory::give(Waiting* block) noexcept {
  MutexLock lock(mutex_);
  if (abandoned_) {
    drop(block);
    return;
  }
  block->next = std::exchange(waiting_, block);
  waiting_bytes_ += block->bytes;
}

// By freeing memory, one of these blocks if there is one: cudaDeviceSynchronize breaks captures (docs/semantics.md).
bool DeviceMemory::wait_for_device(Waiting* all) const {
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  for (Waiting* one = all; one != nullptr; one = one->next) {
    if (one->kind != Kind::kMemory || one->at == nullptr) continue;
    return cudaFree(std::exchange(one->at, nullptr)) == cudaSuccess;
  }
  const DeviceGuard current(device_);
  void* memory = nullptr;
  return current.result().error == cudaSuccess && cudaMalloc(&memory, 1) == cudaSuccess &&
         cudaFree(memory) == cudaSuccess;
}

void DeviceMemory::trim() {
  Waiting* all = nullptr;
  std::size_t bytes = 0;
  {
    MutexLock lock(mutex_);
    all = std::exchange(waiting_, nullptr);
    bytes = std::exchange(waiting_bytes_, 0);
  }
  const auto is_memory = [](const Waiting& one) { return one.kind == Kind::kMemory; };
  bool waits = false;
  for (Waiting* one = all; one != nullptr; one = one->next) waits |= !is_memory(*one);
  if (waits && !wait_for_device(all)) {  // It goes on waiting.
    Waiting** end = &all;
    while (*end != nullptr) end = &(*end)->next;
    MutexLock lock(mutex_);
    *end = std::exchange(waiting_, all);
    waiting_bytes_ += bytes;
    return;
  }
  for (Waiting* one = all; one != nullptr; one = one->next) {
    one->executable = {};
    one->base = {};
    if (is_memory(*one) && one->at != nullptr) destroy_quietly(one->at, &cudaFree);
  }
  MutexLock lock(mutex_);
  while (all != nullptr) {
    const std::unique_ptr<Waiting> one(std::exchange(all, all->next));
    if (one->kind != Kind::kWord) continue;
    auto* const word = static_cast<int*>(one->at);
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
  while (waiting_ != nullptr) drop(std::exchange(waiting_, waiting_->next));
}

}  // namespace graphcache
