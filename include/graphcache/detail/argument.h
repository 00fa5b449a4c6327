// Arguments of launches, copies and sets, their types erased. Not for users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "graphcache/params.h"

namespace graphcache::detail {

class Recording;

// Turns the bytes of a slot's value into those of the argument it is passed for. Null: they are the same bytes.
using Convert = void (*)(const void* from, void* to);
inline constexpr std::size_t kMaxConvertedBytes = 256;

// One argument, its type erased: the bytes of a constant, or the slot that they come from.
struct ArgView {
  const void* bytes;
  std::uint32_t size;
  std::uint32_t offset;     // Of the slot's value in the run's params.
  std::uint64_t recording;  // That the slot belongs to; 0 for a constant.
  Convert convert;

  bool is_slot() const { return recording != 0; }
};

struct SlotAccess {
  template <class T>
  static Slot<T> make(std::uint64_t recording, std::size_t offset) {
    return Slot<T>(recording, static_cast<std::uint32_t>(offset));
  }
  template <class T>
  static std::uint64_t recording(Slot<T> slot) {
    return slot.recording_;
  }
  template <class T>
  static std::uint32_t offset(Slot<T> slot) {
    return slot.offset_;
  }
};

template <class T>
inline constexpr bool kIsSlot = false;
template <class T>
inline constexpr bool kIsSlot<Slot<T>> = true;

// Whether a pointer keeps its bytes when it is converted. One to a base class may be moved.
template <class From, class To>
inline constexpr bool kSamePointerBytes = false;
template <class From, class To>
inline constexpr bool kSamePointerBytes<From*, To*> =
    std::is_void_v<To> || std::is_same_v<std::remove_cv_t<From>, std::remove_cv_t<To>>;

// A value, filled up by zeros.
template <class T, std::size_t kBytes>
void fill_up(const void* from, void* to) {
  std::memset(to, 0, kBytes);
  std::memcpy(to, from, sizeof(T));
}

template <class From, class To>
void convert(const void* from, void* to) {
  alignas(From) unsigned char value[sizeof(From)];
  std::memcpy(value, from, sizeof(From));
  const To converted = static_cast<To>(*reinterpret_cast<const From*>(value));
  std::memcpy(to, &converted, sizeof(To));
}

}  // namespace graphcache::detail
