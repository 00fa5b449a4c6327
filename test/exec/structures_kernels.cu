// The kernels of structures.h, for nvcc and, through structures_kernels_host.cc, for the C++ compiler.

#include "structures.h"

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_DEVICE __device__
#else
#include <device_launch_parameters.h>
#define GRAPHCACHE_TEST_DEVICE
#endif

namespace graphcache::test {
namespace {

template <class T>
GRAPHCACHE_TEST_DEVICE void store_bytes(unsigned char* out, const T& value) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&value);
  for (unsigned i = threadIdx.x; i < sizeof(T); i += blockDim.x) out[i] = bytes[i];
}

}  // namespace

template <class T>
GRAPHCACHE_TEST_KERNEL void take_structure(T value, unsigned char after, unsigned char* out) {
  store_bytes(out, value);
  store_bytes(out + sizeof(T), after);
}

template <unsigned kLead, class T>
GRAPHCACHE_TEST_KERNEL void take_structure_behind(Bytes<kLead> lead, T value, unsigned char after, unsigned char* out) {
  store_bytes(out, lead);
  store_bytes(out + kLead, value);
  store_bytes(out + kLead + sizeof(T), after);
}

template <unsigned kLead, class T>
StructureKernel<kLead, T> structure_kernel() {
  if constexpr (kLead == 0) {
    return take_structure<T>;
  } else {
    return take_structure_behind<kLead, T>;
  }
}

#define GRAPHCACHE_TEST_DEFINE(size, alignment, lead, other_lead, before)                                  \
  template StructureKernel<lead, Bytes<size, alignment>> structure_kernel<lead, Bytes<size, alignment>>(); \
  template StructureKernel<other_lead, Bytes<size, alignment>> structure_kernel<other_lead, Bytes<size, alignment>>();
GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_DEFINE)
#undef GRAPHCACHE_TEST_DEFINE

}  // namespace graphcache::test
