// The kernels of kernels.cu as host functions that hostrt can launch.

#include "graphcache/hostrt.h"
#include "kernels.cu"

GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::mix)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::mix_otherwise)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::mix_at)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_small)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_big)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_aligned)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_numbers)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_values)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_pointers)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::cluster_size)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::cluster_of_2)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::programmatic)
GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::spin)

#define GRAPHCACHE_TEST_REGISTER(name, size, alignment, before, other) \
  GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_##name)  \
  GRAPHCACHE_HOST_KERNEL(graphcache::test::differential::take_other_##name)
GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_REGISTER)
