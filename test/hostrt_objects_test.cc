// User objects, child graphs, memory nodes and event nodes, as far as only hostrt can show what becomes of them: what
// is alive, what counts as a misuse, when something is released.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>

#include "graphcache/hostrt.h"
#include "hostrt_support.h"

namespace graphcache::test {
namespace {

void see_device(int* out) { *out = hostrt::current_device(); }

}  // namespace
}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::see_device)

namespace graphcache::test {
namespace {

class HostrtObjects : public HostrtLogTest {
 protected:
  void SetUp() override {
    HostrtLogTest::SetUp();
    before_ = hostrt::ledger();
  }

  // Whatever a test leaves undestroyed is forgotten here, and no destructor of a user object runs any more.
  void TearDown() override {
    EXPECT_EQ(expected_misuses_, hostrt::misuses()) << hostrt::last_misuse();
    const int destroyed = destroyed_;
    hostrt::reset();
    EXPECT_EQ(destroyed, destroyed_);
  }

  // A graph of kernels before, a child and kernels behind it; the child's own graph is destroyed.
  cudaGraph_t with_child(const Values& before, cudaGraph_t child, const Values& behind = {}) {
    const cudaGraph_t graph = capture_values(before);
    const Nodes nodes = nodes_of(graph);
    cudaGraphNode_t node = nullptr;
    EXPECT_EQ(cudaSuccess, cudaGraphAddChildGraphNode(&node, graph, nodes.empty() ? nullptr : &nodes.back(),
                                                      nodes.empty() ? 0 : 1, child));
    EXPECT_EQ(cudaSuccess, cudaGraphDestroy(child));
    for (const int value : behind) {
      const cudaGraphNode_t last = node;
      const Params params(append, 1, 1, log_, &count_, value);
      EXPECT_EQ(cudaSuccess, cudaGraphAddKernelNode(&node, graph, &last, 1, params.get()));
    }
    return graph;
  }

  static cudaGraph_t embedded(cudaGraphNode_t node) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaSuccess, cudaGraphChildGraphNodeGetGraph(node, &graph));
    return graph;
  }

  // What a launch appends.
  Values launched(cudaGraphExec_t executable) {
    EXPECT_EQ(cudaSuccess, cudaGraphLaunch(executable, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
    return taken();
  }

  // An object whose destructor adds to destroyed_, held by the graph alone.
  cudaUserObject_t give_object(cudaGraph_t graph) {
    cudaUserObject_t object = nullptr;
    EXPECT_EQ(cudaSuccess,
              cudaUserObjectCreate(&object, &destroyed_, count_destruction, 1, cudaUserObjectNoDestructorSync));
    EXPECT_EQ(cudaSuccess, cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    return object;
  }
  static void count_destruction(void* count) { ++*static_cast<int*>(count); }

  hostrt::Ledger before_;
  int destroyed_ = 0;
};

// ---- User objects ----

TEST_F(HostrtObjects, TheLastReferenceEndsAUserObject) {
  cudaUserObject_t object = nullptr;
  OK(cudaUserObjectCreate(&object, &destroyed_, count_destruction, 2, cudaUserObjectNoDestructorSync));
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
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  const cudaUserObject_t object = give_object(graph);
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  for (int i = 0; i < 300000; ++i) OK(update(executable, graph));
  OK(cudaGraphReleaseUserObject(graph, object, 1));
  OK(cudaGraphExecDestroy(executable));
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

TEST_F(HostrtObjects, AGraphKeepsItsObjectsForItsClonesAndExecutables) {
  const cudaGraph_t graph = capture_values({1});
  give_object(graph);
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(0, destroyed_);
  const cudaGraphExec_t executable = instantiate(clone);
  OK(cudaGraphDestroy(clone));
  EXPECT_EQ(0, destroyed_);
  OK(cudaGraphExecDestroy(executable));
  EXPECT_EQ(1, destroyed_);
  EXPECT_EQ(before_, hostrt::ledger());
}

TEST_F(HostrtObjects, AnInvalidatedCaptureReleasesItsObjects) {
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaStreamCaptureStatus status;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  OK(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr, nullptr));
#else
  OK(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr));
#endif
  give_object(graph);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, destroyed_);
  GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream_, &graph));
}

