// Kernels that take values in ways that those of kernels.h do not. nvcc compiles them from values_kernels.cu for a GPU,
// the C++ compiler from values_kernels_host.cc for hostrt.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../kernels.h"

namespace graphcache::test {

// A pointer and numbers in a structure, with padding behind each number.
struct Scaling {
  float factor;
  const float* in;
  float plus;
};

struct Halved {
  float* out;
  __half value;
};

GRAPHCACHE_TEST_KERNEL void store_half(Halved half);                              // *out = value
GRAPHCACHE_TEST_KERNEL void scale_by(float* out, int n, Scaling by);              // out[i] = factor * in[i] + plus
GRAPHCACHE_TEST_KERNEL void fill_half(float* out, int n, __half v);               // out[i] = v
GRAPHCACHE_TEST_KERNEL void fill_bfloat16(float* out, int n, __nv_bfloat16 v);    // out[i] = v
GRAPHCACHE_TEST_KERNEL void fill_range(float* begin, const float* end, float v);  // each element = v
GRAPHCACHE_TEST_KERNEL void copy_or_fill(float* out, const float* in, int n, float v);  // v where `in` is null

}  // namespace graphcache::test
