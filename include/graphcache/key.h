// Keys: which graph a run wants.
//
//   cache.run(graphcache::key("train_step", batch, grid, block), fn);
//
// A key is a list of discrete parts. Two keys are equal exactly if their parts are: every part is written down in a
// canonical form, the key keeps all of these bytes, and equality compares them. The hash is computed once, when the
// key is built, and only ever says "different". A key built outside a loop costs nothing inside it. The hash depends on
// a secret that each process draws at random (SipHash-1-3), so texts from outside may go into keys: nobody can prepare
// texts whose hashes collide.
//
// What a part can be
//   integers         compared by value: 1, 1u, size_t{1} and int8_t{1} are the same part; plain char is an integer
//   bool, enums      as themselves: true, 1 and an enumerator of value 1 are three different parts. The type of an
//                    enumerator is not written down: enumerators of equal value are the same part.
//   text             const char*, char arrays (up to the first NUL), std::string, std::string_view,
//                    absl::string_view and what converts to these, compared by content. A null const char* is a
//                    part of its own. A char* is refused: it may be a buffer; say which it is.
//   other pointers   compared by address: objects, device memory, functions, cudaStream_t, nullptr
//   dim3, LaunchConfig
//   of all these     std::optional, std::pair, std::tuple, std::array, C arrays, std::vector, std::span, absl::Span, in
//                    any depth. Elements are read on the host. Containers of equal elements are the same part.
//   your own types   with a function beside them, found by argument-dependent look-up, that names what matters:
//
//                      struct Shape { int rows, columns; char layout; };   // the padding never enters the key
//                      void graphcache_key(graphcache::Keyer& keyer, const Shape& shape) {
//                        keyer.add(shape.rows, shape.columns, shape.layout);
//                      }
//
//                    As with any overload, a derived class without its own is written down as its base.
//
// Floating-point values are refused at compile time: each new value would be a new graph. Pass such a value as a slot
// (graphcache::params), or make it discrete (Buckets, or a quantum of your choice).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
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

#include <absl/base/config.h>
#include <absl/base/optimization.h>
#include <absl/strings/string_view.h>
#include <absl/types/optional.h>
#include <absl/types/span.h>
#include <vector_types.h>

#include "graphcache/launch_config.h"

namespace graphcache {

class Keyer;

// A finished key. A regular value: copied, compared and hashed (Abseil's hash) like a string. Key() has no parts and
// equals key(). Keys of up to kInlineBytes canonical bytes allocate nothing; a longer one owns one heap block, which a
// move takes along, leaving an empty key. Safe to read from many threads.
class Key {
 public:
  static constexpr size_t kInlineBytes = 48;
  static constexpr size_t kLabelBytes = 32;

  Key() noexcept : inline_{} {}
  Key(const Key& other);
  Key(Key&& other) noexcept { take(other); }
  Key& operator=(const Key& other);
  Key& operator=(Key&& other) noexcept;
  ~Key() {
    if (!is_inline()) delete[] heap_;
  }

  // The canonical bytes. They are an encoding of this process and this version of the library: not for storage.
  const char* data() const { return is_inline() ? inline_ : heap_; }
  size_t size() const { return size_; }

  // Equal keys have equal hashes within a process. Other processes give other hashes, except to Key(): do not store or
  // send them.
  size_t hash() const { return hash_; }

  // For people: the first text of the key, at whatever depth, cut at kLabelBytes but never inside a UTF-8 sequence;
  // empty if the key has none. Points into this key.
  std::string_view label() const;

  // For people: every part, for example ("train_step", 8, {4, 1, 1}). A text of more than `max_bytes` bytes is cut
  // there, never inside a UTF-8 sequence, and "..." follows.
  std::string to_string(size_t max_bytes = SIZE_MAX) const;

  friend bool operator==(const Key& a, const Key& b) {
    if (a.hash_ != b.hash_ || a.size_ != b.size_) return false;
    // Inline keys are zero behind their bytes, so that this comparison has a fixed length.
    if (a.is_inline()) return std::memcmp(a.inline_, b.inline_, kInlineBytes) == 0;
    return std::memcmp(a.heap_, b.heap_, a.size_) == 0;
  }
  friend bool operator!=(const Key& a, const Key& b) { return !(a == b); }

  template <class H>
  friend H AbslHashValue(H state, const Key& key) {
    return H::combine(std::move(state), key.hash_);
  }

 private:
  friend class Keyer;
  friend class KeyTestPeer;

  // If `size` is at most kInlineBytes, there are kInlineBytes to read, zero from `size` on.
  Key(const char* bytes, size_t size);

  // Overwrites this key, whose block must have been given back. A block of `other` changes hands.
  void take(Key& other) noexcept;

  bool is_inline() const { return size_ <= kInlineBytes; }

