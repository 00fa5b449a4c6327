// Mistakes in fn, on either runtime: the result is right or an error, and later runs work.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "misuses.h"
#include "support.h"

namespace graphcache::test {
namespace {

TEST_F(CacheTest, RefusesAnEmptyFn) {
  Cache cache;
  cudaError_t (*null_function)(cudaStream_t) = nullptr;
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, null_function));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, std::function<void(cudaStream_t)>()));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, params(1), std::function<void(Recorder&, Slot<int>)>()));
  std::function<cudaError_t(cudaStream_t)> fn = [&](cudaStream_t on) { return add_one(on); };
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  fn = nullptr;
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, fn));
  EXPECT_FALSE(is_capturing(stream));
  expect_sum(1);
}

TEST_F(CacheTest, ExceptionOfTheDirectCallPassesAndTheNextRunWorks) {
  Cache cache;
  const auto run = [&](bool fail) {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      add_one(on);
      if (fail) throw std::runtime_error("mine");
    });
  };
  for (int i = 0; i < 2; ++i) {
    try {
      (void)run(true);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "mine");
    }
    EXPECT_FALSE(is_capturing(stream));
    CUDA_OK(cudaPeekAtLastError());
  }
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.failed, 2u);
  EXPECT_EQ(stats.capture_failures, 2u);
  EXPECT_EQ(stats.captures, 0u);
  CUDA_OK(add_one(stream));
  expect_sum(3);  // Two by direct calls, which threw afterwards.
  EXPECT_RUN(kInstantiated, run(false));
  EXPECT_RUN(kReplayed, run(true));  // a hit does not call fn
  expect_sum(5);
}

TEST_F(CacheTest, ExceptionUnderCapturePassesWhereFnIsCalledOnce) {
  Cache cache(called_once());
  const auto run = [&](bool fail) {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      ++calls;
      add_one(on);
      if (fail) throw std::runtime_error("mine");
    });
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW((void)run(true), std::runtime_error);
    EXPECT_FALSE(is_capturing(stream));
    CUDA_OK(cudaPeekAtLastError());
  }
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(cache.stats().failed, 2u);
  expect_sum(0);
  EXPECT_RUN(kInstantiated, run(false));
  expect_sum(1);
}

TEST_F(CacheTest, ExceptionOfAnEagerFnPasses) {
  Options options;
  options.max_executables = 0;
  Cache cache(options);
  EXPECT_THROW((void)cache.run(key("k"), stream, [](cudaStream_t) { throw std::runtime_error("mine"); }),
               std::runtime_error);
  EXPECT_EQ(cache.stats().failed, 1u);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_sum(1);
}

TEST_F(CacheTest, ErrorsThatFnReturnsAreReturned) {
  for (const OnCaptureFailure on_failure : {OnCaptureFailure::kRunDirectly, OnCaptureFailure::kReturnError}) {
    const bool again = on_failure == OnCaptureFailure::kRunDirectly;
    Options options = unshared();
    options.on_capture_failure = on_failure;
    Cache cache(options);
    data.write(std::vector<float>(kSize));
    const auto with_error = [&](cudaError_t error) {
      return cache.run(key("my label"), stream, [&](cudaStream_t on) {
        add_one(on);
        return error;
      });
    };
    const auto with_status = [&](absl::Status status) {
      return cache.run(key("my label"), stream, [&](cudaStream_t on) {
        add_one(on);
        return status;
      });
    };
    auto outcome = with_error(cudaErrorNotSupported);
    EXPECT_FALSE(outcome.ok());
    EXPECT_EQ(cuda_error(outcome.status()), cudaErrorNotSupported);
    EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
    EXPECT_TRUE(mentions(outcome.status(), "cudaErrorNotSupported")) << outcome.status();
    outcome = with_status(absl::OutOfRangeError("a reason of mine"));
    EXPECT_FAILURE(kOutOfRange, outcome);
    EXPECT_EQ(cuda_error(outcome.status()), cudaSuccess);
    EXPECT_TRUE(mentions(outcome.status(), "a reason of mine")) << outcome.status();
    EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
    expect_sum(again ? 2 : 0);  // The captures are not launched.
    EXPECT_EQ(cache.stats().failed, 2u);
    EXPECT_EQ(cache.stats().live_executables, 0u);
    EXPECT_RUN(kInstantiated, with_error(cudaSuccess));
    EXPECT_RUN(kInstantiated, with_status(absl::OkStatus()));
    expect_sum(again ? 4 : 2);
  }
}

TEST_F(CacheTest, PayloadsOfTheStatusOfFnAreKept) {
  Cache cache;
  const auto outcome = cache.run(key("k"), stream, [&](cudaStream_t) {
    absl::Status status = absl::AbortedError("mine");
    status.SetPayload("my/payload", absl::Cord("content"));
    return status;
  });
  EXPECT_FAILURE(kAborted, outcome);
  EXPECT_EQ(outcome.status().GetPayload("my/payload"), absl::Cord("content"));
}

void not_a_kernel(float*) {}

TEST_F(CacheTest, ErrorLeftBehindByACallOfFnIsReturned) {
  misuses_on_purpose = true;
  Cache cache;
  const auto run = [&](bool bad) {
    return cache.run(key("my label"), stream, [&](cudaStream_t on) {
      add_one(on);
      if (bad) (void)launch(not_a_kernel, 1, 1, on, data.get());  // like <<<>>>, whose error is not checked
      add_one(on);
    });
  };
  const auto outcome = run(true);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(cuda_error(outcome.status()), cudaSuccess);
  EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  CUDA_OK(cudaPeekAtLastError());
  expect_sum(2);  // By the direct call, whose other two launches were right.
  EXPECT_RUN(kInstantiated, run(false));
  expect_sum(4);
}

