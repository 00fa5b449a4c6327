// What is said of captures whose CUDA calls are watched (Options::diagnose): the call that broke one, and work that the
// graph lacks.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache_support.h"

#ifdef GRAPHCACHE_TEST_CUDA
#include <cuda.h>

#include "cuda/compat.h"
#endif

namespace graphcache::test {

// Functions of a program, whose names are to be found. None returns by a jump into CUDA, which would leave no trace.

[[gnu::noinline]] void load_weights(float** weights) {
  if (cudaMalloc(reinterpret_cast<void**>(weights), 64) != cudaSuccess) *weights = nullptr;
}
[[gnu::noinline]] cudaError_t drop_weights(float* weights) {
  const cudaError_t error = cudaFree(weights);
  return error == cudaSuccess ? cudaSuccess : error;
}
[[gnu::noinline]] bool wait_until_done(cudaStream_t on) { return cudaStreamSynchronize(on) == cudaSuccess; }
[[gnu::noinline]] bool wait_for_all() { return cudaDeviceSynchronize() == cudaSuccess; }
[[gnu::noinline]] bool is_done(cudaEvent_t event) { return cudaEventQuery(event) == cudaSuccess; }
[[gnu::noinline]] bool copy_at_once(float* to, float value) {
  return cudaMemcpy(to, &value, sizeof value, cudaMemcpyHostToDevice) == cudaSuccess;
}
[[gnu::noinline]] bool follow(cudaStream_t on, cudaEvent_t event) {
  return cudaStreamWaitEvent(on, event, 0) == cudaSuccess;
}
[[gnu::noinline]] void add_aside(float* to, cudaStream_t on) {
  CUDA_OK(launch(add, kGrid, kBlock, on, to, kSize, 1.0f));
}
[[gnu::noinline]] void clear_aside(float* to, cudaStream_t on) {
  CUDA_OK(cudaMemsetAsync(to, 0, kSize * sizeof(float), on));
}
[[gnu::noinline]] void copy_aside(float* to, const float* from, cudaStream_t on) {
  CUDA_OK(cudaMemcpyAsync(to, from, kSize * sizeof(float), cudaMemcpyDeviceToDevice, on));
}

namespace {

// Why captures are not diagnosed here, or empty.
std::string reason_to_skip() {
  std::string why;
  Options options;
  options.diagnose = true;
  options.log = [&](std::string_view line) { why = line; };
  const Cache cache(options);
  return why;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class MistakesDiagnoseTest : public CacheTest {
 protected:
  void SetUp() override {
    static const std::string& why = *new std::string(reason_to_skip());
    if (!why.empty()) GTEST_SKIP() << "skipped, " << why;
  }

  Options diagnosing() {
    Options options;
    options.diagnose = true;
    options.log = [this](std::string_view line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines.emplace_back(line);
    };
    return options;
  }

  // What is said of a run that breaks, with in_fn between two kernels of the recorder.
  std::string error_with(const Options& options, cudaStream_t on, const std::function<void(Recorder&)>& in_fn) {
    Cache cache(options);
    data.write(std::vector<float>(kSize, 0));
    EXPECT_RUN(kEager, cache.run(key("k"), on, [&](Recorder& rec) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, 3.0f);
      in_fn(rec);
      rec.launch(scale, {kGrid, kBlock}, data.get(), data.get(), kSize, 2.0f);
    }));
    expect_sum(6);
    return cache.entries()[0].error;
  }

  std::vector<std::string> lines;

