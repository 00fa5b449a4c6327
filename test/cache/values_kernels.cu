// The kernels of values_kernels.h, for nvcc and, through values_kernels_host.cc, for the C++ compiler.

#include "values_kernels.h"

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_DEVICE __device__
#else
#include <device_launch_parameters.h>
#define GRAPHCACHE_TEST_DEVICE
#endif

namespace graphcache::test {
namespace {

GRAPHCACHE_TEST_DEVICE inline int element() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

}  // namespace

GRAPHCACHE_TEST_KERNEL void store_half(Halved half) { *half.out = __half2float(half.value); }

GRAPHCACHE_TEST_KERNEL void scale_by(float* out, int n, Scaling by) {
  const int i = element();
  if (i < n) out[i] = by.factor * by.in[i] + by.plus;
}

GRAPHCACHE_TEST_KERNEL void fill_half(float* out, int n, __half v) {
  const int i = element();
  if (i < n) out[i] = __half2float(v);
}

GRAPHCACHE_TEST_KERNEL void fill_bfloat16(float* out, int n, __nv_bfloat16 v) {
  const int i = element();
  if (i < n) out[i] = __bfloat162float(v);
}

GRAPHCACHE_TEST_KERNEL void fill_range(float* begin, const float* end, float v) {
  const int i = element();
  if (i < end - begin) begin[i] = v;
}

GRAPHCACHE_TEST_KERNEL void copy_or_fill(float* out, const float* in, int n, float v) {
  const int i = element();
  if (i < n) out[i] = in != nullptr ? in[i] : v;
}

}  // namespace graphcache::test