TEST_F(CacheTest, LaunchThatBreaksTheCaptureAndFailsDirectlyIsReturned) {
  Cache cache;
  const auto outcome = cache.run(
      key("k"), stream, [&](cudaStream_t on) { return launch(add, dim3(0), kBlock, on, data.get(), kSize, 1.0f); });
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(cuda_error(outcome.status()), cudaErrorInvalidValue) << outcome.status();
  EXPECT_FALSE(is_capturing(stream));
  CUDA_OK(cudaPeekAtLastError());
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(1);
}

TEST_F(CacheTest, ForbiddenCallsRunEagerlyAndAreCapturedEverMoreRarely) {
  Cache cache;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) -> cudaError_t {
      ++calls;
      void* memory = nullptr;
      if (const cudaError_t error = cudaMalloc(&memory, 256); error != cudaSuccess) return error;
      CUDA_OK(cudaFree(memory));
      return add_one(on);
    });
  };
  for (int i = 0; i < 12; ++i) EXPECT_RUN(kEager, run()) << i;
  expect_sum(12);
  const Stats stats = cache.stats();
  // Captures are tried at runs 0, 2, 5 and 10: after 1, 2 and 4 direct runs.
  EXPECT_EQ(stats.eager(EagerReason::kCaptureFailed), 4u);
  EXPECT_EQ(stats.eager(EagerReason::kBackoff), 8u);
  EXPECT_EQ(stats.capture_failures, 4u);
  EXPECT_EQ(stats.captures, 0u);
  EXPECT_EQ(calls, 16);
}

TEST_F(CacheTest, SynchronizingInsideFnRunsEagerly) {
  Cache cache;
  const auto by_stream = [&] {
    return cache.run(key("stream"), stream, [&](cudaStream_t on) {
      add_one(on);
      return cudaStreamSynchronize(on);
    });
  };
  const auto by_device = [&] {
    return cache.run(key("device"), stream, [&](cudaStream_t on) {
      add_one(on);
      return cudaDeviceSynchronize();
    });
  };
  const auto ignored = [&] {
    return cache.run(key("ignored"), stream, [&](cudaStream_t on) {
      (void)cudaStreamSynchronize(on);
      (void)add_one(on);
    });
  };
  for (int i = 0; i < 4; ++i) {
    EXPECT_RUN(kEager, by_stream());
    EXPECT_RUN(kEager, by_device());
    EXPECT_RUN(kEager, ignored());
  }
  expect_sum(12);
}

TEST_F(CacheTest, PassingCauseOfABrokenCaptureHeals) {
  Cache cache;
  bool initialised = false;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) -> cudaError_t {
      if (!initialised) {
        if (const cudaError_t error = cudaStreamSynchronize(on); error != cudaSuccess) return error;
        initialised = true;
      }
      return add_one(on);
    });
  };
  EXPECT_RUN(kEager, run());  // captures, breaks, initialises
  EXPECT_RUN(kEager, run());  // waits one run
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  expect_sum(4);
}

// Programs call cudaGetLastError after <<<>>>. An error latched by the cache's own failed capture is not fn's.
TEST_F(CacheTest, EagerRunAfterABrokenCaptureBeginsWithACleanLastError) {
  Cache cache;
  const auto outcome = cache.run(key("k"), stream, [&](cudaStream_t on) -> cudaError_t {
    if (const cudaError_t error = cudaStreamSynchronize(on); error != cudaSuccess) {
      cudaGetLastError();
      return error;
    }
    (void)add_one(on);
    return cudaGetLastError();
  });
  EXPECT_RUN(kEager, outcome);
  expect_sum(1);
}

TEST_F(CacheTest, UnjoinedForkRunsEagerly) {
  Cache cache;
  Stream other;
  Event forked;
  DeviceBuffer<float> second(kSize);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
      add_one(on);
      CUDA_OK(cudaEventRecord(forked, on));
      CUDA_OK(cudaStreamWaitEvent(other, forked, 0));
      return launch(add, kGrid, kBlock, other, second.get(), kSize, 1.0f);
    }));
    EXPECT_FALSE(is_capturing(other));
    expect_sum(static_cast<float>(i));
    EXPECT_EQ(second.read(), std::vector<float>(kSize, static_cast<float>(i)));
  }
}

TEST_F(CacheTest, ErrorOfTheCallerStaysInTheLastErrorSlot) {
  Cache cache;
  EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  cache.clear();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_RUN(kEager, cache.run(key("eager"), stream, [&](cudaStream_t on) {
    (void)cudaStreamSynchronize(on);
    (void)add_one(on);
  }));
  EXPECT_NE(cudaGetLastError(), cudaSuccess);  // perhaps replaced by a later error, but not cleared
  expect_sum(3);
}

TEST_F(CacheTest, DestructionWithRunsInFlightLosesNone) {
  for (int i = 0; i < 10; ++i) {
    Cache cache;
    for (int j = 0; j < 20; ++j) ASSERT_TRUE(run_add(cache, key(j % 3)).ok());
  }
  expect_sum(200);
}

}  // namespace
}  // namespace graphcache::test
