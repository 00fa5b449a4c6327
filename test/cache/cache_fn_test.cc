// Mistakes in fn, on either runtime: the result is right or an error, and later runs work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <vector>

#include "cache_support.h"
#include "misuses.h"

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

TEST_F(CacheTest, AnExceptionOfFnPassesAndTheNextRunWorks) {
  const auto expect_passes = [&](const char* name, const ForcedOptions& options, int calls_of_a_run,
                                 bool calls_directly, bool captures) {
    SCOPED_TRACE(name);
    Cache cache(options.again());
    reset_sum();
    calls = 0;
    const auto run = [&](bool fails) {
      return cache.run(key("k"), stream, [&, fails](cudaStream_t on) {
        ++calls;
        CUDA_OK(add_one(on));
        if (fails) throw std::runtime_error("mine");
      });
    };
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT([&] { (void)run(true); }, testing::ThrowsMessage<std::runtime_error>("mine"));
      EXPECT_FALSE(is_capturing(stream));
      CUDA_OK(cudaPeekAtLastError());
    }
    EXPECT_EQ(calls, 2 * calls_of_a_run);
    const Stats stats = cache.stats();
    EXPECT_EQ(stats.failed, 2u);
    EXPECT_EQ(stats.capture_failures, captures ? 2u : 0u);
    EXPECT_EQ(stats.captures, 0u);
    const float sum = calls_directly ? 2 : 0;  // By direct calls, which threw afterwards.
    expect_sum(sum);
    CUDA_OK(add_one(stream));
    EXPECT_TRUE(did(captures ? Outcome::kInstantiated : Outcome::kEager, run(false)));
    expect_sum(sum + 2);
    if (captures) {
      EXPECT_RUN(kReplayed, run(true));  // a hit does not call fn
      expect_sum(sum + 3);
    }
  };
  expect_passes("captured, then called directly", Options(), 2, true, true);
  expect_passes("called once", called_once(), 1, false, true);
  expect_passes("disabled", Options{.max_executables = 0}, 1, true, false);
}

TEST_F(CacheTest, ErrorsThatFnReturnsAreReturnedWithTheirPayloads) {
  for (const OnCaptureFailure on_failure : {OnCaptureFailure::kRunDirectly, OnCaptureFailure::kReturnError}) {
    const bool again = on_failure == OnCaptureFailure::kRunDirectly;
    Cache cache(unshared({.on_capture_failure = on_failure}));
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
    EXPECT_TRUE(mentions_all(outcome.status(), {"my label", "cudaErrorNotSupported"}));
    EXPECT_NE(cache.entries()[0].error.find("cudaErrorNotSupported"), std::string::npos);
    absl::Status status = absl::OutOfRangeError("a reason of mine");
    status.SetPayload("my/payload", absl::Cord("content"));
    outcome = with_status(status);
    EXPECT_ERROR(kOutOfRange, outcome, "a reason of mine", "my label");
    EXPECT_EQ(cuda_error(outcome.status()), cudaSuccess);
    EXPECT_EQ(outcome.status().GetPayload("my/payload"), absl::Cord("content"));
    expect_sum(again ? 2 : 0);  // The captures are not launched.
    EXPECT_EQ(cache.stats().failed, 2u);
    EXPECT_EQ(cache.stats().live_executables, 0u);
    EXPECT_RUN(kInstantiated, with_error(cudaSuccess));
    EXPECT_RUN(kInstantiated, with_status(absl::OkStatus()));
    expect_sum(again ? 4 : 2);
  }
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
  const auto expect_direct = [&](const char* name, const auto& fn) {
    SCOPED_TRACE(name);
    Cache cache;
    reset_sum();
    for (int i = 0; i < 4; ++i) EXPECT_RUN(kEager, cache.run(key("k"), stream, fn));
    expect_sum(4);
  };
  expect_direct("of the stream", [&](cudaStream_t on) {
    add_one(on);
    return cudaStreamSynchronize(on);
  });
  expect_direct("of the device", [&](cudaStream_t on) {
    add_one(on);
    return cudaDeviceSynchronize();
  });
  expect_direct("whose error is ignored", [&](cudaStream_t on) {
    (void)cudaStreamSynchronize(on);
    (void)add_one(on);
  });
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
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) -> cudaError_t {
    if (const cudaError_t error = cudaStreamSynchronize(on); error != cudaSuccess) {
      cudaGetLastError();
      return error;
    }
    (void)add_one(on);
    return cudaGetLastError();
  }));
  expect_sum(1);
}

TEST_F(CacheTest, UnjoinedForkRunsEagerly) {
  Cache cache;
  Branch other;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
      add_one(on);
      let_follow(other.stream, on);
      return launch(add, kGrid, kBlock, other.stream, other.data.get(), kSize, 1.0f);
    }));
    EXPECT_FALSE(is_capturing(other.stream));
    expect_sum(static_cast<float>(i));
    EXPECT_EQ(other.data.read(), std::vector<float>(kSize, static_cast<float>(i)));
  }
}

