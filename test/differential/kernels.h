// Kernels of the differential fuzzer, for nvcc (kernels.cu) and for hostrt (kernels_host.cc).
//
// Each kernel changes the words of one place and stores in the last word what every block observed of the launch. So a
// missing block, a wrong grid or a wrong block size changes the bytes, like wrong arguments.
#pragma once

#include <cuda_runtime_api.h>

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_KERNEL __global__
#else
#define GRAPHCACHE_TEST_KERNEL
#endif
// Older devices have no clusters, and nvcc rejects the attribute for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GRAPHCACHE_TEST_CLUSTERS_OF_2 __cluster_dims__(2, 1, 1)
#else
#define GRAPHCACHE_TEST_CLUSTERS_OF_2
#endif

namespace graphcache::test::differential {

inline constexpr int kWords = 64;  // words of a place

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
GRAPHCACHE_TEST_KERNEL void mix_at(int* base, int out, int in, int a, int b);  // places by their numbers
GRAPHCACHE_TEST_KERNEL void take_small(Small s, int* out);
GRAPHCACHE_TEST_KERNEL void take_big(int* out, Big s, short a);
GRAPHCACHE_TEST_KERNEL void take_aligned(char a, Aligned s, int* out);
GRAPHCACHE_TEST_KERNEL void take_numbers(int* out, float f, double d, bool b, unsigned char c, long long l);
GRAPHCACHE_TEST_KERNEL void take_values(int* out, int a, Small s);
GRAPHCACHE_TEST_KERNEL void take_pointers(int* out, const int* a, const Small* s);  // as take_values
GRAPHCACHE_TEST_KERNEL void cluster_size(int* out, int a);  // also stores the number of blocks in a cluster
// Compiled with that cluster size by nvcc.
GRAPHCACHE_TEST_KERNEL void GRAPHCACHE_TEST_CLUSTERS_OF_2 cluster_of_2(int* out, int a);
GRAPHCACHE_TEST_KERNEL void programmatic(int* out, const int* in, int a);  // waits for the preceding kernel
GRAPHCACHE_TEST_KERNEL void spin(int microseconds);                        // keeps a GPU busy; does nothing on hostrt

}  // namespace graphcache::test::differential
