#include "graphcache/buckets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
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
  for (std::int64_t value = step; value < max; value += step) {
    values.push_back(value);
    if (value > max - step) break;  // the next one may overflow
  }
  return Buckets(std::move(values));
}

// Dynamic programming over the sizes in ascending order. The cheapest way to cover the first i sizes with some number
// of buckets is a bucket that ends at size i, after the cheapest way to cover the first j sizes with one bucket less.
Buckets Buckets::fit(const std::vector<std::pair<std::int64_t, std::uint64_t>>& sizes, std::size_t most) {
  constexpr std::size_t kMostCandidates = 512;
  std::map<std::int64_t, double> counts;
  for (const auto& [size, count] : sizes) {
    if (size >= 1) counts[size] += static_cast<double>(count);
  }
  if (counts.empty() || most == 0) return Buckets(std::vector<std::int64_t>());
  // Neighbouring sizes count as the largest of them.
  const std::size_t each = (counts.size() + kMostCandidates - 1) / kMostCandidates;
  std::vector<std::int64_t> values;
  std::vector<double> before{0};  // How often one of the first i sizes occurs.
  std::size_t left = counts.size();
  double sum = 0;
  for (const auto& [size, count] : counts) {
    sum += count;
    if (--left % each != 0) continue;
    values.push_back(size);
    before.push_back(sum);
  }
  const std::size_t n = values.size();
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // Sum of the padded sizes, with as many buckets as there were rounds.
  std::vector<double> cost(n + 1, kNone);
  cost[0] = 0;
  std::vector<std::vector<std::size_t>> from;  // The best j, by round and i.
  for (std::size_t round = 0; round < std::min(most, n); ++round) {
    std::vector<double> next(n + 1, kNone);
    from.emplace_back(n + 1, 0);
    for (std::size_t i = 1; i <= n; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const double with = cost[j] + static_cast<double>(values[i - 1]) * (before[i] - before[j]);
        if (with >= next[i]) continue;
        next[i] = with;
        from.back()[i] = j;
      }
    }
    cost = std::move(next);
  }
  std::vector<std::int64_t> buckets;
  std::size_t i = n;
  for (auto round = from.rbegin(); round != from.rend() && i > 0; ++round) {
    buckets.push_back(values[i - 1]);
    i = (*round)[i];
  }
  return Buckets(std::move(buckets));
}

std::int64_t Buckets::up(std::int64_t n) const {
  const auto bucket = std::lower_bound(values_.begin(), values_.end(), n);
  if (bucket != values_.end()) return *bucket;
  if (values_.empty()) return n;
  const std::int64_t excess = n % largest();
  const std::int64_t missing = excess == 0 ? 0 : largest() - excess;
  return missing > std::numeric_limits<std::int64_t>::max() - n ? n : n + missing;
}

std::int64_t Buckets::ceiling(double x) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  const double whole = std::ceil(x);
  if (whole < -kLimit) return std::numeric_limits<std::int64_t>::min();
  return whole < kLimit ? static_cast<std::int64_t>(whole) : std::numeric_limits<std::int64_t>::max();
}

}  // namespace graphcache