  union {
    char inline_[kInlineBytes];
    char* heap_;
  };
  size_t size_ = 0;
  size_t hash_ = 0;
};

namespace key_detail {

// The encoding. Each part begins with a tag byte. For a number, the high half of the tag is its kind and the low half
// the count of bytes (0 to 8) that follow, little-endian, without leading zero bytes; a negative value v is written as
// ~v under the kind after its own. What follows the number:
//   kInteger, kEnum, kPointer   nothing: the number is the value or the address
//   kText                       as many bytes
//   kSequence, kTuple           as many parts
// A tag below 0x10 is a mark, which carries no number. What follows the mark:
//   kFalse, kTrue, kNullText, kNoValue   nothing: it is the whole part
//   kSomeValue                           the part that the optional holds
//   kDim3                                three integers
//   kLaunchConfig                        seven integers: grid, block, shared bytes
//   kBegin                               the parts that graphcache_key adds, then kEnd
// Every part thus tells where it ends: no encoding of a part is the beginning of another's, and lists of parts are
// equal exactly if their bytes are.
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
constexpr size_t kMaxNumberBytes = 9;  // tag included

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the encoding copies integers as they stand in memory");

// Both return the place after what they wrote. put_number always stores kMaxNumberBytes: those that are not part of the
// number are zero, and the next part overwrites them.
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

// The containers that a key accepts are listed, not recognised by data() and size(): a vector of device memory has
// these too, and must not be read here.
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

template <class T, class = void>
struct HasGraphcacheKey : std::false_type {};
template <class T>
struct HasGraphcacheKey<T, std::void_t<decltype(graphcache_key(std::declval<Keyer&>(), std::declval<const T&>()))>>
    : std::true_type {};

template <class>
inline constexpr bool kNever = false;

}  // namespace key_detail

// Writes parts down. `key` is the short form; a Keyer of one's own serves where the parts come from a loop, and a
// Keyer is what a graphcache_key is handed. For one thread at a time.
class Keyer {
 public:
  Keyer() = default;
  Keyer(const Keyer&) = delete;
  Keyer& operator=(const Keyer&) = delete;
  ~Keyer() {
    if (begin_ != buffer_) delete[] begin_;
  }

  // add(a, b) is the same as add(a).add(b). What a graphcache_key throws passes through.
  template <class... Ts>
  Keyer& add(const Ts&... parts) {
    (add_part(parts), ...);
    return *this;
  }

  // The key of the parts added so far.
  Key finish() && { return Key(begin_, static_cast<size_t>(at_ - begin_)); }

 private:
  template <class T>
  void add_part(const T& part);
  template <class T>
  void add_pointer(const T& part);
  template <class T>
  void add_sequence(const T& part);

  void add_mark(unsigned mark) { at_ = key_detail::put_mark(room(1), mark); }
  void add_number(unsigned kind, uint64_t value) {
    at_ = key_detail::put_number(room(key_detail::kMaxNumberBytes), kind, value);
  }
  void add_text(const char* text, size_t size) {
    char* at = key_detail::put_number(room(key_detail::kMaxNumberBytes + size), key_detail::kText, size);
    if (size > 0) std::memcpy(at, text, size);
    at_ = at + size;
  }

  // The place of the next part, with `bytes` to write on.
  char* room(size_t bytes) {
    if (ABSL_PREDICT_FALSE(static_cast<size_t>(end_ - at_) < bytes)) grow(bytes);
    return at_;
  }
  void grow(size_t bytes);

