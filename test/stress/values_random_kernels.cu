// The kernels of values_random_kernels.h, for nvcc and, through values_random_kernels_host.cc, for the C++ compiler.

#include <cstring>

#include "values_random_kernels.h"

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_DEVICE __device__
#define GRAPHCACHE_TEST_MIN(place, value) atomicMin(place, value)
#else
#include <device_launch_parameters.h>
#define GRAPHCACHE_TEST_DEVICE
#define GRAPHCACHE_TEST_MIN(place, value) (*(place) = *(place) < (value) ? *(place) : (value))
#endif

namespace graphcache::test::values_random {
namespace {

GRAPHCACHE_TEST_DEVICE unsigned join(unsigned sum, unsigned value) {
  sum = (sum ^ value) * 0x9e3779b1u;
  return sum ^ (sum >> 15);
}
GRAPHCACHE_TEST_DEVICE unsigned join(unsigned sum, unsigned long long value) {
  return join(join(sum, static_cast<unsigned>(value)), static_cast<unsigned>(value >> 32));
}
GRAPHCACHE_TEST_DEVICE unsigned join(unsigned sum, float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return join(sum, bits);
}
GRAPHCACHE_TEST_DEVICE unsigned join(unsigned sum, double value) {
  unsigned long long bits;
  memcpy(&bits, &value, sizeof bits);
  return join(sum, bits);
}

// Each thread has a word. All threads read before one of them writes; on hostrt they run one after the other.
GRAPHCACHE_TEST_DEVICE void change(unsigned* out, const unsigned* in, unsigned sum) {
  const unsigned i = threadIdx.x;
  const unsigned read = in == nullptr ? 77 : in[i];
  const unsigned before = out == nullptr ? 0 : out[i];
#if defined(__CUDA_ARCH__)
  __syncthreads();
#endif
  if (out != nullptr) out[i] = join(join(join(i, sum), read), before);
}

}  // namespace

GRAPHCACHE_TEST_KERNEL void mix(unsigned* out, const unsigned* in, float f, double d) {
  change(out, in, join(join(1u, f), d));
}
GRAPHCACHE_TEST_KERNEL void mix_otherwise(unsigned* out, const unsigned* in, float f, double d) {
  change(out, in, join(join(2u, f), d));
}
GRAPHCACHE_TEST_KERNEL void mix_small(const unsigned* in, unsigned short half, float f, unsigned* out,
                                      unsigned long long word) {
  change(out, in, join(join(join(3u, static_cast<unsigned>(half)), f), word));
}
GRAPHCACHE_TEST_KERNEL void mix_small_otherwise(const unsigned* in, unsigned short half, float f, unsigned* out,
                                                unsigned long long word) {
  change(out, in, join(join(join(4u, static_cast<unsigned>(half)), f), word));
}
GRAPHCACHE_TEST_KERNEL void mix_record(Record record) {
  const unsigned sum = join(join(5u, static_cast<unsigned>(record.letter)), static_cast<unsigned>(record.half));
  change(record.out, record.in, join(join(sum, record.f), record.d));
}
GRAPHCACHE_TEST_KERNEL void mix_record_otherwise(Record record) {
  const unsigned sum = join(join(6u, static_cast<unsigned>(record.letter)), static_cast<unsigned>(record.half));
  change(record.out, record.in, join(join(sum, record.f), record.d));
}

GRAPHCACHE_TEST_KERNEL void fill_areas(Areas areas, unsigned seed) {
  for (unsigned area = 0; area < kAreas; ++area) {
    for (unsigned i = threadIdx.x; i < areas.words[area]; i += blockDim.x) {
      areas.at[area][i] = join(join(seed, area), i);
    }
  }
}

GRAPHCACHE_TEST_KERNEL void compare_areas(Areas areas, Areas others, unsigned run, unsigned* first) {
  for (unsigned area = 0; area < kAreas; ++area) {
    for (unsigned i = threadIdx.x; i < areas.words[area]; i += blockDim.x) {
      if (areas.at[area][i] != others.at[area][i]) GRAPHCACHE_TEST_MIN(first, run);
    }
  }
}

}  // namespace graphcache::test::values_random