// Law 4 on each way that a run can take. Each check names the way. What a direct call of `fn` does to the slot is its
// own affair.
TEST_F(CacheTest, EachWayOfARunLeavesAnOlderErrorInTheLastErrorSlot) {
  EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  const auto expect_older = [](const std::string& way) {
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice) << way;
  };
  float wanted = 0;
  const auto expect_done = [&](const std::string& way, float value = 1) {
    wanted += value;
    expect_older(way);
  };
  const auto run = [&](Cache& cache, Outcome outcome, const std::string& way, const Key& key, cudaStream_t on,
                       float value) {
    EXPECT_TRUE(did(outcome, cache.run(key, on, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    }))) << way;
    expect_done(way, value);
  };
  const auto run_allocating = [&](Cache& cache, Outcome outcome, const std::string& way, bool fails = false) {
    EXPECT_TRUE(did(outcome, cache.run(key("allocates"), stream, [&](cudaStream_t s) -> cudaError_t {
      void* memory = nullptr;
      (void)cudaMallocAsync(&memory, 64, s);
      (void)add_one(s);
      (void)cudaFreeAsync(memory, s);
      return fails ? cudaErrorUnknown : cudaSuccess;
    }))) << way;
    expect_done(way);
  };
  Stream second;
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdates, Sharing::kTable}) {
    Cache cache(forced(sharing, 1));
    const Outcome first_other = sharing == Sharing::kNever ? Outcome::kInstantiated : Outcome::kUpdated;
    const Outcome again = sharing == Sharing::kNever ? Outcome::kRestored : Outcome::kSwitched;
    run(cache, Outcome::kInstantiated, "miss", key("a"), stream, 1);
    run(cache, Outcome::kReplayed, "hit", key("a"), stream, 1);
    run(cache, Outcome::kPatched, "hit with another value", key("a"), stream, 2);
    run(cache, Outcome::kReplayed, "hit on another stream", key("a"), second, 2);
    CUDA_OK(cudaStreamSynchronize(second));
    run(cache, first_other, "eviction, or a loan", key("b"), stream, 3);
    run(cache, again, "restore, or a switch", key("a"), stream, 4);
    EXPECT_TRUE(cache.warm(key("c"), stream, [&](cudaStream_t s) { return add_one(s); }).ok());
    expect_older("warm");
    EXPECT_TRUE(cache.graph(key("a")).ok());
    expect_older("graph");
    EXPECT_TRUE(cache.erase(key("a")));
    expect_older("erase");
    cache.clear();
    expect_older("clear");
  }
  {
    Cache cache(unshared(1));
    run_allocating(cache, Outcome::kInstantiated, "miss of a graph that has one executable");
    CUDA_OK(cudaStreamSynchronize(stream));  // Two streams must not add at once.
    run(cache, Outcome::kInstantiated, "eviction of that executable", key("b"), second, 1);
    CUDA_OK(cudaStreamSynchronize(second));
    run_allocating(cache, Outcome::kRestored, "restore of a graph that has one executable");
    for (int i = 0; i < 40; ++i) run(cache, Outcome::kInstantiated, "collection", key("many", i), stream, 1);
  }
  expect_older("destruction");
  Cache verified(unshared({.verify_every = 1}));
  run(verified, Outcome::kInstantiated, "miss in verify mode", key("a"), stream, 1);
  run(verified, Outcome::kReplayed, "verified hit", key("a"), stream, 1);
  EXPECT_EQ(verified.stats().verified, 1u);
  Cache disabled(unshared(0));
  run(disabled, Outcome::kEager, "disabled cache", key("a"), stream, 1);
  Cache cache(unshared());
  for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
    EXPECT_TRUE(did(outcome, run_add(cache, key("without values"))));
    expect_done("miss and hit without values");
  }
  EXPECT_RUN(kEager, cache.run(key("breaks"), stream, [&](cudaStream_t s) {
    (void)cudaStreamSynchronize(s);
    (void)add_one(s);
  }));
  expect_done("capture that breaks");
  EXPECT_RUN(kEager, cache.run(key("fails under capture"), stream, [&](cudaStream_t s) {
    if (is_capturing(s)) return cudaErrorUnknown;
    return add_one(s);
  }));
  expect_done("fn that fails under capture");
  EXPECT_RUN(kInstantiated, cache.run(key("own graph"), stream, [&] {
    return Graph{.graph = capture_graph(second, [&](cudaStream_t on) { CUDA_OK(add_one(on)); }), .give_away = true};
  }));
  expect_done("graph of the program's own");
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_RUN(kInstantiated, cache.run(key("legacy"), cudaStreamLegacy, [&](cudaStream_t s) { return add_one(s); }));
  expect_done("legacy stream");
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  expect_sum(wanted);
}

// The error of the run is its status.
TEST_F(CacheTest, AFailedRunLeavesAnOlderErrorInTheLastErrorSlot) {
  for (const Options& options : {unshared(), called_once(), unshared(0)}) {
    Cache cache(options);
    EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
    const auto launch_nothing = [&](cudaStream_t s) {
      (void)launch(add, dim3(0), kBlock, s, data.get(), kSize, 1.0f);  // leaves kBadShape behind
    };
    EXPECT_FALSE(cache.run(key("k"), stream, launch_nothing).ok());
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    EXPECT_FAILURE(kInternal, cache.run(key("l"), stream, [&](cudaStream_t) { return cudaErrorUnknown; }));
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  }
  expect_sum(0);
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
