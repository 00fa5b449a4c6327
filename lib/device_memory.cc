#include "device_memory.h"

#include <new>

#include "driver.h"
#include "graph.h"

namespace graphcache {
namespace {

// A block may be so much larger than what is wanted of it.
constexpr std::size_t kWaste = 4;

// Of the current context. 0 where the driver does not tell.
CallResult current_context(unsigned long long* id) {
  *id = 0;
  if (driver().context_id == nullptr || !driver().has_context()) return {};
  return {"cudaCtxGetId, by the driver", static_cast<cudaError_t>(driver().context_id(nullptr, id)), /*latches=*/false};
}

}  // namespace

DeviceMemory& DeviceMemory::of_process() {
  static DeviceMemory& memory = *new DeviceMemory;  // Never destroyed: the runtime may be gone first.
  return memory;
}

template <class Wanted>
DeviceMemory::Block* DeviceMemory::remove(const Wanted& wanted) {
  for (Block** at = &free_; *at != nullptr; at = &(*at)->next) {
    if (wanted(**at)) return std::exchange(*at, (*at)->next);
  }
  return nullptr;
}

CallResult DeviceMemory::take(Kind kind, int device, std::size_t bytes, Owner* out) {
  unsigned long long context = 0;
  if (const CallResult asked = current_context(&context); asked.error != cudaSuccess) return asked;
  const auto kept = [&] {
    MutexLock lock(mutex_);
    return remove([&](const Block& one) {
      return one.kind == kind && one.device == device && one.context == context && !one.in_use && one.bytes >= bytes &&
             one.bytes / kWaste <= bytes;
    });
  };
  out->reset(kept());
  if (*out != nullptr) return {};
  auto block = std::make_unique<Block>();
  block->context = context;
  block->bytes = bytes;
  block->kind = kind;
  block->device = device;
  RelaxedCaptureMode relaxed;
  const CallResult done = kind == Kind::kDevice ? CallResult{"cudaMalloc", cudaMalloc(&block->at, bytes)}
                                                : CallResult{"cudaMallocHost", cudaMallocHost(&block->at, bytes)};
  if (done.error != cudaSuccess) return done;
  out->reset(block.release());
  return done;
}

void DeviceMemory::give(Block* block) noexcept {
  MutexLock lock(mutex_);
  block->next = std::exchange(free_, block);
}

void DeviceMemory::trim(int device) {
  {
    MutexLock lock(mutex_);
    if (free_ == nullptr) return;
  }
  LastErrorGuard last_error;
  const DeviceGuard current(device);
  unsigned long long context = 0;
  if (current.result().error != cudaSuccess || current_context(&context).error != cudaSuccess) return;
  const auto next = [&] {
    MutexLock lock(mutex_);
    return remove([&](const Block& one) { return one.device == device; });
  };
  while (const std::unique_ptr<Block> block{next()}) {
    if (block->context != context) continue;
    destroy_quietly(block->at, block->kind == Kind::kDevice ? &cudaFree : &cudaFreeHost);
  }
}

}  // namespace graphcache
