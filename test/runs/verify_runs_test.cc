// The reaction of a run to a finding of verify mode, the choice of verified hits, and the options, on either runtime.
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include "verify_findings.h"

namespace graphcache::test {
namespace {

using VerifyRunsTest = FindingTest;

TEST_F(VerifyRunsTest, CallThatACaptureForbidsIsAFinding) {
  bool waits = false;
  const auto run = [&](Cache& cache) {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(fill_data(on, 2));
      if (waits) (void)cudaStreamSynchronize(on);
    });
  };
  const auto expect = [&](OnStale on_stale, auto&& expect_outcome) {
    Cache cache(verifying(on_stale));
    waits = false;
    EXPECT_RUN(kInstantiated, run(cache));
    waits = true;
    expect_outcome(run(cache));
    expect_one_finding(cache, {"could not be recorded again", "a capture forbids", "cudaErrorStreamCapture"});
    EXPECT_FALSE(is_capturing(stream));
    EXPECT_EQ(cache.stats().verified, 0u);
  };
  expect(OnStale::kReport, [](const auto& outcome) { EXPECT_RUN(kReplayed, outcome); });
  expect(OnStale::kForget, [](const auto& outcome) { EXPECT_RUN(kEager, outcome); });
  expect(OnStale::kReturnError, [](const auto& outcome) { EXPECT_FAILURE(kFailedPrecondition, outcome); });
}

// If no error of `fn` is left, another thread may have broken the recording.
TEST_F(VerifyRunsTest, ExceptionOfABrokenRecordingIsAFindingIfItsErrorIsThere) {
  for (const bool clears : {false, true}) {
    Cache cache(verifying(OnStale::kReturnError));
    bool waits = false;
    const auto run = [&] {
      return cache.run(key("k"), stream, [&](cudaStream_t on) {
        CUDA_OK(fill_data(on, 2));
        if (!waits || cudaStreamSynchronize(on) == cudaSuccess) return;
        if (clears) cudaGetLastError();
        throw std::runtime_error("could not wait");
      });
    };
    EXPECT_RUN(kInstantiated, run());
    waits = true;
    if (clears) {
      EXPECT_RUN(kReplayed, run());
    } else {
      EXPECT_FAILURE(kFailedPrecondition, run());
    }
    EXPECT_FALSE(is_capturing(stream));
    EXPECT_EQ(cache.stats().stale, clears ? 0u : 1u);
    EXPECT_EQ(cache.stats().verified, 0u);
  }
}

TEST_F(VerifyRunsTest, ErrorsAndExceptionsOfFnAreTheRuns) {
  Cache cache(verifying());
  int mood = 0;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) -> absl::Status {
      CUDA_OK(fill_data(on, 2));
      if (mood == 1) throw std::runtime_error("of fn");
      return mood == 2 ? absl::NotFoundError("of fn") : absl::OkStatus();
    });
  };
  EXPECT_RUN(kInstantiated, run());
  mood = 1;
  EXPECT_THROW((void)run(), std::runtime_error);
  EXPECT_FALSE(is_capturing(stream));
  mood = 2;
  EXPECT_FAILURE(kNotFound, run());
  mood = 0;
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(cache.stats().failed, 2u);
  EXPECT_EQ(cache.stats().verified, 1u);
  EXPECT_EQ(cache.stats().stale, 0u);
}

// Its direct call is the run.
TEST_F(VerifyRunsTest, WhatFailsUnderCaptureAloneRunsDirectly) {
  for (const bool throws : {false, true}) {
    for (const bool returns_error : {false, true}) {
      const auto on_failure = returns_error ? OnCaptureFailure::kReturnError : OnCaptureFailure::kRunDirectly;
      Cache cache({.on_capture_failure = on_failure, .verify_every = 1, .on_stale = OnStale::kReturnError});
      bool refuses = false;
      const auto run = [&] {
        return cache.run(key("k"), stream, [&](cudaStream_t on) -> absl::Status {
          CUDA_OK(fill_data(on, 2));
          if (!refuses || !is_capturing(on)) return absl::OkStatus();
          if (throws) throw std::runtime_error("not under capture");
          return absl::UnavailableError("not under capture");
        });
      };
      EXPECT_RUN(kInstantiated, run());
      data.write(std::vector<float>(kSize));
      refuses = true;
      if (!returns_error) {
        EXPECT_RUN(kEager, run());
        EXPECT_EQ(data.first(), 2);
        EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureFailed), 1u);
      } else if (throws) {
        EXPECT_THROW((void)run(), std::runtime_error);
      } else {
        EXPECT_FAILURE(kUnavailable, run());
      }
      EXPECT_FALSE(is_capturing(stream));
      EXPECT_EQ(cache.stats().stale, 0u);
      refuses = false;
      EXPECT_RUN(kReplayed, run());
    }
  }
}

