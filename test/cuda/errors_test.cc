// Errors of the queries that a cache makes before and beside its work (device, capture, kernels), and
// lib/cuda/errors.h. On hostrt, which can make any of them fail.
#include "cuda/errors.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "graphcache/status.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr int kThreads = 8;

class ErrorsTest : public testing::Test {
 protected:
  ErrorsTest() {
    hostrt::reset();
    hostrt::set_device_count(2);
    stream.emplace();
    data.emplace(kThreads);
  }
  ~ErrorsTest() override {
    EXPECT_FALSE(is_capturing(*stream));
    CUDA_OK(cudaPeekAtLastError());
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    data.reset();
    stream.reset();
    hostrt::reset();
  }

  auto work() {
    return [this](cudaStream_t s) { return launch(add, 1, kThreads, s, data->get(), kThreads, 1.0f); };
  }
  // Expects that the run or warm() fails because of the call, and that the next run succeeds.
  void expect_failed(const absl::Status& status, const std::string& call, cudaError_t error, Cache& cache,
                     cudaStream_t on) {
    EXPECT_EQ(cuda_error(status), error) << status;
    EXPECT_TRUE(mentions(status, call)) << status;
    EXPECT_TRUE(mentions(status, "my label")) << status;
    CUDA_OK(cudaPeekAtLastError());
    hostrt::clear_failures();
    data->write(std::vector<float>(kThreads, 0.0f));
    EXPECT_TRUE(cache.run(key("my label"), on, work()).ok());
    EXPECT_EQ(data->read(), std::vector<float>(kThreads, 1.0f));
  }

  std::optional<Stream> stream;
  std::optional<DeviceBuffer<float>> data;
};

TEST_F(ErrorsTest, FailedQueryOfTheDeviceIsReturned) {
  const cudaStream_t streams[] = {cudaStreamPerThread, *stream};
  for (const char* const call : {"cudaGetDevice", "cudaStreamGetDevice", "cudaStreamIsCapturing"}) {
    for (const cudaStream_t on : streams) {
      const bool is_asked = CUDART_VERSION >= 12080 && on != cudaStreamPerThread;
      if (!is_asked && std::string(call) == "cudaStreamGetDevice") continue;
      Cache cache;
      hostrt::fail_call(call, 1, cudaErrorUnknown);
      expect_failed(cache.run(key("my label"), on, work()).status(), call, cudaErrorUnknown, cache, on);
    }
  }
}

TEST_F(ErrorsTest, FailedQueryOfTheDeviceIsReturnedByWarm) {
  // For the context that the cache begins in, whether it still is the current one, the stream's device, and the current
  // device; and for the call of `fn`.
  for (int nth = 1; nth <= 5; ++nth) {
    Cache cache;
    hostrt::fail_call("cudaGetDevice", nth, cudaErrorUnknown);
    expect_failed(cache.warm(key("my label"), *stream, work()), "cudaGetDevice", cudaErrorUnknown, cache, *stream);
  }
}

TEST_F(ErrorsTest, DeviceIsRestoredThoughAnyOneQueryOfItFails) {
  for (const int executables : {0, 1}) {
    bool is_struck = true;
    for (int nth = 1; is_struck; ++nth) {
      Cache cache({.max_executables = executables});
      const std::uint64_t before = hostrt::failures_injected();
      hostrt::fail_call("cudaGetDevice", nth, cudaErrorUnknown);
      int calls = 0;
      const auto outcome = cache.run(key("k"), *stream, [&](cudaStream_t s) {
        ++calls;
        work()(s);
        return cudaSetDevice(1);
      });
      is_struck = hostrt::failures_injected() > before;
      hostrt::clear_failures();
      EXPECT_EQ(current_device(), 0) << nth;
      EXPECT_EQ(outcome.ok(), calls != 0) << nth << ": " << outcome.status();
    }
  }
}

TEST_F(ErrorsTest, DeviceThatCannotBeMadeCurrentIsAnError) {
  Cache cache({.device = 0});
  CUDA_OK(cudaSetDevice(1));
  hostrt::fail_call("cudaSetDevice", 1, cudaErrorUnknown, -1);
  const absl::Status status = cache.run(key("my label"), *stream, work()).status();
  EXPECT_EQ(cuda_error(status), cudaErrorUnknown) << status;
  EXPECT_TRUE(mentions(status, "cudaSetDevice")) << status;
  hostrt::clear_failures();
  EXPECT_RUN(kInstantiated, cache.run(key("my label"), *stream, work()));
  EXPECT_EQ(current_device(), 1);
  CUDA_OK(cudaSetDevice(0));
}

TEST_F(ErrorsTest, FatalErrorOfAnUploadIsThatOfEveryLaterCall) {
  Cache cache;
  hostrt::fail_call("cudaGraphUpload", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.warm(key("k"), *stream, work())), cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.status()), cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.run(key("k"), *stream, work()).status()), cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.warm(key("k"), *stream, work())), cudaErrorIllegalAddress);
  hostrt::clear_failures();
}

