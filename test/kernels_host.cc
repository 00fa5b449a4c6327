// The kernels of kernels.cu as host functions that hostrt can launch.

#include "graphcache/hostrt.h"
#include "kernels.cu"

GRAPHCACHE_HOST_KERNEL(graphcache::test::fill)
GRAPHCACHE_HOST_KERNEL(graphcache::test::add)
GRAPHCACHE_HOST_KERNEL(graphcache::test::scale)
GRAPHCACHE_HOST_KERNEL(graphcache::test::axpy)
GRAPHCACHE_HOST_KERNEL(graphcache::test::record_launch)
GRAPHCACHE_HOST_KERNEL(graphcache::test::count_threads)
GRAPHCACHE_HOST_KERNEL(graphcache::test::append)
GRAPHCACHE_HOST_KERNEL(graphcache::test::copy_struct)
GRAPHCACHE_HOST_KERNEL(graphcache::test::sum_large)
GRAPHCACHE_HOST_KERNEL(graphcache::test::many)
GRAPHCACHE_HOST_KERNEL(graphcache::test::do_nothing)
GRAPHCACHE_HOST_KERNEL(graphcache::test::store)
GRAPHCACHE_HOST_KERNEL(graphcache::test::count_down)
GRAPHCACHE_HOST_KERNEL(graphcache::test::blend)
GRAPHCACHE_HOST_KERNEL(graphcache::test::blend_otherwise)
GRAPHCACHE_HOST_KERNEL(graphcache::test::blend_in)
GRAPHCACHE_HOST_KERNEL(graphcache::test::count_differences)
GRAPHCACHE_HOST_KERNEL(graphcache::test::record_shared_bytes)
GRAPHCACHE_HOST_KERNEL(graphcache::test::record_cluster_size)
GRAPHCACHE_HOST_KERNEL(graphcache::test::record_device)
GRAPHCACHE_HOST_KERNEL(graphcache::test::fault)
