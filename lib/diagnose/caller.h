// Finds the place of an address in a program, and the function that made a CUDA call.

#ifndef GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_
#define GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace graphcache::diagnose {

struct Location {
  std::string module;         // Name of the file, without folders; empty if unknown.
  std::uintptr_t offset = 0;  // Offset in the module, as addr2line takes it.
  std::string symbol;         // Mangled name of the function; may be empty.
  std::uintptr_t into_symbol = 0;
};

// The location of a call, given its return address; the line of the return address itself may be that of the next
// statement. Symbols come from the module's dynamic table, else from its file.
Location location_of_call(const void* behind);

// The symbol as written in the source.
std::string demangled(const std::string& symbol);
std::string hexadecimal(std::uintptr_t value);

// Return addresses, innermost call first.
struct Frames {
  static constexpr std::size_t kMax = 48;
  const void* addresses[kMax];
  std::size_t count = 0;
};

// The frames of the caller. With `from`, starts at the frame that returns to that address, if there is one.
[[gnu::noinline]] Frames frames(const void* from = nullptr);

// The innermost function, with its parameters, that does not belong to CUDA, to this library or to the standard
// library. "module+0xoffset" if its symbol is unknown; empty if there is none. `by_runtime`: a runtime function was
// called, which may be linked into the program. `kernel` is the launched kernel: nvcc's stub, which made the launch,
// has the same name.
std::string caller_of(const Frames& frames, bool by_runtime, const std::string& kernel);

}  // namespace graphcache::diagnose

#endif  // GRAPHCACHE_LIB_DIAGNOSE_CALLER_H_
