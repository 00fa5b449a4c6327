// Shared by the suites verify_hits, verify_nodes and verify_runs: a run that becomes stale, with each reaction of
// verify mode.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"
#include "verify_support.h"

namespace graphcache::test {

inline std::string hex(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%#zx", reinterpret_cast<std::size_t>(pointer));
  return text;
}

class FindingTest : public VerifyTest {
 protected:
  // A first and a second run of the same key, which wrongly differ.
  using Run = std::function<absl::StatusOr<Outcome>(Cache& cache, int which)>;
  using Result = std::function<float()>;

  // The runs whose fn calls fn(on, which).
  template <class Fn>
  Run runs_of(Fn fn) {
    return [this, fn](Cache& cache, int which) {
      return cache.run(key("k"), stream, [&](cudaStream_t on) { return fn(on, which); });
    };
  }

  // The result of the second run, without verify mode and with each reaction, and the words that the finding must
  // contain.
  void expect_found(const Run& run, const Result& result, float wrong, float right,
                    const std::vector<std::string>& words) {
    expect_wrong_without(run, result, wrong);
    expect_reported(run, result, wrong, words);
    expect_forgotten(run, result, right, words);
    expect_refused(run, words);
  }
  void expect_wrong_without(const Run& run, const Result& result, float wrong) {
    Cache cache;
    run_first(cache, run);
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(result(), wrong);
    EXPECT_EQ(cache.stats().verified, 0u);
  }
  void expect_reported(const Run& run, const Result& result, float wrong, const std::vector<std::string>& words) {
    Cache cache(verifying());
    run_first(cache, run);
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(result(), wrong);
    expect_one_finding(cache, words);
  }
  void expect_forgotten(const Run& run, const Result& result, float right, const std::vector<std::string>& words) {
    Cache cache(verifying(OnStale::kForget));
    run_first(cache, run);
    EXPECT_RUN(kInstantiated, run(cache, 1));
    EXPECT_EQ(result(), right);
    expect_one_finding(cache, words);
    EXPECT_EQ(cache.stats().forgotten, 1u);
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(cache.stats().stale, 1u);
  }
  void expect_refused(const Run& run, const std::vector<std::string>& words) {
    Cache cache(verifying(OnStale::kReturnError));
    run_first(cache, run);
    const std::vector<float> before = data.read();
    const absl::StatusOr<Outcome> outcome = run(cache, 1);
    EXPECT_FAILURE(kFailedPrecondition, outcome);
    EXPECT_TRUE(holds_all(outcome.status().ToString(), words));
    EXPECT_EQ(data.read(), before);
    expect_one_finding(cache, words);
    EXPECT_EQ(cache.stats().failed, 1u);
    EXPECT_RUN(kReplayed, run(cache, 0));  // the entry is intact
  }

  void run_first(Cache& cache, const Run& run) {
    data.write(std::vector<float>(kSize, -1));
    other.write(std::vector<float>(kSize, -1));
    EXPECT_RUN(kInstantiated, run(cache, 0));
  }
  static void expect_one_finding(const Cache& cache, const std::vector<std::string>& words) {
    EXPECT_EQ(cache.stats().stale, 1u);
    EXPECT_TRUE(holds_all(findings(cache), words));
    EXPECT_TRUE(holds_all(to_string(cache.entries().front()), {"stale: "}));
  }
  Result first_of(const DeviceBuffer<float>& buffer) {
    return [&buffer] { return buffer.first(); };
  }
};

}  // namespace graphcache::test
