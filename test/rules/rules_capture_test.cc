// Captures: facts 1, 3, 7 to 9 and 11.
#include "misuses.h"
#include "rules.h"

namespace graphcache::test {
namespace {

using Fact01 = RuntimeRules;
using Fact03 = RuntimeRules;
using Fact07 = RuntimeRules;
using Fact08 = RuntimeRules;
using Fact09 = RuntimeRules;
using Fact11 = RuntimeRules;

TEST_F(RuntimeRules, ACaptureRecordsFrozenArgumentsAndDoesNotRun) {
  float value = 3;
  float* target = device_;
  int count = 1;
  void* arguments[] = {&target, &count, &value};
  const cudaGraph_t graph =
      capture([&] { OK(cudaLaunchKernel(reinterpret_cast<const void*>(fill), 1, 1, arguments, 0, stream_)); });
  EXPECT_EQ(0, read());
  value = 9;
  target = nullptr;
  EXPECT_EQ(3, run(instantiate(graph)));
}

TEST_F(RuntimeRules, EndingWithoutBeginningAndBeginningTwiceAreErrorsThatBreakNothing) {
  GIVES(cudaErrorIllegalState, end_of_capture_error(stream_));
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(stream_, kThreadLocal));
  EXPECT_EQ(1u, end_valid(stream_));
}

TEST_F(RuntimeRules, AnyThreadMayAddToACapture) {
  begin(stream_, kThreadLocal);
  GIVES(cudaSuccess, on_other_thread([this] { return plus(1, stream_); }));
  EXPECT_EQ(2u, end_valid(stream_));
}

TEST_F(RuntimeRules, RefusedCallsThatBreakNothing) {
  misuses_on_purpose = true;
  static int not_a_kernel;
  void* arguments[] = {nullptr};
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(nullptr, 1, 1, arguments, 0, stream_));
  GIVES(kNoKernel, cudaLaunchKernel(&not_a_kernel, 1, 1, arguments, 0, stream_));
#if CUDART_VERSION < 13000
  GIVES(kBadShape, launch(count_threads, 1, 1025, stream_, ints()));
#endif
  GIVES(cudaErrorInvalidValue, cudaMemcpyAsync(nullptr, device_, 4, cudaMemcpyDeviceToDevice, stream_));
  GIVES(cudaErrorInvalidValue, cudaLaunchHostFunc(stream_, nullptr, nullptr));
  GIVES(cudaSuccess, cudaMemcpyAsync(device_, device_ + 8, 0, cudaMemcpyDeviceToDevice, stream_));
  GIVES(cudaSuccess, cudaMemsetAsync(device_, 0, 0, stream_));
  EXPECT_EQ(1u, end_valid(stream_));  // an empty fill or copy adds no node
}

TEST_F(RuntimeRules, ForkAndJoinGiveEdges) {
  const cudaGraph_t graph = capture([&] {
    OK(put(1, stream_));
    fork_and_join([&] { OK(plus(2, stream_)); }, [&] { OK(plus(30, other_, 1)); });
    OK(launch(axpy, 1, 1, stream_, device_, device_ + 1, 1, 1.0f));
  });
  EXPECT_EQ((Edges{{0, 1}, {0, 2}, {1, 3}, {2, 3}}), edges(graph));
  EXPECT_EQ(33, run(instantiate(graph)));
}

TEST_F(RuntimeRules, DestroyingTheCapturingStreamEndsItsCapture) {
  cudaStream_t stream = nullptr;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  begin(stream, kGlobal);
  GIVES(cudaSuccess, cudaStreamDestroy(stream));
  GIVES(cudaSuccess, cudaEventQuery(fork_));  // no capture is active any more
}

TEST_F(RuntimeRules, ACaptureDependsOnNothingOutside) {
  begin(stream_, kThreadLocal);
  GIVES(cudaSuccess, cudaStreamWaitEvent(stream_, join_, 0));  // never recorded
  EXPECT_EQ(1u, end_valid(stream_));
  OK(cudaEventRecord(join_, other_));
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(stream_, join_, 0));
  end_invalid(stream_);
}

TEST_F(RuntimeRules, AnEventOfAnEndedCaptureIsInvalidUntilRecordedAgain) {
  capture([&] {
    OK(put(1, stream_));
    OK(cudaEventRecord(fork_, stream_));
  });
  GIVES(cudaErrorInvalidValue, cudaEventQuery(fork_));
  GIVES(cudaErrorInvalidValue, cudaStreamWaitEvent(other_, fork_, 0));
  OK(cudaEventRecord(fork_, other_));
  GIVES(cudaSuccess, cudaEventSynchronize(fork_));
}

TEST_F(Fact01, TheLegacyStreamCannotBeCapturedThePerThreadStreamCan) {
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(nullptr, kRelaxed));
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(cudaStreamLegacy, kThreadLocal));
  begin(cudaStreamPerThread, kThreadLocal);
  EXPECT_EQ(cudaStreamCaptureStatusNone, on_other_thread([this] { return status(cudaStreamPerThread); }));
  EXPECT_EQ(1u, end_valid(cudaStreamPerThread));
}

