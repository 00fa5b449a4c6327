// What a graph uses of memory that is not its own: the allocations that its addresses and values are in, and, for
// verify mode, what its copies read from the host.
#pragma once

#include <absl/types/span.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/template.h"
#include "graphcache/detail/call.h"

namespace graphcache {

// The allocation or registration that this address is in. Empty if CUDA knows no memory there, or the driver cannot
// say.
AddressRange allocation_at(std::uint64_t address);

// Whether this is an address of memory that the process may read and that CUDA does not know.
bool is_host_memory(std::uint64_t address);

// Fills in Content::allocations, except for memory whose address is in the key or a value of the run: another
// allocation there is another value, which is equal by right. Leaves it empty if the graph cannot be read.
void note_allocations(const Template& graph, Content* content);

// What kind of memory an address is in: 0 if it is memory of this device or null, another number for each other kind.
std::uint64_t memory_kind(std::uint64_t address, int device);

// Fills in Content::ranges.
void note_ranges(const detail::Call& call, Content* content);

// What copies of a graph read from host memory. The program may write there between the launches of a graph, but if a
// call of `fn` does, a replay of the graph copies what another call has left. Sources that follow a slot are left out,
// managed memory, and copies inside child graphs.
class HostSources {
 public:
  // REQUIRES: no work is in flight that may write there.
  HostSources(const Template& graph, const Content& content);
  // A sentence about the first source whose bytes have changed since the construction, else empty.
  std::string change() const;

 private:
  struct Source {
    std::uint32_t node;
    cudaMemcpy3DParms copy;
    std::uint64_t hash;
  };
  // A hash of what a copy reads, or nothing if it does not read host memory that is still there.
  std::optional<std::uint64_t> hash(const cudaMemcpy3DParms& copy) const;

  const Content& content_;
  std::vector<Source> sources_;
};

}  // namespace graphcache
