// Which function of the program made a CUDA call, from the stack.

#ifndef GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_
#define GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_

#include <cstddef>
#include <string>

namespace graphcache::diagnose {

// Return addresses, the innermost call first.
struct Frames {
  static constexpr std::size_t kMax = 48;
  const void* addresses[kMax];
  std::size_t count = 0;
};

// The frames of whoever calls this, from that one on which returns to `from`, if there is one.
[[gnu::noinline]] Frames frames(const void* from = nullptr);

// The innermost function that is none of CUDA's, of this library's or of the standard library's, with its parameters;
// "module+0xoffset" where no symbol tells, as addr2line takes it; empty if there is none. `kernel` is what a launch
// launched: nvcc's stub, by which it went, has the same name. Symbols come from the dynamic table of a module, else
// from its file.
std::string caller_of(const Frames& frames, const std::string& kernel);

}  // namespace graphcache::diagnose

#endif  // GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_
