// Buckets: round many sizes up to a few, so that a varying size does not make every run a new key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

namespace graphcache {

// A list of sizes to round up to.
//
//   const graphcache::Buckets buckets{1, 2, 4, 8, 16};
//   cache.run(graphcache::key("decode", buckets.up(batch)), ...);    // a batch of 13 runs as 16
//   for (std::int64_t batch : buckets) run_once(batch);              // makes all keys for batches up to 16
//
// `fn` must do the work of the bucket's size, so pad the data. fit_buckets() (advice.h) fits them to known sizes.
// Buckets never change, so they are thread-safe.
class Buckets {
 public:
  // The values may be in any order. Duplicates and values below 1 are dropped. If no value is left, up() returns its
  // argument.
  Buckets(std::initializer_list<std::int64_t> values) : Buckets(std::vector<std::int64_t>(values)) {}
  explicit Buckets(std::vector<std::int64_t> values);

  // The powers of two below `max`, then `max`. So memory for `max` suffices for the bucket of every size up to `max`.
  static Buckets powers_of_two(std::int64_t max);
  // The multiples of `step` below `max`, then `max`. A step below 1 counts as 1.
  static Buckets every(std::int64_t step, std::int64_t max);

  // Returns the smallest bucket that is at least n. Above the largest bucket, returns the next multiple of the largest
  // one, or n itself if that multiple does not fit a std::int64_t.
  std::int64_t up(std::int64_t n) const;
  // The same for a floating-point value. NaN and values above the range of std::int64_t count as the largest
  // std::int64_t, and values below it as the smallest.
  template <class F, std::enable_if_t<std::is_floating_point_v<F>, int> = 0>
  std::int64_t up(F x) const {
    return up(ceiling(static_cast<long double>(x)));
  }

  bool empty() const { return values_.empty(); }
  std::size_t size() const { return values_.size(); }
  // The largest bucket, or 0 if there is none.
  std::int64_t largest() const { return values_.empty() ? 0 : values_.back(); }

  // The buckets in ascending order, for example to call Cache::warm() for each.
  const std::vector<std::int64_t>& values() const { return values_; }
  std::vector<std::int64_t>::const_iterator begin() const { return values_.begin(); }
  std::vector<std::int64_t>::const_iterator end() const { return values_.end(); }

 private:
  static std::int64_t ceiling(long double x);

  std::vector<std::int64_t> values_;
};

}  // namespace graphcache