TEST_F(Fact03, OnlyARelaxedCaptureMayEndOnAnotherThread) {
  for (auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
    begin(stream_, mode);
    cudaGraph_t graph = nullptr;
    const cudaError_t error = on_other_thread([&] { return cudaStreamEndCapture(stream_, &graph); });
    EXPECT_EQ(mode == kRelaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread, error);
    EXPECT_EQ(mode == kRelaxed, graph != nullptr);
    if (graph != nullptr) keep(graph);
    EXPECT_EQ(cudaStreamCaptureStatusNone, status(stream_));  // the capture has ended in both cases
  }
}

TEST_F(Fact03, ACaptureEndsOnTheStreamThatBeganIt) {
  begin(stream_, kRelaxed);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(other_, fork_, 0));
  cudaGraph_t graph = nullptr;
  GIVES(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(other_, &graph));
  end_invalid(stream_);
}

#if CUDART_VERSION >= 13000
TEST_F(Fact07, EdgeDataIsNotDroppedSilently) {
  cudaStreamCaptureStatus active;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* data = nullptr;
  std::size_t count = 0;
  begin(stream_, kThreadLocal);
  OK(cudaStreamGetCaptureInfo(stream_, &active, nullptr, nullptr, &last, nullptr, &count));
  cudaGraphNode_t node = last[0];
  cudaGraphEdgeData programmatic = {};
  programmatic.from_port = cudaGraphKernelNodePortProgrammatic;
  programmatic.type = cudaGraphDependencyTypeProgrammatic;
  OK(cudaStreamUpdateCaptureDependencies(stream_, &node, &programmatic, 1, cudaStreamSetCaptureDependencies));
  GIVES(cudaErrorLossyQuery, cudaStreamGetCaptureInfo(stream_, &active, nullptr, nullptr, &last, nullptr, &count));
  OK(cudaStreamGetCaptureInfo(stream_, &active, nullptr, nullptr, &last, &data, &count));
  EXPECT_EQ(cudaGraphDependencyTypeProgrammatic, data[0].type);
  OK(plus(1, stream_));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream_, &graph));
  cudaGraphNode_t from = nullptr, to = nullptr;
  cudaGraphEdgeData edge = {};
  count = 1;
  GIVES(cudaErrorLossyQuery, cudaGraphGetEdges(keep(graph), &from, &to, nullptr, &count));
  OK(cudaGraphGetEdges(graph, &from, &to, &edge, &count));
  EXPECT_EQ(cudaGraphDependencyTypeProgrammatic, edge.type);
  EXPECT_EQ(cudaGraphKernelNodePortProgrammatic, edge.from_port);

  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorTopologyChanged, instantiate(capture_adds(2)), graph));
  EXPECT_EQ(to, info_.errorNode);
  EXPECT_EQ(from, info_.errorFromNode);
}

TEST_F(Fact08, CaptureInfoReportsTheNextDependencies) {
  cudaStreamCaptureStatus active = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* data = nullptr;
  std::size_t count = 0;
  begin(stream_, kThreadLocal);
  OK(cudaStreamGetCaptureInfo(stream_, &active, &id, &graph, &last, &data, &count));
  EXPECT_EQ(cudaStreamCaptureStatusActive, active);
  EXPECT_NE(0u, id);
  ASSERT_EQ(1u, count);
  EXPECT_EQ(nodes(graph), Nodes(1, last[0]));
  GIVES(cudaErrorIllegalState, cudaGraphDestroy(graph));

  // A node added by hand becomes part of the order when it is set as a dependency (facts 8).
  Params adder(add, 1, 1, device_, 1, 10.0f);
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddKernelNode(&node, graph, last, count, adder.get()));
  GIVES(cudaErrorInvalidValue, cudaStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1, 7));
  OK(cudaStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
  OK(launch(scale, 1, 1, stream_, device_, device_, 1, 2.0f));
  OK(cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ((Edges{{0, 1}, {1, 2}}), edges(keep(graph)));
  EXPECT_EQ(22, run(instantiate(graph)));
  GIVES(cudaErrorIllegalState, cudaStreamUpdateCaptureDependencies(stream_, nullptr, nullptr, 0, 0));
}

#endif

TEST_F(Fact09, OnlyCapturedNodesInheritThePriority) {
  int least = 0, greatest = 0;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t urgent = nullptr;
  OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  begin(urgent, kThreadLocal);
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(urgent, &graph));
  OK(cudaStreamDestroy(urgent));
  keep(graph);
  Params adder(add, 1, 1, device_, 1, 1.0f);
  cudaGraphNode_t manual = nullptr;
  OK(cudaGraphAddKernelNode(&manual, graph, nullptr, 0, adder.get()));
  cudaLaunchAttributeValue value = {};
  OK(cudaGraphKernelNodeGetAttribute(nodes(graph)[0], cudaLaunchAttributePriority, &value));
  EXPECT_EQ(greatest, value.priority);
  OK(cudaGraphKernelNodeGetAttribute(manual, cudaLaunchAttributePriority, &value));
  EXPECT_EQ(0, value.priority);
  value.priority = greatest - 100;
  OK(cudaGraphKernelNodeSetAttribute(manual, cudaLaunchAttributePriority, &value));
  OK(cudaGraphKernelNodeGetAttribute(manual, cudaLaunchAttributePriority, &value));
  EXPECT_EQ(greatest, value.priority);
}

TEST_F(Fact11, AnEmptyCaptureIsLegal) {
  const cudaGraph_t graph = capture([] {});
  EXPECT_TRUE(nodes(graph).empty());
  EXPECT_EQ(0, run(instantiate(graph)));
}

}  // namespace
}  // namespace graphcache::test
