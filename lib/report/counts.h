// Sums of counts by outcome.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "graphcache/stats.h"

namespace graphcache {

inline std::uint64_t runs_of(const std::array<std::uint64_t, kOutcomeCount>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}
inline std::uint64_t hits_of(const std::array<std::uint64_t, kOutcomeCount>& counts) {
  std::uint64_t hits = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) hits += is_hit(static_cast<Outcome>(i)) ? counts[i] : 0;
  return hits;
}

}  // namespace graphcache
