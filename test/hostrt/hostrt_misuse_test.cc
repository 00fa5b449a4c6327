// Misuse that the real runtime leaves undefined. hostrt reports it at once, with the place of the call and the place
// that made it a misuse.

#include "hostrt_misuse.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "in_threads.h"

namespace graphcache::test {
namespace {

void wait_for_the_stream(cudaStream_t stream, cudaError_t* error) { *error = cudaStreamSynchronize(stream); }
GRAPHCACHE_HOST_KERNEL(wait_for_the_stream)

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

// ---- Freed memory ----

TEST_F(HostrtMisuse, AnExecutableWithACopyOfFreedMemory) {
  void *freed = nullptr, *other = nullptr;
  OK(cudaMalloc(&freed, 64));
  OK(cudaMalloc(&other, 64));
  const cudaGraph_t graph = capture([&] { OK(cudaMemcpyAsync(other, freed, 4, cudaMemcpyDefault, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaFree(freed));
  GIVES(cudaErrorInvalidValue, instantiation_error(graph));
  expect_misuse(HasSubstr("an executable gets a copy of freed memory"));
  cudaGraphExecUpdateResultInfo info = {};
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, graph, &info));
  EXPECT_EQ(cudaGraphExecUpdateError, info.result);
  expect_misuse(HasSubstr("an executable gets a copy of freed memory"));
  OK(cudaFree(other));
}

TEST_F(HostrtMisuse, AnExecutableWithACopyOfMemoryThatIsRegisteredAnew) {
  int memory = 5;
  int* other = nullptr;
  OK(cudaMalloc(reinterpret_cast<void**>(&other), 64));
  OK(cudaHostRegister(&memory, sizeof memory, cudaHostRegisterDefault));
  const auto captured = [&] {
    return capture([&] { OK(cudaMemcpyAsync(other, &memory, 4, cudaMemcpyDefault, stream_)); });
  };
  const cudaGraph_t graph = captured();
  const cudaGraphExec_t executable = instantiate(captured());
  OK(cudaHostUnregister(&memory));
  OK(cudaHostRegister(&memory, sizeof memory, cudaHostRegisterDefault));
  const auto expect_reported = [&] {
    expect_misuse(HasSubstr("an executable gets a copy of memory that was freed and given out again"));
  };
  instantiate(graph);
  expect_reported();
  cudaGraphExecUpdateResultInfo info = {};
  OK(cudaGraphExecUpdate(executable, graph, &info));
  expect_reported();
  const cudaError_t launched = cudaGraphLaunch(executable, stream_);
  EXPECT_EQ(cudaErrorIllegalAddress, launched != cudaSuccess ? launched : cudaStreamSynchronize(stream_));
}

// ---- Places ----

TEST_F(HostrtMisuse, AStaleHandleNamesBothPlaces) {
  const cudaGraphExec_t executable = instantiate(capture_adds());
  const std::uint64_t before = hostrt::calls();
  OK(cudaGraphExecDestroy(executable));
  std::thread([&] { GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_)); }).join();
  const std::string program = ", at hostrt_misuse_test\\+0x[0-9a-f]+";
  expect_misuse(AllOf(
      StartsWith("cudaGraphLaunch: executable graph was destroyed\n"),
      ContainsRegex("\n  here: cudaGraphLaunch, call " + std::to_string(before + 2) + ", thread [0-9]+" + program),
      ContainsRegex("\n  destroyed: cudaGraphExecDestroy, call " + std::to_string(before + 1) + ", thread [0-9]+" +
                    program)));
}

// The place is that of the call, not of a function that hostrt's calls share.
TEST_F(HostrtMisuse, PlacesDistinguishCalls) {
  const auto place = [] {
    const std::string message = hostrt::last_misuse();
    return message.substr(message.find("at hostrt_misuse_test"));
  };
  int priority = 0;
  unsigned flags = 0;
  std::vector<std::string> places;
  OK(cudaStreamDestroy(stream_));
  for (int i = 0; i < 2; ++i) {
    GIVES(cudaErrorInvalidResourceHandle, cudaStreamGetPriority(stream_, &priority));
    places.push_back(place());
    GIVES(cudaErrorInvalidResourceHandle, cudaStreamGetFlags(stream_, &flags));
    places.push_back(place());
  }
  EXPECT_EQ(places[0], places[2]);
  EXPECT_EQ(places[1], places[3]);
  EXPECT_NE(places[0], places[1]);
}

TEST_F(HostrtMisuse, CallsByTheDriverHaveTheProgramsPlace) {
  const auto get = driver_function<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>("cuGraphKernelNodeGetParams");
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  OK(cudaGraphDestroy(graph));
  CUDA_KERNEL_NODE_PARAMS params = {};
  cudaKernelNodeParams same = {};
  const auto offset = [] {
    const std::string message = hostrt::last_misuse();
    return std::stoull(message.substr(message.find("test+0x") + 7), nullptr, 16);
  };
  GIVES(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(node, &same));
  const auto before = offset();
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, get(node, &params));
  const auto by_driver = offset();
  GIVES(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(node, &same));
  EXPECT_LT(before, by_driver);
  EXPECT_LT(by_driver, offset());
}

