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
// What an operation's Recorder::write() calls write to.
struct Written {
  int a;
  Small small;
};
template <unsigned kSize, unsigned kAlignment>
struct alignas(kAlignment) Bytes {
  unsigned char v[kSize];
};

// X(name, size, alignment, bytes before it in a kernel's parameters, as many in those of another kernel). The order is
// that of params(), so that each has other values before it there.
// clang-format off
#define GRAPHCACHE_TEST_STRUCTURES(X) \
  X(bytes_1, 1, 1, 2, 5) X(bytes_6, 6, 2, 4, 14) X(bytes_12, 12, 4, 4, 8) \
  X(bytes_31, 31, 1, 13, 2) X(bytes_33, 33, 1, 7, 4) X(bytes_36, 36, 4, 12, 24) \
  X(bytes_40, 40, 8, 1, 16) X(bytes_64, 64, 16, 20, 3) X(bytes_65, 65, 1, 3, 8) \
  X(bytes_100, 100, 4, 20, 1) X(bytes_250, 250, 2, 6, 12) X(bytes_500, 500, 1, 5, 20) \
  X(bytes_1000, 1000, 4, 28, 8) X(bytes_2000, 2000, 8, 8, 20) X(bytes_3996, 3996, 4, 4, 13) \
  X(bytes_4000, 4000, 16, 13, 28)
// clang-format on

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
// Each word depends on some of the structure's bytes, and all bytes on some word.
#define GRAPHCACHE_TEST_DECLARE(name, size, alignment, before, other)                                                  \
  GRAPHCACHE_TEST_KERNEL void take_##name(Bytes<before, 1> lead, Bytes<size, alignment> s, unsigned char b, int* out); \
  GRAPHCACHE_TEST_KERNEL void take_other_##name(Bytes<other, 1> lead, Bytes<size, alignment> s, unsigned char b,       \
                                                int* out);
GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_DECLARE)
#undef GRAPHCACHE_TEST_DECLARE
GRAPHCACHE_TEST_KERNEL void spin(int microseconds);  // keeps a GPU busy; does nothing on hostrt

}  // namespace graphcache::test::differential
