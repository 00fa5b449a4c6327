// Errors, and the end of a context or process: facts 31 to 34. A test that loses a context uses its own process.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/compat.h"
#include "rules.h"

namespace graphcache::test {
namespace {

using Fact31 = RuntimeRules;
using Fact32 = RuntimeRules;
using Fact33 = RuntimeRules;
using Fact34 = RuntimeRules;

TEST_F(Fact31, ErrorsLatchPerThreadAndTheSlotKeepsTheLatest) {
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
  GIVES(cudaSuccess, on_other_thread([] { return cudaGetLastError(); }));
  GIVES(cudaSuccess, cudaSetDevice(0));  // a success does not clear the slot
  GIVES(cudaErrorInvalidDevice, cudaPeekAtLastError());
  GIVES(cudaErrorInvalidDevice, cudaGetLastError());
  GIVES(cudaSuccess, cudaGetLastError());
  EXPECT_STREQ("cudaErrorStreamCaptureInvalidated", cudaGetErrorName(cudaErrorStreamCaptureInvalidated));

  GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, stream_));
  GIVES(cudaErrorInvalidValue, cudaGetLastError());
  GIVES(cudaSuccess, cudaGetLastError());
}

// So the library can bring back an older error of these kinds, also inside a capture (lib/cuda/errors.cc).
TEST_F(Fact31, FiveErrorsHaveACallThatFailsWithThemAndDoesNothingElse) {
  const auto latch_all = [] {
    int value = 0;
    void* memory = nullptr;
    cudaFunction_t function = nullptr;
    GIVES(cudaErrorInvalidValue, cudaGetDevice(nullptr));
    GIVES(cudaErrorInvalidValue, cudaGetLastError());
    GIVES(cudaErrorMemoryAllocation, cudaMalloc(&memory, SIZE_MAX / 2));
    GIVES(cudaErrorMemoryAllocation, cudaGetLastError());
    GIVES(cudaErrorInvalidDeviceFunction, cudaGetFuncBySymbol(&function, &value));
    GIVES(cudaErrorInvalidDeviceFunction, cudaGetLastError());
    GIVES(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, -1));
    GIVES(cudaErrorInvalidDevice, cudaGetLastError());
    GIVES(cudaErrorInvalidResourceHandle, cudaEventQuery(nullptr));
    GIVES(cudaErrorInvalidResourceHandle, cudaGetLastError());
  };
  latch_all();
  const cudaGraph_t graph = capture([&] {
    OK(put(3, stream_));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    latch_all();
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(put(4, stream_));
  });
  EXPECT_EQ(4, run(instantiate(graph)));
}

TEST_F(Fact31, NotReadyIsNoError) {
  Busy busy(stream_);
  OK(cudaEventRecord(fork_, stream_));
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream_));
  GIVES(cudaErrorNotReady, cudaEventQuery(fork_));
  GIVES(cudaSuccess, cudaGetLastError());
}

TEST_F(Fact31, FailuresOfCapturesAndUpdatesLatchToo) {
  cudaGraph_t graph = nullptr;
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream_));
  GIVES(cudaErrorStreamCaptureUnsupported, cudaPeekAtLastError());
  GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream_, &graph));
  GIVES(cudaErrorStreamCaptureInvalidated, cudaGetLastError());
  const cudaGraphExec_t executable = instantiate(capture([this] { OK(put(1, stream_)); }));
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, make_graph()));
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGetLastError());
  GIVES(cudaSuccess, cudaGetLastError());
}

TEST_F(Fact32, AFaultIsEveryonesErrorForEver) {
  in_own_process([this] {
    const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); }), same = capture([this] { OK(put(2, stream_)); });
    const cudaGraphExec_t executable = instantiate(graph);
    fail_in(stream_);
    GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
    GIVES(cudaErrorLaunchFailure, cudaGetLastError());
    GIVES(cudaSuccess, cudaGetLastError());

    void* memory = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaGraphExec_t another = nullptr;
    GIVES(cudaErrorLaunchFailure, cudaDeviceSynchronize());
    GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(other_));
    GIVES(cudaErrorLaunchFailure, cudaStreamQuery(other_));
    GIVES(cudaErrorLaunchFailure, cudaStreamIsCapturing(other_, &capturing));
    GIVES(cudaErrorLaunchFailure, cudaStreamBeginCapture(other_, kThreadLocal));
    GIVES(cudaErrorLaunchFailure, put(1, other_));
    GIVES(cudaErrorLaunchFailure, cudaMemsetAsync(device_, 0, 4, other_));
    GIVES(cudaErrorLaunchFailure, cudaLaunchHostFunc(other_, count_up, nullptr));
    GIVES(cudaErrorLaunchFailure, cudaEventRecord(fork_, other_));
    GIVES(cudaErrorLaunchFailure, cudaEventQuery(fork_));
    GIVES(cudaErrorLaunchFailure, cudaStreamWaitEvent(other_, fork_, 0));
    GIVES(cudaErrorLaunchFailure, cudaMalloc(&memory, 64));
    GIVES(cudaErrorLaunchFailure, cudaStreamCreate(&stream));
    GIVES(cudaErrorLaunchFailure, cudaEventCreate(&event));
    GIVES(cudaErrorLaunchFailure, cudaGraphInstantiate(&another, graph, 0));
    GIVES(cudaErrorLaunchFailure, cudaGraphLaunch(executable, other_));
    GIVES(cudaErrorLaunchFailure, cudaGraphUpload(executable, other_));
    GIVES(cudaErrorLaunchFailure, patch(executable, nodes(graph)[0], 2));
    GIVES(cudaSuccess, on_other_thread([] { return cudaGetLastError(); }));
    GIVES(cudaErrorLaunchFailure, on_other_thread([&] { return cudaMalloc(&memory, 64); }));

    // Calls that need no context still work.
    int number = -1;
    auto mode = kRelaxed;
    cudaGraph_t created = nullptr;
    GIVES(cudaSuccess, cudaGetDevice(&number));
    GIVES(cudaSuccess, cudaSetDevice(0));
    GIVES(cudaSuccess, cudaGetDeviceCount(&number));
    GIVES(cudaSuccess, cudaThreadExchangeStreamCaptureMode(&mode));
    GIVES(cudaSuccess, cudaGraphCreate(&created, 0));
    GIVES(cudaSuccess, cudaGraphClone(&created, graph));
    GIVES(cudaSuccess, update(executable, same));
    GIVES(cudaErrorLaunchFailure, cudaGetLastError());  // of the last failed call
  });
}

