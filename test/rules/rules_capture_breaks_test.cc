// What an active capture forbids, and what breaks it: facts 2 and 4 to 6.
#include <cstring>
#include <functional>
#include <utility>

#include "rules.h"

namespace graphcache::test {
namespace {

using Fact02 = RuntimeRules;
using Fact04 = RuntimeRules;
using Fact05 = RuntimeRules;
using Fact06 = RuntimeRules;

TEST_F(Fact02, UnsafeCallsDependOnModeAndThread) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  void* old = nullptr;
  std::vector<void*> pooled(2);
  for (void*& memory : pooled) OK(cudaMallocAsync(&memory, 64, other_));
  const std::pair<const char*, std::function<cudaError_t()>> unsafe[] = {
      {"cudaMalloc", [&] { return cudaMalloc(&old, 64); }},
      {"cudaFree", [&] { return cudaFree(std::exchange(old, nullptr)); }},
      {"cudaMallocHost", [&] { return cudaMallocHost(&old, 64); }},
      {"cudaFreeHost", [&] { return cudaFreeHost(std::exchange(old, nullptr)); }},
      {"cudaEventQuery", [&] { return cudaEventQuery(fork_); }},
      {"cudaEventSynchronize", [&] { return cudaEventSynchronize(fork_); }},
      {"cudaStreamQuery", [&] { return cudaStreamQuery(other_); }},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(other_); }},
      {"cudaMallocAsync",
       [&] {
         const cudaError_t error = cudaMallocAsync(&old, 64, other_);
         if (error == cudaSuccess) pooled.insert(pooled.begin(), old);
         return error;
       }},
      {"cudaFreeAsync",
       [&] {
         const cudaError_t error = cudaFreeAsync(pooled.back(), other_);
         if (error == cudaSuccess) pooled.pop_back();
         return error;
       }},
      {"cudaGraphInstantiate",
       [&] {
         cudaGraphExec_t executable = nullptr;
         const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
         if (error == cudaSuccess) executables_.push_back(executable);
         return error;
       }},
      {"cudaGraphExecDestroy",
       [&] {
         const cudaError_t error = cudaGraphExecDestroy(executables_.back());
         if (error == cudaSuccess) executables_.pop_back();
         return error;
       }},
  };
  executables_.push_back(nullptr);  // the argument of a forbidden destruction; the mode is checked first
  for (const auto& [name, call] : unsafe) {
    SCOPED_TRACE(name);
    begin(stream_, kRelaxed);
    GIVES(cudaSuccess, std::strcmp(name, "cudaGraphExecDestroy") == 0 ? cudaSuccess : call());
    end_valid(stream_);
    begin(stream_, kThreadLocal);
    GIVES(cudaErrorStreamCaptureUnsupported, call());
    end_invalid(stream_);
    begin(stream_, kGlobal);
    GIVES(cudaErrorStreamCaptureUnsupported, on_other_thread(call));
    end_invalid(stream_);
  }
  std::erase(executables_, nullptr);
  for (void* const memory : pooled) OK(cudaFreeAsync(memory, other_));
}

TEST_F(Fact02, AThreadsModeSaysWhichCapturesCount) {
  for (auto thread_mode : {kGlobal, kThreadLocal, kRelaxed}) {
    for (auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
      for (bool same_thread : {true, false}) {
        const bool forbidden =
            thread_mode != kRelaxed && mode != kRelaxed && (same_thread || (mode == kGlobal && thread_mode == kGlobal));
        SCOPED_TRACE(testing::Message() << thread_mode << ' ' << mode << ' ' << same_thread);
        const auto query = [&] {
          cudaStreamCaptureMode exchanged = thread_mode;
          cudaThreadExchangeStreamCaptureMode(&exchanged);
          const cudaError_t error = cudaEventQuery(fork_);
          cudaThreadExchangeStreamCaptureMode(&exchanged);
          EXPECT_EQ(thread_mode, exchanged);  // push and pop
          return error;
        };
        begin(stream_, mode);
        const cudaError_t error = same_thread ? query() : on_other_thread(query);
        EXPECT_EQ(forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess, error);
        if (forbidden) {
          end_invalid(stream_);
        } else {
          end_valid(stream_);
        }
      }
    }
  }
}

