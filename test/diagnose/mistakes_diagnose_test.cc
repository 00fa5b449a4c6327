// Reports about captures that break while CUDA calls are watched (Options::diagnose): the call at fault, its caller,
// and what to do.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/compat.h"
#include "diagnose_support.h"
#include "in_threads.h"

namespace graphcache::test {
namespace {

using MistakesDiagnoseTest = DiagnoseTest;

TEST_F(MistakesDiagnoseTest, TheCallThatBreaksACaptureIsNamed) {
  Event before;
  CUDA_OK(cudaEventRecord(before, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  Stream other;
  Event elsewhere;
  CUDA_OK(cudaEventRecord(elsewhere, other));
  DeviceBuffer<float> target(kSize);
  Event of_capture;
  CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(cudaEventRecord(of_capture, other));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(other, &graph));
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  const StreamOf blocking(cudaStreamDefault, 0);
  float* weights = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&weights), 64));
  float* more = nullptr;
  struct Cause {
    const char* call;
    const char* caller;
    const char* remedy;
    std::function<void(Recorder&)> in_fn;
    const char* error = "cudaErrorStreamCaptureUnsupported";
    cudaStream_t on = nullptr;  // If not that of the test.
  };
  const std::vector<Cause> causes = {
      {"cudaMalloc", "load_weights(float**)", "move the allocation out of fn, or use cudaMallocAsync on rec.stream()",
       [&](Recorder&) { load_weights(&more); }},
      {"cudaFree", "drop_weights(float*)", "move the allocation out of fn",
       [&](Recorder&) { (void)drop_weights(weights); }},
      {"cudaStreamSynchronize", "wait_until_done(CUstream_st*)", "synchronize after the run",
       [&](Recorder& rec) { wait_until_done(rec.stream()); }},
      {"cudaDeviceSynchronize", "wait_for_all()", "synchronize after the run", [&](Recorder&) { wait_for_all(); }},
      {"cudaEventQuery", "is_done(CUevent_st*)", "query after the run", [&](Recorder&) { is_done(before); }},
      {"cudaMemcpy", "copy_at_once(float*, float)", "use cudaMemcpyAsync",
       [&](Recorder&) { copy_at_once(target.get(), 7); }, "cudaErrorStreamCaptureImplicit", blocking},
      {"cudaStreamWaitEvent", "follow(CUstream_st*, CUevent_st*)", "let the run's stream wait for it before the run",
       [&](Recorder& rec) { follow(rec.stream(), elsewhere); }, "cudaErrorStreamCaptureIsolation"},
      {"cudaStreamWaitEvent", "follow(CUstream_st*, CUevent_st*)", "record it after that run, not in fn",
       [&](Recorder& rec) {
         if (is_capturing(rec.stream())) follow(rec.stream(), of_capture);
       },
       "cudaErrorInvalidValue"},
      {"cudaGraphLaunch", "launch_graph(CUgraphExec_st*, CUstream_st*)", "return the graph from fn (graph.h)",
       [&](Recorder& rec) { launch_graph(executable, rec.stream()); }},
  };
  for (const Cause& cause : causes) {
    SCOPED_TRACE(cause.call);
    const std::string error = error_with(diagnosing(), cause.on == nullptr ? stream : cause.on, cause.in_fn);
    const std::string called = std::string(": ") + cause.call + ", called by graphcache::test::" + cause.caller;
    EXPECT_TRUE(
        has(error, {called + " in this thread after kernel ", std::string(", returned ") + cause.error, cause.remedy,
                    "the capture broke between rec.launch of ", "(calls 1 and 2 of the recorder)"}));
    EXPECT_LT(error.find("after kernel "), error.find("fill", error.find("after kernel "))) << error;
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(contains(lines[0], cause.call)) << lines[0];
    lines.clear();
    cudaGetLastError();
  }
  EXPECT_EQ(target.first(), 7);
  EXPECT_NE(more, nullptr);
  CUDA_OK(cudaFree(more));
  CUDA_OK(cudaGraphExecDestroy(executable));
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(MistakesDiagnoseTest, ACallOfAnotherThreadIsSaidToBeSoAndLoggedInThatThread) {
  std::vector<std::thread::id> logged_in;
  std::size_t logged = 0;
  Options options = diagnosing();
  options.listeners.push_back(
      std::make_shared<Log>([&](std::string_view) { logged_in.push_back(std::this_thread::get_id()); }));
  std::thread::id other;
  bool done = true;
  const std::string error = error_with(options, stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) return;
    std::thread([&] {
      other = std::this_thread::get_id();
      done = wait_for_all();
      logged = lines.size();
    }).join();
  });
  EXPECT_FALSE(done);
  EXPECT_EQ(logged, 1u);
  EXPECT_EQ(logged_in, std::vector<std::thread::id>{other});
  ASSERT_EQ(lines.size(), 1u);
  const char* const call =
      "cudaDeviceSynchronize, called by graphcache::test::wait_for_all() in another thread after the run's kernel ";
  const char* const remedy = "Take graphcache::capture_gate around this call in the other thread";
  EXPECT_TRUE(has(error, {call, remedy}));
  EXPECT_TRUE(has(lines[0], {std::string("the capture broke: ") + call, remedy}));
}

