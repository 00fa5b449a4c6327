// The setter kernel. It is a module of its own, because one linked with the device runtime, like the updater, takes 16
// MiB of device memory.
#include "setter.h"

namespace graphcache::setter {
namespace {

template <unsigned kBytes>
__device__ void set(void* to, const Value<kBytes>& value) {
  if (threadIdx.x * sizeof value.words[0] < kBytes) {
    static_cast<unsigned long long*>(to)[threadIdx.x] = value.words[threadIdx.x];
  }
}

}  // namespace
}  // namespace graphcache::setter

extern "C" __global__ void graphcache_set_small(void* to, graphcache::setter::Value<graphcache::setter::kSmall> value) {
  graphcache::setter::set(to, value);
}

extern "C" __global__ void graphcache_set_large(void* to, graphcache::setter::Value<graphcache::setter::kLarge> value) {
  graphcache::setter::set(to, value);
}
