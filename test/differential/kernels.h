// Kernels of the differential fuzzer, for nvcc (kernels.cu) and for hostrt (kernels_host.cc).
//
// Each changes the words of one place and leaves in its last word what every block saw of the launch. A lost block, a
// wrong grid and a wrong block size therefore show in the bytes, just as wrong arguments do.
#pragma once

#include <cuda_runtime_api.h>

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_KERNEL __global__
#else
#define GRAPHCACHE_TEST_KERNEL
#endif
// Older devices have no clusters, and nvcc refuses the attribute for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GRAPHCACHE_TEST_CLUSTERS_OF_2 __cluster_dims__(2, 1, 1)
#else
#define GRAPHCACHE_TEST_CLUSTERS_OF_2
#endif

namespace graphcache::test::differential {

inline constexpr int kWords = 64;  // Of a place.

struct Small {
  char a;
  int b;
  long long c;
};
struct Big {
  int v[128];
};
struct alignas(64) Aligned {
  int v[16];
};

GRAPHCACHE_TEST_KERNEL void mix(int* out, const int* in, const int* other, int a, int b);
GRAPHCACHE_TEST_KERNEL void mix_otherwise(int* out, const int* in, const int* other, int a, int b);
GRAPHCACHE_TEST_KERNEL void mix_at(int* base, int out, int in, int a, int b);  // Places by their numbers.
GRAPHCACHE_TEST_KERNEL void take_small(Small s, int* out);
GRAPHCACHE_TEST_KERNEL void take_big(int* out, Big s, short a);
GRAPHCACHE_TEST_KERNEL void take_aligned(char a, Aligned s, int* out);
GRAPHCACHE_TEST_KERNEL void take_numbers(int* out, float f, double d, bool b, unsigned char c, long long l);
GRAPHCACHE_TEST_KERNEL void take_values(int* out, int a, Small s);
GRAPHCACHE_TEST_KERNEL void take_pointers(int* out, const int* a, const Small* s);  // As take_values.
GRAPHCACHE_TEST_KERNEL void cluster_size(int* out, int a);  // Leaves the blocks of a cluster, too.
GRAPHCACHE_TEST_KERNEL void GRAPHCACHE_TEST_CLUSTERS_OF_2 cluster_of_2(int* out, int a);  // Compiled so by nvcc.
GRAPHCACHE_TEST_KERNEL void programmatic(int* out, const int* in, int a);  // Waits for the kernel before it.
GRAPHCACHE_TEST_KERNEL void spin(int microseconds);                        // Keeps a GPU busy; on hostrt nothing.

}  // namespace graphcache::test::differential
