// The kernels of values_random_test.cc. nvcc compiles them from values_random_kernels.cu for a GPU, the C++ compiler
// from values_random_kernels_host.cc for hostrt.
//
// They are launched with one block. They use all arguments as bits, so that each bit of each argument changes the
// result, NaN and -0.0 included, and no result absorbs another one. A pointer may be null. `out` and `in` may overlap.
#pragma once

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_KERNEL __global__
#else
#define GRAPHCACHE_TEST_KERNEL
#endif

namespace graphcache::test::values_random {

constexpr unsigned kWords = 64;  // The threads of a block, and the words that each kernel reads and writes.

// A structure with padding: a byte beside a 2-byte float, and four bytes before and after `in` and `f`.
struct Record {
  char letter;
  unsigned short half;
  const unsigned* in;
  float f;
  unsigned* out;
  double d;
};

// The memory that is compared: this many allocations.
constexpr int kAreas = 4;
struct Areas {
  unsigned* at[kAreas];
  unsigned words[kAreas];
};

GRAPHCACHE_TEST_KERNEL void mix(unsigned* out, const unsigned* in, float f, double d);
GRAPHCACHE_TEST_KERNEL void mix_otherwise(unsigned* out, const unsigned* in, float f, double d);
GRAPHCACHE_TEST_KERNEL void mix_small(const unsigned* in, unsigned short half, float f, unsigned* out,
                                      unsigned long long word);
GRAPHCACHE_TEST_KERNEL void mix_small_otherwise(const unsigned* in, unsigned short half, float f, unsigned* out,
                                                unsigned long long word);
GRAPHCACHE_TEST_KERNEL void mix_record(Record record);
GRAPHCACHE_TEST_KERNEL void mix_record_otherwise(Record record);

GRAPHCACHE_TEST_KERNEL void fill_areas(Areas areas, unsigned seed);
// *first = the smaller of itself and `run`, if the areas differ.
GRAPHCACHE_TEST_KERNEL void compare_areas(Areas areas, Areas others, unsigned run, unsigned* first);

}  // namespace graphcache::test::values_random