TEST_F(HostrtObjects, ALaunchInFlightKeepsWhatItsExecutableHad) {
  const cudaGraph_t graph = capture_values({1});
  give_object(graph);
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(0, destroyed_);
  EXPECT_EQ(1u, hostrt::ledger().user_objects);
  OK(hostrt::release(stream_));
  EXPECT_EQ(1, destroyed_);
  EXPECT_EQ(Values({1}), taken());
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

// ---- Child graphs ----

TEST_F(HostrtObjects, AChildGraphRunsInItsPlace) {
  const cudaGraph_t graph = with_child({1, 2}, with_child({3}, capture_values({4, 5})), {6});
  EXPECT_EQ(Values({1, 2, 3, 4, 5, 6}), launched(instantiate(graph)));
}

TEST_F(HostrtObjects, TheLedgerCountsNodesOfChildrenButNotTheirGraphs) {
  const cudaGraph_t graph = with_child({1, 2}, with_child({3}, capture_values({4, 5})), {6});
  EXPECT_EQ(before_.graphs + 1, hostrt::ledger().graphs);
  EXPECT_EQ(8u, hostrt::ledger().nodes);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(8u, hostrt::ledger().executable_nodes);
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(before_, hostrt::ledger());
}

TEST_F(HostrtObjects, AnEmbeddedGraphBelongsToItsNode) {
  const cudaGraph_t graph = with_child({}, capture_values({1}));
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraph_t inner = embedded(node);
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(inner));
  expect_misuse("cudaGraphDestroy: the graph belongs to a child graph node");
  cudaGraphExec_t executable = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphInstantiate(&executable, inner, 0));
  OK(cudaGraphDestroyNode(node));
  std::size_t count = 0;
  GIVES(cudaErrorInvalidValue, cudaGraphGetNodes(inner, nullptr, &count));
  expect_misuse("cudaGraphGetNodes: graph was destroyed");
}

TEST_F(HostrtObjects, EmbeddedNodesPatchTheExecutableOfTheParent) {
  const cudaGraph_t child = capture_values({1, 2});
  const cudaGraphNode_t outside = nodes_of(child)[0];
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  const cudaGraphExec_t executable = instantiate(graph);
  const Nodes inner = nodes_of(embedded(node));
  OK(patch(executable, inner[1], 7));
  GIVES(cudaErrorInvalidValue, patch(executable, outside, 8));
  EXPECT_EQ(Values({1, 7}), launched(executable));
  OK(cudaGraphNodeSetEnabled(executable, inner[0], 0));
  EXPECT_EQ(Values({7}), launched(executable));
  EXPECT_EQ(Values({1, 2}), launched(instantiate(graph)));
}

TEST_F(HostrtObjects, APatchOfAChildLeavesTheLaunchInFlightAlone) {
  const cudaGraph_t graph = with_child({}, with_child({}, capture_values({1})));
  const cudaGraphNode_t node = nodes_of(embedded(nodes_of(embedded(nodes_of(graph)[0]))[0]))[0];
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(patch(executable, node, 2));
  OK(cudaGraphLaunch(executable, stream_));
  OK(hostrt::release(stream_));
  EXPECT_EQ(Values({1, 2}), taken());
}