TEST_F(Fact02, SafeCallsLeaveCapturesAlone) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  std::size_t free = 0, total = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  begin(stream_, kGlobal);
  GIVES(cudaSuccess, cudaMemset(device_, 0, 64));  // on the legacy stream, while a non-blocking one is capturing
  GIVES(cudaSuccess, cudaMemcpy(device_ + 64, &free, sizeof free, cudaMemcpyHostToDevice));
  GIVES(cudaSuccess, cudaMemGetInfo(&free, &total));
  GIVES(cudaSuccess, cudaDeviceGraphMemTrim(0));
  GIVES(cudaSuccess, cudaStreamCreate(&stream));
  GIVES(cudaSuccess, cudaStreamDestroy(stream));
  GIVES(cudaSuccess, cudaEventCreate(&event));
  GIVES(cudaSuccess, cudaEventDestroy(event));
  GIVES(cudaSuccess, update(executable, graph));
  GIVES(cudaSuccess, cudaGraphLaunch(executable, other_));
  GIVES(cudaSuccess, put(1, nullptr));
  GIVES(cudaSuccess, cudaGraphLaunch(executable, nullptr));
  GIVES(cudaSuccess, cudaEventRecord(join_, nullptr));
  EXPECT_EQ(cudaStreamCaptureStatusNone, status(nullptr));
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
  EXPECT_EQ(1u, end_valid(stream_));
}

TEST_F(Fact04, AnInvalidatedCaptureSaysSoUntilItEnds) {
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaEventQuery(join_));
  GIVES(cudaErrorStreamCaptureInvalidated, put(1, stream_));
  GIVES(cudaErrorStreamCaptureInvalidated, cudaEventRecord(fork_, stream_));
  GIVES(cudaErrorStreamCaptureUnsupported, cudaEventQuery(join_));
  GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(stream_, kThreadLocal));
  end_invalid(stream_);
}

// They count as events of a capture that has ended.
TEST_F(Fact04, EventsOfABrokenCaptureAreInvalid) {
  const std::function<cudaError_t()> uses[] = {
      [&] { return cudaEventQuery(fork_); },
      [&] { return cudaEventSynchronize(fork_); },
      [&] { return cudaStreamWaitEvent(other_, fork_, 0); },
      [&] { return cudaStreamWaitEvent(other_, fork_, cudaEventWaitExternal); },
  };
  for (const bool has_ended : {false, true}) {
    begin(stream_, kGlobal);
    OK(cudaEventRecord(fork_, stream_));
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(stream_));
    if (has_ended) end_invalid(stream_);
    for (const auto& use : uses) GIVES(cudaErrorInvalidValue, use());
    if (!has_ended) end_invalid(stream_);
  }
}

TEST_F(Fact04, CallsOnCapturedThingsBreakACaptureInEveryMode) {
  const cudaGraphExec_t executable = instantiate(capture([this] { OK(put(1, stream_)); }));
  const std::pair<cudaError_t, std::function<cudaError_t()>> calls[] = {
    {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream_); }},
    {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(stream_); }},
    {cudaErrorStreamCaptureUnsupported,
     [&] {
       unsigned flags = 0;
       return cudaStreamGetFlags(stream_, &flags);
     }},
    {cudaErrorStreamCaptureUnsupported, [&] { return cudaGraphUpload(executable, stream_); }},
    {cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); }},
    {cudaErrorStreamCaptureUnsupported, [&] { return on_other_thread([] { return cudaDeviceSynchronize(); }); }},
    {cudaErrorCapturedEvent, [&] { return cudaEventQuery(fork_); }},
    {cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(fork_); }},
    {cudaErrorStreamCaptureImplicit, [&] { return cudaStreamWaitEvent(nullptr, fork_, 0); }},
#if CUDART_VERSION >= 13000
    {kBadShape, [&] { return launch(count_threads, 1, 1025, stream_, ints()); }},
#endif
  };
  for (const auto& [error, call] : calls) {
    SCOPED_TRACE(&error - &calls[0].first);
    begin(stream_, kRelaxed);
    OK(cudaEventRecord(fork_, stream_));
    GIVES(error, call());
    end_invalid(stream_);
  }
}

TEST_F(Fact04, TheLegacyStreamMayNotMeetACapturingBlockingStream) {
  const cudaGraphExec_t executable = instantiate(capture([this] { OK(put(1, stream_)); }));
  const std::function<cudaError_t()> breaking[] = {
      [&] { return cudaGraphLaunch(executable, nullptr); },
      [&] { return cudaMemcpyAsync(device_, device_ + 64, 64, cudaMemcpyDeviceToDevice, nullptr); },
      [&] { return cudaMemsetAsync(device_, 0, 64, nullptr); },
      [&] { return put(1, nullptr); },
      [&] { return cudaMemset(device_, 0, 64); },
      [&] { return cudaMemcpy(device_, device_ + 64, 64, cudaMemcpyDeviceToDevice); },
      [&] { return cudaEventRecord(join_, nullptr); },
      [&] { return cudaStreamSynchronize(nullptr); },
      [&] { return cudaStreamBeginCapture(nullptr, kRelaxed); },
      [&] { return cudaStreamEndCapture(nullptr, nullptr); },
      [&] { return on_other_thread([this] { return put(1, nullptr); }); },
  };
  for (const auto& call : breaking) {
    begin(blocking_, kRelaxed);
    GIVES(cudaErrorStreamCaptureImplicit, call());
    end_invalid(blocking_);
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  begin(blocking_, kRelaxed);
  GIVES(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(nullptr, &status));
  EXPECT_EQ(1u, end_valid(blocking_));
  begin(blocking_, kRelaxed);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(blocking_));
  GIVES(cudaErrorStreamCaptureImplicit, put(1, nullptr));  // until the invalidated capture has ended as well
  end_invalid(blocking_);
  begin(stream_, kRelaxed);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(blocking_, fork_, 0));  // draws the blocking stream into the capture
  GIVES(cudaErrorStreamCaptureImplicit, cudaMemset(device_, 0, 64));
  end_invalid(stream_);
}

