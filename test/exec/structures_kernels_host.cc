// The kernels of structures_kernels.cu as host functions that hostrt can launch.

#include "graphcache/hostrt.h"
#include "structures_kernels.cu"

#define GRAPHCACHE_TEST_REGISTER(size, alignment, lead, other_lead, before)                                    \
  GRAPHCACHE_HOST_KERNEL(graphcache::test::structure_kernel<lead, graphcache::test::Bytes<size, alignment>>()) \
  GRAPHCACHE_HOST_KERNEL(graphcache::test::structure_kernel<other_lead, graphcache::test::Bytes<size, alignment>>())
GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_REGISTER)
GRAPHCACHE_HOST_KERNEL(graphcache::test::take_pair)
GRAPHCACHE_HOST_KERNEL(graphcache::test::take_view)
GRAPHCACHE_HOST_KERNEL(graphcache::test::change_view)
GRAPHCACHE_HOST_KERNEL(graphcache::test::take_ticket)
GRAPHCACHE_HOST_KERNEL(graphcache::test::take_iterator)
GRAPHCACHE_HOST_KERNEL(graphcache::test::take_halves)
GRAPHCACHE_HOST_KERNEL(graphcache::test::take_rounded)
GRAPHCACHE_HOST_KERNEL(graphcache::test::take_plain)
