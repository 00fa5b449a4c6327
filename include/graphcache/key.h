// Key: names the graph that a run wants. key(parts...) makes one.
//
//   cache.run(graphcache::key("train_step", batch, grid, block), fn);
//
// Parts are integers, bools, enums, text, pointers, dim3, LaunchConfig, containers of these, and types of your own, but
// no floating-point values. The comment at key() lists them.
#pragma once

#include <absl/base/optimization.h>
#include <absl/strings/string_view.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
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

// One part of a finished key. Containers are flattened: their parts follow one another. A dim3 gives 3 integers, a
// LaunchConfig gives 7, and a type with a graphcache_key() gives the parts that this adds.
struct KeyPart {
  enum class Kind { kInteger, kBool, kEnum, kText, kAddress, kNullText, kNoValue };
  Kind kind = Kind::kInteger;
  // The value if `kind` is kInteger, kBool, kEnum or kAddress. Unsigned values above INT64_MAX are negative here.
  std::int64_t integer = 0;
  std::string text;  // The text if `kind` is kText.

  friend bool operator==(const KeyPart& a, const KeyPart& b) {
    return a.kind == b.kind && a.integer == b.integer && a.text == b.text;
  }
};

// A finished key. It is copied, compared and hashed (by std::hash and absl::Hash) like a string. Key() has no parts and
// equals key(). Any number of threads may read a key at once.
class Key {
 public:
  static constexpr size_t kInlineBytes = 48;
  static constexpr size_t kLabelBytes = 32;

  // A key of at most kInlineBytes canonical bytes does not allocate. A longer one owns one heap block, which moves with
  // it. A key that was moved from is empty.
  Key() noexcept : inline_{} {}
  Key(const Key& other) : Key(other.data(), other.size_, other.hash_) {}
  Key(Key&& other) noexcept : Key() { swap(other); }
  Key& operator=(Key other) noexcept {
    swap(other);
    return *this;
  }
  ~Key() {
    if (!is_inline()) delete[] heap_;
  }

  // The canonical bytes. Do not store them, as manifest.h does: only this version of the library reads them.
  const char* data() const { return is_inline() ? inline_ : heap_; }
  size_t size() const { return size_; }

  // Equal keys have equal hashes within a process. Do not store or send a hash: in another process the key has another
  // one. Only Key() has the same hash everywhere. The hash is computed once, when the key is built, so a key that is
  // built outside a loop costs nothing inside it. It is SipHash-1-3 with a secret that each process draws at random, so
  // parts may contain text from untrusted sources: nobody can prepare texts whose hashes collide.
  size_t hash() const { return hash_; }

  // The first text of the key, at any depth, for reports. It is cut at kLabelBytes bytes, never inside a UTF-8
  // sequence, and empty if the key contains no text. The view points into this key.
  std::string_view label() const;

  // All parts in readable form, for example ("train_step", 8, {4, 1, 1}). A text longer than `max_bytes` bytes is cut,
  // never inside a UTF-8 sequence, and "..." follows.
  std::string to_string(size_t max_bytes = SIZE_MAX) const;

  // The parts that the key was made from, in order.
  std::vector<KeyPart> parts() const;

  // Two keys are equal exactly if their parts are equal. The canonical bytes are compared, never the hash alone.
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
  friend struct KeyBytes;  // Used by the library's own code.

  // If `size` is at most kInlineBytes, `bytes` must have kInlineBytes readable bytes, which are zero from `size` on.
  Key(const char* bytes, size_t size);
  Key(const char* bytes, size_t size, size_t hash);
  void swap(Key& other) noexcept;

  bool is_inline() const { return size_ <= kInlineBytes; }

  union {
    char inline_[kInlineBytes];
    char* heap_;
  };
  size_t size_ = 0;
  size_t hash_ = 0;
};

// Builds a key part by part. Use it directly if the parts come from a loop; otherwise key() is shorter. Each
// graphcache_key() gets one as well. One thread at a time may use it.
class Keyer {
 public:
  Keyer() = default;
  Keyer(const Keyer&) = delete;
  Keyer& operator=(const Keyer&) = delete;
  ~Keyer() {
    if (begin_ != buffer_) delete[] begin_;
  }