// A run inside another's fn queries the capture that it is in, once for itself and once for its recorder.
TEST_F(ErrorsTest, FailedQueryOfTheCaptureOfANestedRunIsReturned) {
  for (const int nth : {2, 3}) {
    Cache cache;
    absl::StatusOr<Outcome> inner = absl::UnknownError("not run");
    hostrt::fail_call("cudaStreamGetCaptureInfo", nth, cudaErrorUnknown);
    const absl::StatusOr<Outcome> outer = cache.run(key("outer"), *stream, [&](cudaStream_t s) {
      if (is_capturing(s)) inner = cache.run(key("inner"), s, work());
      return cudaSuccess;
    });
    EXPECT_EQ(cuda_error(inner.status()), cudaErrorUnknown) << inner.status();
    EXPECT_TRUE(mentions(inner.status(), "inner")) << inner.status();
    hostrt::clear_failures();
    EXPECT_TRUE(cache.run(key("outer"), *stream, [](cudaStream_t) {}).ok());
  }
}

// The stream may or may not be part of the capture. As long as that is unknown, nothing is captured.
TEST_F(ErrorsTest, FailedQueryOfTheCaptureOfAForkedStreamIsReturnedOrMakesTheRunDirect) {
  Stream side;
  const auto run = [&](Cache& cache, bool fails) {
    return cache.run(key("my label"), *stream, [&, fails](Recorder& rec) {
      let_follow(side, rec.stream());
      if (fails && is_capturing(rec.stream())) hostrt::fail_call("cudaStreamGetCaptureInfo", 1, cudaErrorUnknown);
      rec.on(side).launch(add, {1, kThreads}, data->get(), kThreads, 1);
      let_follow(rec.stream(), side);
    });
  };
  Cache strict({.on_capture_failure = OnCaptureFailure::kReturnError});
  const absl::Status status = run(strict, true).status();
  EXPECT_EQ(cuda_error(status), cudaErrorUnknown) << status;
  EXPECT_TRUE(mentions(status, "cudaStreamGetCaptureInfo")) << status;
  EXPECT_EQ(data->first(), 0.0f);
  EXPECT_TRUE(run(strict, false).ok());
  EXPECT_EQ(data->first(), 1.0f);

  Cache cache;
  EXPECT_RUN(kEager, run(cache, true));
  EXPECT_EQ(data->first(), 2.0f);
}

// Without its node, the values could not follow the next run, so such a run is not captured.
TEST_F(ErrorsTest, NodeThatCannotBeFoundMakesTheRunEager) {
  for (const char* const call : {"cudaStreamGetCaptureInfo", "cudaGraphNodeGetType"}) {
    Cache cache;
    data->write(std::vector<float>(kThreads, 0.0f));
    const auto run = [&](float value) {
      return cache.run(key("k"), *stream, params(value), [&](Recorder& rec, Slot<float> v) {
        if (hostrt::calls("cudaGraphLaunch") == 0 && is_capturing(rec.stream())) {
          hostrt::fail_call(call, 1, cudaErrorUnknown);
        }
        rec.launch(add, {1, kThreads}, data->get(), kThreads, v);
      });
    };
    EXPECT_RUN(kEager, run(2)) << call;
    EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureFailed), 1u) << call;
    EXPECT_EQ(data->first(), 2.0f);
    hostrt::clear_failures();
  }
}

TEST_F(ErrorsTest, StatusesNameTheCallAndTheKey) {
  const absl::Status status = cuda_failure("cudaGraphLaunch", cudaErrorInvalidValue);
  EXPECT_EQ(cuda_error(status), cudaErrorInvalidValue);
  EXPECT_EQ(cuda_error(absl::OkStatus()), cudaSuccess);
  EXPECT_EQ(cuda_error(absl::InternalError("no CUDA call")), cudaSuccess);
  EXPECT_TRUE(with_key(absl::OkStatus(), key("k")).ok());
  const absl::Status labelled = with_key(status, key("my label", 3));
  EXPECT_TRUE(mentions(labelled, "\"my label\"")) << labelled;
  EXPECT_EQ(cuda_error(labelled), cudaErrorInvalidValue);
  const absl::Status whole = with_key(status, key(7, 3));
  EXPECT_TRUE(mentions(whole, "(7, 3)")) << whole;
}

TEST_F(ErrorsTest, StatusesOfLongKeysHaveTheLabelAndTheBeginning) {
  const absl::Status status = absl::InternalError("reason");
  EXPECT_EQ(with_key(status, key(std::string(252, 'x'))).message(),
            "graphcache: key (\"" + std::string(252, 'x') + "\"): reason");
  EXPECT_EQ(with_key(status, key(std::string(253, 'x'))).message(),
            "graphcache: key \"" + std::string(32, 'x') + "\": (\"" + std::string(253, 'x') + "\"...: reason");
  const absl::Status labelled = with_key(status, key(std::vector<int>(100000, 1), "my\nlabel"));
  EXPECT_TRUE(mentions(labelled, "key \"my\\nlabel\": ([1, 1, ")) << labelled;
  EXPECT_LT(labelled.message().size(), 350u);
  EXPECT_LT(with_key(status, key(std::string(1 << 20, '\0'), 1)).message().size(), 450u);
}

}  // namespace
}  // namespace graphcache::test