TEST_F(Fact32, AfterAFaultGraphsCanBeDestroyedAndTheRestCannot) {
  in_own_process([this] {
    std::atomic<int> destroyed = 0;
    cudaUserObject_t object = nullptr;
    OK(cudaUserObjectCreate(&object, &destroyed, count_up, 1, cudaUserObjectNoDestructorSync));
    const cudaGraph_t graph = capture([this] { fail_in(stream_); });
    OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    const cudaGraphExec_t executable = instantiate(graph);
    cudaGraphLaunch(executable, stream_);
    GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
    GIVES(cudaErrorLaunchFailure, cudaGraphLaunch(executable, stream_));
    GIVES(cudaSuccess, cudaGraphExecDestroy(executable));
    GIVES(cudaSuccess, cudaGraphDestroy(graph));
    for (int i = 0; i < 1000 && destroyed == 0; ++i) usleep(1000);
    EXPECT_EQ(1, destroyed);
    GIVES(cudaErrorLaunchFailure, cudaEventDestroy(fork_));
    GIVES(cudaErrorLaunchFailure, cudaFree(device_));
    GIVES(cudaErrorLaunchFailure, cudaStreamDestroy(stream_));
  });
}

TEST_F(Fact33, AResetEndsTheContextAndTheNextCallBeginsAnother) {
  in_own_process([this] {
    using CtxGetId = CUresult (*)(CUcontext context, unsigned long long* id);
    const auto id_of_context = reinterpret_cast<CtxGetId>(driver_function("cuCtxGetId"));
    ASSERT_NE(nullptr, id_of_context);
    const cudaStream_t stale = stream_;
    unsigned long long before = 0, after = 0;
    EXPECT_EQ(CUDA_SUCCESS, id_of_context(nullptr, &before));
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
    GIVES(cudaSuccess, cudaDeviceReset());
    GIVES(cudaErrorInvalidDevice, cudaGetLastError());  // the error stays
    SetUp();
    EXPECT_EQ(CUDA_SUCCESS, id_of_context(nullptr, &after));
    EXPECT_NE(before, after);
    EXPECT_EQ(3, run(instantiate(capture([this] { OK(put(3, stream_)); }))));
    // An older runtime crashes.
    if (CUDART_VERSION >= 13000) {
      GIVES(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stale));
    }
  });
}

TEST_F(Fact33, InAForkedChildNothingWorks) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaDeviceSynchronize());
  const pid_t child = fork();
  ASSERT_NE(-1, child);
  if (child == 0) {
    void* memory = nullptr;
    int device = 0;
    std::size_t count = 0;
    cudaGraph_t created = nullptr;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    const cudaError_t errors[] = {
        cudaMalloc(&memory, 64),
        cudaGetLastError(),
        cudaGetDevice(&device),
        cudaStreamIsCapturing(stream_, &capturing),
        cudaGraphCreate(&created, 0),
        cudaGraphGetNodes(graph, nullptr, &count),
        cudaGraphLaunch(executable, stream_),
        cudaGraphExecDestroy(executable),
        cudaStreamDestroy(stream_),
        cudaDeviceReset(),
    };
    _exit(std::count(std::begin(errors), std::end(errors), cudaErrorInitializationError));
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(10, WEXITSTATUS(status));
  EXPECT_EQ(1, run(executable));  // the parent still works
}

// Constructed before main, hence destroyed after the runtime.
struct AtExit {
  ~AtExit() {
    if (stream == nullptr) return;
    const cudaError_t errors[] = {cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaStreamDestroy(stream),
                                  cudaGetLastError()};
    for (cudaError_t error : errors) std::fprintf(stderr, "%s ", cudaGetErrorName(error));
  }
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};
AtExit at_exit;

TEST_F(Fact34, AtExitTheRuntimeIsGoneBeforeStaticObjectsAre) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exiting = [this] {
    at_exit.stream = stream_;
    at_exit.graph = capture([this] { OK(put(1, stream_)); });
    at_exit.executable = instantiate(at_exit.graph);
    run(at_exit.executable);
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(exiting(), testing::ExitedWithCode(0), "^(cudaErrorCudartUnloading ){4}$");
}

}  // namespace
}  // namespace graphcache::test
