// Host memory that stands in for device memory. Recently freed blocks are kept for a while, so that a use after free is
// detected. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_MEMORY_H_
#define GRAPHCACHE_LIB_HOSTRT_MEMORY_H_

#include <cuda.h>
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
  std::shared_ptr<Block> block = {};  // set for memory from cudaMallocAsync
  Place made = {};
  Place freed = {};
  bool is_managed = false;
  unsigned long long id = next_id();

  // Unique in the process (CU_POINTER_ATTRIBUTE_BUFFER_ID).
  static unsigned long long next_id();
};

using Memory = std::map<const void*, Allocation, std::less<>>;  // by first address

inline constexpr std::size_t kMemoryAlignment = 256;  // the alignment that cudaMalloc guarantees

// The size that an allocation of `bytes` takes up. Less than `bytes` if no memory can be that large.
inline std::size_t block_bytes(std::size_t bytes) {
  return (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

// An attribute of the memory at an address, as cuPointerGetAttributes gives it: its kind and device, or the id, the
// first address or the size of its allocation. Memory of a graph has no allocation.
cudaError_t read_attribute(const Call& call, const void* address, CUpointer_attribute attribute, void* out);

// The device that owns the memory at this address, if any.
std::optional<int> device_of_memory(const State& state, const void* address);
// The same, or the device that was current when the memory was pinned.
std::optional<int> device_of_known(const State& state, const void* address);

// Memory aligned as cudaMalloc guarantees and filled with a pattern, to be freed by std::free(). Returns null if there
// is none.
void* fresh_memory(std::size_t bytes, std::size_t alignment = kMemoryAlignment);

// Fills memory with a pattern: fresh device memory is not zero, and freed memory keeps nothing.
void scribble(void* address, std::size_t bytes);

// Memory that a program has freed, filled with a pattern and poisoned under AddressSanitizer. The oldest blocks are
// returned to the system first. Of a block larger than the whole quarantine, only the address range is kept.
class Quarantine {
 public:
  // Takes the block out of `memory`.
  void add(Memory& memory, Memory::iterator block);
  // Takes the memory from the block.
  void add(Block& block);
  const Memory& blocks() const { return blocks_; }
  void clear();

 private:
  void drop_oldest();

  Memory blocks_;
  std::deque<const void*> order_;
  std::size_t bytes_ = 0;
};

// Makes AddressSanitizer report any access to the memory; does nothing without it.
void poison(const void* address, std::size_t bytes);

// Reports that the address cannot be freed, and returns the error.
cudaError_t refuse_release(const Call& call, const void* address);

// Frees a block of `memory`.
void free_block(State& state, Memory& memory, Memory::iterator block);

// Frees the blocks of one device, or of all devices (kAllDevices of schedule.h).
void free_blocks(State& state, Memory& memory, int device);

// Whether a copy or fill by the call at `from` may touch these bytes. Reports a misuse and returns false if they lie in
// freed memory or beyond the end of their allocation. Memory that hostrt does not know may be touched.
bool may_touch(State& state, const Place& from, const char* does_what, const void* address, std::size_t bytes);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_MEMORY_H_
