// Memory after it was freed, and checks of whether memory may be touched.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "memory.h"
#include "misuse.h"
#include "schedule.h"
#include "state.h"
#include "work.h"

// Programs that are built with AddressSanitizer define these, even if this library is built without it.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* address, std::size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes);
}

namespace graphcache::hostrt {
namespace {

constexpr std::size_t kQuarantineBytes = std::size_t{16} << 20;
constexpr std::size_t kQuarantineBlocks = 256;
constexpr int kFreedPattern = 0xdd;

// The block of `memory` that contains the address, unused space at its end included.
Memory::const_iterator find_block(const Memory& memory, const void* address) {
  const auto behind = memory.upper_bound(address);
  if (behind == memory.begin()) return memory.end();
  const auto found = std::prev(behind);
  const auto distance = static_cast<const char*>(address) - static_cast<const char*>(found->first);
  return static_cast<std::size_t>(distance) < block_bytes(found->second.bytes) ? found : memory.end();
}

// The address range stays reserved, so no later allocation gets these addresses.
void give_back_pages(void* address, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(address) + page - 1) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(address) + bytes) / page * page;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

// The memory that a block keeps while in the quarantine.
std::size_t kept_bytes(std::size_t bytes) { return bytes <= kQuarantineBytes ? bytes : 0; }

void unpoison(const void* address, std::size_t bytes) {
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(address, bytes);
}

}  // namespace

void poison(const void* address, std::size_t bytes) {
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(address, bytes);
}

void Quarantine::add(Memory& memory, Memory::iterator block) {
  void* const address = const_cast<void*>(block->first);
  const std::size_t bytes = block_bytes(block->second.bytes);
  unpoison(address, bytes);   // What lies behind the allocation.
  order_.push_back(address);  // What may throw comes first.
  blocks_.insert(memory.extract(block));
  bytes_ += kept_bytes(bytes);
  if (kept_bytes(bytes) != 0) {
    std::memset(address, kFreedPattern, bytes);
  } else {
    give_back_pages(address, bytes);
  }
  poison(address, bytes);
  while (bytes_ > kQuarantineBytes || order_.size() > kQuarantineBlocks) drop_oldest();
}

void Quarantine::add(Block& block) {
  Memory memory;
  const Allocation freed{block.bytes, block.device, nullptr, {}, block.freed};
  add(memory, memory.emplace(block.address, freed).first);
  block.address = nullptr;
}

void Quarantine::drop_oldest() {
  const auto block = blocks_.find(order_.front());
  const std::size_t bytes = block_bytes(block->second.bytes);
  unpoison(block->first, bytes);
  bytes_ -= kept_bytes(bytes);
  std::free(const_cast<void*>(block->first));
  blocks_.erase(block);
  order_.pop_front();
}

void Quarantine::clear() {
  while (!order_.empty()) drop_oldest();
}

void free_block(State& state, Memory& memory, Memory::iterator block) {
  state.endings.add(block->first);
  if (block->second.block != nullptr) {  // its last owner frees it
    memory.erase(block);
    return;
  }
  block->second.freed = state.endings.here;
  state.quarantine.add(memory, block);
}

void free_blocks(State& state, Memory& memory, int device) {
  for (auto block = memory.begin(); block != memory.end();) {
    const auto next = std::next(block);
    if (device == kAllDevices || block->second.device == device) free_block(state, memory, block);
    block = next;
  }
}

bool may_touch(State& state, const Place& from, const char* does_what, const void* address, std::size_t bytes) {
  const Place& here = state.endings.here;
  const Place& call = from.is_known() ? from : here;
  const auto report = [&](const char* what, const char* role, const Place& place) {
    report_misuse(state, call, std::string(does_what) + what,
                  {{"launched", state.launched}, {"executed", here}, {role, place}});
    return false;
  };
  for (const Memory* memory : {&state.device_memory, &state.host_memory}) {
    const auto block = find_block(*memory, address);
    if (block == memory->end()) continue;
    const auto distance = static_cast<const char*>(address) - static_cast<const char*>(block->first);
    const auto offset = static_cast<std::size_t>(distance);
    // Written without a sum, which could overflow.
    if (offset <= block->second.bytes && bytes <= block->second.bytes - offset) return true;
    return report(" memory beyond the end of its allocation", "allocated", block->second.made);
  }
  const Memory& freed = state.quarantine.blocks();
  const auto block = find_block(freed, address);
  return block == freed.end() || report(" memory that was freed", "freed", block->second.freed);
}

}  // namespace graphcache::hostrt
