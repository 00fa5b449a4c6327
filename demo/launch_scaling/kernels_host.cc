// The demo's kernel for hostrt, compiled by the C++ compiler and run on the CPU.
#include <device_launch_parameters.h>

#include "graphcache/hostrt.h"
#include "kernels.cu"

GRAPHCACHE_HOST_KERNEL(demo::mix)
