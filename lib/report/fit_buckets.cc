#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "graphcache/advice.h"
#include "graphcache/buckets.h"

namespace graphcache {

// Dynamic programming over the sizes in ascending order. The cheapest way to cover the first i sizes with some number
// of buckets is a bucket that ends at size i, after the cheapest way to cover the first j sizes with one bucket less.
Buckets fit_buckets(const std::vector<std::pair<std::int64_t, std::uint64_t>>& sizes, std::size_t most) {
  constexpr std::size_t kMostCandidates = 512;
  std::map<std::int64_t, double> counts;
  for (const auto& [size, count] : sizes) {
    if (size >= 1) counts[size] += static_cast<double>(count);
  }
  if (counts.empty() || most == 0) return Buckets(std::vector<std::int64_t>());
  // Neighbouring sizes count as the largest of them.
  const std::size_t candidates = std::min(counts.size(), kMostCandidates);
  std::vector<std::int64_t> values;
  std::vector<double> before{0};  // How often one of the first i sizes occurs.
  std::size_t seen = 0;
  double sum = 0;
  for (const auto& [size, count] : counts) {
    sum += count;
    if (++seen * candidates / counts.size() == values.size()) continue;
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

}  // namespace graphcache
