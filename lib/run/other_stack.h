// Calls `fn` again over another part of the stack, to tell what it leaves undefined from what it means.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

namespace graphcache {

// Fills the stack below its caller's frame.
[[gnu::noinline]] inline void fill_stack(unsigned char byte) {
  std::array<unsigned char, 1 << 15> area;
  std::memset(area.data(), byte, area.size());
  asm volatile("" : : "r"(area.data()) : "memory");
}

// Calls f this many bytes deeper in the stack, over stack contents of this byte. Undefined bytes that `fn` passes to
// kernels, and addresses of its local variables, then differ from those of another call.
template <class F>
[[gnu::noinline]] void on_other_stack(std::size_t depth, unsigned char byte, F&& f) {
  void* const shift = __builtin_alloca(depth);
  fill_stack(byte);
  f();
  asm volatile("" : : "r"(shift) : "memory");
}

}  // namespace graphcache
