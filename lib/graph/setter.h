// The parameters of the setter kernel, shared by the device code, the host code and hostrt's CPU version. The kernel
// writes a value to device memory, for kernels that read it through a pointer.
#pragma once

namespace graphcache::setter {

// A value of up to kBytes bytes.
template <unsigned kBytes>
struct Value {
  unsigned long long words[kBytes / sizeof(unsigned long long)];
};

// Most values are a number or a pointer.
inline constexpr unsigned kSmall = 16;
inline constexpr unsigned kLarge = 256;
inline constexpr unsigned kThreads = 32;  // One block; each thread writes a word.
static_assert(kLarge <= kThreads * sizeof(unsigned long long));

inline constexpr char kSmallName[] = "graphcache_set_small";
inline constexpr char kLargeName[] = "graphcache_set_large";

}  // namespace graphcache::setter
