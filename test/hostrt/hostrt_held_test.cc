// Work in flight: held streams, what releases them, and work whose objects no longer exist.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <thread>

#include "hostrt_support.h"

namespace graphcache::test {
namespace {

void hold_the_stream(cudaStream_t stream) { hostrt::hold(stream); }
GRAPHCACHE_HOST_KERNEL(hold_the_stream)

using HostrtGraphs = HostrtLogTest;

TEST_F(HostrtGraphs, AHeldStreamKeepsItsWork) {
  OK(write(1, stream_));
  hostrt::hold(stream_);
  int from = 5, to = 0;
  OK(write(2, stream_));
  OK(cudaMemcpyAsync(&to, &from, sizeof to, cudaMemcpyDefault, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(cudaLaunchHostFunc(
      stream_, [](void* counter) { *static_cast<int*>(counter) += 10; }, &to));
  EXPECT_EQ((Values{1}), taken());
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream_));
  GIVES(cudaErrorNotReady, cudaEventQuery(event_));
  GIVES(cudaSuccess, cudaPeekAtLastError());  // a result, not an error
  OK(cudaStreamQuery(other_));
  OK(write(3, other_));
  EXPECT_EQ((Values{3}), taken());
  OK(hostrt::release(stream_));
  EXPECT_EQ((Values{2}), taken());
  EXPECT_EQ(15, to);
  OK(cudaStreamQuery(stream_));
  OK(cudaEventQuery(event_));
  OK(write(4, stream_));
  EXPECT_EQ((Values{4}), taken());
}

TEST_F(HostrtGraphs, EventsAreReadyWhenThePrecedingWorkIs) {
  OK(cudaEventQuery(event_));  // never recorded
  OK(cudaEventRecord(event_, stream_));
  hostrt::hold(stream_);
  OK(cudaEventQuery(event_));  // recorded ahead
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream_));
  OK(cudaEventRecord(event_, stream_));
  GIVES(cudaErrorNotReady, cudaEventQuery(event_));
  float milliseconds = 0;
  GIVES(cudaErrorNotReady, cudaEventElapsedTime(&milliseconds, event_, event_));
  OK(cudaEventRecord(event_, other_));
  OK(cudaEventQuery(event_));  // the latest record counts
  OK(cudaEventRecord(event_, stream_));
  OK(cudaEventDestroy(event_));
  OK(hostrt::release(stream_));
  EXPECT_EQ(0u, hostrt::misuses());
}

TEST_F(HostrtGraphs, EveryWaitReleases) {
  void* memory = nullptr;
  void* pinned = nullptr;
  cudaStream_t blocking = nullptr;
  int variable = 0;
  OK(cudaMalloc(&memory, 8));
  OK(cudaMallocHost(&pinned, 8));
  OK(cudaStreamCreate(&blocking));
  const auto expect_release = [&](cudaStream_t stream, auto&& wait) {
    hostrt::hold(stream);
    OK(write(1, stream));
    OK(cudaEventRecord(event_, stream));
    EXPECT_EQ((Values{}), taken());
    OK(wait());
    EXPECT_EQ((Values{1}), taken());
    OK(cudaEventQuery(event_));
  };
  const auto copy = [&] { return cudaMemcpy(&variable, &variable, sizeof variable, cudaMemcpyDefault); };
  expect_release(stream_, [&] { return cudaStreamSynchronize(stream_); });
  expect_release(stream_, [&] { return cudaEventSynchronize(event_); });
  expect_release(stream_, [&] { return cudaDeviceSynchronize(); });
  expect_release(stream_, [&] { return cudaFree(memory); });
  expect_release(stream_, [&] { return cudaFreeHost(pinned); });
  expect_release(blocking, copy);
  expect_release(blocking, [&] { return cudaStreamSynchronize(cudaStreamLegacy); });
  expect_release(stream_, [&] { return cudaStreamDestroy(stream_); });
  hostrt::hold(other_);
  OK(write(2, other_));
  OK(copy());  // not a blocking stream, so there is nothing to wait for
  OK(cudaStreamSynchronize(blocking));
  GIVES(cudaErrorNotReady, cudaStreamQuery(other_));
  EXPECT_EQ((Values{}), taken());
}

