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

GRAPHCACHE_TEST_KERNEL void take_pair(std::pair<int, float> pair, float* out) {
  out[0] = static_cast<float>(pair.first);
  out[1] = pair.second;
}

GRAPHCACHE_TEST_KERNEL void take_view(View view) { view.data[0] = static_cast<float>(view.copies); }

GRAPHCACHE_TEST_KERNEL void change_view(View view, float* out) {
  view.copies += 10;  // A thread's own.
  out[threadIdx.x] = static_cast<float>(view.copies);
}

GRAPHCACHE_TEST_KERNEL void take_ticket(Ticket ticket, float* out) {
  out[0] = static_cast<float>(ticket.number);
  out[1] = static_cast<float>(ticket.moves);
}

GRAPHCACHE_TEST_KERNEL void take_iterator(StridedIterator in, int count, float* out) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) out[i] = in[i];
}

GRAPHCACHE_TEST_KERNEL void take_halves(__half2 halves, __nv_bfloat162 others, float* out) {
  out[0] = __low2float(halves);
  out[1] = __high2float(halves);
  out[2] = __low2float(others);
  out[3] = __high2float(others);
}

GRAPHCACHE_TEST_KERNEL void take_rounded(Rounded rounded, float* out) { out[0] = static_cast<float>(rounded.value); }

GRAPHCACHE_TEST_KERNEL void take_plain(Nothing, const bool flag, Letter letter, std::nullptr_t, const float* in,
                                       float* out) {
  out[0] = flag ? 1.0f : 0.0f;
  out[1] = static_cast<float>(letter);
  out[2] = in == nullptr ? -1.0f : in[0];
}

}  // namespace graphcache::test
