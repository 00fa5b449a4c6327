// The findings of advise(), and cases without a finding. On either runtime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "advice_support.h"
#include "graph/template.h"
#include "graphcache/advice.h"

namespace graphcache::test {
namespace {

class AdviseTest : public AdviceTest {
 protected:
  // Work whose grid follows the size: adds one to every element, up to kSize.
  absl::StatusOr<Outcome> run_size(Cache& cache, const Key& key, std::int64_t size) {
    return cache.run(key, stream, [&](cudaStream_t on) {
      return launch(add, dim3(static_cast<unsigned>(size + 1)), dim3(128), on, data.get(), kSize, 1.0f);
    });
  }
  absl::StatusOr<Outcome> run_size(Cache& cache, std::int64_t size) {
    return run_size(cache, key("decode", size), size);
  }
};

TEST_F(AdviseTest, AFreshCacheHasNothingToSay) { EXPECT_TRUE(advise(Cache()).empty()); }

TEST_F(AdviseTest, AGoodUseHasNothingToSay) {
  const auto fn = [&](cudaStream_t on) { return add_one(on); };
  const auto expect_nothing = [&](const char* name, const Options& options, const auto& use) {
    SCOPED_TRACE(name);
    Cache cache(options);
    use(cache);
    EXPECT_THAT(kinds(cache), testing::IsEmpty());
  };
  expect_nothing("many runs of few keys", {}, [&](Cache& cache) {
    for (int i = 0; i < 400; ++i) EXPECT_TRUE(run_add(cache, key("k", i % 8)).ok());
  });
  expect_nothing("few keys", {}, [&](Cache& cache) {
    for (int i = 0; i < 15; ++i) EXPECT_TRUE(run_add(cache, key("k", i)).ok());
  });
  expect_nothing("sizes that repeat", {}, [&](Cache& cache) {
    for (int i = 0; i < 20 * 60; ++i) EXPECT_TRUE(run_size(cache, 100 + i % 60).ok());
  });
  expect_nothing("keys that run at two places", {}, [&](Cache& cache) {
    for (int run = 0; run < 40; ++run) {
      EXPECT_TRUE(cache.run(key("k"), stream, fn).ok());
      EXPECT_TRUE(run_add(cache, key("k")).ok());
    }
  });
  expect_nothing("keys that were warmed and run at one place", {}, [&](Cache& cache) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(cache.warm(key("k", i), stream, fn).ok());
      for (int run = 0; run < 5; ++run) EXPECT_RUN(kReplayed, cache.run(key("k", i), stream, fn));
    }
  });
  expect_nothing("warmed and pinned keys that wait", {}, [&](Cache& cache) {
    for (int i = 0; i < 40; ++i) {
      EXPECT_TRUE(cache.warm(key("warm", "name " + std::to_string(i)), stream, fn).ok());
      const Key pinned = key("pinned", "name " + std::to_string(i));
      EXPECT_TRUE(run_add(cache, pinned).ok());
      EXPECT_TRUE(cache.pin(pinned));
    }
  });
  expect_nothing("direct runs that options request", {.capture_after = 30}, [&](Cache& cache) {
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(run_add(cache, key("k")).ok());
  });
}

TEST_F(AdviseTest, SizesThatAreNotBucketed) {
  Cache cache;
  std::uint64_t exact = 0, padded = 0;
  for (std::int64_t size = 100; size < 160; ++size) EXPECT_TRUE(run_size(cache, size).ok());
  const Finding finding = only(cache, FindingKind::kSizes);
  EXPECT_EQ(finding.label, "decode");
  EXPECT_EQ(finding.runs, 60u);
  ASSERT_FALSE(finding.buckets.empty());
  EXPECT_EQ(finding.buckets.back(), 159);
  const Buckets buckets(finding.buckets);
  for (std::int64_t size = 100; size < 160; ++size) {
    exact += static_cast<std::uint64_t>(size);
    padded += static_cast<std::uint64_t>(buckets.up(size));
  }
  EXPECT_DOUBLE_EQ(finding.padding, static_cast<double>(padded) / static_cast<double>(exact) - 1);
  EXPECT_LE(finding.padding, 0.125);
  EXPECT_NE(finding.text.find("Part 1 of the key"), std::string::npos) << finding.text;
  EXPECT_NE(finding.cure.find("graphcache::Buckets{"), std::string::npos) << finding.cure;
  // With the proposed buckets the finding disappears.
  Cache bucketed;
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t size = 100; size < 160; ++size) EXPECT_TRUE(run_size(bucketed, buckets.up(size)).ok());
  }
  EXPECT_THAT(kinds(bucketed), testing::IsEmpty());
  // Larger numbers are no sizes, and may not leave the process.
  Cache of_ids;
  for (std::int64_t i = 0; i < 60; ++i) EXPECT_TRUE(run_size(of_ids, key("id", UINT32_MAX + i), i).ok());
  only(of_ids, FindingKind::kNeverHitAgain);
}