TEST_F(HostrtObjects, AnUpdateReachesIntoChildrenOrAppliesNothing) {
  const cudaGraph_t graph = with_child({1}, with_child({2}, capture_values({3})), {4});
  const cudaGraphExec_t executable = instantiate(graph);
  OK(update(executable, with_child({5}, with_child({6}, capture_values({7})), {8})));
  EXPECT_EQ(Values({5, 6, 7, 8}), launched(executable));

  GIVES(cudaErrorGraphExecUpdateFailure,
        update(executable, with_child({1}, with_child({2}, capture_values({3, 4})), {5})));
  EXPECT_EQ(cudaGraphExecUpdateErrorTopologyChanged, info_.result);
  EXPECT_EQ(nullptr, info_.errorNode);
  const cudaGraph_t fill = capture([&] { EXPECT_EQ(cudaSuccess, cudaMemsetAsync(log_, 0, 4, stream_)); });
  const cudaGraph_t changed = with_child({1}, with_child({2}, fill), {5});
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, changed));
  EXPECT_EQ(cudaGraphExecUpdateErrorNodeTypeChanged, info_.result);
  EXPECT_EQ(nodes_of(embedded(nodes_of(embedded(nodes_of(changed)[1]))[1]))[0], info_.errorNode);
  EXPECT_EQ(Values({5, 6, 7, 8}), launched(executable));
}

TEST_F(HostrtObjects, AChildIsSetAsAWhole) {
  const cudaGraph_t graph = with_child({1}, capture_values({2, 3}));
  const Nodes nodes = nodes_of(graph);
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphExecChildGraphNodeSetParams(executable, nodes[1], capture_values({4, 5})));
  EXPECT_EQ(Values({1, 4, 5}), launched(executable));
  GIVES(cudaErrorGraphExecUpdateFailure,
        cudaGraphExecChildGraphNodeSetParams(executable, nodes[1], capture_values({6})));
  GIVES(cudaErrorInvalidValue, cudaGraphExecChildGraphNodeSetParams(executable, nodes[0], capture_values({6})));
  EXPECT_EQ(Values({1, 4, 5}), launched(executable));
  OK(patch(executable, nodes_of(embedded(nodes[1]))[0], 9));
  EXPECT_EQ(Values({1, 9, 5}), launched(executable));
}

TEST_F(HostrtObjects, ACloneHasChildrenOfItsOwn) {
  const cudaGraph_t graph = with_child({}, capture_values({1}));
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  const cudaGraphNode_t inner = nodes_of(embedded(nodes_of(graph)[0]))[0];
  const cudaGraph_t cloned = embedded(nodes_of(clone)[0]);
  cudaGraphNode_t twin = nullptr;
  OK(cudaGraphNodeFindInClone(&twin, inner, cloned));
  EXPECT_EQ(nodes_of(cloned)[0], twin);
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&twin, inner, clone));
  OK(cudaGraphDestroy(graph));
  const cudaGraphExec_t executable = instantiate(clone);
  OK(patch(executable, twin, 2));
  EXPECT_EQ(Values({2}), launched(executable));
}

// Its nodes do not mix with those beside it, whatever the lot.
TEST_F(HostrtObjects, AChildRunsAsOneWhenDeferred) {
  const cudaGraph_t graph = capture_values({1});
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, capture_values({2, 3})));
  const cudaGraphExec_t executable = instantiate(graph);
  std::set<Values> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    hostrt::defer(seed);
    orders.insert(launched(executable));
  }
  EXPECT_EQ((std::set<Values>{{1, 2, 3}, {2, 3, 1}}), orders);
}

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

// ---- Memory of graphs ----

TEST_F(HostrtObjects, TheLedgerShowsWhatLaunchesLeaveAllocated) {
  int* memory = nullptr;
  const cudaGraph_t graph = capture([&] {
    EXPECT_EQ(cudaSuccess, cudaMallocAsync(reinterpret_cast<void**>(&memory), 1000, stream_));
    EXPECT_EQ(cudaSuccess, launch(append, 1, 1, stream_, memory, &count_, 5));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(0u, hostrt::ledger().graph_allocations);
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory, stream_));
  expect_misuse("cudaFreeAsync: not the address of live memory of this kind");
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(1u, hostrt::ledger().graph_allocations);
  EXPECT_EQ(1000u, hostrt::ledger().graph_allocated_bytes);
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_));
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(1u, hostrt::ledger().graph_allocations);
  EXPECT_EQ(5, memory[0]);
  OK(cudaFreeAsync(memory, stream_));
  EXPECT_EQ(before_, hostrt::ledger());
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  expect_misuse("cudaFree: not the address of live memory of this kind");
}

