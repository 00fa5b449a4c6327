// User objects: which reference is the last, and when it is released. Only hostrt can show this.

#include "hostrt_objects.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace graphcache::test {
namespace {

TEST_F(HostrtObjects, TheLastReferenceEndsAUserObject) {
  cudaUserObject_t object = nullptr;
  OK(cudaUserObjectCreate(&object, &destroyed_, count_call, 2, cudaUserObjectNoDestructorSync));
  EXPECT_EQ(1u, hostrt::ledger().user_objects);
  OK(cudaUserObjectRetain(object, 3));
  OK(cudaUserObjectRelease(object, 4));
  EXPECT_EQ(0, destroyed_);
  OK(cudaUserObjectRelease(object, 1));
  EXPECT_EQ(1, destroyed_);
  EXPECT_EQ(before_, hostrt::ledger());
  GIVES(cudaErrorInvalidValue, cudaUserObjectRetain(object, 1));
  expect_misuse("cudaUserObjectRetain: user object was destroyed");
}

// More than the stack has room for.
TEST_F(HostrtObjects, ALaunchInFlightOutlivesAnyNumberOfUpdates) {
  const cudaGraph_t graph = empty_graph();
  const cudaUserObject_t object = give_object(graph);
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  for (int i = 0; i < 300000; ++i) OK(update(executable, graph));
  OK(cudaGraphReleaseUserObject(graph, object, 1));
  OK(cudaGraphExecDestroy(executable));
  EXPECT_EQ(0u, hostrt::ledger().executables);
  EXPECT_EQ(1u, hostrt::ledger().user_objects);
  EXPECT_EQ(0, destroyed_);
  OK(hostrt::release(stream_));
  EXPECT_EQ(1, destroyed_);
}

TEST_F(HostrtObjects, ReferencesOfOthersCannotBeReleased) {
  const cudaGraph_t graph = capture_values({});
  const cudaUserObject_t object = give_object(graph);
  GIVES(cudaErrorInvalidValue, cudaUserObjectRelease(object, 1));
  expect_misuse("cudaUserObjectRelease: more references to the user object than the caller owns");
  GIVES(cudaErrorInvalidValue, cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  expect_misuse("cudaGraphRetainUserObject: more references to the user object than the caller owns");
  GIVES(cudaErrorInvalidValue, cudaGraphReleaseUserObject(graph, object, 2));
  expect_misuse("cudaGraphReleaseUserObject: more references to the user object than the graph holds");
  EXPECT_EQ(0, destroyed_);
  OK(cudaGraphReleaseUserObject(graph, object, 1));
  EXPECT_EQ(1, destroyed_);
}

TEST_F(HostrtObjects, ADestructorThatCallsTheRuntimeIsRefused) {
  cudaUserObject_t object = nullptr;
  cudaError_t error = cudaSuccess;
  const cudaHostFn_t destroy = [](void* seen) {
    int device = 0;
    *static_cast<cudaError_t*>(seen) = cudaGetDevice(&device);
    hostrt::ledger();
  };
  OK(cudaUserObjectCreate(&object, &error, destroy, 1, cudaUserObjectNoDestructorSync));
  OK(cudaUserObjectRelease(object, 1));
  EXPECT_EQ(cudaErrorNotPermitted, error);
  ++expected_misuses_;
  EXPECT_EQ(expected_misuses_, hostrt::misuses());
  GIVES(cudaErrorNotPermitted, cudaGetLastError());
}

TEST_F(HostrtObjects, AnInvalidatedCaptureReleasesItsObjects) {
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = graph_of_capture();
  give_object(graph);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, destroyed_);
  GIVES(cudaErrorStreamCaptureInvalidated, end_of_capture_error(stream_));
}

TEST_F(HostrtObjects, AnUpdateTakesObjectsOverAndAPatchDoesNot) {
  const cudaGraph_t base = capture_values({1});
  const cudaGraphExec_t executable = instantiate(base);
  const cudaGraph_t patched = capture_values({2});
  give_object(patched);
  OK(patch(executable, nodes_of(base)[0], 2));
  OK(cudaGraphDestroy(patched));
  EXPECT_EQ(1, destroyed_);

  const cudaGraph_t updated = capture_values({3});
  give_object(updated);
  OK(update(executable, updated));
  OK(cudaGraphDestroy(updated));
  EXPECT_EQ(1, destroyed_);
  OK(update(executable, base));
  EXPECT_EQ(2, destroyed_);
}

// The table "What a graph keeps alive by user objects" of docs/semantics.md, its last line.
TEST_F(HostrtObjects, AnUpdateWithALaunchInFlightKeepsItsObjectsForThatLaunch) {
  const cudaGraph_t base = capture_values({1});
  const cudaGraphExec_t executable = instantiate(base);
  const cudaGraph_t graph = capture_values({2});
  give_object(graph);
  OK(patch(executable, nodes_of(base)[0], 2));
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(update(executable, graph));
  OK(cudaGraphDestroy(graph));
  OK(update(executable, base));
  OK(cudaGraphExecDestroy(executable));
  EXPECT_EQ(0, destroyed_);
  OK(hostrt::release(stream_));
  EXPECT_EQ(1, destroyed_);
  EXPECT_EQ(Values({2}), taken());
}

TEST_F(HostrtObjects, ObjectsOfAChildGoWithItsNodeAndWithItsExecutable) {
  const cudaGraph_t child = capture_values({1});
  give_object(child);
  const cudaGraph_t graph = with_child({}, child);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(0, destroyed_);
  OK(cudaGraphDestroyNode(nodes_of(graph)[0]));
  EXPECT_EQ(0, destroyed_);
  OK(cudaGraphExecDestroy(executable));
  EXPECT_EQ(1, destroyed_);
}

TEST_F(HostrtObjects, SettingAChildTakesItsObjectsOver) {
  const cudaGraph_t graph = with_child({}, capture_values({1}));
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraph_t content = capture_values({2});
  give_object(content);
  OK(cudaGraphExecChildGraphNodeSetParams(executable, nodes_of(graph)[0], content));
  OK(cudaGraphDestroy(content));
  EXPECT_EQ(0, destroyed_);
  EXPECT_EQ(Values({2}), launched(executable));
  OK(cudaGraphExecDestroy(executable));
  EXPECT_EQ(1, destroyed_);
}

}  // namespace
}  // namespace graphcache::test
