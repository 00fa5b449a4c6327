// Sizes rounded up to buckets.
#include "graphcache/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "graphcache/advice.h"

namespace graphcache {
namespace {

TEST(BucketsTest, UpIsTheSmallestBucketThatIsNotBelow) {
  const Buckets buckets{1, 2, 4, 8, 16};
  EXPECT_EQ(buckets.up(13), 16);
  EXPECT_EQ(buckets.up(16), 16);
  EXPECT_EQ(buckets.up(8), 8);
  EXPECT_EQ(buckets.up(9), 16);
  EXPECT_EQ(buckets.up(3), 4);
  EXPECT_EQ(buckets.up(size_t{3}), 4);
}

TEST(BucketsTest, BelowTheSmallestIsTheSmallest) {
  const Buckets buckets{4, 8};
  for (const int64_t n : {int64_t{4}, int64_t{1}, int64_t{0}, int64_t{-5}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(buckets.up(n), 4);
  }
}

TEST(BucketsTest, AboveTheLargestAreItsMultiplesUnlessTheyAreNoIntegers) {
  const Buckets buckets{3, 10};
  EXPECT_EQ(buckets.up(11), 20);
  EXPECT_EQ(buckets.up(20), 20);
  EXPECT_EQ(buckets.up(21), 30);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Buckets{10}.up(most), most);
  EXPECT_EQ(Buckets{10}.up(most - 7), most - 7);  // which is a multiple of 10
  EXPECT_EQ(Buckets{10}.up(most - 8), most - 7);
  EXPECT_EQ(Buckets{most}.up(5), most);
}

TEST(BucketsTest, ValuesAreSortedDistinctAndPositive) {
  const Buckets buckets{8, 2, 8, -1, 0, 1, 2};
  EXPECT_EQ(buckets.values(), (std::vector<int64_t>{1, 2, 8}));
  EXPECT_EQ(std::vector<int64_t>(buckets.begin(), buckets.end()), buckets.values());
  EXPECT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets.largest(), 8);
  EXPECT_EQ(Buckets(std::vector<int64_t>{4, 2}).values(), (std::vector<int64_t>{2, 4}));
}

TEST(BucketsTest, WithoutBucketsNothingIsRounded) {
  for (const Buckets& none : {Buckets{}, Buckets{0, -3}, Buckets(std::vector<int64_t>())}) {
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(none.largest(), 0);
    EXPECT_EQ(none.up(13), 13);
    EXPECT_EQ(none.up(-13), -13);
  }
}

TEST(BucketsTest, FloatingPointSizesAreRoundedUp) {
  const Buckets buckets{1, 4, 8};
  EXPECT_EQ(buckets.up(4.0), 4);
  EXPECT_EQ(buckets.up(4.01f), 8);
  EXPECT_EQ(buckets.up(-1e300), 1);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(buckets.up(1e300), buckets.up(most));
  EXPECT_EQ(buckets.up(std::nan("")), buckets.up(most));
  EXPECT_EQ(buckets.up(9223372036854775808.0), buckets.up(most));
}

TEST(BucketsTest, FloatingPointSizesKeepTheirPrecision) {
  const Buckets buckets{4, 8, 9007199254740992, 9007199254740994};
  EXPECT_EQ(buckets.up(std::nextafter(4.0f, 8.0f)), 8);
  EXPECT_EQ(buckets.up(std::nextafter(4.0, 8.0)), 8);
  EXPECT_EQ(buckets.up(std::nextafter(4.0L, 8.0L)), 8);
  if (std::numeric_limits<long double>::digits > std::numeric_limits<double>::digits) {
    EXPECT_EQ(buckets.up(9007199254740993.0L), 9007199254740994);  // 2^53 + 1
  }
}

TEST(BucketsTest, SeriesEndAtTheirMaximum) {
  using Values = std::vector<int64_t>;
  EXPECT_EQ(Buckets::powers_of_two(16).values(), (Values{1, 2, 4, 8, 16}));
  EXPECT_EQ(Buckets::powers_of_two(12).values(), (Values{1, 2, 4, 8, 12}));
  EXPECT_EQ(Buckets::powers_of_two(1).values(), Values{1});
  EXPECT_TRUE(Buckets::powers_of_two(0).empty());
  EXPECT_EQ(Buckets::powers_of_two(std::numeric_limits<int64_t>::max()).size(), 64u);

  EXPECT_EQ(Buckets::every(8, 24).values(), (Values{8, 16, 24}));
  EXPECT_EQ(Buckets::every(8, 20).values(), (Values{8, 16, 20}));
  EXPECT_EQ(Buckets::every(8, 5).values(), Values{5});
  EXPECT_EQ(Buckets::every(0, 3).values(), (Values{1, 2, 3}));
  EXPECT_TRUE(Buckets::every(8, -1).empty());
  const int64_t half = std::numeric_limits<int64_t>::max() / 2 + 1;
  EXPECT_EQ(Buckets::every(half, std::numeric_limits<int64_t>::max()).size(), 2u);
}

// Sum of the padded sizes.
std::int64_t padded(const Buckets& buckets, const std::vector<std::pair<std::int64_t, std::uint64_t>>& sizes) {
  std::int64_t all = 0;
  for (const auto& [size, count] : sizes) all += buckets.up(size) * static_cast<std::int64_t>(count);
  return all;
}

TEST(BucketsTest, FitIsTheBestOfAllChoices) {
  const std::vector<std::pair<std::int64_t, std::uint64_t>> sizes{{3, 5},  {4, 1},  {7, 9}, {8, 1},
                                                                  {20, 2}, {21, 7}, {40, 1}};
  for (std::size_t most = 1; most <= 8; ++most) {
    const Buckets fitted = fit_buckets(sizes, most);
    EXPECT_LE(fitted.size(), most);
    EXPECT_EQ(fitted.largest(), 40);
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (unsigned subset = 1; subset < 1u << sizes.size(); ++subset) {
      std::vector<std::int64_t> values;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        if ((subset >> i & 1) != 0) values.push_back(sizes[i].first);
      }
      if (values.size() <= most && values.back() == 40) best = std::min(best, padded(Buckets(values), sizes));
    }
    EXPECT_EQ(padded(fitted, sizes), best) << most;
  }
}

TEST(BucketsTest, FitOfManySizesIsNearTheBest) {
  std::vector<std::pair<std::int64_t, std::uint64_t>> sizes;
  for (std::int64_t size = 1; size <= 5000; ++size) sizes.emplace_back(size, 1);
  EXPECT_EQ(fit_buckets({sizes.begin(), sizes.begin() + 513}, 513).size(), 512u);
  const Buckets fitted = fit_buckets(sizes, 10);
  EXPECT_EQ(fitted.size(), 10u);
  EXPECT_EQ(fitted.largest(), 5000);
  // Equally frequent sizes are best served by equal steps.
  EXPECT_LE(padded(fitted, sizes), padded(Buckets::every(500, 5000), sizes) * 101 / 100);
}

TEST(BucketsTest, FitOfNothing) {
  EXPECT_TRUE(fit_buckets({}, 4).empty());
  EXPECT_TRUE(fit_buckets({{0, 5}, {-3, 1}}, 4).empty());
  EXPECT_TRUE(fit_buckets({{7, 1}}, 0).empty());
  EXPECT_EQ(fit_buckets({{7, 1}, {7, 2}}, 4).values(), std::vector<std::int64_t>{7});
}

}  // namespace
}  // namespace graphcache