TEST_F(AdviseTest, AValueInTheKeyThatShouldBeASlot) {
  Cache cache;
  const auto run = [&](int step, int batch) {
    return cache.run(key("train", batch, step), stream, [&](cudaStream_t on) {
      return launch(add, dim3(static_cast<unsigned>(batch)), dim3(128), on, data.get(), kSize, 1.0f * (step % 3));
    });
  };
  for (int step = 0; step < 60; ++step) EXPECT_TRUE(run(step, 1 + step % 2).ok());
  const Finding finding = only(cache, FindingKind::kValuesInKeys);
  EXPECT_EQ(finding.label, "train");
  EXPECT_TRUE(finding.buckets.empty());
  EXPECT_NE(finding.cure.find("Leave part 2 out of the key"), std::string::npos) << finding.cure;
}

TEST_F(AdviseTest, AnAddressInTheKeyThatShouldBeASlot) {
  Cache cache;
  std::vector<float> places(64);
  for (float& place : places) EXPECT_TRUE(run_add(cache, key("k", &place)).ok());
  const Finding finding = only(cache, FindingKind::kValuesInKeys);
  EXPECT_NE(finding.text.find("is an address with 64 values"), std::string::npos) << finding.text;
  EXPECT_EQ(finding.text.find("0x"), std::string::npos);
  EXPECT_EQ(finding.cure.find("0x"), std::string::npos);
}

// history_test.cc has what a History adds.
TEST_F(AdviseTest, WithoutAHistoryABudgetIsNotEstimated) {
  Cache cache(unshared(4));
  for (int i = 0; i < 210; ++i) EXPECT_TRUE(run_add(cache, key("k", i % 7)).ok());
  const Finding finding = only(cache, FindingKind::kBudget);
  EXPECT_EQ(finding.runs, 203u);
  EXPECT_EQ(finding.ready_rate_of_twice, 0);
  EXPECT_NE(finding.cure.find("Raise Options::max_executables. Add a graphcache::History"), std::string::npos);
}

TEST_F(AdviseTest, WithoutAHistoryExecutablesThatUpdatesTakeAwayAreLosses) {
  Cache cache({.max_executables = 4, .share = Share::kNever});
  for (int i = 0; i < 210; ++i) EXPECT_TRUE(run_add(cache, key("k", i % 7)).ok());
  EXPECT_EQ(cache.stats().evictions, 0u);
  const Finding finding = only(cache, FindingKind::kBudget);
  EXPECT_EQ(finding.runs, 203u);
  EXPECT_NE(finding.text.find("203 runs had to make one again, or to update that of another key."), std::string::npos)
      << finding.text;
}

TEST_F(AdviseTest, TheLimitThatBindsIsNamed) {
  Options options = unshared(64);
  options.max_device_bytes = 4 * estimated_device_bytes(1);
  Cache cache(options);
  for (int i = 0; i < 210; ++i) EXPECT_TRUE(run_add(cache, key("k", i % 7)).ok());
  EXPECT_NE(only(cache, FindingKind::kBudget).cure.find("Raise Options::max_device_bytes."), std::string::npos);
  options.max_device_bytes = 64 * estimated_device_bytes(1);
  options.max_executables = 4;
  Cache few(options);
  for (int i = 0; i < 210; ++i) EXPECT_TRUE(run_add(few, key("k", i % 7)).ok());
  EXPECT_NE(only(few, FindingKind::kBudget).cure.find("Raise Options::max_executables."), std::string::npos);
}

TEST_F(AdviseTest, ValuesThatAreNotFound) {
  Cache cache;
  const auto run = [&](const char* name, float value, float factor) {
    return cache.run(key("k", name), stream, values(value),
                     [&, factor](cudaStream_t on, float v) { return add_value(on, factor * v); });
  };
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(run("doubled", static_cast<float>(3 + i), 2).ok());
    EXPECT_TRUE(run("plain", static_cast<float>(3 + i), 1).ok());
  }
  const Finding finding = only(cache, FindingKind::kValuesNotFound);
  EXPECT_EQ(finding.label, "k");
  EXPECT_EQ(finding.runs, 39u) << "those of the key that finds its value do not count";
  EXPECT_NE(finding.text.find("value 0 is derived: "), std::string::npos) << finding.text;
  EXPECT_NE(finding.cure.find("make it a slot"), std::string::npos) << finding.cure;
}