  // Appends parts: add(a, b) is the same as add(a).add(b). Exceptions of a graphcache_key() pass through.
  template <class... Ts>
  Keyer& add(const Ts&... parts) {
    (add_part(parts), ...);
    return *this;
  }

  // Returns the key of the parts added so far.
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

  // Returns the place of the next part, where at least `bytes` bytes can be written.
  char* room(size_t bytes) {
    if (ABSL_PREDICT_FALSE(static_cast<size_t>(end_ - at_) < bytes)) grow(bytes);
    return at_;
  }
  void grow(size_t bytes);

  // The first Key::kInlineBytes are zero at the start, and stay zero behind at_ (put_number). Key's constructor needs
  // that.
  static constexpr size_t kBufferBytes = 256;
  char buffer_[kBufferBytes];
  char* begin_ = buffer_;
  char* at_ = static_cast<char*>(std::memset(buffer_, 0, Key::kInlineBytes));
  char* end_ = buffer_ + kBufferBytes;
};

// Returns the key of these parts.
//
//   integers         Compared by value, whatever their type. Plain char is an integer.
//   bool, enums      A bool, an enumerator and an integer always differ. The type of an enumerator does not count:
//                    enumerators of different types are the same part if their values are equal.
//   text             const char*, char arrays (up to the first NUL), std::string, std::string_view, absl::string_view,
//                    and types that convert to these. A null const char* is a part of its own. A char* does not
//                    compile, because it may be text or a buffer: cast it to const char* or const void*.
//   other pointers   Objects, device memory, functions, cudaStream_t, nullptr. Compared by address.
//   dim3, LaunchConfig
//                    Compared by their members.
//   containers       std::optional, std::pair, std::tuple, std::array, C arrays, std::vector, std::span and absl::Span,
//                    nested to any depth. Elements are read on the host. Sequences of equal elements are equal parts,
//                    and so are pairs and tuples.
//   your own types   Need a function in their namespace that adds everything that decides which graph is wanted:
//
//                      struct Shape { int rows, columns; char layout; };   // the padding never enters the key
//                      void graphcache_key(graphcache::Keyer& keyer, const Shape& shape) {
//                        keyer.add(shape.rows, shape.columns, shape.layout);
//                      }
//
//                    As with any overload, a derived class without its own function uses that of its base class.
//
// A floating-point value does not compile, because each new value would mean a new graph. Pass it as a slot
// (graphcache::params), or make it discrete by Buckets (buckets.h) or a quantum of your choice.
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
    static_assert(
        kNever<T>,
        "graphcache: a floating-point value cannot be part of a key, since each new value would be a new "
        "graph. Either pass it as a value (graphcache::values) or a slot, so that it follows each run, or quantize it "
        "(graphcache::Buckets of graphcache/buckets.h, or an explicit quantum such as static_cast<int64_t>(x "
        "/ 0.01)).");
  } else if constexpr (std::is_same_v<T, bool>) {
    add_mark(part ? kTrue : kFalse);
  } else if constexpr (std::is_integral_v<T>) {
    at_ = put_integer(room(kMaxNumberBytes), kInteger, part);
  } else if constexpr (std::is_pointer_v<T> || std::is_function_v<T> || std::is_null_pointer_v<T>) {
    add_pointer(part);
  } else if constexpr (HasGraphcacheKey<T>::value) {
    add_mark(kBegin);
    graphcache_key(*this, part);
    add_mark(kEnd);
  } else if constexpr (std::is_enum_v<T>) {
    at_ = put_integer(room(kMaxNumberBytes), kEnum, static_cast<std::underlying_type_t<T>>(part));
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
                  "void graphcache_key(graphcache::Keyer&, const T&), and add there everything that decides which "
                  "graph is wanted.");
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

template <>
struct std::hash<graphcache::Key> {
  std::size_t operator()(const graphcache::Key& key) const noexcept { return key.hash(); }
};
