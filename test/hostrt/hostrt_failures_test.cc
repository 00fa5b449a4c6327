// Counts of calls, and armed failures.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "hostrt_support.h"

namespace graphcache::test {
namespace {

// ---- Counts ----

TEST_F(Hostrt, EveryCallCountsOnce) {
  const cudaGraphExec_t executable = instantiate(capture_adds(5));
  for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(executable, stream_));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, stream_));  // failed calls count as well
  cudaGetErrorName(cudaSuccess);
  const std::map<std::string, std::uint64_t> expected = {
      {"cudaStreamBeginCapture", 1}, {"cudaLaunchKernel", 5}, {"cudaStreamEndCapture", 1},
      {"cudaGraphInstantiate", 1},   {"cudaGraphLaunch", 4},
  };
  EXPECT_EQ(expected, hostrt::call_counts());
  EXPECT_EQ(12u, hostrt::calls());
  EXPECT_EQ(4u, hostrt::calls("cudaGraphLaunch"));
  EXPECT_EQ(0u, hostrt::calls("cudaNoSuchCall"));
  EXPECT_EQ(15u, hostrt::kernels_run());
  hostrt::reset_calls();
  EXPECT_EQ(0u, hostrt::calls());
}

// ---- Failures ----

TEST_F(Hostrt, TheNthCallFailsAndDoesNothing) {
  hostrt::fail_call("cudaLaunchKernel", 2, cudaErrorLaunchOutOfResources, 2);
  const cudaError_t expected[] = {cudaSuccess, cudaErrorLaunchOutOfResources, cudaErrorLaunchOutOfResources,
                                  cudaSuccess};
  for (cudaError_t error : expected) GIVES(error, launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  EXPECT_EQ(2, sum_);
  GIVES(cudaErrorLaunchOutOfResources, cudaGetLastError());
  EXPECT_EQ(2u, hostrt::failures_injected());
  EXPECT_EQ(4u, hostrt::calls("cudaLaunchKernel"));
}

TEST_F(Hostrt, AFailureCanLastForEver) {
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation, -1);
  const cudaGraph_t graph = capture_adds();
  for (int i = 0; i < 5; ++i) GIVES(cudaErrorMemoryAllocation, instantiation_error(graph));
  EXPECT_EQ(0u, hostrt::ledger().executables);
  hostrt::clear_failures();
  instantiate(graph);
}

TEST_F(Hostrt, AnyFunctionMeansAnyButTheQuestionsForErrors) {
  hostrt::fail_call("*", 3, cudaErrorUnknown);
  int device = 0;
  OK(cudaGetDevice(&device));
  OK(cudaGetLastError());
  OK(cudaPeekAtLastError());
  OK(cudaStreamSynchronize(stream_));
  GIVES(cudaErrorUnknown, cudaGetDevice(&device));
  OK(cudaGetDevice(&device));
  hostrt::fail_call("cudaPeekAtLastError", 1, cudaErrorNotReady);
  GIVES(cudaErrorNotReady, cudaPeekAtLastError());
  GIVES(cudaErrorUnknown, cudaPeekAtLastError());  // a result, not an error
}

TEST_F(Hostrt, FailuresCountApart) {
  hostrt::fail_call("cudaEventCreate", 1, cudaErrorMemoryAllocation);
  hostrt::fail_call("cudaEventCreate", 3, cudaErrorUnknown);
  cudaEvent_t event = nullptr;
  for (cudaError_t error : {cudaErrorMemoryAllocation, cudaSuccess, cudaErrorUnknown, cudaSuccess}) {
    GIVES(error, cudaEventCreate(&event));
  }
}

TEST_F(Hostrt, AFailedEndStillEndsTheCapture) {
  hostrt::fail_call("cudaStreamEndCapture", 1, cudaErrorMemoryAllocation);
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  GIVES(cudaErrorMemoryAllocation, end_of_capture_error(stream_));
  EXPECT_EQ(0u, hostrt::ledger().captures);
  EXPECT_EQ(0u, hostrt::ledger().graphs);
  EXPECT_NE(nullptr, capture_adds());
}

}  // namespace
}  // namespace graphcache::test