 private:
  std::mutex mutex_;
};

TEST_F(MistakesDiagnoseTest, TheCallThatBreaksACaptureIsNamed) {
  Event before;
  CUDA_OK(cudaEventRecord(before, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  Stream other;
  Event elsewhere;
  CUDA_OK(cudaEventRecord(elsewhere, other));
  DeviceBuffer<float> target(kSize);
  cudaStream_t blocking = nullptr;
  CUDA_OK(cudaStreamCreate(&blocking));
  float* weights = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&weights), 64));
  float* more = nullptr;
  struct Cause {
    const char* call;
    const char* caller;
    const char* error;
    const char* remedy;
    cudaStream_t on;
    std::function<void(Recorder&)> in_fn;
  };
  const std::vector<Cause> causes = {
      {"cudaMalloc", "load_weights(float**)", "cudaErrorStreamCaptureUnsupported",
       "move the allocation out of fn, or use cudaMallocAsync on rec.stream()", stream,
       [&](Recorder&) { load_weights(&more); }},
      {"cudaFree", "drop_weights(float*)", "cudaErrorStreamCaptureUnsupported", "move the allocation out of fn", stream,
       [&](Recorder&) { (void)drop_weights(weights); }},
      {"cudaStreamSynchronize", "wait_until_done(CUstream_st*)", "cudaErrorStreamCaptureUnsupported",
       "synchronize after the run", stream, [&](Recorder& rec) { wait_until_done(rec.stream()); }},
      {"cudaDeviceSynchronize", "wait_for_all()", "cudaErrorStreamCaptureUnsupported", "synchronize after the run",
       stream, [&](Recorder&) { wait_for_all(); }},
      {"cudaEventQuery", "is_done(CUevent_st*)", "cudaErrorStreamCaptureUnsupported", "query after the run", stream,
       [&](Recorder&) { is_done(before); }},
      {"cudaMemcpy", "copy_at_once(float*, float)", "cudaErrorStreamCaptureImplicit", "use cudaMemcpyAsync", blocking,
       [&](Recorder&) { copy_at_once(target.get(), 7); }},
      {"cudaStreamWaitEvent", "follow(CUstream_st*, CUevent_st*)", "cudaErrorStreamCaptureIsolation",
       "let the run's stream wait for it before the run", stream,
       [&](Recorder& rec) { follow(rec.stream(), elsewhere); }},
  };
  for (const Cause& cause : causes) {
    SCOPED_TRACE(cause.call);
    const std::string error = error_with(diagnosing(), cause.on, cause.in_fn);
    EXPECT_TRUE(contains(error, std::string(": ") + cause.call + ", called by graphcache::test::" + cause.caller +
                                    " in this thread after kernel "))
        << error;
    EXPECT_LT(error.find("after kernel "), error.find("fill", error.find("after kernel "))) << error;
    EXPECT_TRUE(contains(error, std::string(", returned ") + cause.error)) << error;
    EXPECT_TRUE(contains(error, cause.remedy)) << error;
    EXPECT_TRUE(contains(error, "the capture broke between rec.launch of ")) << error;
    EXPECT_TRUE(contains(error, "(calls 1 and 2 of the recorder)")) << error;
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(contains(lines[0], cause.call)) << lines[0];
    lines.clear();
    cudaGetLastError();
  }
  EXPECT_EQ(target.first(), 7);
  EXPECT_NE(more, nullptr);
  CUDA_OK(cudaFree(more));
  CUDA_OK(cudaStreamDestroy(blocking));
}

TEST_F(MistakesDiagnoseTest, ACallOfAnotherThreadIsSaidToBeSo) {
  bool done = true;
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (is_capturing(rec.stream())) std::thread([&] { done = wait_for_all(); }).join();
  });
  EXPECT_FALSE(done);
  EXPECT_TRUE(contains(error,
                       "cudaDeviceSynchronize, called by graphcache::test::wait_for_all() in another thread after the "
                       "run's kernel "))
      << error;
  EXPECT_TRUE(contains(error, "Take graphcache::capture_gate around this call in the other thread")) << error;
}

TEST_F(MistakesDiagnoseTest, TheFirstCallAtFaultIsNamed) {
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    wait_until_done(rec.stream());
    cudaGetLastError();
    wait_for_all();
    cudaGetLastError();
  });
  EXPECT_TRUE(contains(error, "cudaStreamSynchronize, called by ")) << error;
  EXPECT_FALSE(contains(error, "cudaDeviceSynchronize")) << error;
}

// In the C++ sense: what broke the capture is not in the exception, and the last error is cleared.
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
  const std::string error = cache.entries()[0].error;
  EXPECT_TRUE(contains(error,
                       "the capture broke in fn: cudaMalloc, called by graphcache::test::load_weights(float**) in "
                       "this thread after kernel "))
      << error;
  CUDA_OK(cudaFree(weights));
}

