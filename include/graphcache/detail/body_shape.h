// What a body of a conditional node takes in the place of slots.
#pragma once

#include <cstddef>
#include <type_traits>

#include "graphcache/arg.h"
#include "graphcache/launch_config.h"

namespace graphcache::detail {

template <class... A>
inline constexpr bool kNoSlots = (... && !kIsSlot<std::remove_cv_t<std::remove_reference_t<A>>>);

// Grid, block and dynamic shared memory of a launch in a body. None of them may be a slot.
struct BodyShape {
  template <class G, class B, class S = std::size_t>
  BodyShape(const G& grid, const B& block, const S& shared_bytes = S{}) : shape(make(grid, block, shared_bytes)) {}
  BodyShape(const LaunchConfig& config) : shape(config) {}  // NOLINT(google-explicit-constructor)

  LaunchShape shape;

 private:
  template <class G, class B, class S>
  static LaunchShape make(const G& grid, const B& block, const S& shared_bytes) {
    static_assert(
        kNoSlots<G, B, S>,
        "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded");
    if constexpr (kNoSlots<G, B, S>) return LaunchShape(grid, block, shared_bytes);
  }
};

}  // namespace graphcache::detail