TEST_F(HostrtObjects, AFreeInFlightLetsTheNextLaunchIn) {
  int* memory = nullptr;
  const cudaGraph_t graph = capture([&] {
    EXPECT_EQ(cudaSuccess, cudaMallocAsync(reinterpret_cast<void**>(&memory), 64, stream_));
    EXPECT_EQ(cudaSuccess, launch(append, 1, 1, stream_, memory, &count_, 5));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaFreeAsync(memory, stream_));
  OK(cudaGraphLaunch(executable, stream_));
  OK(hostrt::release(stream_));
  EXPECT_EQ(2, count_);
  EXPECT_EQ(5, memory[1]);
  EXPECT_NE(5, memory[0]) << "what the first launch wrote was freed";
}

TEST_F(HostrtObjects, AGraphThatAllocatesHasOneExecutable) {
  const cudaGraph_t graph = capture([&] {
    void* memory = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, 64, stream_));
    EXPECT_EQ(cudaSuccess, cudaFreeAsync(memory, stream_));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  cudaGraphExec_t second = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphInstantiate(&second, graph, 0));
  const cudaGraphExec_t plain = instantiate(capture_values({1, 2}));
  GIVES(cudaErrorNotSupported, update(plain, graph));
  EXPECT_EQ(cudaGraphExecUpdateSuccess, info_.result);
  OK(update(executable, graph));
  cudaGraph_t clone = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphClone(&clone, graph));
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&node, capture_values({}), nullptr, 0, graph));
  GIVES(cudaErrorNotSupported, cudaGraphDestroyNode(nodes_of(graph)[0]));
  for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(0u, hostrt::ledger().graph_allocations);
  OK(cudaGraphExecDestroy(executable));
  instantiate(graph);
}

TEST_F(HostrtObjects, AnUpdateMakesTheExecutableThatOfAnotherGraph) {
  int* first = nullptr;
  int* second = nullptr;
  const auto allocating = [&](int** memory) {
    return capture([&, memory] {
      EXPECT_EQ(cudaSuccess, cudaMallocAsync(reinterpret_cast<void**>(memory), 64, stream_));
      EXPECT_EQ(cudaSuccess, cudaMemsetAsync(*memory, 0, 4, stream_));
    });
  };
  const cudaGraph_t former = allocating(&first);
  const cudaGraph_t latter = allocating(&second);
  const cudaGraphExec_t executable = instantiate(former);
  OK(update(executable, latter));
  cudaGraphExec_t other = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphInstantiate(&other, latter, 0));
  instantiate(former);
  GIVES(cudaErrorNotSupported, update(executable, former));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(0, *second);
  GIVES(cudaErrorInvalidValue, cudaFree(first));
  expect_misuse("cudaFree: not the address of live memory of this kind");
  OK(cudaFree(second));
}

TEST_F(HostrtObjects, AutoFreeReplacesWhatTheLastLaunchLeft) {
  const cudaGraph_t graph = capture([&] {
    void* memory = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, 64, stream_));
  });
  const cudaGraphExec_t executable = instantiate(graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(1u, hostrt::ledger().graph_allocations);
}

TEST_F(HostrtObjects, AnotherGraphMayFree) {
  void* memory = nullptr;
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, 64, stream_)); });
  const cudaGraph_t freeing = capture([&] {
    EXPECT_EQ(cudaSuccess, cudaFreeAsync(memory, stream_));
    EXPECT_EQ(cudaErrorInvalidValue, cudaFreeAsync(memory, stream_)) << "twice in one graph";
    EXPECT_EQ(cudaErrorInvalidValue, cudaFreeAsync(log_, stream_)) << "no memory of a graph";
  });
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&node, graph, nullptr, 0, memory));  // freed elsewhere
  const cudaGraphExec_t allocates = instantiate(graph);
  const cudaGraphExec_t frees = instantiate(freeing);
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(frees, stream_));
  for (int i = 0; i < 2; ++i) {
    OK(cudaGraphLaunch(allocates, stream_));
    OK(cudaGraphLaunch(frees, stream_));
  }
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(frees, stream_));
  EXPECT_EQ(0u, hostrt::ledger().graph_allocations);
}