TEST_F(HostrtGraphs, WorkWaitsForHeldWorkElsewhere) {
  const cudaStream_t third = new_stream(cudaStreamDefault);
  hostrt::hold(stream_);
  OK(write(1, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(write(2, stream_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(write(3, other_));
  OK(cudaEventRecord(event_, other_));
  OK(cudaStreamWaitEvent(third, event_, 0));
  OK(write(4, third));
  OK(write(5, cudaStreamLegacy));  // behind `third`, which is a blocking stream
  EXPECT_EQ((Values{}), taken());
  for (cudaStream_t stream : {stream_, other_, third, cudaStreamLegacy}) {
    GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
  }
  OK(cudaStreamSynchronize(cudaStreamLegacy));
  EXPECT_EQ((Values{1, 2, 3, 4, 5}), taken());
  for (cudaStream_t stream : {stream_, other_, third, cudaStreamLegacy}) OK(cudaStreamQuery(stream));

  hostrt::hold(cudaStreamLegacy);
  OK(write(6, cudaStreamLegacy));
  OK(write(7, third));
  OK(write(8, other_));  // not a blocking stream
  EXPECT_EQ((Values{8}), taken());
  OK(hostrt::release(cudaStreamLegacy));
  EXPECT_EQ((Values{6, 7}), taken());
}

TEST_F(HostrtGraphs, AnExecutableRunsOnceAtATime) {
  const cudaGraph_t graph = capture_values({1});
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(patch(executable, nodes_of(graph)[0], 2));
  OK(cudaGraphLaunch(executable, other_));
  OK(write(3, other_));
  EXPECT_EQ((Values{}), taken());
  OK(cudaStreamSynchronize(other_));  // needs the other launch
  EXPECT_EQ((Values{1, 2, 3}), taken());
  OK(cudaStreamQuery(stream_));
}

TEST_F(HostrtGraphs, StreamsAreReleasedOneByOne) {
  hostrt::hold(stream_);
  hostrt::hold(other_);
  hostrt::hold(other_);  // once is enough
  OK(write(1, stream_));
  OK(write(2, other_));
  OK(cudaStreamSynchronize(other_));
  EXPECT_EQ((Values{2}), taken());
  OK(hostrt::release(other_));  // not held any more, so this does nothing
  OK(hostrt::release(stream_));
  EXPECT_EQ((Values{1}), taken());
}

TEST_F(HostrtGraphs, TheEndOfAThreadReleasesItsStream) {
  std::thread([&] {
    hostrt::hold(cudaStreamPerThread);
    OK(write(1, cudaStreamPerThread));
    EXPECT_EQ((Values{}), taken());
  }).join();
  EXPECT_EQ((Values{1}), taken());
}

TEST_F(HostrtGraphs, ResetDropsHeldWork) {
  hostrt::hold(stream_);
  OK(write(1, stream_));
  hostrt::reset();
  EXPECT_EQ((Values{}), taken());
  OK(write(2, nullptr));
  OK(cudaStreamQuery(nullptr));
  EXPECT_EQ((Values{2}), taken());
}

TEST_F(HostrtGraphs, HeldWorkThatFailsFailsItsRelease) {
  hostrt::hold(stream_);
  OK(launch(fault, 1, 1, stream_));
  OK(write(1, stream_));
  hostrt::hold(other_);
  OK(write(2, other_));
  GIVES(cudaErrorLaunchFailure, hostrt::release(stream_));
  GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
  GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(other_));
  EXPECT_EQ((Values{}), taken());
}

TEST_F(HostrtGraphs, FailureThatEndsTheContextDropsHeldWork) {
  hostrt::hold(stream_);
  OK(write(1, stream_));
  hostrt::fail_call("cudaEventQuery", 1, cudaErrorIllegalAddress);
  OK(write(2, other_));
  GIVES(cudaErrorIllegalAddress, cudaEventQuery(event_));
  GIVES(cudaErrorIllegalAddress, write(3, other_));
  GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(stream_));
  EXPECT_EQ((Values{2}), taken());
  hostrt::clear_failures();
  OK(write(4, stream_));
  hostrt::fail_call("cudaEventQuery", 1, cudaErrorInvalidValue);
  GIVES(cudaErrorInvalidValue, cudaEventQuery(event_));
  OK(write(5, stream_));
  EXPECT_EQ((Values{4, 5}), taken());
}

TEST_F(HostrtGraphs, WaitingForHeldWorkEndsWhenItFails) {
  hostrt::hold(stream_);
  OK(write(1, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(launch(fault, 1, 1, other_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(write(2, other_));
  OK(cudaEventRecord(event_, other_));
  GIVES(cudaErrorLaunchFailure, cudaEventSynchronize(event_));
  GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(other_));
  EXPECT_EQ((Values{1}), taken());
}

TEST_F(HostrtGraphs, OnlyLiveStreamsAreHeldAndNotByKernels) {
  OK(launch(hold_the_stream, 1, 1, stream_, other_));
  expect_misuse("hold: called from inside a kernel or a host function");
  OK(cudaStreamQuery(other_));
  OK(cudaStreamDestroy(other_));
  hostrt::hold(other_);
  expect_misuse("hold: not a live stream");
  GIVES(cudaErrorInvalidResourceHandle, hostrt::release(other_));
  expect_misuse("release: not a live stream");
}

}  // namespace
}  // namespace graphcache::test
