// Event nodes, device-updatable nodes and removed nodes: what only hostrt can show.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>

#include "hostrt_objects.h"

namespace graphcache::test {
namespace {

// ---- Removed nodes ----

TEST_F(HostrtObjects, TwinsOfNodesBehindARemovedOneAreFound) {
  const cudaGraph_t graph = capture_values({1, 2, 3});
  const Nodes nodes = nodes_of(graph);
  const cudaGraph_t clone = clone_of(graph);
  OK(cudaGraphDestroyNode(nodes[0]));
  cudaGraphNode_t twin = nullptr;
  OK(cudaGraphNodeFindInClone(&twin, nodes[2], clone));
  EXPECT_EQ(nodes_of(clone)[2], twin);
  GIVES(cudaErrorInvalidValue, cudaGraphDestroyNode(nodes[0]));
  expect_misuse("cudaGraphDestroyNode: node was destroyed");
}

// ---- Events of graphs ----

TEST_F(HostrtObjects, ALaunchWaitsForTheWorkThatItsEventsHadRecorded) {
  const cudaGraph_t graph = capture([&] {
    EXPECT_EQ(cudaSuccess, cudaStreamWaitEvent(stream_, event_, cudaEventWaitExternal));
    EXPECT_EQ(cudaSuccess, write(2, stream_));
  });
  const cudaGraphExec_t executable = instantiate(with_child({}, graph));
  hostrt::hold(other_);
  OK(write(1, other_));
  OK(cudaEventRecord(event_, other_));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(Values(), taken());
  OK(hostrt::release(other_));
  EXPECT_EQ(Values({1, 2}), taken());
}

TEST_F(HostrtObjects, EventsAreRecordedAndWaitedForInTheirPlace) {
  const cudaEvent_t recorded = new_event();
  const cudaGraph_t graph = capture([&] {
    EXPECT_EQ(cudaSuccess, write(1, stream_));
    EXPECT_EQ(cudaSuccess, cudaEventRecordWithFlags(recorded, stream_, cudaEventRecordExternal));
    EXPECT_EQ(cudaSuccess, cudaStreamWaitEvent(stream_, event_, cudaEventWaitExternal));
    EXPECT_EQ(cudaSuccess, write(2, stream_));
  });
  give_object(graph);
  const cudaGraphNode_t last = nodes_of(graph)[3];
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(other_);
  OK(cudaEventRecord(event_, other_));
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaEventQuery(recorded));
  EXPECT_EQ(Values({1}), taken());
  OK(patch(executable, last, 3));
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(0, destroyed_);
  OK(hostrt::release(other_));
  EXPECT_EQ(Values({2}), taken());
  EXPECT_EQ(1, destroyed_);
}

// In deferred execution, every order that the event allows occurs; without the wait there is more than one.
TEST_F(HostrtObjects, AnEventOfAGraphOrdersOtherStreams) {
  const cudaGraph_t graph =
      with_child({1}, capture([&] {
                   EXPECT_EQ(cudaSuccess, write(2, stream_));
                   EXPECT_EQ(cudaSuccess, cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal));
                 }));
  const cudaGraphExec_t executable = instantiate(graph);
  std::set<Values> orders;
  for (const bool waits : {true, false}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      hostrt::defer(seed);
      OK(cudaGraphLaunch(executable, stream_));
      if (waits) {
        OK(cudaStreamWaitEvent(other_, event_, 0));
      }
      OK(write(3, other_));
      OK(cudaDeviceSynchronize());
      const Values order = taken();
      if (waits) {
        EXPECT_EQ(Values({1, 2, 3}), order) << seed;
      }
      orders.insert(order);
    }
  }
  EXPECT_GT(orders.size(), 1u);
}

TEST_F(HostrtObjects, ALaunchWithADestroyedEventIsMisuse) {
  const cudaGraph_t graph =
      capture([&] { EXPECT_EQ(cudaSuccess, cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal)); });
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaEventDestroy(event_));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_));
  expect_misuse("cudaGraphLaunch: event was destroyed");
}

// ---- Device-updatable nodes ----

TEST_F(HostrtObjects, AnExecutableFromBeforeANodeBecameUpdatableDoesNotCount) {
  const cudaGraph_t graph = capture_values({1});
  const cudaGraphExec_t old = instantiate(graph);
  on_device(nodes_of(graph)[0]);
  GIVES(cudaErrorNotSupported, update(old, graph));
  instantiate(graph);
  GIVES(cudaErrorNotSupported, instantiation_error(graph));
}

TEST_F(HostrtObjects, ALaunchMayCaptureADeviceUpdatableNode) {
  cudaLaunchAttribute attribute;
  std::memset(&attribute, 0, sizeof attribute);
  attribute.id = cudaLaunchAttributeDeviceUpdatableKernelNode;
  attribute.val.deviceUpdatableKernelNode.deviceUpdatable = 1;
  cudaLaunchConfig_t config = {
      .gridDim = 1, .blockDim = 1, .dynamicSmemBytes = 0, .stream = stream_, .attrs = &attribute, .numAttrs = 1};
  const Params params(append, 1, 1, log_, &count_, 1);
  const auto launch_it = [&] {
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(append), params.get()->kernelParams);
  };
  GIVES(cudaErrorNotSupported, launch_it());
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(cudaSuccess, launch_it()); });
  cudaLaunchAttributeValue found;
  OK(cudaGraphKernelNodeGetAttribute(nodes_of(graph)[0], attribute.id, &found));
  EXPECT_EQ(1, found.deviceUpdatableKernelNode.deviceUpdatable);
  EXPECT_NE(nullptr, found.deviceUpdatableKernelNode.devNode);
  EXPECT_EQ(found.deviceUpdatableKernelNode.devNode, attribute.val.deviceUpdatableKernelNode.devNode);
  EXPECT_EQ(Values({1}), launched(instantiate(graph)));
}

}  // namespace
}  // namespace graphcache::test