TEST_F(HostrtObjects, AnAllocationNodeTellsItsAddress) {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaMemAllocNodeParams params = {};
  params.poolProps.allocType = cudaMemAllocationTypePinned;
  params.poolProps.location = {cudaMemLocationTypeDevice, 0};
  params.bytesize = 100;
  cudaGraphNode_t allocation = nullptr;
  OK(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
  ASSERT_NE(nullptr, params.dptr);
  cudaMemAllocNodeParams found = {};
  OK(cudaGraphMemAllocNodeGetParams(allocation, &found));
  EXPECT_EQ(params.dptr, found.dptr);
  EXPECT_EQ(100u, found.bytesize);
  cudaGraphNode_t free = nullptr;
  GIVES(cudaErrorInvalidValue,
        cudaGraphAddMemFreeNode(&free, graph, &allocation, 1, static_cast<char*>(params.dptr) + 4));
  OK(cudaGraphAddMemFreeNode(&free, graph, &allocation, 1, params.dptr));
  void* freed = nullptr;
  OK(cudaGraphMemFreeNodeGetParams(free, &freed));
  EXPECT_EQ(params.dptr, freed);
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  OK(cudaGraphNodeGetType(allocation, &type));
  EXPECT_EQ(cudaGraphNodeTypeMemAlloc, type);
  params.bytesize = 0;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
}

TEST_F(HostrtObjects, TrimmingGivesBackWhatNoGraphUses) {
  const auto current = [] {
    std::uint64_t bytes = 0;
    EXPECT_EQ(cudaSuccess, cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes));
    return bytes;
  };
  void* memory = nullptr;
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, 64, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(0u, current());
  OK(cudaGraphLaunch(executable, stream_));
  const std::uint64_t used = current();
  EXPECT_GE(used, 64u);
  OK(cudaDeviceGraphMemTrim(0));
  EXPECT_EQ(used, current());
  OK(cudaFree(memory));
  EXPECT_EQ(used, current());
  OK(cudaDeviceGraphMemTrim(0));
  EXPECT_EQ(0u, current());
}

TEST_F(HostrtObjects, MemoryOfAStreamIsFreedInItsOrder) {
  int* memory = nullptr;
  OK(cudaMallocAsync(reinterpret_cast<void**>(&memory), 64, stream_));
  EXPECT_EQ(1u, hostrt::ledger().allocations);
  cudaPointerAttributes attributes = {};
  OK(cudaPointerGetAttributes(&attributes, memory));
  EXPECT_EQ(cudaMemoryTypeDevice, attributes.type);
  hostrt::hold(stream_);
  OK(launch(append, 1, 1, stream_, memory, &count_, 5));
  OK(cudaMemcpyAsync(log_, memory, 4, cudaMemcpyDefault, stream_));
  OK(cudaFreeAsync(memory, stream_));
  EXPECT_EQ(0u, hostrt::ledger().allocations);
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory, stream_));
  expect_misuse("cudaFreeAsync: memory was freed");
  OK(hostrt::release(stream_));
  EXPECT_EQ(5, log_[0]);
  EXPECT_EQ(before_, hostrt::ledger());
}

TEST_F(HostrtObjects, EitherFreeTakesMemoryOfEitherAllocation) {
  void* memory = nullptr;
  OK(cudaMallocAsync(&memory, 64, stream_));
  OK(cudaFree(memory));
  OK(cudaMalloc(&memory, 64));
  OK(cudaFreeAsync(memory, stream_));
  EXPECT_EQ(before_, hostrt::ledger());
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
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(cudaSuccess, launch(see_device, 1, 1, stream_, &seen)); });
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphLaunch(executable, far));
  EXPECT_EQ(0, seen);
}

}  // namespace
}  // namespace graphcache::test