// The exception does not contain the error that broke the capture, and the last error is cleared.
TEST_F(MistakesDiagnoseTest, CheckedCodeThatThrowsIsExplained) {
  Cache cache(diagnosing());
  float* weights = nullptr;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
    CUDA_OK(add_one(on));
    load_weights(&weights);
    if (cudaGetLastError() != cudaSuccess) throw std::runtime_error("of no use");
    CUDA_OK(add_one(on));
  }));
  expect_sum(2);
  EXPECT_TRUE(has(cache.entries()[0].error,
                  {"the capture broke in fn: cudaMalloc, called by graphcache::test::load_weights(float**) in this "
                   "thread after kernel "}));
  CUDA_OK(cudaFree(weights));
}

TEST_F(MistakesDiagnoseTest, TwoCapturesThatMeetAreNamed) {
  Stream other;
  Event of_other;
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) return;
    CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaEventRecord(of_other, other));
    EXPECT_FALSE(follow(rec.stream(), of_other));
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(other, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();
  });
  EXPECT_TRUE(has(error, {"cudaStreamWaitEvent, called by graphcache::test::follow(CUstream_st*, CUevent_st*)",
                          "returned cudaErrorStreamCaptureMerge"}));
}

TEST_F(MistakesDiagnoseTest, TheEndOfACaptureInFnIsNamedAndLogged) {
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    cudaGraph_t graph = nullptr;
    if (is_capturing(rec.stream()) && cudaStreamEndCapture(rec.stream(), &graph) == cudaSuccess) {
      CUDA_OK(cudaGraphDestroy(graph));
    }
  });
  EXPECT_TRUE(has(error, {"cudaStreamEndCapture, called by a lambda of ",
                          "ended the capture, and the cache's own cudaStreamEndCapture returned cudaErrorIllegalState",
                          "Leave captures to the cache"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(has(lines[0], {"the capture broke: cudaStreamEndCapture, called by a lambda of ",
                             ", ended the capture. Leave captures to the cache"}));
}

TEST_F(MistakesDiagnoseTest, AnEndByAnotherThreadIsNamedAndLogged) {
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) return;
    std::thread([&] { EXPECT_EQ(end_capture_of(stream), cudaErrorStreamCaptureWrongThread); }).join();
  });
  const std::string text = ": cudaStreamEndCapture, called by graphcache::test::end_capture_of(CUstream_st*) in ";
  const char* const returned = "returned cudaErrorStreamCaptureWrongThread";
  EXPECT_TRUE(has(error, {text + "another thread", returned, "Leave captures to the cache"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(has(lines[0], {"the capture broke" + text, returned, "Leave captures to the cache"}));
}

// It leaves the capture intact.
TEST_F(MistakesDiagnoseTest, ACaptureThatFnCannotBeginOrEndIsNamed) {
  Stream other;
  const std::string begun = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) return;
    EXPECT_EQ(cudaStreamBeginCapture(rec.stream(), cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
  });
  EXPECT_TRUE(has(begun, {"cudaStreamBeginCapture, called by a lambda of ", "returned cudaErrorIllegalState",
                          "Leave captures to the cache, or return a graph from fn (graph.h)"}));
  const std::string ended = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) return;
    EXPECT_EQ(end_capture_of(other), cudaErrorIllegalState);
  });
  EXPECT_TRUE(
      has(ended, {"cudaStreamEndCapture, called by graphcache::test::end_capture_of(CUstream_st*) in this thread",
                  "returned cudaErrorIllegalState"}));
}

