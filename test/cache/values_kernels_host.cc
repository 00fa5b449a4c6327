// The kernels of values_kernels.cu as host functions that hostrt can launch.

#include "graphcache/hostrt.h"
#include "values_kernels.cu"

GRAPHCACHE_HOST_KERNEL(graphcache::test::store_half)
GRAPHCACHE_HOST_KERNEL(graphcache::test::scale_by)
GRAPHCACHE_HOST_KERNEL(graphcache::test::fill_half)
GRAPHCACHE_HOST_KERNEL(graphcache::test::fill_bfloat16)
GRAPHCACHE_HOST_KERNEL(graphcache::test::fill_range)
GRAPHCACHE_HOST_KERNEL(graphcache::test::copy_or_fill)