TEST_F(VerifyRunsTest, EveryNthHitOfEachKey) {
  Cache cache(verifying(OnStale::kReport, 3));
  int calls = 0;
  for (int i = 0; i < 10; ++i) {
    for (const char* const name : {"a", "b"}) {
      ASSERT_SUCCESS(cache.run(key(name), stream, [&](cudaStream_t on) {
        ++calls;
        return fill_data(on, 2);
      }));
    }
  }
  EXPECT_EQ(calls, 2 * (1 + 3));
  EXPECT_EQ(cache.stats().verified, 6u);
  EXPECT_EQ(cache.stats().captures, 2u);
  EXPECT_TRUE(holds_all(to_string(cache.stats()), {"verified hits 6, stale 0"}));
}

// A hit from a template is verified before there is an executable.
TEST_F(VerifyRunsTest, RestoredKeysAreVerified) {
  for (const OnStale on_stale : {OnStale::kReport, OnStale::kForget, OnStale::kReturnError}) {
    Cache cache(forced(Sharing::kNever, {.max_executables = 1, .verify_every = 1, .on_stale = on_stale}));
    float value = 2;
    const auto run = [&](const char* name) {
      return cache.run(key(name), stream, [&](cudaStream_t on) { return fill_data(on, value); });
    };
    EXPECT_RUN(kInstantiated, run("a"));
    EXPECT_RUN(kInstantiated, run("b"));
    value = 3;
    if (on_stale == OnStale::kReturnError) {
      EXPECT_FAILURE(kFailedPrecondition, run("a"));
    } else {
      EXPECT_TRUE(did(on_stale == OnStale::kReport ? Outcome::kRestored : Outcome::kInstantiated, run("a")));
    }
    EXPECT_EQ(data.first(), on_stale == OnStale::kForget ? 3 : 2);
    EXPECT_EQ(cache.stats().stale, 1u);
    EXPECT_TRUE(holds_all(findings(cache), {"argument 2 was"}));
  }
}

TEST_F(VerifyRunsTest, StreamThatIsCapturingIsRefusedAndItsCaptureWhole) {
  Cache cache(verifying());
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t on) { return fill_data(on, 2); }); };
  EXPECT_RUN(kInstantiated, run());
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_FAILURE(kFailedPrecondition, run());
  end_capture(stream);
  EXPECT_RUN(kReplayed, run());
}

// ---- Options --------------------------------------------------------------------------------------------------------

using VerifyRunsTestOnHostrt = VerifyRunsTest;

TEST_F(VerifyRunsTestOnHostrt, TheErrorOfALaunchSaysWhatWasFoundBeforeIt) {
  Cache cache(verifying(OnStale::kReport));
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, [&, value](cudaStream_t on) { return fill_data(on, value); });
  };
  EXPECT_RUN(kInstantiated, run(2));
  EXPECT_RUN(kReplayed, run(2));
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress);
  const absl::StatusOr<Outcome> outcome = run(3);
  hostrt::clear_failures();
  EXPECT_EQ(cuda_error(outcome.status()), cudaErrorIllegalAddress);
  EXPECT_TRUE(
      holds_all(outcome.status().ToString(), {"verify mode has found: node 0", "as a float 2", "as a float 3"}));
}

TEST_F(VerifyRunsTest, OptionsThatMakeNoSense) {
  EXPECT_FAILURE(kInvalidArgument, Cache(verifying(OnStale::kReport, -1)).status());
}

TEST_F(VerifyRunsTest, EnvironmentTurnsItOn) {
  const auto with = [](const char* value, const Options& options) {
    setenv("GRAPHCACHE_VERIFY", value, 1);
    const Cache cache(options);
    unsetenv("GRAPHCACHE_VERIFY");
    return cache.status().ok() ? cache.options().verify_every : -1;
  };
  EXPECT_EQ(with("5", {}), 5);
  EXPECT_EQ(with("0", {}), 0);
  EXPECT_EQ(with("", {}), 0);
  EXPECT_EQ(with("5", verifying(OnStale::kReport, 2)), 2);
  for (const char* const wrong : {"x", "-1", "3x", "+5", " 5", "99999999999"}) EXPECT_EQ(with(wrong, {}), -1) << wrong;
  EXPECT_EQ(Cache().options().verify_every, 0);
}

}  // namespace
}  // namespace graphcache::test
