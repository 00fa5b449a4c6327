// Runs on the default stream and during captures by other code: what is captured, and how other threads' calls are kept
// out.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {
namespace {

using MistakesOnStreamsTest = CacheTest;

// ---- The legacy default stream ----------------------------------------------------------------------------------

TEST_F(MistakesOnStreamsTest, ARunOnTheDefaultStreamIsAGraph) {
  Cache cache;
  for (const cudaStream_t by_name : {static_cast<cudaStream_t>(nullptr), cudaStreamLegacy}) {
    for (int i = 0; i < 3; ++i) EXPECT_SUCCESS(run_add(cache, by_name, static_cast<float>(i + 1)));
  }
  EXPECT_EQ(calls, 1);
  expect_sum(12);
  EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
  EXPECT_EQ(cache.stats().instantiations, 1u);
}

TEST_F(MistakesOnStreamsTest, TheDefaultStreamWaitsForBlockingStreamsAndTheyForIt) {
  const StreamOf blocking(cudaStreamDefault, 0);
  Cache cache;
  const auto scale_by_2 = [&](cudaStream_t on) {
    return launch(scale, kGrid, kBlock, on, data.get(), static_cast<const float*>(data.get()), kSize, 2.0f);
  };
  float wanted = 0;
  for (int i = 0; i < 50; ++i) {
    CUDA_OK(add_one(blocking));
    EXPECT_SUCCESS(cache.run(key("k"), nullptr, scale_by_2));
    CUDA_OK(add_one(blocking));
    wanted = (wanted + 1) * 2 + 1;
    if (wanted > 1e6f) {
      wanted = 0;
      CUDA_OK(launch(fill, kGrid, kBlock, blocking, data.get(), kSize, 0.0f));
    }
  }
  expect_sum(wanted);
  EXPECT_EQ(cache.stats().outcome(Outcome::kReplayed), 49u);
}

TEST_F(MistakesOnStreamsTest, ANestedRunOnTheDefaultStreamMakesTheOuterOneDirect) {
  Cache cache;
  DeviceBuffer<float> other(kSize);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      EXPECT_SUCCESS(cache.run(key("inner"), nullptr, [&](cudaStream_t of_inner) {
        return launch(add, kGrid, kBlock, of_inner, other.get(), kSize, 1.0f);
      }));
      return add_one(on);
    }));
    expect_sum(static_cast<float>(i));
    EXPECT_EQ(other.read(), std::vector<float>(kSize, static_cast<float>(i)));
  }
}

TEST_F(MistakesOnStreamsTest, TheOptionsMayNameTheDefaultStream) {
  Cache cache({.stream = nullptr});
  const auto work = [&](cudaStream_t on) { return add_one(on); };
  EXPECT_SUCCESS(cache.warm(key("k"), work));
  EXPECT_RUN(kReplayed, cache.run(key("k"), work));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), nullptr, std::function<void(cudaStream_t)>()));
  expect_sum(1);
}

// Programs compare the handle, and pass it to libraries that only know the null stream.
TEST_F(MistakesOnStreamsTest, ADirectRunGetsTheDefaultStreamAsTheCallerNamedIt) {
  Cache cache({.max_executables = 0});
  for (const cudaStream_t name : {static_cast<cudaStream_t>(nullptr), cudaStreamLegacy}) {
    EXPECT_RUN(kEager, cache.run(key("k"), name, [&](cudaStream_t on) {
      EXPECT_EQ(on, name);
      return add_one(on);
    }));
  }
  expect_sum(2);
}

TEST_F(MistakesOnStreamsTest, LaunchesWithoutAStreamAreRunDirectlyEachTime) {
  Cache cache;
  for (int i = 1; i <= 5; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), nullptr, [&](cudaStream_t) { return add_one(nullptr); }));
    expect_sum(static_cast<float>(i));
  }
  EXPECT_EQ(cache.stats().eager(EagerReason::kNothingCaptured), 5u);
}

TEST_F(MistakesOnStreamsTest, ALaunchWithoutAStreamBesideOtherWorkIsLostUnlessVerified) {
  for (const int every : {0, 1}) {
    DeviceBuffer<float> other(kSize);
    Cache cache({.verify_every = every});
    const auto run = [&] {
      return cache.run(key("k"), nullptr, [&](cudaStream_t on) {
        const cudaError_t error = launch(add, kGrid, kBlock, nullptr, other.get(), kSize, 1.0f);
        return error != cudaSuccess ? error : add_one(on);
      });
    };
    for (int i = 0; i < 3; ++i) EXPECT_SUCCESS(run());
    EXPECT_EQ(other.read(), std::vector<float>(kSize, every == 0 ? 1 : 3));
    const EntryInfo entry = cache.entries()[0];
    EXPECT_EQ(entry.error.find("cudaErrorStreamCaptureImplicit") != std::string::npos, every != 0) << entry.error;
  }
  expect_sum(6);
}