TEST_F(MistakesDiagnoseTest, TheErrorThatIsReturnedNamesTheCall) {
  Options options = diagnosing();
  options.on_capture_failure = OnCaptureFailure::kReturnError;
  Cache cache(options);
  const absl::StatusOr<Outcome> outcome = cache.run(key("k"), stream, [&](cudaStream_t on) {
    wait_until_done(on);
    cudaGetLastError();
    return cudaSuccess;
  });
  EXPECT_FAILURE(kFailedPrecondition, outcome);
  EXPECT_TRUE(mentions(outcome.status(), "cudaStreamSynchronize, called by graphcache::test::wait_until_done("));
  EXPECT_EQ(cuda_error(outcome.status()), cudaErrorStreamCaptureUnsupported);
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
  EXPECT_TRUE(contains(error, "cudaStreamWaitEvent, called by graphcache::test::follow(CUstream_st*, CUevent_st*)"))
      << error;
  EXPECT_TRUE(contains(error, "returned cudaErrorStreamCaptureMerge")) << error;
}

TEST_F(MistakesDiagnoseTest, TheEndOfACaptureInFnIsNamed) {
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    cudaGraph_t graph = nullptr;
    if (is_capturing(rec.stream()) && cudaStreamEndCapture(rec.stream(), &graph) == cudaSuccess) {
      CUDA_OK(cudaGraphDestroy(graph));
    }
  });
  EXPECT_TRUE(contains(error, "cudaStreamEndCapture, called by a lambda of ")) << error;
  EXPECT_TRUE(
      contains(error, "ended the capture, and the cache's own cudaStreamEndCapture returned cudaErrorIllegalState"))
      << error;
  EXPECT_TRUE(contains(error, "Leave the end of the capture to the cache")) << error;
}

// It fails, direct or captured, and has nothing to do with captures, but it breaks one.
TEST_F(MistakesDiagnoseTest, ALaunchOfAWrongShapeIsNamed) {
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (!is_capturing(rec.stream())) return;
    EXPECT_EQ(launch(add, kGrid, 4096, rec.stream(), data.get(), kSize, 1.0f), cudaErrorInvalidValue);
    cudaGetLastError();
  });
  EXPECT_TRUE(contains(error, ": cudaLaunchKernel, called by ")) << error;
  EXPECT_TRUE(contains(error, ", returned cudaErrorInvalidValue")) << error;
  const std::string by_recorder = error_with(diagnosing(), stream, [&](Recorder& rec) {
    if (is_capturing(rec.stream())) rec.launch(add, {kGrid, 4096}, data.get(), kSize, 1.0f);
  });
  EXPECT_TRUE(contains(by_recorder, ": cudaLaunchKernel, called by ")) << by_recorder;
  EXPECT_FALSE(contains(by_recorder, "called by graphcache::detail")) << "the library's own functions are skipped";
}

// cudaStreamPerThread is another stream in each thread, so none can ask what became of another thread's capture there:
// the error of its own call has to tell. Some calls return one that is older.
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
  const std::string error = cache.entries()[0].error;
  EXPECT_TRUE(contains(error, "cudaMalloc, called by graphcache::test::load_weights(float**) in this thread")) << error;
  CUDA_OK(cudaFree(weights));
}

// A stream of the calling thread's own, while another thread breaks the capture.
TEST_F(MistakesDiagnoseTest, ACallThatBreaksThePerThreadStreamsCaptureIsNamed) {
  bool done = true;
  const std::string error = error_with(diagnosing(), cudaStreamPerThread, [&](Recorder& rec) {
    if (is_capturing(rec.stream())) std::thread([&] { done = copy_at_once(data.get(), 1); }).join();
  });
  EXPECT_FALSE(done);
  EXPECT_TRUE(contains(error, "cudaMemcpy, called by graphcache::test::copy_at_once(float*, float) in another thread"))
      << error;
  EXPECT_TRUE(contains(error, "returned cudaErrorStreamCaptureImplicit")) << error;
}

