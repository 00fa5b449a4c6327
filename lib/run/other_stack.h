// Calls `fn` again over another part of the stack and the heap, to tell what it leaves undefined from what it means.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace graphcache {

// The bytes of this thread's stack below the caller's frame, or 0 if the system does not say.
inline std::size_t stack_left() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* begin = nullptr;
  std::size_t size = 0;
  const bool is_known = pthread_attr_getstack(&attributes, &begin, &size) == 0;
  pthread_attr_destroy(&attributes);
  const auto left = reinterpret_cast<std::size_t>(__builtin_frame_address(0)) - reinterpret_cast<std::size_t>(begin);
  return is_known && left < size ? left : 0;
}

// Fills the stack below its caller's frame, as far as `fn` may reach.
[[gnu::noinline]] inline void fill_stack(unsigned char byte) {
  constexpr std::size_t kMost = std::size_t{1} << 18, kShare = 4;
  const std::size_t bytes = std::min(kMost, stack_left() / kShare);
  void* const area = __builtin_alloca(bytes + 1);
  std::memset(area, byte, bytes);
  asm volatile("" : : "r"(area) : "memory");
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

// Has the small blocks that the heap would give next, so that objects which `fn` makes lie elsewhere.
class OtherHeap {
 public:
  OtherHeap() {
    constexpr std::size_t kStep = 16, kMost = 1024, kEach = 16;
    blocks_.reserve(kMost / kStep * kEach);
    for (std::size_t size = kStep; size <= kMost; size += kStep) {
      for (std::size_t i = 0; i < kEach; ++i) blocks_.emplace_back(std::malloc(size), &std::free);
    }
  }

 private:
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
};

}  // namespace graphcache