// The call that asks whether the stream is capturing returns an error then.
TEST_F(MistakesOnStreamsTest, ARunOnTheDefaultStreamWhileABlockingOneIsCapturedSaysWhatToDo) {
  const StreamOf blocking(cudaStreamDefault, 0);
  Cache cache;
  CUDA_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal));
  EXPECT_ERROR(kFailedPrecondition, cache.run(key("k"), cudaStreamLegacy, [&](cudaStream_t on) { return add_one(on); }),
               "cudaErrorStreamCaptureImplicit", "run on a stream made with cudaStreamNonBlocking");
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(blocking, &graph);
  if (graph != nullptr) {
    CUDA_OK(cudaGraphDestroy(graph));
  }
  cudaGetLastError();
}

// ---- Captures by other code ---------------------------------------------------------------------------------------

TEST_F(MistakesOnStreamsTest, AForeignCaptureTakesTheWorkIfTheOptionSaysSoAndTheErrorNamesTheOption) {
  Cache cache({.inline_in_foreign_capture = true});
  const auto run = [&](float value) { return run_add(cache, stream, value); };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_RUN(kReplayed, run(1));
  EXPECT_EQ(calls, 1);
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Cache by_default;
  const absl::StatusOr<Outcome> refused = run_add(by_default, key("k"));
  EXPECT_FAILURE(kFailedPrecondition, refused);
  EXPECT_TRUE(mentions(refused.status(), "inline_in_foreign_capture"));
  EXPECT_RUN(kInlined, run(10)) << "a key that is known";
  EXPECT_RUN(kInlined, cache.run(key("new"), stream, [&](cudaStream_t on) { return add_one(on); }));
  EXPECT_FAILURE(kFailedPrecondition, cache.run(key("device"), stream, params(1.0f),
                                                [&](Recorder& rec, Slot<float> v) { rec.write(data.get(), v); }));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  expect_sum(2);
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) CUDA_OK(cudaGraphLaunch(executable, stream));
  expect_sum(35);
  EXPECT_RUN(kPatched, run(5));
  expect_sum(40);
  CUDA_OK(cudaGraphExecDestroy(executable));
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(MistakesOnStreamsTest, TheGateKeepsOtherThreadsCallsOutOfCaptures) {
  const int device = current_device();
  Cache cache;
  std::atomic<bool> stop{false};
  std::atomic<int> synchronizations{0};
  std::thread other([&] {
    while (!stop) {
      const std::lock_guard<CaptureGate> no_capture(capture_gate(device));
      CUDA_OK(cudaDeviceSynchronize());
      ++synchronizations;
    }
  });
  int runs = 0;
  while (runs < 300 || synchronizations < 20) EXPECT_SUCCESS(run_add(cache, key("k", runs++)));
  EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
  stop = true;
  other.join();
  EXPECT_EQ(cache.stats().capture_failures, 0u);
  EXPECT_EQ(calls, runs);
  expect_sum(static_cast<float>(runs));
}

TEST_F(MistakesOnStreamsTest, AThreadDoesNotWaitForItsOwnSideOfTheGate) {
  const int device = current_device();
  Cache cache;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
    const std::lock_guard<CaptureGate> in_fn(capture_gate(device));
    return add_one(on);
  }));
  {
    const std::lock_guard<CaptureGate> held(capture_gate(device));
    const std::lock_guard<CaptureGate> again(capture_gate(device));
    EXPECT_RUN(kInstantiated, run_add(cache, key("held")));
  }
  std::thread([&] { const std::lock_guard<CaptureGate> free_again(capture_gate(device)); }).join();
  expect_sum(2);
}

TEST_F(MistakesOnStreamsTest, AThreadThatIsCancelledAtTheGateHoldsNobodyUp) {
  const int device = current_device();
  Cache cache;
  std::thread waits;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
    waits = std::thread([&] { const std::lock_guard<CaptureGate> no_capture(capture_gate(device)); });
    // Nothing tells when it waits there. If it is cancelled before, the test passes all the same.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(pthread_cancel(waits.native_handle()), 0);
    return add_one(on);
  }));
  waits.join();
  EXPECT_RUN(kInstantiated, run_add(cache, key("next")));
  expect_sum(2);
}

}  // namespace
}  // namespace graphcache::test
