// Memory that streams and graphs allocate: cudaMallocAsync, allocation and free nodes (facts 25). All functions expect
// the state to be locked.
//
// The address of an allocation node is that of real memory from the node's creation on. Whether a launch has allocated
// it and nobody freed it since is bookkeeping, done when the launch or the free is enqueued, as on a real GPU: a launch
// must know at once whether it is allowed. When the work runs, allocating and freeing overwrite the contents.

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

// Freed with its last owner: nodes, work that waits, and the state while it is allocated.
struct Block {
  Block(int on_device, void* at, std::size_t size) : device(on_device), address(at), bytes(size) {}
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  int device;
  void* address;
  std::size_t bytes;
  cudaGraph_t graph = nullptr;  // that allocates it; by handle, as those with a free node for it
  std::set<cudaGraph_t> freed_in;
  cudaMemPoolProps properties = {};
  std::vector<cudaMemAccessDesc> access;
  Place freed = {};  // of cudaMalloc: where, for the quarantine, which takes it when the free runs
};

struct GraphMemory {
  std::map<const void*, std::weak_ptr<Block>> reserved;  // by allocation nodes, by first address
  std::map<const void*, std::shared_ptr<Block>> live;    // of those, allocated by a launch and not freed since

  // Both of the runtime's figures, used and reserved, count whole chunks and fall at a trim only (tried).
  struct Usage {
    std::uint64_t current = 0;
    std::uint64_t used_high = 0;
    std::uint64_t reserved_high = 0;
  };
  std::map<int, Usage> usage;  // by device
};

// What a launch of the executable allocates and frees: checks that it may, and takes note. "If any allocations created
// by graphExec remain unfreed ... the launch will fail with cudaErrorInvalidValue."
cudaError_t launch_memory(const Call& call, const Executable& executable);

// Allocated by a launch and not freed since: frees it. False when there is nothing at this address.
bool free_graph_memory(State& state, const void* address);

// The memory of an allocation node that the address lies in, or null.
std::shared_ptr<const Block> find_graph_memory(const State& state, const void* address);

// Gives back what no graph uses.
void trim_graph_memory(State& state, int device);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_MEMORY_NODES_H_