// Captures on several threads at a time: each is told of its own call.
TEST_F(MistakesDiagnoseTest, CapturesOfSeveralThreadsAreToldApart) {
  constexpr int kThreads = 4, kRuns = 25;
  Cache cache(diagnosing());
  std::array<DeviceBuffer<float>, kThreads> sums{DeviceBuffer<float>(kSize), DeviceBuffer<float>(kSize),
                                                 DeviceBuffer<float>(kSize), DeviceBuffer<float>(kSize)};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Stream on;
      const Event idle;
      for (int run = 0; run < kRuns; ++run) {
        EXPECT_TRUE(cache
                        .run(key("k", i, run), on,
                             [&](cudaStream_t s) {
                               CUDA_OK(launch(add, kGrid, kBlock, s, sums[i].get(), kSize, 1.0f));
                               if (i == 1) wait_until_done(s);
                               if (i == 2) is_done(idle);
                               cudaGetLastError();
                             })
                        .ok());
      }
      CUDA_OK(cudaStreamSynchronize(on));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const DeviceBuffer<float>& sum : sums) EXPECT_EQ(sum.read(), std::vector<float>(kSize, kRuns));
  for (const EntryInfo& entry : cache.entries()) {
    SCOPED_TRACE(entry.key + ": " + entry.error);
    const bool waits = contains(entry.key, "\"k\", 1, "), asks = contains(entry.key, "\"k\", 2, ");
    EXPECT_EQ(contains(entry.error, "cudaStreamSynchronize, called by graphcache::test::wait_until_done("), waits);
    EXPECT_EQ(contains(entry.error, "cudaEventQuery, called by graphcache::test::is_done("), asks);
    EXPECT_EQ(entry.error.empty(), !waits && !asks);
  }
  EXPECT_EQ(lines.size(), 2u * kRuns);
}

// ---- Work that the graph lacks --------------------------------------------------------------------------------------

TEST_F(MistakesDiagnoseTest, WorkOutsideOfTheCaptureIsListed) {
  Stream other;
  DeviceBuffer<float> aside(kSize), cleared(kSize, 5), source(kSize, 9), copied(kSize), at_once(kSize);
  Cache cache(diagnosing());
  for (int run = 1; run <= 3; ++run) {
    EXPECT_TRUE(cache
                    .run(key("k"), stream,
                         [&](cudaStream_t on) {
                           CUDA_OK(add_one(on));
                           for (int i = 0; i < 40; ++i) add_aside(aside.get(), nullptr);
                           clear_aside(cleared.get(), other);
                           copy_aside(copied.get(), source.get(), other);
                           EXPECT_TRUE(copy_at_once(at_once.get(), 4));
                           CUDA_OK(add_one(on));
                         })
                    .ok());
    expect_sum(static_cast<float>(2 * run));
  }
  EXPECT_EQ(aside.read(), std::vector<float>(kSize, 40)) << "in the run that captured";
  EXPECT_EQ(cleared.first(), 0);
  EXPECT_EQ(copied.first(), 9);
  EXPECT_EQ(at_once.first(), 4);
  const std::vector<std::string> strays = cache.entries()[0].stray_work;
  ASSERT_EQ(strays.size(), 4u) << to_string(cache.entries()[0]);
  EXPECT_EQ(strays[0].find("kernel "), 0u) << strays[0];
  EXPECT_LT(strays[0].find("add"), strays[0].find(" was launched by ")) << strays[0];
  EXPECT_TRUE(contains(strays[0], " on stream 0 (the legacy stream)")) << strays[0];
  EXPECT_EQ(strays[1].find("cudaMemsetAsync was called by graphcache::test::clear_aside("), 0u) << strays[1];
  EXPECT_TRUE(contains(strays[1], ", which is not part of the capture")) << strays[1];
  EXPECT_EQ(strays[2].find("cudaMemcpyAsync was called by graphcache::test::copy_aside("), 0u) << strays[2];
  EXPECT_EQ(strays[3].find("cudaMemcpy was called by graphcache::test::copy_at_once("), 0u) << strays[3];
  EXPECT_TRUE(contains(to_string(cache.entries()[0]), strays[2]));
  ASSERT_EQ(lines.size(), 4u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_TRUE(contains(lines[i], strays[i] + ": it runs now, and no replay repeats it: enqueue it on rec.stream()"))
        << lines[i];
  }
}

TEST_F(MistakesDiagnoseTest, AKeyThatIsCapturedAgainIsLoggedOnce) {
  Options options = diagnosing();
  options.max_executables = 1;
  options.max_templates = 0;
  options.share = false;
  Cache cache(options);
  DeviceBuffer<float> aside(kSize);
  for (int run = 1; run <= 3; ++run) {
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
      add_aside(aside.get(), nullptr);
      if (run > 1) clear_aside(aside.get(), nullptr);
      return add_one(on);
    }));
    EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  }
  expect_sum(6);
  EXPECT_EQ(aside.first(), 0);
  EXPECT_EQ(lines.size(), 2u) << "one of the launch, one of the set";
  EXPECT_EQ(cache.entries()[1].stray_work.size(), 2u);
}

