// Params and Slot: values that change from run to run without changing the graph, such as a learning rate, a pointer or
// a grid size.
//
//   cache.run(key, stream, graphcache::params(learning_rate, data),
//             [&](graphcache::Recorder& rec, graphcache::Slot<float> lr, graphcache::Slot<const float*> batch) {
//               rec.launch(sgd, {grid, block}, weights, batch, lr);
//             });
//
// params() holds the values of this run. `fn` gets one Slot for each, in the same order, and passes it to the recorder
// in the place of the value. `fn` is called once; each later run patches its own values into the nodes that use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "graphcache/detail/advice.h"
#include "graphcache/detail/values.h"

namespace graphcache {

class Recorder;

// Stands for one value that each run replaces. It is valid only during the call of `fn` that received it; the recorder
// of another run reports an error. Slots are copied, assigned and swapped like values. A slot holds no value and does
// not convert to T. So passing it to <<<>>>, which would record the present value for all runs, does not compile.
template <class T>
class Slot : public detail::a_slot_has_no_value_pass_it_to_rec_launch_or_pass_a_computed_result_to_params<T> {
 public:
  using value_type = T;

 private:
  friend struct detail::SlotAccess;
  Slot(std::uint64_t recording, std::uint32_t offset) : recording_(recording), offset_(offset) {}
  std::uint64_t recording_;  // Identifies the call of `fn` that the slot belongs to.
  std::uint32_t offset_;     // The offset of the value in Params, in bytes.
};

// The values of one run, made by params().
template <class... Ts>
class Params {
  GRAPHCACHE_ASSERT_ARGUMENTS("of params() must be trivially copyable: its bytes are compared and patched",
                              std::is_trivially_copyable_v<Ts>...);

 public:
  explicit Params(const Ts&... values) {
    // Bytes between values stay zero, so that equal values have equal bytes. Padding inside a value is copied as it is;
    // if only padding differs, the node is patched although its value is the same.
    [[maybe_unused]] std::size_t index = 0;
    (std::memcpy(bytes_ + offset(index++), &values, sizeof(Ts)), ...);
  }

  const unsigned char* data() const { return bytes_; }
  static constexpr std::size_t size() { return detail::value_offset<Ts...>(sizeof...(Ts)); }
  static constexpr std::size_t offset(std::size_t index) { return detail::value_offset<Ts...>(index); }

 private:
  alignas(std::max_align_t) unsigned char bytes_[detail::value_offset<Ts...>(sizeof...(Ts)) + 1] = {};
};

// Copies the values of this run. Each must be trivially copyable, because later runs compare and patch its bytes. An
// array or a function is taken as a pointer to it. Pass a T* if the address changes from run to run.
template <class... Ts>
Params<std::decay_t<const Ts&>...> params(const Ts&... values) {
  return Params<std::decay_t<const Ts&>...>(values...);
}

}  // namespace graphcache
