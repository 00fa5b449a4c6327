// The demo's kernels for hostrt, compiled by the C++ compiler and run on the CPU.
#include <device_launch_parameters.h>

#include "graphcache/hostrt.h"
#include "kernels.cu"

GRAPHCACHE_HOST_KERNEL(demo::forward)
GRAPHCACHE_HOST_KERNEL(demo::softmax_loss)
GRAPHCACHE_HOST_KERNEL(demo::mean)
GRAPHCACHE_HOST_KERNEL(demo::parameter_gradient)
GRAPHCACHE_HOST_KERNEL(demo::input_gradient)
GRAPHCACHE_HOST_KERNEL(demo::adam)