TEST_F(MistakesDiagnoseTest, ALambdaWithoutAFrameOfItsOwnIsNamed) {
  Cache cache(diagnosing());
  float* weights = nullptr;
  EXPECT_RUN(kEager, cache.run(
                         key("k"), stream, [&](cudaStream_t) __attribute__((always_inline)) {
                           if (weights == nullptr) (void)cudaMalloc(reinterpret_cast<void**>(&weights), 64);
                         }));
  EXPECT_TRUE(has(cache.entries().front().error,
                  {"cudaMalloc, called by a lambda of graphcache::test::", "TestBody() in this thread"}));
  CUDA_OK(cudaFree(weights));
}

// This call fails with and without a capture. It is not about captures, but it breaks one.
TEST_F(MistakesDiagnoseTest, ALaunchOfAWrongShapeIsNamed) {
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) return;
    EXPECT_EQ(launch(add, kGrid, 4096, rec.stream(), data.get(), kSize, 1.0f), cudaErrorInvalidValue);
    cudaGetLastError();
  });
  EXPECT_TRUE(has(error, {": cudaLaunchKernel, called by ", ", returned cudaErrorInvalidValue"}));
  const std::string by_recorder = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (is_capturing(rec.stream())) rec.launch(add, {kGrid, 4096}, data.get(), kSize, 1.0f);
  });
  EXPECT_TRUE(
      has(by_recorder, {"the capture broke in rec.launch of ", " (call 2 of the recorder): cudaLaunchKernel, "}));
  EXPECT_FALSE(contains(by_recorder, "called by graphcache::detail")) << "the library's own functions are skipped";
}

