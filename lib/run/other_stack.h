// Calls `fn` again over another part of the stack and the heap, to tell what it leaves undefined from what it means.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "graph/inspect.h"

namespace graphcache {

// Fills the stack below its caller's frame, as far as `fn` may reach. `left`: the bytes there.
[[gnu::noinline]] inline void fill_stack(unsigned char byte, std::size_t left) {
  constexpr std::size_t kMost = std::size_t{1} << 18, kShare = 4;
  const std::size_t bytes = std::min(kMost, left / kShare);
  void* const area = __builtin_alloca(bytes + 1);
  std::memset(area, byte, bytes);
  asm volatile("" : : "r"(area) : "memory");
}

// Has the small blocks that the heap would give next, so that objects which `fn` makes lie elsewhere, over contents of
// this byte. The third byte of their addresses, too, is another: parts of such addresses are what freed blocks contain.
class OtherHeap {
 public:
  explicit OtherHeap(unsigned char byte) {
    constexpr std::size_t kSpace = std::size_t{1} << 16, kMost = std::size_t{1} << 14;
    constexpr std::size_t kHeld = 16, kForFn = 7;  // Of each size.
    blocks_.reserve(kMost);
    std::vector<Block> for_fn;
    for_fn.reserve(kSizes * kForFn);
    blocks_.emplace_back(std::malloc(kSpace));
    for (std::size_t i = 0; i < kSizes * kHeld; ++i) blocks_.push_back(take(i / kHeld, byte));
    for (std::size_t i = 0; i < kSizes; ++i) {
      const auto held = blocks_.begin() + 1 + i * kHeld;
      for (std::size_t given = 0; given < kForFn;) {
        Block block = take(i, byte);
        const auto is_near = [&](const Block& other) { return part_of(other) == part_of(block); };
        if (blocks_.size() < kMost && std::any_of(held, held + kHeld, is_near)) {
          blocks_.push_back(std::move(block));
        } else {
          for_fn.push_back(std::move(block));
          ++given;
        }
      }
    }
  }

 private:
  static constexpr std::size_t kStep = 16, kSizes = 64;

  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  using Block = std::unique_ptr<void, Free>;

  // A block of the i-th size.
  static Block take(std::size_t i, unsigned char byte) {
    const std::size_t size = kStep * (i + 1) + kStep / 2;
    Block block(std::malloc(size));
    if (block != nullptr) std::memset(block.get(), byte, size);
    asm volatile("" : : "r"(block.get()) : "memory");
    return block;
  }

  static std::uintptr_t part_of(const Block& block) { return reinterpret_cast<std::uintptr_t>(block.get()) >> 16; }

  std::vector<Block> blocks_;
};

struct OtherPlace {
  // Depths. By the second one, the third byte of an address changes as well.
  static constexpr std::size_t kNear = 0x1150, kFar = 0x11150;

  std::size_t depth;
  unsigned char byte;
  bool and_heap = true;
};

// Calls f so many bytes deeper in the stack, or kNear if there is little left, over stack contents of this byte, and
// perhaps over another heap. Undefined bytes that `fn` passes to kernels, and addresses of its local variables, then
// differ from those of another call.
template <class F>
[[gnu::noinline]] void on_other_stack(const OtherPlace& place, F&& f) {
  const AddressRange& stack = stack_of_this_thread();
  const std::size_t below = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) - stack.begin;
  const std::size_t left = below < stack.size ? below : 0;
  void* const shift = __builtin_alloca(std::min(place.depth, std::max(OtherPlace::kNear, left / 16)));
  std::optional<OtherHeap> heap;
  if (place.and_heap) heap.emplace(place.byte);
  fill_stack(place.byte, left);
  f();
  asm volatile("" : : "r"(shift) : "memory");
}

}  // namespace graphcache