// This stream belongs to all threads, so even a thread-local capture conflicts with another thread's use of it.
TEST_F(Fact04, NorMayAnotherThreadUseTheLegacyStreamBesideACapturingBlockingStream) {
  const float from = 1;
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaMemcpy(device_, &from, sizeof from, cudaMemcpyDefault); },
      [&] { return cudaMemset(device_, 0, 64); },
      [&] { return plus(1, nullptr); },
  };
  for (const cudaStream_t stream : {blocking_, cudaStreamPerThread, stream_}) {
    for (const auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
      for (const auto& call : calls) {
        SCOPED_TRACE(testing::Message() << stream << ", mode " << mode << ", call " << &call - calls);
        const bool breaks = stream != stream_;  // which is not a blocking stream
        begin(stream, mode);
        GIVES(breaks ? cudaErrorStreamCaptureImplicit : cudaSuccess, on_other_thread(call));
        if (breaks) {
          end_invalid(stream);
        } else {
          EXPECT_EQ(1u, end_valid(stream));
        }
        GIVES(cudaSuccess, call());
      }
    }
  }
}

TEST_F(Fact04, ForkedWorkMustBeJoined) {
  begin(stream_, kThreadLocal);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(other_, fork_, 0));
  EXPECT_EQ(cudaStreamCaptureStatusActive, status(other_));
  GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(other_, kThreadLocal));
  EXPECT_EQ(1u, end_valid(stream_));  // a fork without work needs no join
  EXPECT_EQ(cudaStreamCaptureStatusNone, status(other_));

  begin(stream_, kThreadLocal);
  fork_and_join([] {}, [&] { OK(plus(1, other_)); });
  OK(plus(1, other_));  // after the join
  GIVES(cudaErrorStreamCaptureUnjoined, end_of_capture_error(stream_));
  EXPECT_EQ(cudaStreamCaptureStatusNone, status(other_));
}

TEST_F(Fact04, DestroyingAForkedStreamDoesNotJoinItsWork) {
  cudaStream_t forked = nullptr;
  OK(cudaStreamCreateWithFlags(&forked, cudaStreamNonBlocking));
  begin(stream_, kThreadLocal);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(forked, fork_, 0));
  OK(plus(1, forked));
  GIVES(cudaSuccess, cudaStreamDestroy(forked));
  GIVES(cudaErrorStreamCaptureUnjoined, end_of_capture_error(stream_));
}

TEST_F(Fact04, TwoCapturesCannotMerge) {
  begin(stream_, kThreadLocal);
  begin(other_, kThreadLocal);
  OK(cudaEventRecord(fork_, other_));
  GIVES(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(stream_, fork_, 0));
  GIVES(cudaErrorStreamCaptureInvalidated, end_of_capture_error(other_));
  end_invalid(stream_);
}

TEST_F(Fact05, AGraphLaunchedIntoACapturingStreamIsRefusedAndBreaksTheCapture) {
  const cudaGraphExec_t executable = instantiate(capture([this] { OK(put(7, stream_)); }));
  for (auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
    begin(stream_, mode);
    GIVES(cudaErrorStreamCaptureUnsupported, cudaGraphLaunch(executable, stream_));
    end_invalid(stream_);
  }
  EXPECT_EQ(7, run(executable));
}

// Destroying an executable is one of the unsafe calls of fact 2.
TEST_F(Fact06, DestroyingAGraphLeavesACaptureAloneDestroyingAnExecutableDoesNot) {
  const cudaGraph_t graph = capture([this] { OK(put(7, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  begin(stream_, kGlobal);
  destroy(graph);
  EXPECT_EQ(1u, end_valid(stream_));
  begin(stream_, kGlobal);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaGraphExecDestroy(executable));
  end_invalid(stream_);
  EXPECT_EQ(7, run(executable));
  begin(stream_, kGlobal);
  auto mode = kRelaxed;
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  destroy(executable);
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(1u, end_valid(stream_));
}

}  // namespace
}  // namespace graphcache::test
