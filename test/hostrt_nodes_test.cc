// Event nodes, device-updatable nodes and nodes that are taken out, as far as only hostrt can show what they do.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>

#include "graphcache/hostrt.h"
#include "hostrt_objects.h"

namespace graphcache::test {
namespace {

void see_device(int* out) { *out = hostrt::current_device(); }

}  // namespace
}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::see_device)

namespace graphcache::test {
namespace {

// ---- Nodes that are taken out ----

TEST_F(HostrtObjects, NodesBehindARemovedOneStillPatch) {
  const cudaGraph_t graph = capture_values({1, 2, 3});
  const Nodes nodes = nodes_of(graph);
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphDestroyNode(nodes[0]));
  EXPECT_EQ(2u, nodes_of(graph).size());
  OK(patch(executable, nodes[2], 9));
  EXPECT_EQ(Values({1, 2, 9}), launched(executable));
  EXPECT_EQ(Values({2, 3}), launched(instantiate(graph)));
  cudaGraphNode_t twin = nullptr;
  OK(cudaGraphNodeFindInClone(&twin, nodes[2], clone));
  EXPECT_EQ(nodes_of(clone)[2], twin);
  GIVES(cudaErrorInvalidValue, cudaGraphDestroyNode(nodes[0]));
  expect_misuse("cudaGraphDestroyNode: node was destroyed");
}

// ---- Events of graphs ----

TEST_F(HostrtObjects, ALaunchRecordsItsEvents) {
  const cudaGraph_t graph = capture([&] {
    EXPECT_EQ(cudaSuccess, write(1, stream_));
    EXPECT_EQ(cudaSuccess, cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal));
  });
  cudaEvent_t found = nullptr;
  OK(cudaGraphEventRecordNodeGetEvent(nodes_of(graph)[1], &found));
  EXPECT_EQ(event_, found);
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  GIVES(cudaErrorNotReady, cudaEventQuery(event_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(write(2, other_));
  EXPECT_EQ(Values(), taken());
  OK(hostrt::release(stream_));
  EXPECT_EQ(Values({1, 2}), taken());
  OK(cudaEventQuery(event_));
}

TEST_F(HostrtObjects, ALaunchWaitsForWhatItsEventsHadRecorded) {
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
  cudaEvent_t recorded = nullptr;
  OK(cudaEventCreate(&recorded));
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

// Under deferred execution in any order that the event leaves; without the wait there is more than one.
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

TEST_F(HostrtObjects, TheEventOfANodeMayChange) {
  cudaEvent_t other_event = nullptr;
  OK(cudaEventCreate(&other_event));
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphAddEventRecordNode(&node, graph, nullptr, 0, nullptr));
  OK(cudaGraphAddEventRecordNode(&node, graph, nullptr, 0, event_));
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphExecEventRecordNodeSetEvent(executable, node, other_event));
  GIVES(cudaErrorInvalidValue, cudaGraphExecEventWaitNodeSetEvent(executable, node, other_event));
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaEventQuery(event_));
  GIVES(cudaErrorNotReady, cudaEventQuery(other_event));
  OK(hostrt::release(stream_));
}

TEST_F(HostrtObjects, ALaunchWithADestroyedEventIsMisuse) {
  const cudaGraph_t graph =
      capture([&] { EXPECT_EQ(cudaSuccess, cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal)); });
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaEventDestroy(event_));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_));
  expect_misuse("cudaGraphLaunch: event was destroyed");
}

// ---- Device-updatable nodes, devices ----

TEST_F(HostrtObjects, ADeviceUpdatableNodeRestrictsItsGraph) {
  const cudaGraph_t graph = capture_values({1});
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t old = instantiate(graph);
  cudaLaunchAttributeValue value;
  std::memset(&value, 0x5a, sizeof value);
  value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  const auto id = cudaLaunchAttributeDeviceUpdatableKernelNode;
  GIVES(cudaErrorInvalidValue, cudaGraphKernelNodeSetAttribute(node, id, &value));
  std::memset(&value, 0, sizeof value);
  value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  OK(cudaGraphKernelNodeSetAttribute(node, id, &value));
  EXPECT_NE(nullptr, value.deviceUpdatableKernelNode.devNode);
  GIVES(cudaErrorNotSupported, update(old, graph));
  const cudaGraphExec_t executable = instantiate(graph);  // one from before does not count
  cudaGraphExec_t second = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphInstantiate(&second, graph, 0));
  GIVES(cudaErrorNotSupported, update(executable, capture_values({2})));
  OK(patch(executable, node, 3));
  EXPECT_EQ(Values({3}), launched(executable));
  cudaGraph_t clone = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphClone(&clone, graph));
  GIVES(cudaErrorNotSupported, cudaGraphDestroyNode(node));
  value.deviceUpdatableKernelNode.deviceUpdatable = 0;
  GIVES(cudaErrorNotSupported, cudaGraphKernelNodeSetAttribute(node, id, &value));
}

TEST_F(HostrtObjects, ALaunchMayCaptureADeviceUpdatableNode) {
  cudaLaunchAttribute attribute;
  std::memset(&attribute, 0, sizeof attribute);
  attribute.id = cudaLaunchAttributeDeviceUpdatableKernelNode;
  attribute.val.deviceUpdatableKernelNode.deviceUpdatable = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = config.blockDim = dim3(1, 1, 1);
  config.stream = stream_;
  config.attrs = &attribute;
  config.numAttrs = 1;
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

TEST_F(HostrtObjects, AnExecutableRunsOnItsOwnDevice) {
  hostrt::set_device_count(2);
  cudaStream_t far = nullptr;
  OK(cudaSetDevice(1));
  OK(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking));
  int seen = -1;
  OK(launch(see_device, 1, 1, far, &seen));
  EXPECT_EQ(1, seen);
  OK(launch(see_device, 1, 1, stream_, &seen));
  EXPECT_EQ(0, seen);
  OK(cudaSetDevice(0));
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(cudaSuccess, launch(see_device, 1, 1, stream_, &seen)); });
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphLaunch(executable, far));
  EXPECT_EQ(0, seen);
}

}  // namespace
}  // namespace graphcache::test