TEST_F(HostrtMisuse, AnExecutableOutlivesItsTemplateButNotItsNodes) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, sum_);
  GIVES(cudaErrorInvalidValue, patch(executable, nodes_of(capture_adds())[0]));  // of another graph
  expect_no_misuse();
  GIVES(cudaErrorInvalidValue, patch(executable, node));
  expect_misuse("cudaGraphExecKernelNodeSetParams: node was destroyed",
                {"here: cudaGraphExecKernelNodeSetParams", "destroyed: cudaGraphDestroy"});
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(2, sum_);  // unchanged
}

// The real driver crashes then (docs/semantics.md, "Executables in flight"). An upload runs after the launch, so an
// event behind the upload shows when the launch is complete. (Not when the upload is: hostrt_updates_test.cc.)
TEST_F(HostrtMisuse, AnExecutableWithHostFunctionsIsNotDestroyedInFlight) {
  int calls = 0;
  for (const bool is_held : {false, true}) {
    const cudaGraph_t graph = capture([&] { OK(cudaLaunchHostFunc(stream_, count_call, &calls)); });
    const cudaGraphExec_t executable = instantiate(graph);
    if (is_held) hostrt::hold(stream_);
    OK(cudaGraphLaunch(executable, stream_));
    const cudaStream_t other = new_stream();
    const cudaEvent_t behind = new_event();
    OK(cudaGraphUpload(executable, other));
    OK(cudaEventRecord(behind, other));
    EXPECT_EQ(is_held ? cudaErrorNotReady : cudaSuccess, cudaEventQuery(behind));
    OK(cudaGraphExecDestroy(executable));
    if (is_held) expect_misuse(HasSubstr("an executable with host functions is destroyed in flight"));
    OK(hostrt::release(stream_));
    OK(cudaEventQuery(behind));
    OK(cudaEventDestroy(behind));
    OK(cudaStreamDestroy(other));
    OK(cudaGraphDestroy(graph));
  }
  EXPECT_EQ(2, calls);
}

TEST_F(HostrtMisuse, AGraphEndsWithTheCallThatBreaksItsCapture) {
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  const cudaGraph_t graph = graph_of_capture();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream_));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  expect_misuse(HasSubstr("\n  destroyed: cudaStreamSynchronize, call "));
  cudaGraphNodeType type;
  GIVES(cudaErrorInvalidValue, cudaGraphNodeGetType(node, &type));
  expect_misuse(HasSubstr("\n  destroyed: cudaStreamSynchronize, call "));
  GIVES(cudaErrorStreamCaptureInvalidated, end_of_capture_error(stream_));
}

TEST_F(HostrtMisuse, AResetEndsEverything) {
  const cudaGraph_t graph = capture_adds();
  hostrt::reset();
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  expect_misuse(ContainsRegex("\n  destroyed: hostrt::reset, thread [0-9]+, at hostrt_misuse_test"));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream_));
  expect_misuse(HasSubstr("\n  destroyed: hostrt::reset, "));
}

TEST_F(HostrtMisuse, ACallFromAKernelNamesItsLaunch) {
  cudaError_t error = cudaSuccess;
  OK(launch(wait_for_the_stream, 1, 1, stream_, stream_, &error));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cudaErrorNotPermitted, error);
  expect_misuse(AllOf(StartsWith("cudaStreamSynchronize: called from inside a kernel or a host function\n"),
                      HasSubstr("\n  here: cudaStreamSynchronize, call "), HasSubstr("\n  executed: cuda")));
}

// The queue that contains the work would be gone.
TEST_F(HostrtMisuse, WorkMustNotReset) {
  const auto reset = [](void*) { hostrt::reset(); };
  hostrt::hold(stream_);
  for (int i = 0; i < 3; ++i) OK(cudaLaunchHostFunc(stream_, reset, nullptr));
  OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  OK(hostrt::release(stream_));
  EXPECT_EQ(1, sum_);
  expected_misuses_ = 2;
  expect_misuse(AllOf(StartsWith("hostrt::reset: called from inside a kernel or a host function\n"),
                      HasSubstr("\n  executed: release, ")));
}

