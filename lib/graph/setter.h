// The parameters of the setter kernel, shared by the device code, the host code and hostrt's CPU version. The kernel
// writes a value to device memory (Recorder::write).
#pragma once

namespace graphcache::setter {

// A value of up to kBytes bytes.
template <unsigned kBytes>
struct Value {
  unsigned char bytes[kBytes];
};

// Most values are a number or a pointer.
inline constexpr unsigned kSmall = 16;
inline constexpr unsigned kLarge = 256;  // One block; each thread writes a byte.

inline constexpr char kSmallName[] = "graphcache_set_small";
inline constexpr char kLargeName[] = "graphcache_set_large";

}  // namespace graphcache::setter
