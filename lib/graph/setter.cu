// The setter kernel. It is a module of its own, because one linked with the device runtime, like the updater, takes 16
// MiB of device memory.
#include "setter.h"

using graphcache::setter::Value;

extern "C" __global__ void graphcache_set_small(unsigned char* to, Value<graphcache::setter::kSmall> value) {
  to[threadIdx.x] = value.bytes[threadIdx.x];
}

extern "C" __global__ void graphcache_set_large(unsigned char* to, Value<graphcache::setter::kLarge> value) {
  to[threadIdx.x] = value.bytes[threadIdx.x];
}
