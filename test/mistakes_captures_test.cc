// Mistakes in `fn` that break a capture or leave it empty: what the run does all the same, and what it says.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache_support.h"
#include "graphcache/status.h"

namespace graphcache::test {
namespace {

class MistakesTest : public CacheTest {
 protected:
  // As checked code does.
  static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    throw std::runtime_error(cudaGetErrorName(error));
  }
  static void allocate() {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 64));
    check(cudaFree(memory));
  }
  static std::string error_of(const Cache& cache) { return cache.entries()[0].error; }
};

TEST_F(MistakesTest, CheckedCodeThatThrowsInABrokenCaptureRunsDirectly) {
  Cache cache;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      ++calls;
      check(add_one(on));
      allocate();
      check(add_one(on));
    });
  };
  EXPECT_RUN(kEager, run());
  EXPECT_EQ(calls, 2);
  expect_sum(2);
  EXPECT_EQ(cache.entries()[0].eager_reason, EagerReason::kCaptureFailed);
  EXPECT_RUN(kEager, run());
  EXPECT_EQ(calls, 3);
  expect_sum(4);
  EXPECT_EQ(cache.entries()[0].eager_reason, EagerReason::kBackoff);
  EXPECT_FALSE(error_of(cache).empty()) << "the error stays";
  EXPECT_EQ(cache.stats().failed, 0u);
}

TEST_F(MistakesTest, AnExceptionOfTheDirectCallPasses) {
  Cache cache;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      ++calls;
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      CUDA_OK(cudaStreamIsCapturing(on, &status));
      if (status == cudaStreamCaptureStatusNone) throw std::runtime_error("of the direct call");
      allocate();
    });
  };
  try {
    (void)run();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "of the direct call");
  }
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(cache.stats().failed, 1u);
}

TEST_F(MistakesTest, ACallThatBreaksTheCaptureIsPlacedBetweenTwoRecordedOnes) {
  Cache cache;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, params(1.0f), [&](Recorder& rec, Slot<float> value) {
    rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, 3.0f);
    rec.launch(add, {kGrid, kBlock}, data.get(), kSize, value);
    void* memory = nullptr;
    if (cudaMalloc(&memory, 64) == cudaSuccess) cudaFree(memory);
    rec.launch(scale, {kGrid, kBlock}, data.get(), data.get(), kSize, 2.0f);
  }));
  expect_sum(8);
  const std::string error = error_of(cache);
  EXPECT_NE(error.find("between rec.launch of "), std::string::npos) << error;
  EXPECT_LT(error.find("add"), error.find("scale")) << error;
  EXPECT_EQ(error.find("fill"), std::string::npos) << error;
  EXPECT_NE(error.find("(calls 2 and 3 of the recorder)"), std::string::npos) << error;
  EXPECT_NE(error.find("cudaErrorStreamCaptureUnsupported"), std::string::npos) << error;
  EXPECT_NE(error.find("cudaMallocAsync"), std::string::npos) << "what to do: " << error;
}

TEST_F(MistakesTest, TheFirstAndTheLastCallOfTheRecorderAreNamed) {
  const auto error_with = [&](bool before) {
    Cache cache;
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](Recorder& rec) {
      if (before) cudaStreamSynchronize(rec.stream());
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, 3.0f);
      rec.memset(data.get(), 0, sizeof(float));
      if (!before) cudaStreamSynchronize(rec.stream());
    }));
    return error_of(cache);
  };
  EXPECT_NE(error_with(true).find("before rec.launch of "), std::string::npos) << error_with(true);
  EXPECT_NE(error_with(false).find("after rec.memset, the last of 2 calls of the recorder"), std::string::npos)
      << error_with(false);
}

TEST_F(MistakesTest, WorkThatIsNotJoinedIsSaidToBeSo) {
  Cache cache;
  Stream side;
  Event fork;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
    CUDA_OK(cudaEventRecord(fork, on));
    CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
    CUDA_OK(add_one(side));
  }));
  CUDA_OK(cudaStreamSynchronize(side));
  expect_sum(1);
  EXPECT_NE(error_of(cache).find("rec.stream() wait for it before fn returns"), std::string::npos) << error_of(cache);
}

TEST_F(MistakesTest, ABrokenCaptureMayBeAnError) {
  Options options;
  options.on_capture_failure = OnCaptureFailure::kReturnError;
  Cache cache(options);
  for (int i = 1; i <= 3; ++i) {
    const absl::StatusOr<Outcome> outcome = cache.run(key("k"), stream, [&](cudaStream_t on) {
      ++calls;
      check(add_one(on));
      allocate();
    });
    EXPECT_FAILURE(kFailedPrecondition, outcome);
    EXPECT_NE(cuda_error(outcome.status()), cudaSuccess) << outcome.status();
    EXPECT_EQ(calls, i) << "each run tries again, and calls fn once";
  }
  expect_sum(0);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }));
  EXPECT_EQ(cache.stats().failed, 3u);
}