// cudaStreamPerThread is another stream in each thread, so no thread can query another thread's capture there, and the
// call's own error decides. Some calls return an older error.
TEST_F(MistakesDiagnoseTest, AnErrorOfAnEarlierCallIsNoFault) {
  Stream own;
  std::promise<void> has_error, may_ask;
  std::thread other([&] {
    CUDA_OK(cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
    EXPECT_FALSE(wait_until_done(own));
    has_error.set_value();
    may_ask.get_future().wait();
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(own, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
  });
  has_error.get_future().wait();
  Cache cache(diagnosing());
  float* weights = nullptr;
  EXPECT_RUN(kEager, cache.run(key("k"), cudaStreamPerThread, [&](cudaStream_t on) {
    CUDA_OK(add_one(on));
    if (other.joinable()) {
      may_ask.set_value();
      other.join();
    }
    load_weights(&weights);
    cudaGetLastError();
  }));
  expect_sum(1);
  EXPECT_TRUE(
      has(cache.entries()[0].error, {"cudaMalloc, called by graphcache::test::load_weights(float**) in this thread"}));
  CUDA_OK(cudaFree(weights));
}

// A per-thread stream's capture, broken by another thread.
TEST_F(MistakesDiagnoseTest, ACallThatBreaksThePerThreadStreamsCaptureIsNamed) {
  bool done = true;
  const std::string error = error_with(diagnosing(), cudaStreamPerThread, [&](Recorder& rec) {
    if (is_capturing(rec.stream())) std::thread([&] { done = copy_at_once(data.get(), 1); }).join();
  });
  EXPECT_FALSE(done);
  EXPECT_TRUE(has(error, {"cudaMemcpy, called by graphcache::test::copy_at_once(float*, float) in another thread",
                          "returned cudaErrorStreamCaptureImplicit"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(contains(lines[0], "the capture broke between "))
      << "logged at its end, when it is certain: " << lines[0];
}

// Several threads capture at the same time, and each report names the call that broke its own capture.
TEST_F(MistakesDiagnoseTest, CapturesOfSeveralThreadsAreDistinguished) {
  constexpr int kThreads = 4, kRuns = 25;
  Cache cache(diagnosing());
  std::array<DeviceBuffer<float>, kThreads> sums{DeviceBuffer<float>(kSize), DeviceBuffer<float>(kSize),
                                                 DeviceBuffer<float>(kSize), DeviceBuffer<float>(kSize)};
  in_threads(kThreads, [&](int i) {
    const Stream on;
    const Event idle;
    for (int run = 0; run < kRuns; ++run) {
      EXPECT_SUCCESS(cache.run(key("k", i, run), on, [&](cudaStream_t s) {
        CUDA_OK(launch(add, kGrid, kBlock, s, sums[i].get(), kSize, 1.0f));
        if (i == 1) wait_until_done(s);
        if (i == 2) is_done(idle);
        cudaGetLastError();
      }));
    }
    CUDA_OK(cudaStreamSynchronize(on));
  });
  for (const DeviceBuffer<float>& sum : sums) EXPECT_EQ(sum.read(), std::vector<float>(kSize, kRuns));
  for (const EntryInfo& entry : cache.entries()) {
    SCOPED_TRACE(entry.key.to_string() + ": " + entry.error);
    const bool waits = contains(entry.key.to_string(), "\"k\", 1, "),
               asks = contains(entry.key.to_string(), "\"k\", 2, ");
    EXPECT_EQ(contains(entry.error, "cudaStreamSynchronize, called by graphcache::test::wait_until_done("), waits);
    EXPECT_EQ(contains(entry.error, "cudaEventQuery, called by graphcache::test::is_done("), asks);
    EXPECT_EQ(entry.error.empty(), !waits && !asks);
  }
  EXPECT_EQ(lines.size(), 2u * kRuns);
}

TEST_F(MistakesDiagnoseTest, TheFirstCallAtFaultIsNamedAndLoggedBeforeFnGoesOn) {
  for (const bool has_another : {false, true}) {
    SCOPED_TRACE(has_another);
    lines.clear();
    std::vector<std::string> at_once;
    const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
      const bool breaks = is_capturing(rec.stream());
      wait_until_done(rec.stream());
      if (breaks) at_once = lines;
      cudaGetLastError();
      if (has_another) wait_for_all();
      cudaGetLastError();
    });
    ASSERT_EQ(at_once.size(), 1u);
    EXPECT_EQ(at_once[0].find("graphcache: key (\"k\"): the capture broke: cudaStreamSynchronize, called by "
                              "graphcache::test::wait_until_done(CUstream_st*) in this thread after kernel "),
              0u)
        << at_once[0];
    EXPECT_TRUE(has(at_once[0], {", returned cudaErrorStreamCaptureUnsupported (",
                                 ". A capture forbids this call: synchronize after the run"}));
    EXPECT_FALSE(contains(at_once[0], "\n"));
    EXPECT_EQ(lines, at_once) << "logged again at the end of the capture";
    EXPECT_TRUE(has(error, {"the capture broke between rec.launch of ", "cudaStreamSynchronize, called by "}));
    EXPECT_FALSE(contains(error, "cudaDeviceSynchronize")) << error;
  }
}

TEST_F(MistakesDiagnoseTest, ARunWaitsForTheLogOfAnotherThread) {
  std::promise<void> logging;
  std::atomic<bool> logged{false};
  std::thread other;
  Options options = diagnosing();
  options.listeners = {std::make_shared<Log>([&](std::string_view) {
    logging.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    logged = true;
  })};
  error_with(options, stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) {
      EXPECT_TRUE(logged);
      return;
    }
    other = std::thread([] { wait_for_all(); });
    EXPECT_EQ(logging.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  });
  other.join();
}

TEST_F(MistakesDiagnoseTest, TheErrorThatIsReturnedNamesTheCallAndAKeyThatBreaksOftenIsLoggedOnce) {
  Cache cache(diagnosing({.on_capture_failure = OnCaptureFailure::kReturnError}));
  for (const std::string name : {"a", "b", "a", "a", "b"}) {
    SCOPED_TRACE(name);
    const absl::StatusOr<Outcome> outcome = cache.run(key(name), stream, [&](cudaStream_t on) {
      wait_until_done(on);
      if (name == "b") wait_for_all();
      cudaGetLastError();
      return cudaSuccess;
    });
    EXPECT_ERROR(kFailedPrecondition, outcome, "cudaStreamSynchronize, called by graphcache::test::wait_until_done(");
    EXPECT_EQ(cuda_error(outcome.status()), cudaErrorStreamCaptureUnsupported);
  }
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(has(lines[0], {"key (\"a\"): the capture broke: cudaStreamSynchronize, called by "}));
  EXPECT_TRUE(has(lines[1], {"key (\"b\"): the capture broke: cudaStreamSynchronize, called by "}));
  EXPECT_TRUE(has(lines[2], {"key (\"a\"): a run failed: the capture broke in fn: cudaStreamSynchronize, called by "}))
      << "the fourth error";
}

TEST_F(MistakesDiagnoseTest, ABreakAfterAFailureWithoutOneIsLoggedBeforeFnGoesOn) {
  Cache cache(diagnosing());
  int captures = 0;
  for (int i = 0; i < 6; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
      if (!is_capturing(on)) return cudaSuccess;
      if (++captures == 1) return cudaErrorNotSupported;
      wait_until_done(on);
      cudaGetLastError();
      EXPECT_EQ(lines.size(), 2u);
      return cudaSuccess;
    }));
  }
  EXPECT_EQ(captures, 3);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(contains(lines[1], "the capture broke: cudaStreamSynchronize, called by ")) << lines[1];
}

