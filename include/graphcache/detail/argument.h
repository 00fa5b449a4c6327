// ArgView: a type-erased argument of a launch, a copy or a memset. Not for users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

#include "graphcache/params.h"

namespace graphcache::detail {

class Recording;

// Converts the bytes of a slot's value to those of the argument. Null means that the bytes are the same.
using Convert = void (*)(const void* from, void* to);
inline constexpr std::size_t kMaxConvertedBytes = 256;

// One type-erased argument: the bytes of a constant, or a slot.
struct ArgView {
  const void* bytes;        // The bytes of a constant.
  std::uint32_t size;       // The size of the argument in bytes.
  std::uint32_t offset;     // The offset of the slot's value in the params of the run.
  std::uint64_t recording;  // The recording that the slot belongs to; 0 for a constant.
  Convert convert;          // How to convert the slot's value.

  bool is_slot() const { return recording != 0; }
};

// Gives the library access to the private members of Slot.
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
using Identity = std::common_type_t<T>;  // A parameter of this type deduces no T.

template <class T>
inline constexpr bool kIsSlot = false;
template <class T>
inline constexpr bool kIsSlot<Slot<T>> = true;

// Whether a pointer keeps its bytes when it is converted. A conversion to a base class may change the address.
template <class From, class To>
inline constexpr bool kSamePointerBytes = false;
template <class From, class To>
inline constexpr bool kSamePointerBytes<From*, To*> =
    std::is_void_v<To> || std::is_same_v<std::remove_cv_t<From>, std::remove_cv_t<To>>;

// Copies a value and fills the rest of the bytes with zeros.
template <class T, std::size_t kBytes>
void fill_up(const void* from, void* to) {
  std::memset(to, 0, kBytes);
  std::memcpy(to, from, sizeof(T));
}

// The address and the size in bytes of the elements of a container, or of another object: 0 if its type is incomplete.
template <class T>
auto memory_of(const T& object, int)
    -> std::pair<const void*, decltype(std::size(object) * sizeof(*std::data(object)))> {
  return {std::data(object), std::size(object) * sizeof(*std::data(object))};
}
template <class T, std::size_t kBytes = sizeof(T)>
std::pair<const void*, std::size_t> memory_of(const T& object, long) {
  return {std::addressof(object), kBytes};
}
template <class T>
std::pair<const void*, std::size_t> memory_of(const T& object, ...) {
  return {std::addressof(object), 0};
}

// Converts a value as a call does that has a parameter of type T. Numbers are cast, so that no compiler warns of it.
template <class T, class U>
T implicitly(U&& value) {
  if constexpr (std::is_class_v<T> || std::is_union_v<T>) {
    return std::forward<U>(value);
  } else {
    return static_cast<T>(std::forward<U>(value));
  }
}

// Sets the bytes between the members of an object to 0, where the compiler can, so that graphs differ by values alone.
template <class T>
void clear_padding([[maybe_unused]] T* object) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  if constexpr (std::is_trivially_copyable_v<T> && !std::is_const_v<T>) __builtin_clear_padding(object);
#endif
#endif
}

// As implicitly(), from bytes to bytes.
template <class From, class To>
void convert(const void* from, void* to) {
  alignas(From) unsigned char value[sizeof(From)];
  std::memcpy(value, from, sizeof(From));
  const To converted = implicitly<To>(*reinterpret_cast<const From*>(value));
  std::memcpy(to, std::addressof(converted), sizeof(To));
}

}  // namespace graphcache::detail
