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

GRAPHCACHE_TEST_DEVICE inline int wrapped(unsigned a, unsigned b, unsigned c) { return static_cast<int>(a * b + c); }

}  // namespace

GRAPHCACHE_TEST_KERNEL void fill(float* p, int n, float v) {
  const int i = thread_number();
  if (i < n) p[i] = v;
}

GRAPHCACHE_TEST_KERNEL void store(unsigned* p, unsigned value) { *p = value; }

GRAPHCACHE_TEST_KERNEL void count_down(unsigned* p) { --*p; }

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

GRAPHCACHE_TEST_KERNEL void sum_large(int* out, LargeArgument value) {
  for (const int one : value.values) *out += one;
}

GRAPHCACHE_TEST_KERNEL void copy_struct(Mixed* out, Mixed value) {
  if (thread_number() == 0) *out = value;
}

GRAPHCACHE_TEST_KERNEL void do_nothing() {}

GRAPHCACHE_TEST_KERNEL void blend(int* p, int n, int a, int b) {
  const int i = thread_number();
  if (i < n) p[i] = wrapped(a, p[i], wrapped(1, b, i));
}

GRAPHCACHE_TEST_KERNEL void blend_otherwise(int* p, int n, int a, int b) {
  const int i = thread_number();
  if (i < n) p[i] = wrapped(p[i] ^ a, 5, wrapped(~0u, b, 0));
}

GRAPHCACHE_TEST_KERNEL void blend_in(int* p, const int* in, int n, int a) {
  const int i = thread_number();
  if (i < n) p[i] = wrapped(a, p[i], in[i]);
}

GRAPHCACHE_TEST_KERNEL void count_differences(const int* a, const int* b, int n, int* count) {
  const int i = thread_number();
  if (i < n && a[i] != b[i]) GRAPHCACHE_TEST_ADD_ONE(count);
}

GRAPHCACHE_TEST_KERNEL void record_shared_bytes(int* out) {
  unsigned bytes = 0;
#if defined(__CUDA_ARCH__)
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
#endif
  if (thread_number() == 0) *out = static_cast<int>(bytes);
}

GRAPHCACHE_TEST_KERNEL void record_cluster_size(int* out) {
  unsigned blocks = 1;
#if !defined(__CUDACC__)
  const dim3 size = hostrt::cluster_dim();
  blocks = size.x * size.y * size.z;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  if (thread_number() == 0) *out = static_cast<int>(blocks);
}

#if defined(__CUDACC__)
__device__ char of_this_device;  // its address differs between devices
#endif

GRAPHCACHE_TEST_KERNEL void record_device(unsigned long long* out) {
#if defined(__CUDACC__)
  *out = reinterpret_cast<unsigned long long>(&of_this_device);
#else
  *out = static_cast<unsigned long long>(hostrt::current_device());
#endif
}

GRAPHCACHE_TEST_KERNEL void wait_for(const int* flag) {
  while (*static_cast<const volatile int*>(flag) == 0) {
  }
}

GRAPHCACHE_TEST_KERNEL void fault() {
#if defined(__CUDA_ARCH__)
  asm volatile("trap;");
#elif !defined(__CUDACC__)
  throw "a fault";
#endif
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
