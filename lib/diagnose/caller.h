// Where in a program an address lies, and which of its functions made a CUDA call.

#ifndef GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_
#define GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace graphcache::diagnose {

struct Location {
  std::string module;         // The name of its file, without folders; empty if nothing is known.
  std::uintptr_t offset = 0;  // There, as addr2line takes it.
  std::string symbol;         // Of the function, as the linker has it; may be empty.
  std::uintptr_t into_symbol = 0;
};

// That of a call, by the address behind it: the line of the next statement would be misleading. Symbols come from the
// dynamic table of a module, else from its file.
Location location_of_call(const void* behind);

// The symbol as the source has it.
std::string demangled(const std::string& symbol);
std::string hexadecimal(std::uintptr_t value);

// Return addresses, the innermost call first.
struct Frames {
  static constexpr std::size_t kMax = 48;
  const void* addresses[kMax];
  std::size_t count = 0;
};

// The frames of whoever calls this, from that one on which returns to `from`, if there is one.
[[gnu::noinline]] Frames frames(const void* from = nullptr);

// The innermost function that is none of CUDA's, of this library's or of the standard library's, with its parameters;
// "module+0xoffset" where no symbol tells; empty if there is none. `by_runtime`: a function of the runtime was called,
// which may be linked into the program. `kernel` is what a launch launched: nvcc's stub, by which it went, has the same
// name.
std::string caller_of(const Frames& frames, bool by_runtime, const std::string& kernel);

}  // namespace graphcache::diagnose

#endif  // GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_
