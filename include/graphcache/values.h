// values(): floating-point numbers and pointers that change from run to run, and that `fn` passes on as it always did.
//
//   cache.run(key, stream, graphcache::values(lr, data), [&](cudaStream_t s, float lr, const float* data) {
//     forward<<<grid, block, 0, s>>>(weights, data, hidden);
//     sgd<<<grid, block, 0, s>>>(weights, gradient, lr);
//   });
//
// The cache finds out by itself which arguments of the graph hold them, libraries' kernels included, and patches those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "graphcache/detail/advice.h"
#include "graphcache/detail/identity.h"
#include "graphcache/params.h"

namespace graphcache {

// The values of one run, made by values().
//
// The contract. `fn` gets the values behind its stream or recorder. It passes them on as they are, a pointer also with a
// constant offset inside its allocation, and only as arguments of kernels (also as members of structures that are
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
// and one for all others, whose changes are always captured. A run asks the driver about the memory of each pointer that
// has changed, and of each that is not to memory of the cache's device: some 0.1 us.
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

 private:
  Params<Ts...> bytes_;
  std::uint64_t identity_;
};

// Copies the values of this run. An array is taken as a pointer to it.
template <class... Ts>
Values<std::decay_t<const Ts&>...> values(const Ts&... values) {
  return Values<std::decay_t<const Ts&>...>(values...);
}

}  // namespace graphcache
