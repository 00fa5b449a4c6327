// Buckets: few sizes for many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

namespace graphcache {

// Sizes that many sizes are rounded up to, so that a varying size does not make every run a new key.
//
//   const graphcache::Buckets buckets{1, 2, 4, 8, 16};
//   cache.run(graphcache::key("decode", buckets.up(batch)), ...);    // 13 runs as 16
//   for (std::int64_t batch : buckets) run_once(batch);                   // no other key comes, up to 16
//
// The work must be padded to the bucket. Immutable; safe to use from many threads.
class Buckets {
 public:
  // In any order; duplicates and values below 1 are dropped. Without any value left, `up` changes nothing.
  Buckets(std::initializer_list<std::int64_t> values) : Buckets(std::vector<std::int64_t>(values)) {}
  explicit Buckets(std::vector<std::int64_t> values);

  // 1, 2, 4 and so on below `max`, then `max`: memory for `max` is enough for the bucket of every n up to `max`.
  static Buckets powers_of_two(std::int64_t max);
  // `step`, 2 * `step` and so on below `max`, then `max`. A step below 1 counts as 1.
  static Buckets every(std::int64_t step, std::int64_t max);
  // At most `most` buckets for sizes that are known, each with how often it comes: those that pad least, summed over
  // all. Sizes below 1 are left out. Of more than 512 sizes, every so many-th one may become a bucket. Throws
  // std::bad_alloc.
  static Buckets fit(const std::vector<std::pair<std::int64_t, std::uint64_t>>& sizes, std::size_t most);

  // The smallest bucket that is not below n; above the largest, the next multiple of the largest (or n itself, where
  // that multiple is no std::int64_t).
  std::int64_t up(std::int64_t n) const;
  // The same for a floating-point value; NaN and values that are no std::int64_t count as the largest std::int64_t.
  template <class F, std::enable_if_t<std::is_floating_point_v<F>, int> = 0>
  std::int64_t up(F x) const {
    return up(ceiling(static_cast<double>(x)));
  }

  bool empty() const { return values_.empty(); }
  std::size_t size() const { return values_.size(); }
  // 0 if there is none.
  std::int64_t largest() const { return values_.empty() ? 0 : values_.back(); }

  // Ascending: what Cache::warm may be called for, one by one.
  const std::vector<std::int64_t>& values() const { return values_; }
  std::vector<std::int64_t>::const_iterator begin() const { return values_.begin(); }
  std::vector<std::int64_t>::const_iterator end() const { return values_.end(); }

 private:
  static std::int64_t ceiling(double x);

  std::vector<std::int64_t> values_;
};

}  // namespace graphcache
