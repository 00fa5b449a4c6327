// Memory of the host that stands in for a device's.

#ifndef GRAPHCACHE_LIB_HOSTRT_MEMORY_H_
#define GRAPHCACHE_LIB_HOSTRT_MEMORY_H_

#include <cstddef>

namespace graphcache::hostrt {

// Aligned as cudaMalloc promises and filled with what nobody wrote, to be freed by std::free(); null when there is
// none.
void* fresh_memory(std::size_t bytes);

// Fresh memory is not zero on a device, and freed memory keeps nothing.
void scribble(void* address, std::size_t bytes);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_MEMORY_H_
