// Values that change from run to run without changing the work's shape: a learning rate, a pointer, a grid size.
//
//   cache.run(key, stream, graphcache::params(learning_rate, data),
//             [&](graphcache::Recorder& rec, graphcache::Slot<float> lr, graphcache::Slot<const float*> batch) {
//               rec.launch(sgd, {grid, block}, weights, batch, lr);
//             });
//
// `params` carries this run's values; `fn` gets a Slot for each, in the same order, and passes it to the recorder where
// the value is wanted. `fn` is called once; every later run patches its own values into the nodes that take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "graphcache/detail/values.h"

namespace graphcache {

class Recorder;

// The place of one value that follows each run. Valid only inside the call of `fn` that it was made for: a recorder of
// another run refuses it by an error of that run. It holds no value and does not convert to T, so that a changing value
// cannot be baked into a graph by passing it to <<<>>>.
template <class T>
class Slot {
 public:
  using value_type = T;

 private:
  friend struct detail::SlotAccess;
  Slot(std::uint64_t recording, std::uint32_t offset) : recording_(recording), offset_(offset) {}
  std::uint64_t recording_;  // Which call of `fn` it belongs to.
  std::uint32_t offset_;     // Where Params keeps the value.
};

// The values of one run, as bytes, in order. Made by params().
template <class... Ts>
class Params {
  static_assert((... && std::is_trivially_copyable_v<Ts>),
                "graphcache: a value of params must be trivially copyable, as a kernel's argument is");

 public:
  explicit Params(const Ts&... values) {
    // Bytes between values stay zero, so that runs of equal values have equal bytes. Padding inside a value is copied
    // as it is: if it differs, its node is patched in vain.
    [[maybe_unused]] std::size_t index = 0;
    (std::memcpy(bytes_ + offset(index++), &values, sizeof(Ts)), ...);
  }

  const unsigned char* data() const { return bytes_; }
  static constexpr std::size_t size() { return detail::value_offset<Ts...>(sizeof...(Ts)); }
  static constexpr std::size_t offset(std::size_t index) { return detail::value_offset<Ts...>(index); }

 private:
  alignas(std::max_align_t) unsigned char bytes_[detail::value_offset<Ts...>(sizeof...(Ts)) + 1] = {};
};

// This run's values, copied. Arrays and functions decay to pointers; pass T* itself where the pointer changes.
template <class... Ts>
Params<std::decay_t<Ts>...> params(const Ts&... values) {
  return Params<std::decay_t<Ts>...>(values...);
}

}  // namespace graphcache
