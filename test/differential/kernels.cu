// The kernels of kernels.h, for nvcc and, through kernels_host.cc, for the C++ compiler.

#include "kernels.h"

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_DEVICE __device__
#define GRAPHCACHE_TEST_ADD(counter, value) atomicAdd(counter, value)
#else
#include <device_launch_parameters.h>
#define GRAPHCACHE_TEST_DEVICE
#define GRAPHCACHE_TEST_ADD(counter, value) (*(counter) += (value))
#endif

namespace graphcache::test::differential {
namespace {

// Returns 0 on hostrt.
GRAPHCACHE_TEST_DEVICE inline unsigned shared_bytes() {
  unsigned bytes = 0;
#if defined(__CUDA_ARCH__)
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
#endif
  return bytes;
}

GRAPHCACHE_TEST_DEVICE inline unsigned blocks_in_cluster() {
  unsigned blocks = 1;
#if !defined(__CUDACC__)
  const dim3 size = hostrt::cluster_dim();
  blocks = size.x * size.y * size.z;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return blocks;
}

GRAPHCACHE_TEST_DEVICE inline unsigned u(long long value) { return static_cast<unsigned>(value); }

// Sets every word except the last to change(word, its number), and adds each block's observations to the last word.
template <class Change>
GRAPHCACHE_TEST_DEVICE void each(int* out, const Change& change) {
  if (blockIdx.y == 0 && blockIdx.z == 0) {
    const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (unsigned i = first; i < kWords - 1; i += threads) out[i] = static_cast<int>(change(u(out[i]), i));
  }
  if (threadIdx.x != 0 || threadIdx.y != 0 || threadIdx.z != 0) return;
  const unsigned place = 1 + blockIdx.x + 5 * blockIdx.y + 25 * blockIdx.z;
  const unsigned shape = gridDim.x * 7 + gridDim.y * 1009 + gridDim.z * 10007 + blockDim.x * 100003;
  GRAPHCACHE_TEST_ADD(reinterpret_cast<unsigned*>(out) + kWords - 1, place * (shape + shared_bytes() * 31));
}

// A multiplicative hash of the bytes for one of the kWords - 1 words.
GRAPHCACHE_TEST_DEVICE inline unsigned hash(const unsigned char* bytes, unsigned size, unsigned first) {
  unsigned sum = 0;
  for (unsigned i = first; i < size; i += kWords - 1) sum = (sum ^ bytes[i]) * 16777619u;
  return sum;
}

}  // namespace

GRAPHCACHE_TEST_KERNEL void mix(int* out, const int* in, const int* other, int a, int b) {
  each(out, [=](unsigned word, unsigned i) { return word * 3 + u(in[i]) * u(a) + u(other[i]) * 31 + u(b) + i; });
}

GRAPHCACHE_TEST_KERNEL void mix_otherwise(int* out, const int* in, const int* other, int a, int b) {
  each(out, [=](unsigned word, unsigned i) { return (word ^ u(a)) * 5 + u(in[i]) - u(other[i]) * 7 + u(b); });
}

GRAPHCACHE_TEST_KERNEL void mix_at(int* base, int out, int in, int a, int b) {
  const int* const from = base + in * kWords;
  each(base + out * kWords, [=](unsigned word, unsigned i) { return word * 9 + u(from[i]) * u(a) + u(b); });
}

GRAPHCACHE_TEST_KERNEL void take_small(Small s, int* out) {
  each(out, [=](unsigned word, unsigned) { return word * 9 + u(s.a) + u(s.b) * 3 + u(s.c) * 5 + u(s.c >> 32); });
}

GRAPHCACHE_TEST_KERNEL void take_big(int* out, Big s, short a) {
  each(out, [&](unsigned word, unsigned i) { return word * 7 + u(s.v[i]) + u(s.v[127 - i]) * 3 + u(a); });
}

GRAPHCACHE_TEST_KERNEL void take_aligned(char a, Aligned s, int* out) {
  each(out, [&](unsigned word, unsigned i) { return word * 5 + u(s.v[i % 16]) + u(a); });
}

GRAPHCACHE_TEST_KERNEL void take_numbers(int* out, float f, double d, bool b, unsigned char c, long long l) {
  const unsigned sum = u(static_cast<int>(f * 4)) + u(static_cast<int>(d * 8)) * 3 + (b ? 77 : 0) + u(c) * 11;
  each(out, [=](unsigned word, unsigned) { return word * 3 + sum + u(l) * 13 + u(l >> 32); });
}

GRAPHCACHE_TEST_KERNEL void take_values(int* out, int a, Small s) {
  each(out, [=](unsigned word, unsigned) { return word * 3 + u(a) + u(s.a) * 7 + u(s.b) + u(s.c); });
}

GRAPHCACHE_TEST_KERNEL void take_pointers(int* out, const int* a, const Small* s) {
  each(out, [=](unsigned word, unsigned) { return word * 3 + u(*a) + u(s->a) * 7 + u(s->b) + u(s->c); });
}

#define GRAPHCACHE_TEST_DEFINE_ONE(name, size, alignment, before)                                                \
  GRAPHCACHE_TEST_KERNEL void name(Bytes<before, 1> lead, Bytes<size, alignment> s, unsigned char b, int* out) { \
    each(out, [&](unsigned word, unsigned i) {                                                                   \
      return word * 3 + hash(s.v, size, i) + hash(lead.v, before, i) * 5 + u(b) * 7;                             \
    });                                                                                                          \
  }
#define GRAPHCACHE_TEST_DEFINE(name, size, alignment, before, other) \
  GRAPHCACHE_TEST_DEFINE_ONE(take_##name, size, alignment, before)   \
  GRAPHCACHE_TEST_DEFINE_ONE(take_other_##name, size, alignment, other)
GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_DEFINE)
#undef GRAPHCACHE_TEST_DEFINE
#undef GRAPHCACHE_TEST_DEFINE_ONE

GRAPHCACHE_TEST_KERNEL void cluster_size(int* out, int a) {
  const unsigned blocks = blocks_in_cluster();
  each(out, [=](unsigned word, unsigned) { return word * 13 + blocks * 101 + u(a); });
}

GRAPHCACHE_TEST_KERNEL void GRAPHCACHE_TEST_CLUSTERS_OF_2 cluster_of_2(int* out, int a) {
  const unsigned blocks = blocks_in_cluster();
  each(out, [=](unsigned word, unsigned) { return word * 17 + blocks * 103 + u(a); });
}

GRAPHCACHE_TEST_KERNEL void programmatic(int* out, const int* in, int a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  each(out, [=](unsigned word, unsigned i) { return word + u(in[i]) * 11 + u(a); });
}

GRAPHCACHE_TEST_KERNEL void spin([[maybe_unused]] int microseconds) {
#if defined(__CUDA_ARCH__)
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < 1000ull * static_cast<unsigned>(microseconds));
#endif
}

}  // namespace graphcache::test::differential
