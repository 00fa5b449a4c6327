// The demo's kernels for hostrt, compiled by the C++ compiler and run on the CPU.
#include <device_launch_parameters.h>

#include "graphcache/hostrt.h"

// Blocks have one thread here.
#undef __shared__
#define __shared__
#include "kernels.cu"

GRAPHCACHE_HOST_KERNEL(demo::fill)
GRAPHCACHE_HOST_KERNEL(demo::embed)
GRAPHCACHE_HOST_KERNEL(demo::rms_norm)
GRAPHCACHE_HOST_KERNEL(demo::rope_and_append)
GRAPHCACHE_HOST_KERNEL(demo::attend)
GRAPHCACHE_HOST_KERNEL(demo::combine)
GRAPHCACHE_HOST_KERNEL(demo::gate)
GRAPHCACHE_HOST_KERNEL(demo::product)
GRAPHCACHE_HOST_KERNEL(demo::choose)