TEST_F(MistakesTest, WorkOnAnotherStreamRunsDirectlyEachTime) {
  Cache cache;
  Stream other;
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t) { CUDA_OK(add_one(other)); }); };
  for (int i = 1; i <= 20; ++i) {
    EXPECT_RUN(kEager, run());
    CUDA_OK(cudaStreamSynchronize(other));
    expect_sum(static_cast<float>(i));
  }
  EXPECT_EQ(cache.stats().eager(EagerReason::kNothingCaptured), 20u);
  EXPECT_EQ(cache.entries()[0].eager_reason, EagerReason::kNothingCaptured);
  EXPECT_NE(error_of(cache).find("rec.stream()"), std::string::npos) << error_of(cache);
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_EQ(cache.stats().live_executables, 0u);
}

TEST_F(MistakesTest, AKeyThatCapturesNothingCannotBeWarmed) {
  Cache cache;
  EXPECT_FAILURE(kFailedPrecondition, cache.warm(key("k"), stream, [&](cudaStream_t) { ++calls; }));
  EXPECT_EQ(calls, 1);
}

TEST_F(MistakesTest, KeysThatNeverCaptureLowerTheRates) {
  Cache cache;
  for (int i = 0; i < 25; ++i) {
    EXPECT_TRUE(run_add(cache, key("good")).ok());
    for (int bad = 0; bad < 3; ++bad) {
      EXPECT_RUN(kEager, cache.run(key("bad", bad), stream, [&](cudaStream_t on) {
        ++calls;
        cudaStreamSynchronize(on);
        return add_one(on);
      }));
    }
  }
  const Stats all = cache.stats();
  EXPECT_DOUBLE_EQ(all.hit_rate(), 0.24);
  EXPECT_DOUBLE_EQ(all.graph_rate(), 0.25);
}

// ---- The legacy default stream ----------------------------------------------------------------------------------

TEST_F(MistakesTest, ARunOnTheDefaultStreamIsAGraph) {
  Cache cache;
  for (const cudaStream_t by_name : {static_cast<cudaStream_t>(nullptr), cudaStreamLegacy}) {
    const auto run = [&](float value) {
      return cache.run(key("k"), by_name, params(value), [&](Recorder& rec, Slot<float> v) {
        ++calls;
        rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      });
    };
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(static_cast<float>(i + 1)).ok());
  }
  EXPECT_EQ(calls, 1);
  expect_sum(12);
  EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
  EXPECT_EQ(cache.stats().instantiations, 1u);
}

TEST_F(MistakesTest, TheDefaultStreamWaitsForBlockingStreamsAndTheyForIt) {
  cudaStream_t blocking = nullptr;
  CUDA_OK(cudaStreamCreate(&blocking));
  Cache cache;
  const auto scale_by_2 = [&](cudaStream_t on) {
    return launch(scale, kGrid, kBlock, on, data.get(), static_cast<const float*>(data.get()), kSize, 2.0f);
  };
  float wanted = 0;
  for (int i = 0; i < 50; ++i) {
    CUDA_OK(add_one(blocking));
    EXPECT_TRUE(cache.run(key("k"), nullptr, scale_by_2).ok());
    CUDA_OK(add_one(blocking));
    wanted = (wanted + 1) * 2 + 1;
    if (wanted > 1e6f) {
      wanted = 0;
      CUDA_OK(launch(fill, kGrid, kBlock, blocking, data.get(), kSize, 0.0f));
    }
  }
  expect_sum(wanted);
  EXPECT_EQ(cache.stats().outcome(Outcome::kReplayed), 49u);
  CUDA_OK(cudaStreamDestroy(blocking));
}

TEST_F(MistakesTest, ANestedRunOnTheDefaultStreamMakesTheOuterOneDirect) {
  Cache cache;
  DeviceBuffer<float> other(kSize);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      EXPECT_TRUE(cache
                      .run(key("inner"), nullptr,
                           [&](cudaStream_t of_inner) {
                             return launch(add, kGrid, kBlock, of_inner, other.get(), kSize, 1.0f);
                           })
                      .ok());
      return add_one(on);
    }));
    expect_sum(static_cast<float>(i));
    EXPECT_EQ(other.read(), std::vector<float>(kSize, static_cast<float>(i)));
  }
}

TEST_F(MistakesTest, TheOptionsMayNameTheDefaultStream) {
  Options options;
  options.stream = nullptr;
  Cache cache(options);
  const auto work = [&](cudaStream_t on) { return add_one(on); };
  EXPECT_TRUE(cache.warm(key("k"), work).ok());
  EXPECT_RUN(kReplayed, cache.run(key("k"), work));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), nullptr, std::function<void(cudaStream_t)>()));
  expect_sum(1);
}

TEST_F(MistakesTest, LaunchesWithoutAStreamAreRunDirectlyEachTime) {
  Cache cache;
  for (int i = 1; i <= 5; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), nullptr, [&](cudaStream_t) { return add_one(nullptr); }));
    expect_sum(static_cast<float>(i));
  }
  EXPECT_EQ(cache.stats().eager(EagerReason::kNothingCaptured), 5u);
}

TEST_F(MistakesTest, TheDefaultStreamIsUsableWhileARunOnItIsCaptured) {
  Cache cache;
  DeviceBuffer<float> other(kSize);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), nullptr, [&](cudaStream_t on) {
    CUDA_OK(launch(add, kGrid, kBlock, nullptr, other.get(), kSize, 1.0f));
    return add_one(on);
  }));
  expect_sum(1);
  EXPECT_EQ(other.read(), std::vector<float>(kSize, 1));
}

}  // namespace
}  // namespace graphcache::test