TEST_F(HostrtMisuse, TheLogKeepsTheFirstMessages) {
  EXPECT_EQ("", hostrt::last_misuse());
  EXPECT_THAT(hostrt::misuse_log(), testing::IsEmpty());
  const cudaGraph_t graph = capture_adds();
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  for (int i = 0; i < 100; ++i) hostrt::fail_call("cudaNoSuchCall", 1, cudaErrorUnknown);
  EXPECT_EQ(101u, hostrt::misuses());
  const std::vector<std::string> log = hostrt::misuse_log();
  ASSERT_EQ(64u, log.size());
  EXPECT_THAT(log[0], StartsWith("cudaGraphDestroy: graph was destroyed\n"));
  EXPECT_THAT(log[63], StartsWith("fail_call: no function is called cudaNoSuchCall\n"));
  hostrt::reset();
  EXPECT_THAT(hostrt::misuse_log(), testing::IsEmpty());
}

TEST(HostrtMisuseDeathTest, AMisuseCanAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  hostrt::reset();
  const auto misuse = [](bool abort) {
    hostrt::abort_on_misuse(abort);
    hostrt::reset();
    cudaEvent_t event = nullptr;
    cudaEventCreate(&event);
    cudaEventDestroy(event);
    cudaEventDestroy(event);
  };
  EXPECT_DEATH(misuse(true),
               "cudaEventDestroy: event was destroyed\n  here: .*\n  destroyed: cudaEventDestroy, call 2");
  misuse(false);
  EXPECT_EQ(1u, hostrt::misuses());
  hostrt::reset();
}

// ---- Two threads on one graph object ----

TEST_F(HostrtMisuse, TwoThreadsMustNotUseOneGraphObject) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphExec_t second = instantiate(graph);
  cudaKernelNodeParams params = {};
  const Work patches = [&] { GIVES(cudaSuccess, patch(executable, node)); };
  const Work patches_second = [&] { GIVES(cudaSuccess, patch(second, node)); };
  const Work reads = [&] { GIVES(cudaSuccess, cudaGraphKernelNodeGetParams(node, &params)); };
  const struct {
    Work a, b;
    const char* what;
  } cases[] = {
      {launches(executable, stream_), launches(executable, new_stream()), "executable graph"},
      {launches(executable, stream_), patches, "executable graph"},
      {instantiates(graph), instantiates(graph), "graph"},
      {updates(second, graph), lists(graph), "graph"},
      {lists(graph), reads, "graph"},
      {reads, asks(node), "graph"},
      {patches_second, patches, "graph"},
      {patches_second, reads, "graph"},
  };
  for (const auto& [a, b, what] : cases) {
    const Overlap overlap(stream_, a, b);
    expect_misuse(AllOf(HasSubstr(std::string(": ") + what + " used by two threads at once\n"),
                        ContainsRegex("\n  here: cuda[A-Za-z]+, call [0-9]+, thread [0-9]+, at hostrt_misuse_test"),
                        ContainsRegex("\n  meanwhile: cuda[A-Za-z]+, thread [0-9]+, at hostrt_misuse_test")));
  }
  EXPECT_THAT(sum_, testing::AnyOf(3, 12));  // in the second case the launch came before or after the patch
}

TEST_F(HostrtMisuse, TwoThreadsMayUseDifferentObjects) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraph_t another = capture_adds();
  const cudaGraphNode_t node = nodes_of(another)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphExec_t second = instantiate(graph);
  const Work records = [this, event = new_event()] { GIVES(cudaSuccess, cudaEventRecord(event, stream_)); };
  const Overlap launching(stream_, launches(executable, stream_), launches(second, stream_));
  const Overlap instantiating(stream_, instantiates(graph), instantiates(another));
  const Overlap mixed(stream_, asks(node), launches(executable, stream_));
  const Overlap streams(stream_, records, records);
  expect_no_misuse();
  EXPECT_EQ(3, sum_);
}

TEST_F(HostrtMisuse, ThreadsThatTakeTurnsMayUseOneObject) {
  const cudaGraphExec_t executable = instantiate(capture_adds());
  std::mutex mutex;
  in_threads(4, [&](int) {
    for (int i = 0; i < 500; ++i) {
      const std::lock_guard<std::mutex> lock(mutex);
      GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_));
    }
  });
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(2000, sum_);
  expect_no_misuse();
  EXPECT_EQ(0, hostrt::threads_inside());
}

}  // namespace
}  // namespace graphcache::test