TEST_F(AdviseTest, KeysThatWereWarmedAtAnotherPlace) {
  Cache cache;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(cache.warm(key("k", i), stream, [&](cudaStream_t on) { return add_one(on); }).ok());
    for (int run = 0; run < 5; ++run) EXPECT_TRUE(run_add(cache, key("k", i)).ok());
  }
  const Finding finding = only(cache, FindingKind::kWarmedElsewhere);
  EXPECT_EQ(finding.label, "k");
  EXPECT_EQ(finding.runs, 20u);
  EXPECT_NE(finding.text.find("Keys were warmed at one place and run at another (4)"), std::string::npos)
      << finding.text;
}

TEST_F(AdviseTest, EntriesThatAreNeverHitAgain) {
  Cache cache;
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(run_add(cache, key("once", "name " + std::to_string(i))).ok());
  const Finding finding = only(cache, FindingKind::kNeverHitAgain);
  EXPECT_EQ(finding.label, "once");
  EXPECT_EQ(finding.runs, 45u);  // without the newest quarter
  EXPECT_NE(finding.cure.find("Options::capture_after"), std::string::npos);
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(run_add(cache, key("once", "name " + std::to_string(i))).ok());
  EXPECT_THAT(kinds(cache), testing::IsEmpty());
}

TEST_F(AdviseTest, LabelsThatNeverReturn) {
  Cache cache;
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(run_add(cache, key("step" + std::to_string(i))).ok());
  const Finding finding = only(cache, FindingKind::kNeverHitAgain);
  EXPECT_EQ(finding.label, "");
  EXPECT_EQ(finding.runs, 45u);
  EXPECT_NE(finding.text.find("many labels"), std::string::npos) << finding.text;
  EXPECT_NE(finding.cure.find("label"), std::string::npos) << finding.cure;
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(run_add(cache, key("step" + std::to_string(i))).ok());
  EXPECT_THAT(kinds(cache), testing::IsEmpty());
}

TEST_F(AdviseTest, DirectRunsThatCouldBeGraphs) {
  Cache cache;
  for (int i = 0; i < 40; ++i) {
    EXPECT_RUN(kEager, cache.run(key("broken"), stream, [&](cudaStream_t on) {
      (void)cudaStreamSynchronize(on);
      (void)cudaGetLastError();
      return add_one(on);
    }));
    EXPECT_TRUE(run_add(cache, key("good")).ok());
  }
  const Finding finding = only(cache, FindingKind::kDirectRuns);
  EXPECT_EQ(finding.label, "broken");
  EXPECT_EQ(finding.runs, 40u);
  EXPECT_NE(finding.text.find("for the reason capture_failed"), std::string::npos) << finding.text;
  EXPECT_NE(finding.text.find("The last error was cudaErrorStreamCapture"), std::string::npos) << finding.text;
  EXPECT_NE(finding.cure.find("Options::diagnose"), std::string::npos) << finding.cure;
}

TEST_F(AdviseTest, DirectRunsOfAnEmptyFnAndOfADisabledCache) {
  Cache cache, disabled({.max_executables = 0});
  for (int i = 0; i < 20; ++i) {
    EXPECT_RUN(kEager, cache.run(key("empty"), stream, [](cudaStream_t) {}));
    EXPECT_RUN(kEager, run_add(disabled, key("k")));
  }
  EXPECT_NE(only(cache, FindingKind::kDirectRuns).cure.find("rec.stream()"), std::string::npos);
  EXPECT_NE(only(disabled, FindingKind::kDirectRuns).cure.find("GRAPHCACHE_DISABLE"), std::string::npos);
}

TEST_F(AdviseTest, StaleValuesThatVerifyModeFound) {
  Cache cache({.verify_every = 1});
  float value = 1;
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t on) { return add_value(on, value); }); };
  EXPECT_TRUE(run().ok());
  EXPECT_RUN(kReplayed, run());
  EXPECT_THAT(kinds(cache), testing::IsEmpty());
  value = 12345;
  EXPECT_RUN(kReplayed, run());
  const Finding finding = only(cache, FindingKind::kStale);
  EXPECT_EQ(finding.label, "k");
  EXPECT_EQ(finding.runs, 2u);
  EXPECT_EQ((finding.text + finding.cure).find("12345"), std::string::npos);
}

TEST_F(AdviseTest, FindingsHaveNames) {
  EXPECT_STREQ(to_string(FindingKind::kSizes), "sizes");
  EXPECT_STREQ(to_string(FindingKind::kStale), "stale");
  EXPECT_STREQ(to_string(FindingKind::kWarmedElsewhere), "warmed_elsewhere");
  EXPECT_STREQ(to_string(static_cast<FindingKind>(99)), "unknown");
}

}  // namespace
}  // namespace graphcache::test
