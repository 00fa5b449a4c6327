// The kernels of values_random_kernels.cu as host functions that hostrt can launch.

#include "graphcache/hostrt.h"
#include "values_random_kernels.cu"

GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::mix)
GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::mix_otherwise)
GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::mix_small)
GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::mix_small_otherwise)
GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::mix_record)
GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::mix_record_otherwise)
GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::fill_areas)
GRAPHCACHE_HOST_KERNEL(graphcache::test::values_random::compare_areas)