TEST_F(MistakesDiagnoseTest, TheLogMayCallCuda) {
  Options options = diagnosing();
  int answers = 0;
  options.listeners = {std::make_shared<Log>([&](std::string_view) {
    int device = -1;
    answers += cudaGetDevice(&device) == cudaSuccess && device >= 0 ? 1 : 0;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    answers += cudaStreamIsCapturing(stream, &status) == cudaSuccess ? 1 : 0;
  })};
  error_with(options, stream, [&](Recorder& rec) {
    wait_until_done(rec.stream());
    cudaGetLastError();
  });
  EXPECT_EQ(answers, 2);
}

using MistakesDiagnoseDeathTest = DiagnoseTest;

// A check macro of a program: it reports the call that failed and ends the program.
#define CHECK_OR_EXIT(call)                                                                           \
  if (const cudaError_t error = (call); error != cudaSuccess) {                                       \
    std::fprintf(stderr, "check.cc:7: %s failed: %s\n", #call, cudaGetErrorName(error)); /* NOLINT */ \
    std::exit(3);                                                                                     \
  }

void run_checked(const Options& options, cudaStream_t stream, float* data) {
  Cache cache(options);
  (void)cache.run(key("k"), stream, [&](cudaStream_t on) {
    wait_until_done(on);
    CHECK_OR_EXIT(launch(add, kGrid, kBlock, on, data, kSize, 1.0f));
  });
}

TEST_F(MistakesDiagnoseDeathTest, ACheckThatExitsLeavesTheLineOfTheFirstCall) {
  using testing::AllOf, testing::HasSubstr, testing::Not;
  const char* const check = "check.cc:7: launch(";
  const char* const named = "the capture broke: cudaStreamSynchronize, called by graphcache::test::wait_until_done(";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Options options;
  EXPECT_EXIT(run_checked(options, stream, data.get()), testing::ExitedWithCode(3),
              AllOf(HasSubstr(check), HasSubstr("cudaErrorStreamCaptureInvalidated"), Not(HasSubstr("graphcache: "))));
  options.diagnose = true;
  EXPECT_EXIT(run_checked(options, stream, data.get()), testing::ExitedWithCode(3),
              AllOf(HasSubstr(check), HasSubstr(std::string("graphcache: key (\"k\"): ") + named)));
  options.listeners = {std::make_shared<Log>(
      [](std::string_view line) { std::fprintf(stderr, "[log] %s\n", std::string(line).c_str()); })};
  const std::string line = std::string("graphcache: key (\"k\"): ") + named;
  EXPECT_EXIT(run_checked(options, stream, data.get()), testing::ExitedWithCode(3),
              AllOf(HasSubstr("\n[log] " + line), testing::StartsWith(line)));
}

using MistakesDiagnoseTestOnGpu = DiagnoseTest;

// Like a library that does not use the runtime.
TEST_F(MistakesDiagnoseTestOnGpu, ACallToTheDriverIsNamed) {
  const auto allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(driver_function("cuMemAlloc"));
  ASSERT_NE(allocate, nullptr);
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    CUdeviceptr memory = 0;
    if (is_capturing(rec.stream())) {
      EXPECT_EQ(allocate(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
  });
  EXPECT_TRUE(has(error, {": cuMemAlloc_v2, called by ", "returned cudaErrorStreamCaptureUnsupported"}));
}

}  // namespace
}  // namespace graphcache::test
