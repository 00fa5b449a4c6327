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
// (graphcache::params), or make it discrete (Buckets of graphcache/buckets.h, or a quantum of your choice).
#pragma once

#include <absl/base/optimization.h>
#include <absl/strings/string_view.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/detail/key_encoding.h"
#include "graphcache/launch_config.h"

namespace graphcache {

class Keyer;

// One part of a finished key. Parts of containers, dim3 (3 integers), LaunchConfig (7) and a graphcache_key stand one
// after the other, without the container.
struct KeyPart {
  enum class Kind { kInteger, kBool, kEnum, kText, kAddress, kNullText, kNoValue };
  Kind kind = Kind::kInteger;
  // Of kInteger, kBool, kEnum and kAddress. An unsigned one above the largest std::int64_t is negative here.
  std::int64_t integer = 0;
  std::string text;  // Of kText.

  friend bool operator==(const KeyPart& a, const KeyPart& b) {
    return a.kind == b.kind && a.integer == b.integer && a.text == b.text;
  }
};

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

  // What it was made from, in order.
  std::vector<KeyPart> parts() const;

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
  friend struct KeyBytes;  // Of the library itself.

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
    at_ = key_detail::put_bytes(at, text, size);
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
                  "(graphcache::Buckets of graphcache/buckets.h, or an explicit quantum such as static_cast<int64_t>(x "
                  "/ 0.01)).");
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

}  // namespace graphcache
