// Sums of counts by outcome, and numbers as texts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>

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

// With this many digits behind the point. Not by absl::StrFormat, which ends the process if memory runs out.
inline std::string fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

}  // namespace graphcache