  // The first Key::kInlineBytes start as zero and stay so behind at_ (put_number), which is what Key asks for.
  static constexpr size_t kBufferBytes = 256;
  char buffer_[kBufferBytes];
  char* begin_ = buffer_;
  char* at_ = static_cast<char*>(std::memset(buffer_, 0, Key::kInlineBytes));
  char* end_ = buffer_ + kBufferBytes;
};

// The key of these parts.
template <class... Ts>
Key key(const Ts&... parts) {
  Keyer keyer;
  keyer.add(parts...);
  return std::move(keyer).finish();
}

template <class T>
void Keyer::add_part(const T& part) {
  using namespace key_detail;  // NOLINT(google-build-using-namespace): the tags and the traits
  if constexpr (std::is_floating_point_v<T>) {
    static_assert(kNever<T>,
                  "graphcache: a floating-point value cannot be part of a key, since each new value would be a new "
                  "graph. Either pass it as a slot (graphcache::params), so that it follows each run, or quantize it "
                  "(graphcache::Buckets, or an explicit quantum such as static_cast<int64_t>(x / 0.01)).");
  } else if constexpr (std::is_same_v<T, bool>) {
    add_mark(part ? kTrue : kFalse);
  } else if constexpr (std::is_integral_v<T>) {
    at_ = put_integer(room(kMaxNumberBytes), kInteger, part);
  } else if constexpr (HasGraphcacheKey<T>::value) {
    add_mark(kBegin);
    graphcache_key(*this, part);
    add_mark(kEnd);
  } else if constexpr (std::is_enum_v<T>) {
    at_ = put_integer(room(kMaxNumberBytes), kEnum, static_cast<std::underlying_type_t<T>>(part));
  } else if constexpr (std::is_pointer_v<T> || std::is_function_v<T> || std::is_null_pointer_v<T>) {
    add_pointer(part);
  } else if constexpr (IsCharArray<T>::value) {
    const void* nul = std::memchr(part, 0, sizeof(part));
    add_text(part, nul == nullptr ? sizeof(part) : static_cast<size_t>(static_cast<const char*>(nul) - part));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    const std::string_view text = part;
    add_text(text.data(), text.size());
  } else if constexpr (std::is_convertible_v<const T&, absl::string_view>) {
    const absl::string_view text = part;
    add_text(text.data(), text.size());
  } else if constexpr (std::is_same_v<T, dim3>) {
    at_ = put_dim3(put_mark(room(1 + 3 * kMaxNumberBytes), kDim3), part);
  } else if constexpr (std::is_same_v<T, LaunchConfig>) {
    char* at = put_mark(room(1 + 7 * kMaxNumberBytes), kLaunchConfig);
    at_ = put_number(put_dim3(put_dim3(at, part.grid), part.block), kInteger, part.shared_bytes);
  } else if constexpr (IsOptional<T>::value) {
    add_mark(part.has_value() ? kSomeValue : kNoValue);
    if (part.has_value()) add_part(*part);
  } else if constexpr (IsTuple<T>::value) {
    add_number(kTuple, std::tuple_size_v<T>);
    std::apply([this](const auto&... parts) { this->add(parts...); }, part);
  } else if constexpr (IsSequence<T>::value) {
    add_sequence(part);
  } else {
    static_assert(kNever<T>,
                  "graphcache: a value of this type cannot be part of a key. In the type's namespace, write "
                  "void graphcache_key(graphcache::Keyer&, const T&), and add there what tells which graph is wanted.");
  }
}

template <class T>
void Keyer::add_pointer(const T& part) {
  using namespace key_detail;  // NOLINT(google-build-using-namespace)
  if constexpr (std::is_same_v<T, const char*>) {
    if (part == nullptr) return add_mark(kNullText);
    add_text(part, std::strlen(part));
  } else if constexpr (std::is_same_v<T, char*>) {
    static_assert(kNever<T>,
                  "graphcache: a char* may be text or a buffer; pass static_cast<const char*>(p) to have the text in "
                  "the key, static_cast<const void*>(p) to have the address.");
  } else if constexpr (std::is_null_pointer_v<T>) {
    add_number(kPointer, 0);
  } else if constexpr (std::is_function_v<T>) {
    add_number(kPointer, reinterpret_cast<uintptr_t>(&part));
  } else {
    add_number(kPointer, reinterpret_cast<uintptr_t>(part));
  }
}

template <class T>
void Keyer::add_sequence(const T& part) {
  add_number(key_detail::kSequence, std::size(part));
  if constexpr (std::is_same_v<typename std::iterator_traits<decltype(std::begin(part))>::value_type, bool>) {
    for (const bool element : part) add_part(element);  // std::vector<bool> has no bool to refer to
  } else {
    for (const auto& element : part) add_part(element);
  }
}

// Sizes that many sizes are rounded up to, so that a varying size does not make every run a new key.
//
//   const graphcache::Buckets buckets{1, 2, 4, 8, 16};
//   cache.run(graphcache::key("decode", buckets.up(batch)), ...);    // 13 runs as 16
//   for (int64_t batch : buckets) run_once(batch);                   // no other key comes, up to 16
//
// The work must be padded to the bucket. Immutable; safe to use from many threads.
class Buckets {
 public:
  // In any order; duplicates and values below 1 are dropped. Without any value left, `up` changes nothing.
  Buckets(std::initializer_list<int64_t> values) : Buckets(std::vector<int64_t>(values)) {}
  explicit Buckets(std::vector<int64_t> values);

  // 1, 2, 4 and so on below `max`, then `max`: memory for `max` is enough for the bucket of every n up to `max`.
  static Buckets powers_of_two(int64_t max);
  // `step`, 2 * `step` and so on below `max`, then `max`. A step below 1 counts as 1.
  static Buckets every(int64_t step, int64_t max);

  // The smallest bucket that is not below n; above the largest, the next multiple of the largest (or n itself, where
  // that multiple is no int64_t).
  int64_t up(int64_t n) const;
  // The same for a floating-point value; NaN and values that are no int64_t count as the largest int64_t.
  template <class F, std::enable_if_t<std::is_floating_point_v<F>, int> = 0>
  int64_t up(F x) const {
    return up(ceiling(static_cast<double>(x)));
  }

  bool empty() const { return values_.empty(); }
  size_t size() const { return values_.size(); }
  // 0 if there is none.
  int64_t largest() const { return values_.empty() ? 0 : values_.back(); }

  // Ascending: what Cache::warm may be called for, one by one.
  const std::vector<int64_t>& values() const { return values_; }
  std::vector<int64_t>::const_iterator begin() const { return values_.begin(); }
  std::vector<int64_t>::const_iterator end() const { return values_.end(); }

 private:
  static int64_t ceiling(double x);

  std::vector<int64_t> values_;
};

}  // namespace graphcache
