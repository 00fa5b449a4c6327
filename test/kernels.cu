// The kernels of kernels.h, for nvcc and, through kernels_host.cc, for the C++ compiler.

#include "kernels.h"

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_DEVICE __device__
#define GRAPHCACHE_TEST_ADD_ONE(counter) atomicAdd(counter, 1)
#else
#include <device_launch_parameters.h>
#define GRAPHCACHE_TEST_DEVICE
#define GRAPHCACHE_TEST_ADD_ONE(counter) (*(counter) += 1)
#endif

namespace graphcache::test {
namespace {

GRAPHCACHE_TEST_DEVICE inline int thread_number() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

}  // namespace

GRAPHCACHE_TEST_KERNEL void fill(float* p, int n, float v) {
  const int i = thread_number();
  if (i < n) p[i] = v;
}

GRAPHCACHE_TEST_KERNEL void add(float* p, int n, float v) {
  const int i = thread_number();
  if (i < n) p[i] += v;
}

GRAPHCACHE_TEST_KERNEL void scale(float* out, const float* in, int n, float f) {
  const int i = thread_number();
  if (i < n) out[i] = f * in[i];
}

GRAPHCACHE_TEST_KERNEL void axpy(float* out, const float* in, int n, float f) {
  const int i = thread_number();
  if (i < n) out[i] += f * in[i];
}

GRAPHCACHE_TEST_KERNEL void record_launch(int* out) {
  if (threadIdx.x != 0 || threadIdx.y != 0 || threadIdx.z != 0) return;
  if (blockIdx.x != 0 || blockIdx.y != 0 || blockIdx.z != 0) return;
  out[0] = static_cast<int>(gridDim.x);
  out[1] = static_cast<int>(gridDim.y);
  out[2] = static_cast<int>(gridDim.z);
  out[3] = static_cast<int>(blockDim.x);
  out[4] = static_cast<int>(blockDim.y);
  out[5] = static_cast<int>(blockDim.z);
}

GRAPHCACHE_TEST_KERNEL void count_threads(int* counter) { GRAPHCACHE_TEST_ADD_ONE(counter); }

GRAPHCACHE_TEST_KERNEL void append(int* log, int* count, int value) {
  if (thread_number() == 0) log[(*count)++] = value;
}

GRAPHCACHE_TEST_KERNEL void copy_struct(Mixed* out, Mixed value) {
  if (thread_number() == 0) *out = value;
}

GRAPHCACHE_TEST_KERNEL void many(double* out, char a, double b, short c, float d, long long e, unsigned char f, int g,
                                 float h, unsigned short i, double j) {
  if (thread_number() != 0) return;
  out[0] = a;
  out[1] = b;
  out[2] = c;
  out[3] = d;
  out[4] = static_cast<double>(e);
  out[5] = f;
  out[6] = g;
  out[7] = h;
  out[8] = i;
  out[9] = j;
}

}  // namespace graphcache::test
