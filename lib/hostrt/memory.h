// Host memory that stands in for device memory. Blocks that were freed recently are kept for a while, so that a use
// after the free shows. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_MEMORY_H_
#define GRAPHCACHE_LIB_HOSTRT_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "place.h"

namespace graphcache::hostrt {

struct Block;
struct Call;
struct State;

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
  std::shared_ptr<Block> block = {};  // of cudaMallocAsync
  Place made = {};
  Place freed = {};
  bool is_managed = false;
};

using Memory = std::map<const void*, Allocation, std::less<>>;  // by first address

inline constexpr std::size_t kMemoryAlignment = 256;  // what cudaMalloc promises

// What an allocation of so many bytes takes up; less than that for a size that no memory can have.
inline std::size_t block_bytes(std::size_t bytes) {
  return (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

// The device whose memory an address lies in, if any's.
std::optional<int> device_of_memory(const State& state, const void* address);

// Aligned as cudaMalloc promises and filled with what nobody wrote, to be freed by std::free(); null when there is
// none.
void* fresh_memory(std::size_t bytes);

// Fresh memory is not zero on a device, and freed memory keeps nothing.
void scribble(void* address, std::size_t bytes);

// Memory that a program has freed, filled with a pattern, and poisoned where AddressSanitizer watches. The oldest
// blocks go back to the system first. Of a block that would take all the room only the addresses are kept.
class Quarantine {
 public:
  // Takes the block out of `memory`.
  void add(Memory& memory, Memory::iterator block);
  // Takes the memory from it.
  void add(Block& block);
  const Memory& blocks() const { return blocks_; }
  void clear();

 private:
  void drop_oldest();

  Memory blocks_;
  std::deque<const void*> order_;
  std::size_t bytes_ = 0;
};

// Makes AddressSanitizer report whoever touches the memory; without it nothing.
void poison(const void* address, std::size_t bytes);

// Reports that the address cannot be freed, and returns the error.
cudaError_t refuse_release(const Call& call, const void* address);

// Ends a block of `memory`.
void free_block(State& state, Memory& memory, Memory::iterator block);

// Ends those of one device, or of all devices: kAllDevices of schedule.h.
void free_blocks(State& state, Memory& memory, int device);

// Whether a copy or a fill that came from the call at `from` may touch these bytes. False, and a misuse, when they lie
// in memory that was freed or go beyond the end of their allocation. Memory that hostrt does not know may be touched.
bool may_touch(State& state, const Place& from, const char* does_what, const void* address, std::size_t bytes);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_MEMORY_H_
