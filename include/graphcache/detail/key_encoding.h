// The encoding of keys, and the traits of types that can be parts of keys. Not for users.
#pragma once

#include <absl/base/config.h>
#include <absl/types/optional.h>
#include <absl/types/span.h>
#include <vector_types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#if __has_include(<version>)
#include <version>
#endif
#ifdef __cpp_lib_span
#include <span>
#endif

namespace graphcache {

class Keyer;

}  // namespace graphcache

namespace graphcache::key_detail {

// The encoding. Each part begins with a tag byte.
//
// A tag of 0x10 or more begins a number. The high half of the tag is the kind. The low half is the count of bytes (0 to
// 8) that follow: the value, little-endian, without leading zero bytes. A negative value v is written as ~v with the
// next kind, such as kNegativeInteger. After the number follow
//   kInteger, kEnum, kPointer   nothing: the number is the value or the address
//   kText                       the text, of that many bytes
//   kSequence, kTuple           the elements, that many parts
// A tag below 0x10 is a mark, without a number. After the mark follow
//   kFalse, kTrue, kNullText, kNoValue   nothing: the mark is the whole part
//   kSomeValue                           the part that the optional holds
//   kDim3                                three integers
//   kLaunchConfig                        seven integers: grid, block, shared bytes
//   kBegin                               the parts that graphcache_key() adds, then kEnd
//
// The end of a part follows from its bytes, so no part's encoding is a prefix of another's. Lists of parts are
// therefore equal exactly if their bytes are equal.
enum : unsigned {
  kFalse = 0x01,
  kTrue = 0x02,
  kNullText = 0x03,
  kNoValue = 0x04,
  kSomeValue = 0x05,
  kDim3 = 0x06,
  kLaunchConfig = 0x07,
  kBegin = 0x08,
  kEnd = 0x09,
  kInteger = 0x10,
  kNegativeInteger = 0x20,
  kEnum = 0x30,
  kNegativeEnum = 0x40,
  kPointer = 0x50,
  kText = 0x60,
  kSequence = 0x70,
  kTuple = 0x80,
};
constexpr size_t kMaxNumberBytes = 9;  // The tag and eight bytes.

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the encoding copies integers as they stand in memory");

// Each put function returns the place behind the bytes that it wrote. put_number() always stores kMaxNumberBytes bytes.
// Those that are not part of the number are zero, and the next part overwrites them.
inline char* put_mark(char* at, unsigned mark) {
  *at = static_cast<char>(mark);
  return at + 1;
}

inline char* put_number(char* at, unsigned kind, uint64_t value) {
  const unsigned bits = value == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(value));
  const unsigned bytes = (bits + 7) / 8;
  *at = static_cast<char>(kind | bytes);
  std::memcpy(at + 1, &value, sizeof(value));
  return at + 1 + bytes;
}

// Copies 4 to 16 bytes as two words, which may overlap. Most texts are this short, and a memcpy of unknown size would
// be a function call.
template <class Word>
char* put_ends(char* at, const char* from, size_t size) {
  Word first, last;
  std::memcpy(&first, from, sizeof(Word));
  std::memcpy(&last, from + size - sizeof(Word), sizeof(Word));
  std::memcpy(at, &first, sizeof(Word));
  std::memcpy(at + size - sizeof(Word), &last, sizeof(Word));
  return at + size;
}

inline char* put_bytes(char* at, const char* from, size_t size) {
  if (size >= 8 && size <= 16) return put_ends<uint64_t>(at, from, size);
  if (size >= 4 && size < 8) return put_ends<uint32_t>(at, from, size);
  if (size > 0) std::memcpy(at, from, size);
  return at + size;
}

template <class T>
char* put_integer(char* at, unsigned kind, T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "graphcache: add the halves of a 128-bit integer one by one.");
  if constexpr (std::is_signed_v<T>) {
    const int64_t wide = static_cast<int64_t>(value);
    const uint64_t sign = static_cast<uint64_t>(wide >> 63);
    return put_number(at, kind + (sign & (kNegativeInteger - kInteger)), static_cast<uint64_t>(wide) ^ sign);
  } else {
    return put_number(at, kind, static_cast<uint64_t>(value));
  }
}

inline char* put_dim3(char* at, const dim3& value) {
  return put_number(put_number(put_number(at, kInteger, value.x), kInteger, value.y), kInteger, value.z);
}

// Whether T is a container whose elements become parts. The containers are listed, not recognised by data() and size():
// a vector in device memory also has these members, and must not be read on the host.
template <class T>
struct IsSequence : std::is_array<T> {};
template <class T, size_t n>
struct IsSequence<std::array<T, n>> : std::true_type {};
template <class T, class A>
struct IsSequence<std::vector<T, A>> : std::true_type {};
template <class T>
struct IsSequence<absl::Span<T>> : std::true_type {};
#ifdef __cpp_lib_span
template <class T, size_t n>
struct IsSequence<std::span<T, n>> : std::true_type {};
#endif

template <class T>
struct IsTuple : std::false_type {};
template <class... Ts>
struct IsTuple<std::tuple<Ts...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
#ifndef ABSL_USES_STD_OPTIONAL
template <class T>
struct IsOptional<absl::optional<T>> : std::true_type {};
#endif

template <class T>
struct IsCharArray : std::false_type {};
template <size_t n>
struct IsCharArray<char[n]> : std::true_type {};

// Converts to an enumeration and to nothing that this converts to.
template <class E>
struct Exactly {
  template <class T, class = std::enable_if_t<std::is_same_v<T, E>>>
  operator T() const;
};
template <class T>
using KeyProbe = std::conditional_t<std::is_enum_v<T>, Exactly<T>, T>;

template <class T, class = void>
struct HasGraphcacheKey : std::false_type {};
template <class T>
struct HasGraphcacheKey<
    T, std::void_t<decltype(graphcache_key(std::declval<Keyer&>(), std::declval<const KeyProbe<T>&>()))>>
    : std::true_type {};

template <class>
inline constexpr bool kNever = false;

}  // namespace graphcache::key_detail