TEST_F(MistakesDiagnoseTest, ForkedWorkAndWorkOfOthersAreNotListed) {
  Stream side, of_thread;
  Event fork, join;
  DeviceBuffer<float> aside(kSize);
  Cache cache(diagnosing());
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
    CUDA_OK(cudaEventRecord(fork, on));
    CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
    add_aside(aside.get(), side);
    CUDA_OK(cudaEventRecord(join, side));
    CUDA_OK(cudaStreamWaitEvent(on, join, 0));
    std::thread([&] { add_aside(aside.get(), of_thread); }).join();
    return add_one(on);
  }));
  EXPECT_TRUE(cache.entries()[0].stray_work.empty()) << cache.entries()[0].stray_work[0];
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(aside.read(), std::vector<float>(kSize, 2));
}

TEST_F(MistakesDiagnoseTest, WhatAnEmptyCaptureHasElsewhereIsInItsError) {
  Stream other;
  Cache cache(diagnosing());
  for (int run = 1; run <= 2; ++run) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t) { add_aside(data.get(), other); }));
    expect_sum(static_cast<float>(run));
  }
  const EntryInfo entry = cache.entries()[0];
  EXPECT_TRUE(contains(entry.error, "fn enqueued nothing on its stream")) << entry.error;
  EXPECT_TRUE(contains(entry.error, " was launched by ")) << entry.error;
  EXPECT_TRUE(entry.stray_work.empty()) << "each run repeats it";
}

// ---- How it is asked for
// ---------------------------------------------------------------------------------------------

TEST_F(MistakesDiagnoseTest, NothingIsSaidUnlessItIsAskedFor) {
  DeviceBuffer<float> aside(kSize);
  Options options = diagnosing();
  options.diagnose = false;
  const std::string error = error_with(options, stream, [&](Recorder& rec) {
    add_aside(aside.get(), nullptr);
    wait_until_done(rec.stream());
  });
  EXPECT_FALSE(contains(error, "wait_until_done")) << error;
  EXPECT_TRUE(contains(error, "(calls 1 and 2 of the recorder)")) << error;
  Cache cache(options);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
    add_aside(aside.get(), nullptr);
    return add_one(on);
  }));
  EXPECT_TRUE(cache.entries()[0].stray_work.empty());
  EXPECT_EQ(aside.read(), std::vector<float>(kSize, 3)) << "twice in the run that broke, and once more";
}

TEST_F(MistakesDiagnoseTest, TheEnvironmentMayAskForIt) {
  Options options = diagnosing();
  options.diagnose = false;
  const auto is_diagnosed = [&] {
    return contains(error_with(options, stream, [&](Recorder& rec) { wait_until_done(rec.stream()); }),
                    "wait_until_done(");
  };
  for (const char* value : {"1", "0", ""}) {
    ASSERT_EQ(setenv("GRAPHCACHE_DIAGNOSE", value, 1), 0);
    EXPECT_EQ(is_diagnosed(), *value == '1') << value;
  }
  ASSERT_EQ(unsetenv("GRAPHCACHE_DIAGNOSE"), 0);
}

#ifdef GRAPHCACHE_TEST_CUDA
TEST_F(MistakesDiagnoseTest, ACacheWorksWithoutTheComponent) {
  ASSERT_EQ(setenv("GRAPHCACHE_DIAGNOSE", "/nowhere/libgraphcache_diagnose.so", 1), 0);
  Cache cache(diagnosing());
  ASSERT_EQ(unsetenv("GRAPHCACHE_DIAGNOSE"), 0);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(contains(lines[0], "captures are not diagnosed: ")) << lines[0];
  EXPECT_TRUE(contains(lines[0], "/nowhere/libgraphcache_diagnose.so")) << lines[0];
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_sum(2);
}

// As a library does that has no runtime.
TEST_F(MistakesDiagnoseTest, ACallToTheDriverIsNamed) {
  const auto allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(driver_function("cuMemAlloc"));
  ASSERT_NE(allocate, nullptr);
  const std::string error = error_with(diagnosing(), stream, [&](Recorder& rec) {
    CUdeviceptr memory = 0;
    if (is_capturing(rec.stream())) {
      EXPECT_EQ(allocate(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
  });
  EXPECT_TRUE(contains(error, ": cuMemAlloc_v2, called by ")) << error;
  EXPECT_TRUE(contains(error, "returned cudaErrorStreamCaptureUnsupported")) << error;
}
#endif

}  // namespace
}  // namespace graphcache::test
