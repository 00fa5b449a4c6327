// Memory that streams and graphs allocate: cudaMallocAsync, allocation and free nodes (facts 25). All functions expect
// the state to be locked.
//
// An allocation node's address is that of real memory from the node's creation on. Whether a launch has allocated it
// and nobody has freed it since is bookkeeping, done when the launch or the free is enqueued: as on a real GPU, a
// launch must know at once whether it is allowed. When the work runs, allocating and freeing overwrite the contents.

#ifndef GRAPHCACHE_LIB_HOSTRT_MEMORY_NODES_H_
#define GRAPHCACHE_LIB_HOSTRT_MEMORY_NODES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "place.h"

namespace graphcache::hostrt {

struct Call;
struct Executable;
struct State;

// Freed with its last owner. Owners are nodes, enqueued work, and the state while the block is allocated.
struct Block {
  Block(int on_device, void* at, std::size_t size) : device(on_device), address(at), bytes(size) {}
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  int device;
  void* address;
  std::size_t bytes;
  cudaGraph_t graph = nullptr;    // the graph that allocates it, by handle
  std::shared_ptr<Block> former;  // whose memory this block has, because the graph frees it before
  std::set<cudaGraph_t> freed_in;
  cudaMemPoolProps properties = {};
  std::vector<cudaMemAccessDesc> access;
  Place freed = {};  // where cudaFreeAsync was called for memory of cudaMalloc
};

struct GraphMemory {
  std::map<const void*, std::weak_ptr<Block>> reserved;  // memory of allocation nodes, by first address
  // The subset that a launch has allocated and nobody has freed since.
  std::map<const void*, std::shared_ptr<Block>> live;

  // Both of the runtime's figures, used and reserved, count whole chunks and fall only at a trim.
  struct Usage {
    std::uint64_t current = 0;
    std::uint64_t used_high = 0;
    std::uint64_t reserved_high = 0;
  };
  std::map<int, Usage> usage;  // keyed by device
};

// Checks that the executable may allocate and free its memory, and records both. "If any allocations created by
// graphExec remain unfreed ... the launch will fail with cudaErrorInvalidValue."
cudaError_t launch_memory(const Call& call, const Executable& executable);

// Frees memory that a launch has allocated. Returns false if there is none at this address.
bool free_graph_memory(State& state, const void* address);

// The memory of an allocation node that contains the address, or null.
std::shared_ptr<const Block> find_graph_memory(const State& state, const void* address);

// Releases memory that no graph uses.
void trim_graph_memory(State& state, int device);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_MEMORY_NODES_H_
