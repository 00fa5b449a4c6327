#include "graphcache/buckets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace graphcache {

Buckets::Buckets(std::vector<std::int64_t> values) : values_(std::move(values)) {
  std::sort(values_.begin(), values_.end());
  values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
  values_.erase(values_.begin(), std::lower_bound(values_.begin(), values_.end(), 1));
}

Buckets Buckets::powers_of_two(std::int64_t max) {
  std::vector<std::int64_t> values{max};
  for (std::uint64_t power = 1; max > 0 && power < static_cast<std::uint64_t>(max); power *= 2) {
    values.push_back(static_cast<std::int64_t>(power));
  }
  return Buckets(std::move(values));
}

Buckets Buckets::every(std::int64_t step, std::int64_t max) {
  step = std::max<std::int64_t>(step, 1);
  std::vector<std::int64_t> values{max};
  for (std::int64_t left = max; left > step; left -= step) values.push_back(max - left + step);
  return Buckets(std::move(values));
}

std::int64_t Buckets::up(std::int64_t n) const {
  const auto bucket = std::lower_bound(values_.begin(), values_.end(), n);
  if (bucket != values_.end()) return *bucket;
  if (values_.empty()) return n;
  const std::int64_t excess = n % largest();
  const std::int64_t missing = excess == 0 ? 0 : largest() - excess;
  return missing > std::numeric_limits<std::int64_t>::max() - n ? n : n + missing;
}

std::int64_t Buckets::ceiling(long double x) {
  constexpr long double kLimit = 9223372036854775808.0L;  // 2^63
  const long double whole = std::ceil(x);
  if (whole < -kLimit) return std::numeric_limits<std::int64_t>::min();
  return whole < kLimit ? static_cast<std::int64_t>(whole) : std::numeric_limits<std::int64_t>::max();
}

}  // namespace graphcache
