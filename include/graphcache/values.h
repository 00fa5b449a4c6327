// values(): floating-point numbers and pointers that change from run to run, and that `fn` passes on as it always did.
//
//   cache.run(key, stream, graphcache::values(lr, data), [&](cudaStream_t s, float lr, const float* data) {
//     forward<<<grid, block, 0, s>>>(weights, data, hidden);
//     sgd<<<grid, block, 0, s>>>(weights, gradient, lr);
//   });
//
// The cache finds out by itself which arguments of the graph hold them, libraries' kernels included, and patches those.
#pragma once

#include <absl/container/inlined_vector.h>
#include <absl/types/span.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "graphcache/detail/advice.h"
#include "graphcache/detail/identity.h"
#include "graphcache/params.h"

namespace graphcache {

class ValueList;

// The values of one run, made by values().
//
// The contract. `fn` gets the values behind its stream or recorder. It passes them on as they are, a pointer also with
// a constant offset inside its allocation, and only as arguments of kernels (also as members of structures that are
// passed by value), copies and sets. A float may become a double there, and a double or a half a float. `fn` does not
// decide by them, compute with them, or store them where the work reads them later. Verify mode (Options::verify_every)
// finds what does not keep to it. What decides about the work, such as an integer, is part of the key or a slot
// (params.h).
//
// The first run of a key captures. So does a run in which a value has changed that is not found yet, and the new graph
// is compared with the one before. A value is found after two changes in which the arguments that held it, or an
// address at one distance from it, went with it, and nothing else changed that these values do not explain. From then
// on it is patched like a slot. So values that change in each run are captured three or four times; more often if they
// always change together in ways that leave open which argument is whose. A value that cannot be found is captured at
// each change: the result is right, and explain() says why.
//
// A value that is null, 0 or 1 makes another entry of the key, because libraries choose other kernels by that. So do
// the low 8 bits of a pointer, the kind of its memory, and which pointers are equal. A key has at most 16 such entries
// and one for all others, whose changes are always captured. A run asks the driver about the memory of each pointer
// that has changed, and of each that is not to memory of the cache's device: some 0.1 us.
template <class... Ts>
class Values {
  GRAPHCACHE_ASSERT_ARGUMENTS(
      "of values() must be a floating-point number or a pointer to an object: put what decides about the work, such as "
      "an integer, into the key, or make it a slot by params()",
      detail::kIsValue<Ts>...);
  static_assert(sizeof...(Ts) <= 64, "graphcache: values() takes at most 64 values");

 public:
  explicit Values(const Ts&... values) : bytes_(values...), identity_(detail::identity_of(values...)) {}

  const unsigned char* data() const { return bytes_.data(); }
  static constexpr std::size_t size() { return Params<Ts...>::size(); }
  // A number that is equal for values that are null, 0, 1, equally aligned and equal to one another alike. Never 0.
  std::uint64_t identity() const { return identity_; }
  const ValueList* list() const { return nullptr; }

 private:
  Params<Ts...> bytes_;
  std::uint64_t identity_;
};

// Values whose number and types are known only when the program runs, such as the arguments of an interpreter:
// values() takes the list in their place. It must live until the run returns. `fn` gets a ListedValues behind its
// stream or recorder, and must take all values from there: it is also recorded with those of an earlier run, to see
// what depends on them. Their memory may be gone then, so it must not be read.
class ListedValues {
 public:
  explicit ListedValues(const unsigned char* bytes) : bytes_(bytes) {}
  // Value i of the list, which is one of these.
  void* pointer(std::size_t i) const { return get<void*>(i); }
  double number(std::size_t i) const { return get<double>(i); }

 private:
  template <class T>
  T get(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_ + i * sizeof value, sizeof value);
    return value;
  }
  const unsigned char* bytes_;
};
class ValueList {
 public:
  static constexpr std::size_t kMost = 64;  // REQUIRES: no more values are added.

  void add(double number) { add(detail::place_of_value<double>(0), number, {}); }
  // `fn` may pass on addresses in these bytes, at one distance from the pointer. REQUIRES: memory of the device.
  void add(const void* pointer, const void* begin, std::size_t bytes) {
    add(detail::place_of_value<const void*>(0), pointer, {begin, bytes});
  }
  std::size_t size() const { return words_.size(); }
  void clear() {
    words_.clear();
    places_.clear();
    memory_.clear();
    identity_ = seen_ = 0;
  }

  // Not for users.
  struct Memory {
    const void* begin = nullptr;
    std::size_t bytes = 0;
  };
  const unsigned char* data() const { return reinterpret_cast<const unsigned char*>(words_.data()); }
  std::uint64_t identity() const { return detail::mix(identity_, size()) | 1; }
  absl::Span<const detail::ValuePlace> places() const { return places_; }
  absl::Span<const Memory> memory() const { return memory_; }

 private:
  template <class T>
  void add(detail::ValuePlace place, T value, Memory memory) {
    static_assert(sizeof value == sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    std::size_t equal = size();  // The first value that is the same address.
    const std::uint64_t bit = std::uint64_t{1} << (detail::mix(0, word) >> 58);
    if (place.is_pointer && (seen_ & bit) != 0) {
      for (equal = 0; equal < size() && !(places_[equal].is_pointer && words_[equal] == word);) ++equal;
    }
    seen_ |= bit;
    identity_ = detail::mix(identity_, detail::kind_of_value(value) << 16 | equal);
    place.offset = size() * sizeof word;
    words_.push_back(word);
    places_.push_back(place);
    memory_.push_back(memory);
  }

  static constexpr std::size_t kUsual = 8;
  absl::InlinedVector<std::uint64_t, kUsual> words_;
  absl::InlinedVector<detail::ValuePlace, kUsual> places_;
  absl::InlinedVector<Memory, kUsual> memory_;
  std::uint64_t identity_ = 0;
  std::uint64_t seen_ = 0;  // A bit for each hash of an address.
};

template <>
class Values<ValueList> {
 public:
  explicit Values(const ValueList& list) : list_(&list) {}

  const unsigned char* data() const { return list_->data(); }
  std::size_t size() const { return list_->size() * sizeof(std::uint64_t); }
  std::uint64_t identity() const { return list_->identity(); }
  const ValueList* list() const { return list_; }

 private:
  const ValueList* list_;
};

// Copies the values of this run. An array is taken as a pointer to it.
template <class... Ts>
Values<std::decay_t<const Ts&>...> values(const Ts&... values) {
  return Values<std::decay_t<const Ts&>...>(values...);
}
inline Values<ValueList> values(const ValueList& list) { return Values<ValueList>(list); }
Values<ValueList> values(ValueList&&) = delete;

}  // namespace graphcache
