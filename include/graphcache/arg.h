// Arg and LaunchShape: arguments of calls of the recorder. Each is a value or a slot. Programs pass either, and it
// converts.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "graphcache/detail/argument.h"
#include "graphcache/launch_config.h"
#include "graphcache/params.h"

namespace graphcache {

// An argument of type T. It is made from a value that converts to T, or from a slot of a type that converts to T. T may
// be every type that a kernel takes by value. The argument holds the T, which is destroyed with it.
template <class T>
class Arg {
  static_assert(std::is_object_v<T>, "graphcache: an argument is a value, not a reference");
  template <class U>
  using Bare = std::remove_cv_t<std::remove_reference_t<U>>;

 public:
  template <class U,
            std::enable_if_t<!detail::kIsSlot<Bare<U>> && !std::is_same_v<Bare<U>, Arg> && std::is_convertible_v<U, T>,
                             int> = 0>
  Arg(U&& value)  // NOLINT(google-explicit-constructor): arguments are passed as they are to a kernel.
      : constant_(std::in_place, std::in_place, std::forward<U>(value)) {}

  template <class U, std::enable_if_t<std::is_convertible_v<U, T>, int> = 0>
  Arg(Slot<U> slot)  // NOLINT(google-explicit-constructor)
      : recording_(detail::SlotAccess::recording(slot)), offset_(detail::SlotAccess::offset(slot)) {
    constexpr bool same_bytes = std::is_same_v<U, T> || detail::kSamePointerBytes<U, T>;
    if constexpr (!same_bytes) {
      static_assert(sizeof(T) <= detail::kMaxConvertedBytes,
                    "graphcache: a slot of a large structure must be of the parameter's own type");
      convert_ = &detail::convert<U, T>;
    }
  }

  detail::ArgView view() const {
    return {constant_ ? std::addressof(constant_->value) : nullptr, sizeof(T), offset_, recording_, convert_};
  }

 private:
  // Copies or converts a value as the call of a function with a parameter of type T does.
  struct Constant {
    template <class U>
    Constant(std::in_place_t, U&& from) : value(detail::implicitly<T>(std::forward<U>(from))) {
      detail::clear_padding(&value);
    }
    T value;
  };
  std::optional<Constant> constant_;
  std::uint64_t recording_ = 0;
  std::uint32_t offset_ = 0;
  detail::Convert convert_ = nullptr;
};

namespace detail {
// Whether a kernel's parameter of type P takes an argument of type A.
enum class Fit { kFits, kReference, kNoSlot, kNoConversion };

template <class T>
inline constexpr bool kIsTrivialSlot = true;
template <class T>
inline constexpr bool kIsTrivialSlot<Slot<T>> = std::is_trivially_copyable_v<T>;

template <class P, class A>
constexpr Fit fit() {
  using Bare = std::remove_cv_t<std::remove_reference_t<A>>;
  if constexpr (std::is_reference_v<P>) {
    return Fit::kReference;
  } else if constexpr (!kIsTrivialSlot<Bare>) {
    return Fit::kNoSlot;
  } else if constexpr (!std::is_constructible_v<Arg<std::remove_cv_t<P>>, A>) {
    return Fit::kNoConversion;
  } else {
    return kIsSlot<Bare> && !std::is_trivially_destructible_v<P> ? Fit::kNoSlot : Fit::kFits;
  }
}
template <class P, class A>
inline constexpr Fit kFit = fit<P, A>();
}  // namespace detail

// Grid, block and dynamic shared memory of a launch. Each is a value or a slot. Grid and block accept every type that
// converts to dim3.
struct LaunchShape {
  // NOLINTNEXTLINE(google-explicit-constructor): so that a launch is written rec.launch(kernel, {grid, block}, ...).
  LaunchShape(Arg<dim3> grid_size, Arg<dim3> block_size, Arg<std::size_t> dynamic_shared_bytes = std::size_t{0})
      : grid(grid_size), block(block_size), shared_bytes(dynamic_shared_bytes) {}
  LaunchShape(const LaunchConfig& config)  // NOLINT(google-explicit-constructor)
      : grid(config.grid), block(config.block), shared_bytes(config.shared_bytes) {}

  Arg<dim3> grid;                 // The grid's size in blocks. Every dimension is at least 1.
  Arg<dim3> block;                // The block's size in threads.
  Arg<std::size_t> shared_bytes;  // Dynamic shared memory for each block.
};

}  // namespace graphcache
