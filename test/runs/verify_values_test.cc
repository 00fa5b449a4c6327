// Verify mode finds what breaks the contract of values() after a value is found, on either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cache/values_support.h"
#include "verify_support.h"

namespace graphcache::test {
namespace {

using VerifyValuesTest = ValuesTest;

// What fn does with a value up to 10, and with a larger one.
struct Betrayal {
  const char* name;
  std::function<void(cudaStream_t on, float v)> fn;
  std::function<float(float v)> right;
  std::vector<std::string> words;
};

TEST_F(VerifyValuesTest, ABrokenContractIsFound) {
  const auto set = [&](cudaStream_t on, float v) { CUDA_OK(fill_data(on, v)); };
  const auto increase = [&](cudaStream_t on, float v) {
    CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, v));
  };
  const std::string node = "node 0 (kernel graphcache::test::fill";
  const std::vector<Betrayal> betrayals = {
      {"a clamp that begins",
       [&](cudaStream_t on, float v) { set(on, std::min(v, 10.0f)); },
       [](float v) { return std::min(v, 10.0f); },
       {node, "argument 2 was", "(1101004800, as a float 20) in the graph, which has the values of this run, and is ",
        "also what fn computes from a value"}},
      {"a sum that begins",
       [&](cudaStream_t on, float v) { set(on, v > 10 ? v + 3 : v); },
       [](float v) { return v > 10 ? v + 3 : v; },
       {node, "argument 2 was"}},
      {"a node that comes",
       [&](cudaStream_t on, float v) {
         set(on, v);
         if (v > 10) increase(on, 3);
       },
       [](float v) { return v > 10 ? v + 3 : v; },
       {"the number of nodes was 1 when", "and is 2 now"}},
      {"a node that goes",
       [&](cudaStream_t on, float v) {
         set(on, v);
         if (v <= 10) increase(on, 3);
       },
       [](float v) { return v <= 10 ? v + 3 : v; },
       {"the number of nodes was 2 when", "and is 1 now"}},
      {"another kernel",
       [&](cudaStream_t on, float v) {
         set(on, 3);
         if (v > 10) {
           increase(on, v);
         } else {
           set(on, v);
         }
       },
       [](float v) { return v > 10 ? v + 3 : v; },
       {"node 1 (kernel graphcache::test::fill", "the kernel was"}},
  };
  for (const Betrayal& betrayal : betrayals) {
    SCOPED_TRACE(betrayal.name);
    const auto run = [&](Cache& cache, float value) {
      return cache.run(key("k"), stream, values(value), [&](cudaStream_t on, float v) { betrayal.fn(on, v); });
    };
    const auto find_value = [&](Cache& cache) {
      for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(learned(i, run(cache, number(i))));
        expect_data(betrayal.right(number(i)));
      }
      EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
    };
    const auto expect_found = [&](const Cache& cache) {
      EXPECT_EQ(cache.stats().stale, 1u);
      EXPECT_EQ(cache.stats().verified, 3u);
      EXPECT_TRUE(holds_all(findings(cache), betrayal.words));
    };
    for (const bool verifies : {false, true}) {
      Cache cache(verifies ? verifying(OnStale::kReport) : Options());
      find_value(cache);
      EXPECT_RUN(kPatched, run(cache, 20));
      EXPECT_NE(data.first(), betrayal.right(20));
      if (verifies) expect_found(cache);
    }
    {
      Cache cache(verifying(OnStale::kReturnError));
      find_value(cache);
      EXPECT_FAILURE(kFailedPrecondition, run(cache, 20));
      expect_data(betrayal.right(number(4)));  // As it was.
      expect_found(cache);
      EXPECT_RUN(kPatched, run(cache, 7));
      expect_data(betrayal.right(7));
    }
    {
      Cache cache(verifying(OnStale::kForget));
      find_value(cache);
      const absl::StatusOr<Outcome> outcome = run(cache, 20);
      ASSERT_SUCCESS(outcome);
      EXPECT_FALSE(is_hit(*outcome));
      expect_data(betrayal.right(20));
      expect_found(cache);
      for (const float v : {5.0f, 30.0f, 6.0f, 31.0f, 7.0f}) {  // All that it had found is forgotten.
        ASSERT_SUCCESS(run(cache, v));
        expect_data(betrayal.right(v));
      }
    }
  }
}

// The kernel reads what fn has stored, so no argument holds the value.
TEST_F(VerifyValuesTest, AValueThatFnStoresIsFound) {
  PinnedBuffer<float> staging(kSize);
  Cache cache(verifying(OnStale::kReturnError));
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, values(value), [&](cudaStream_t on, float v) {
      staging.fill(v);
      return cudaMemcpyAsync(data.get(), staging.get(), data.bytes(), cudaMemcpyHostToDevice, on);
    });
  };
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<Outcome> outcome = run(number(i));
    ASSERT_SUCCESS(outcome);
    EXPECT_FALSE(is_hit(*outcome));
    expect_data(number(i));
  }
  EXPECT_EQ(states(cache), "found");
  EXPECT_EQ(places(cache, 0), "nowhere");
  EXPECT_FAILURE(kFailedPrecondition, run(number(3)));
  EXPECT_TRUE(holds_all(findings(cache), {"node 0 (copy)", "the bytes of its source"}));
}

TEST_F(VerifyValuesTest, ASumThatSwallowedAValueIsFound) {
  Cache cache(verifying(OnStale::kReturnError));
  const auto run = [&](float a, float b) {
    return cache.run(key("k"), stream, values(a, b),
                     [&](cudaStream_t on, float x, float y) { return fill_data(on, x + y); });
  };
  const float large = 1e20f;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(learned(i, run(number(i) * large, number(i))));
    expect_data(number(i) * large);
  }
  EXPECT_EQ(states(cache), "found found");
  EXPECT_EQ(places(cache, 1), "nowhere");
  EXPECT_FAILURE(kFailedPrecondition, run(2 * large, large));
  EXPECT_EQ(cache.stats().stale, 1u);
}

TEST_F(VerifyValuesTest, NothingIsFoundWhereTheContractHolds) {
  for (const int every : {1, 3}) {
    Cache cache(verifying(OnStale::kReturnError, every));
    for (int i = 0; i < 20; ++i) {
      const float a = number(i), b = number(i / 2);
      const double c = number(i / 3);
      const absl::StatusOr<Outcome> outcome =
          cache.run(key("k"), stream, values(a, part(i), b, c),
                    [&](cudaStream_t on, float x, const float* in, float y, double z) {
                      CUDA_OK(launch(scale, kGrid, kBlock, on, data.get(), in, kSize, x));
                      CUDA_OK(cudaMemcpyAsync(part(40), in, kSize * sizeof(float), cudaMemcpyDeviceToDevice, on));
                      CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, y));
                      return launch(add, kGrid, kBlock, on, data.get(), kSize, static_cast<float>(z));
                    });
      ASSERT_SUCCESS(outcome);
      std::vector<float> wanted(kSize);
      for (int e = 0; e < kSize; ++e) {
        wanted[static_cast<std::size_t>(e)] =
            a * (content(part(i)) + static_cast<float>(e)) + b + static_cast<float>(c);
      }
      EXPECT_EQ(data.read(), wanted);
    }
    EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
    EXPECT_GE(cache.stats().hits(), 10u);
    EXPECT_EQ(cache.stats().verified, cache.stats().hits() / static_cast<unsigned>(every));
  }
}

}  // namespace
}  // namespace graphcache::test
