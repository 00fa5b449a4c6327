// The kernels of structures_kernels.cu as host functions that hostrt can launch.

#include "graphcache/hostrt.h"
#include "structures_kernels.cu"

#define GRAPHCACHE_TEST_REGISTER(size, alignment, lead, other_lead, before)                                    \
  GRAPHCACHE_HOST_KERNEL(graphcache::test::structure_kernel<lead, graphcache::test::Bytes<size, alignment>>()) \
  GRAPHCACHE_HOST_KERNEL(graphcache::test::structure_kernel<other_lead, graphcache::test::Bytes<size, alignment>>())
GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_REGISTER)
