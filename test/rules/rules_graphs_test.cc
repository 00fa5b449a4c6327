// Graphs built by hand: nodes, edges, child graphs, event nodes.
#include <cstring>
#include <thread>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "misuses.h"
#include "rules.h"

namespace graphcache::test {
namespace {

using Fact12 = RuntimeRules;
using Fact35 = RuntimeRules;

cudaGraphNode_t embed(cudaGraph_t child, cudaGraph_t parent) {
  cudaGraphNode_t node = nullptr;
  GIVES(cudaSuccess, cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
  return node;
}

cudaGraph_t embedded_in(cudaGraphNode_t node) {
  cudaGraph_t graph = nullptr;
  GIVES(cudaSuccess, cudaGraphChildGraphNodeGetGraph(node, &graph));
  return graph;
}

TEST_F(RuntimeRules, GraphsCanBeBuiltByHand) {
  const cudaGraph_t graph = make_graph();
  cudaGraphNode_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  const float* source = device_ + 8;
  Params adder(add, 1, 1, device_, 1, 10.0f);
  cudaMemsetParams zero = {device_ + 8, 0, 0x40, 1, 4, 1};  // 3.0039f in every byte
  OK(cudaGraphAddMemsetNode(&a, graph, nullptr, 0, &zero));
  OK(cudaGraphAddMemcpyNode1D(&b, graph, &a, 1, device_, source, sizeof(float), cudaMemcpyDeviceToDevice));
  OK(cudaGraphAddKernelNode(&c, graph, &b, 1, adder.get()));
  OK(cudaGraphAddEmptyNode(&d, graph, nullptr, 0));
  OK(add_edge(graph, c, d));
  GIVES(cudaErrorInvalidValue, add_edge(graph, c, d));  // it exists already
  EXPECT_EQ((Edges{{0, 1}, {1, 2}, {2, 3}}), edges(graph));
  EXPECT_EQ(
      (std::vector{cudaGraphNodeTypeMemset, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeKernel, cudaGraphNodeTypeEmpty}),
      types(graph));
  cudaGraphNode_t roots[2] = {};
  std::size_t count = 2;
  OK(cudaGraphGetRootNodes(graph, roots, &count));
  EXPECT_EQ(1u, count);
  EXPECT_EQ(a, roots[0]);
  float sum = 0;
  std::memset(&sum, 0x40, sizeof sum);
  EXPECT_EQ(sum + 10, run(instantiate(graph)));
}

TEST_F(RuntimeRules, BadNodesAreRefused) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  const cudaGraph_t stranger = capture([this] { OK(put(1, stream_)); });
  const cudaGraphNode_t own = nodes(graph)[0], foreign = nodes(stranger)[0];
  const cudaGraphNode_t twice[] = {own, own};
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, graph, twice, 2));
  GIVES(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, graph, &foreign, 1));
  GIVES(cudaErrorInvalidValue,
        cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, device_, device_ + 8, 0, cudaMemcpyDeviceToDevice));
  Params empty(add, 0, 1, device_, 1, 1.0f);
  GIVES(cudaErrorInvalidValue, cudaGraphAddKernelNode(&node, graph, nullptr, 0, empty.get()));
  EXPECT_EQ(1u, nodes(graph).size());

  OK(cudaGraphAddEmptyNode(&node, graph, &own, 1));
  OK(add_edge(graph, node, own));
  GIVES(cudaErrorInvalidValue, instantiation_error(graph));  // a cycle
}

TEST_F(RuntimeRules, NodesReportTheirParameters) {
  const cudaGraph_t graph = capture([&] {
    OK(launch(scale, dim3(2, 3), dim3(4, 5), stream_, device_, device_ + 8, 6, 1.5f));
    OK(cudaMemcpyAsync(device_, device_ + 16, 40, cudaMemcpyDeviceToDevice, stream_));
    OK(cudaMemsetAsync(device_ + 1, 0x141, 12, stream_));
  });
  const Nodes all = nodes(graph);
  cudaKernelNodeParams kernel = {};
  OK(cudaGraphKernelNodeGetParams(all[0], &kernel));
  EXPECT_EQ(reinterpret_cast<void*>(scale), kernel.func);
  EXPECT_EQ(3u, kernel.gridDim.y);
  EXPECT_EQ(5u, kernel.blockDim.y);
  EXPECT_EQ(device_ + 8, *static_cast<float**>(kernel.kernelParams[1]));
  EXPECT_EQ(1.5f, *static_cast<float*>(kernel.kernelParams[3]));
  cudaMemcpy3DParms copy = {};
  OK(cudaGraphMemcpyNodeGetParams(all[1], &copy));
  EXPECT_EQ(device_ + 16, copy.srcPtr.ptr);
  EXPECT_EQ(device_, copy.dstPtr.ptr);
  EXPECT_EQ(40u, copy.extent.width);
  EXPECT_EQ(cudaMemcpyDeviceToDevice, copy.kind);
  cudaMemsetParams set = {};
  OK(cudaGraphMemsetNodeGetParams(all[2], &set));
  EXPECT_EQ(device_ + 1, set.dst);
  EXPECT_EQ(0x41u, set.value);
  EXPECT_EQ(1u, set.elementSize);
  EXPECT_EQ(12u, set.width);
  EXPECT_EQ(1u, set.height);
  GIVES(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(all[1], &kernel));
}

TEST_F(RuntimeRules, BadHandlesAndFlagsAreRefused) {
  cudaGraph_t graph = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphCreate(&graph, 5));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphExecDestroy(nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, stream_));
  GIVES(cudaErrorInvalidValue, instantiation_error(nullptr));
  GIVES(cudaErrorInvalidValue, instantiation_error(capture([] {}), 0x4000));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamWaitEvent(stream_, nullptr, 0));
}

TEST_F(RuntimeRules, NodesReportTheirDependents) {
  const cudaGraph_t graph = capture([&] {
    OK(put(0, stream_));
    fork_and_join([&] { OK(plus(1, stream_)); }, [&] { OK(put(1, other_, 1)); });
    OK(plus(1, stream_));
  });
  const Nodes all = nodes(graph);
  EXPECT_EQ((Nodes{all[1], all[2]}), dependents(all[0]));
  EXPECT_EQ((Nodes{all[3]}), dependents(all[1]));
  EXPECT_TRUE(dependents(all[3]).empty());
}

TEST_F(RuntimeRules, TheDriverReportsTypesAndDependenciesLikeTheRuntime) {
  void* memory = nullptr;
  const cudaGraph_t graph = capture([&] {
    OK(put(1, stream_));
    OK(cudaMemsetAsync(device_, 0, 64, stream_));
    fork_and_join([&] { OK(plus(1, other_)); },
                  [&] { OK(cudaMemcpyAsync(device_, device_ + 8, 4, cudaMemcpyDeviceToDevice, stream_)); });
    OK(cudaLaunchHostFunc(
        stream_, [](void*) {}, nullptr));
    OK(cudaMallocAsync(&memory, 64, stream_));
    OK(cudaFreeAsync(memory, stream_));
    OK(cudaEventRecordWithFlags(fork_, stream_, cudaEventRecordExternal));
    OK(cudaStreamWaitEvent(stream_, fork_, cudaEventWaitExternal));
  });
  const cudaGraph_t parent = make_graph();
  cudaGraphNode_t empty = nullptr, child = nullptr;
  OK(cudaGraphAddEmptyNode(&empty, parent, nullptr, 0));
  cudaGraph_t embedded = make_graph();
  OK(cudaGraphAddChildGraphNode(&child, parent, &empty, 1, embedded));

  ASSERT_TRUE(has_context());
  std::vector<cudaGraphNodeType> found;
  Nodes all = nodes(graph);
  all.insert(all.end(), {empty, child});
  for (const cudaGraphNode_t node : all) {
    cudaGraphNodeType type = cudaGraphNodeTypeCount;
    EXPECT_EQ(cudaSuccess, node_type(node, &type));
    EXPECT_EQ(type_of(node), type);
    found.push_back(type);
    for (const std::size_t room : {0, 1, 2, 8}) {
      std::size_t counts[] = {room, room};
      cudaGraphNode_t dependencies[2][8] = {};
      cudaGraphEdgeData edges[2][8];
      std::memset(edges, 7, sizeof edges);
      for (const bool by_driver : {false, true}) {
        const bool has_room = room != 0;
        const auto get = by_driver ? node_dependencies : dependencies_by_runtime;
        EXPECT_EQ(cudaSuccess, get(node, has_room ? dependencies[by_driver] : nullptr,
                                   has_room ? edges[by_driver] : nullptr, &counts[by_driver]))
            << room;
      }
      EXPECT_EQ(counts[0], counts[1]) << room;
      EXPECT_EQ(0, std::memcmp(dependencies[0], dependencies[1], sizeof dependencies[0])) << room;
      EXPECT_EQ(0, std::memcmp(edges[0], edges[1], sizeof edges[0])) << room;
    }
  }
  EXPECT_EQ((std::vector{cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemset, cudaGraphNodeTypeKernel,
                         cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeHost, cudaGraphNodeTypeMemAlloc,
                         cudaGraphNodeTypeMemFree, cudaGraphNodeTypeEventRecord, cudaGraphNodeTypeWaitEvent,
                         cudaGraphNodeTypeEmpty, cudaGraphNodeTypeGraph}),
            found);
  EXPECT_EQ(cudaErrorInvalidValue, node_type(nullptr, &found[0]));
  EXPECT_EQ(cudaSuccess, cudaPeekAtLastError());
}

TEST_F(RuntimeRules, EdgesAndNodesCanBeTakenOutOfAGraph) {
  const cudaGraph_t graph = capture_adds(4);
  const Nodes all = nodes(graph);
  const cudaGraphExec_t executable = instantiate(graph);
  GIVES(cudaErrorInvalidValue, remove_edge(graph, all[0], all[2]));
  OK(remove_edge(graph, all[0], all[1]));
  GIVES(cudaErrorInvalidValue, remove_edge(graph, all[0], all[1]));
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, graph));
  OK(add_edge(graph, all[0], all[1]));
  GIVES(cudaSuccess, update(executable, graph));

  OK(cudaGraphDestroyNode(all[1]));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroyNode(nullptr));
  EXPECT_EQ((Nodes{all[0], all[2], all[3]}), nodes(graph));
  EXPECT_EQ((Edges{{1, 2}}), edges(graph));
  EXPECT_TRUE(dependents(all[0]).empty());
  EXPECT_EQ(4, run(executable));
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, graph));
  // The remaining nodes still patch the executable.
  OK(cudaGraphExecKernelNodeSetParams(executable, all[2], Params(add, 1, 1, device_, 1, 100.0f).get()));
  EXPECT_EQ(103, run(executable));
  OK(add_edge(graph, all[0], all[2]));
  EXPECT_EQ(3, run(instantiate(graph)));
}

TEST_F(RuntimeRules, NodesAreFoundInAClone) {
  const cudaGraph_t graph = capture_adds(3), clone = clone_of(graph);
  cudaGraphNode_t found = nullptr, late = nullptr;
  for (int i = 0; i < 3; ++i) {
    OK(cudaGraphNodeFindInClone(&found, nodes(graph)[i], clone));
    EXPECT_EQ(nodes(clone)[i], found);
  }
  OK(cudaGraphAddEmptyNode(&late, graph, nullptr, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, late, clone));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, nodes(graph)[0], graph));
}

// ---- Child graphs ----

TEST_F(RuntimeRules, AChildGraphNodeOwnsAClone) {
  misuses_on_purpose = true;
  const cudaGraph_t child = capture([&] { OK(put(3, stream_)); });
  const cudaGraph_t parent = make_graph();
  const cudaGraphNode_t node = embed(child, parent);
  EXPECT_EQ(std::vector{cudaGraphNodeTypeGraph}, types(parent));
  const cudaGraph_t embedded = embedded_in(node);
  EXPECT_NE(child, embedded);
  EXPECT_EQ(embedded, embedded_in(node));
  ASSERT_EQ(1u, nodes(embedded).size());
  EXPECT_NE(nodes(child)[0], nodes(embedded)[0]);
  OK(cudaGraphKernelNodeSetParams(nodes(child)[0], Params(fill, 1, 1, device_, 1, 4.0f).get()));
  destroy(child);
  EXPECT_EQ(3, run(instantiate(parent)));

  OK(cudaGraphKernelNodeSetParams(nodes(embedded)[0], Params(fill, 1, 1, device_, 1, 5.0f).get()));
  EXPECT_EQ(5, run(instantiate(parent)));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(embedded));
  GIVES(cudaErrorNotSupported, instantiation_error(embedded));
  cudaGraph_t none = nullptr;
  cudaGraphNode_t added = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphChildGraphNodeGetGraph(nodes(embedded)[0], &none));
  GIVES(cudaErrorInvalidValue, cudaGraphAddChildGraphNode(&added, parent, nullptr, 0, nullptr));

  OK(cudaGraphAddKernelNode(&added, embedded, nullptr, 0, Params(fill, 1, 1, device_ + 1, 1, 6.0f).get()));
  EXPECT_EQ(5, run(instantiate(parent)));
  EXPECT_EQ(6, read(1));
  OK(cudaGraphDestroyNode(added));
  const cudaGraphExec_t last = instantiate(parent);
  OK(cudaGraphDestroyNode(node));
  EXPECT_TRUE(nodes(parent).empty());
  EXPECT_EQ(5, run(last));
}

// If two threads make and destroy relatives at the same time, the process crashes; these are unrelated. The cache
// clones the graphs of the program in this way.
TEST_F(Fact35, ACloneOfACloneThatIsGoneIsUnrelatedToTheFirst) {
  cudaGraph_t graph = nullptr, between = nullptr, apart = nullptr;
  OK(cudaGraphClone(&graph, capture([this] { OK(put(1, stream_)); })));
  OK(cudaGraphClone(&between, graph));
  OK(cudaGraphClone(&apart, between));
  OK(cudaGraphDestroy(between));
  const auto make_and_destroy = [](cudaGraph_t from) {
    cudaGraph_t clone = nullptr;
    cudaGraphExec_t executable = nullptr;
    OK(cudaGraphClone(&clone, from));
    OK(cudaGraphInstantiate(&executable, from, 0));
    OK(cudaGraphDestroy(clone));
    OK(cudaGraphExecDestroy(executable));
  };
  constexpr int kRounds = 2000;
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) make_and_destroy(apart);
  });
  for (int i = 0; i < kRounds / 2; ++i) make_and_destroy(graph);
  OK(cudaGraphDestroy(graph));
  other.join();
  EXPECT_EQ(1, run(instantiate(apart)));
  OK(cudaGraphDestroy(apart));
}

TEST_F(RuntimeRules, AnEmptyChildGraphIsLegal) {
  const cudaGraph_t parent = make_graph();
  embed(make_graph(), parent);
  EXPECT_EQ(0, run(instantiate(parent)));
}

TEST_F(Fact12, NodesOfTheEmbeddedGraphPatchTheParentsExecutable) {
  const cudaGraph_t child = capture([&] {
    OK(put(1, stream_, 1));
    OK(put(3, stream_));
  });
  const cudaGraph_t middle = capture([&] { OK(put(2, stream_, 2)); }), parent = make_graph();
  const cudaGraphNode_t node = embed(child, middle), outer = embed(middle, parent);
  const cudaGraphNode_t inner = nodes(embedded_in(outer))[1];
  const cudaGraphNode_t kernel = nodes(embedded_in(inner))[1];
  const cudaGraphExec_t executable = instantiate(parent);
  EXPECT_EQ(3, run(executable));
  for (cudaGraphNode_t wrong : {nodes(child)[1], nodes(embedded_in(node))[1], inner, outer}) {
    GIVES(cudaErrorInvalidValue, patch(executable, wrong, 7));
    GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, wrong, 0));
  }
  OK(patch(executable, kernel, 7));
  EXPECT_EQ(7, run(executable));
  OK(cudaGraphNodeSetEnabled(executable, kernel, 0));
  EXPECT_EQ(0, run(executable));
  for (int i : {1, 2}) EXPECT_EQ(i, read(i));
  EXPECT_EQ(3, run(instantiate(parent)));
  unsigned enabled = 1;
  OK(cudaGraphNodeGetEnabled(executable, kernel, &enabled));
  EXPECT_EQ(0u, enabled);
  GIVES(cudaErrorInvalidValue, cudaGraphNodeGetEnabled(executable, outer, &enabled));
}

TEST_F(Fact12, ACloneOfAParentHasEmbeddedNodesOfItsOwn) {
  const cudaGraph_t parent = make_graph();
  const cudaGraphNode_t node = embed(capture([&] { OK(put(3, stream_)); }), parent);
  const cudaGraph_t clone = clone_of(parent);
  cudaGraphNode_t twin = nullptr, inner = nullptr;
  OK(cudaGraphNodeFindInClone(&twin, node, clone));
  EXPECT_EQ(nodes(clone)[0], twin);
  const cudaGraphNode_t original = nodes(embedded_in(node))[0];
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&inner, original, clone));
  OK(cudaGraphNodeFindInClone(&inner, original, embedded_in(twin)));
  const cudaGraphExec_t executable = instantiate(clone);
  GIVES(cudaErrorInvalidValue, patch(executable, original, 7));
  destroy(parent);
  OK(patch(executable, inner, 7));
  EXPECT_EQ(7, run(executable));
  EXPECT_EQ(3, run(instantiate(clone)));
}

TEST_F(RuntimeRules, AChildGraphIsReplacedByOneOfTheSameShape) {
  const auto of = [this](float value) { return capture([&] { OK(put(value, stream_)); }); };
  const cudaGraph_t two = capture_adds(2);
  const cudaGraph_t fills = capture([&] { OK(cudaMemsetAsync(device_, 0, 4, stream_)); });
  const cudaGraph_t parent = make_graph();
  const cudaGraphNode_t node = embed(of(3), parent);
  const cudaGraphNode_t kernel = nodes(embedded_in(node))[0];
  const cudaGraphExec_t executable = instantiate(parent);
  const cudaGraph_t given = of(11);
  OK(cudaGraphExecChildGraphNodeSetParams(executable, node, given));
  EXPECT_EQ(11, run(executable));
  GIVES(cudaErrorInvalidValue, patch(executable, nodes(given)[0], 12));
  OK(patch(executable, kernel, 12));
  EXPECT_EQ(12, run(executable));
  for (cudaGraph_t other : {two, fills}) {
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecChildGraphNodeSetParams(executable, node, other));
  }
  GIVES(cudaErrorInvalidValue, cudaGraphExecChildGraphNodeSetParams(executable, kernel, given));
  GIVES(cudaErrorInvalidValue, cudaGraphExecChildGraphNodeSetParams(executable, node, nullptr));
  EXPECT_EQ(12, run(executable));

  const cudaGraph_t same = make_graph(), longer = make_graph(), typed = make_graph();
  const cudaGraphNode_t other = embed(of(21), same);
  embed(two, longer);
  const cudaGraphNode_t changed = embed(fills, typed);
  GIVES(cudaSuccess, update(executable, same));
  EXPECT_EQ(21, run(executable));
  GIVES(cudaErrorInvalidValue, patch(executable, nodes(embedded_in(other))[0], 12));
  OK(patch(executable, kernel, 12));
  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorTopologyChanged, executable, longer));
  EXPECT_EQ(nullptr, info_.errorNode);
  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorNodeTypeChanged, executable, typed));
  EXPECT_EQ(nodes(embedded_in(changed))[0], info_.errorNode);
  EXPECT_EQ(12, run(executable));
}

// ---- Event nodes ----

TEST_F(RuntimeRules, EventNodesRecordAndWait) {
  const cudaGraph_t records = make_graph(), waits = make_graph();
  cudaGraphNode_t record = nullptr, wait = nullptr, kernel = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddEventRecordNode(&record, records, nullptr, 0, nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphAddEventWaitNode(&wait, waits, nullptr, 0, nullptr));
  OK(cudaGraphAddEventRecordNode(&record, records, nullptr, 0, fork_));
  OK(cudaGraphAddEventWaitNode(&wait, waits, nullptr, 0, fork_));
  OK(cudaGraphAddKernelNode(&kernel, waits, &wait, 1, Params(scale, 1, 1, device_, device_ + 1, 1, 2.0f).get()));
  EXPECT_EQ(std::vector{cudaGraphNodeTypeEventRecord}, types(records));
  EXPECT_EQ((std::vector{cudaGraphNodeTypeWaitEvent, cudaGraphNodeTypeKernel}), types(waits));
  const cudaGraphExec_t recording = instantiate(records), waiting = instantiate(waits);
  for (auto [executable, node] : {std::pair{recording, record}, {waiting, wait}}) {
    GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, node, 0));
  }

  Busy busy(stream_);
  OK(put(4, stream_, 1));
  OK(cudaGraphLaunch(recording, stream_));
  GIVES(cudaErrorNotReady, cudaEventQuery(fork_));
  OK(cudaGraphLaunch(waiting, other_));
  GIVES(cudaErrorNotReady, cudaStreamQuery(other_));
  busy.end();
  GIVES(cudaSuccess, cudaEventSynchronize(fork_));
  EXPECT_EQ(8, read());
}

TEST_F(RuntimeRules, EventNodesTakeOtherEvents) {
  const cudaGraph_t graph = make_graph(), other = make_graph();
  cudaGraphNode_t record = nullptr, wait = nullptr, of_other = nullptr;
  OK(cudaGraphAddEventRecordNode(&record, graph, nullptr, 0, fork_));
  OK(cudaGraphAddEventWaitNode(&wait, graph, &record, 1, fork_));
  const cudaGraphExec_t executable = instantiate(graph);
  cudaEvent_t found = nullptr;
  OK(cudaGraphEventRecordNodeGetEvent(record, &found));
  EXPECT_EQ(fork_, found);
  GIVES(cudaErrorInvalidValue, cudaGraphEventWaitNodeGetEvent(record, &found));
  GIVES(cudaErrorInvalidValue, cudaGraphEventRecordNodeSetEvent(record, nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphExecEventRecordNodeSetEvent(executable, record, nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphExecEventWaitNodeSetEvent(executable, record, join_));

  const auto recorded_by_launch = [&](cudaEvent_t event) {
    Busy busy(stream_);
    GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_));
    return cudaEventQuery(event) == cudaErrorNotReady;
  };
  EXPECT_TRUE(recorded_by_launch(fork_));
  OK(cudaGraphExecEventRecordNodeSetEvent(executable, record, join_));
  EXPECT_TRUE(recorded_by_launch(join_));
  EXPECT_FALSE(recorded_by_launch(fork_));
  OK(cudaGraphExecEventWaitNodeSetEvent(executable, wait, join_));
  OK(cudaGraphEventRecordNodeGetEvent(record, &found));
  EXPECT_EQ(fork_, found);
  OK(update(executable, graph));
  EXPECT_TRUE(recorded_by_launch(fork_));
  OK(cudaGraphEventRecordNodeSetEvent(record, join_));
  OK(cudaGraphEventWaitNodeSetEvent(wait, join_));
  OK(cudaGraphEventWaitNodeGetEvent(wait, &found));
  EXPECT_EQ(join_, found);
  OK(update(executable, graph));
  EXPECT_TRUE(recorded_by_launch(join_));
  OK(cudaGraphAddEventRecordNode(&of_other, other, nullptr, 0, fork_));
  OK(cudaGraphAddEventWaitNode(&wait, other, &of_other, 1, fork_));
  OK(update(executable, other));
  EXPECT_TRUE(recorded_by_launch(fork_));
}

TEST_F(RuntimeRules, ExternalEventsAreNodesOfACapture) {
  const cudaGraph_t plain = capture([&] {
    OK(put(1, stream_));
    OK(cudaEventRecord(fork_, stream_));
  });
  EXPECT_EQ(std::vector{cudaGraphNodeTypeKernel}, types(plain));
  OK(cudaEventRecord(fork_, stream_));
  const cudaGraph_t graph = capture([&] {
    OK(put(1, stream_));
    OK(cudaEventRecordWithFlags(fork_, stream_, cudaEventRecordExternal));
    OK(cudaStreamWaitEvent(stream_, join_, cudaEventWaitExternal));
    OK(plus(1, stream_));
    GIVES(cudaSuccess, cudaStreamWaitEvent(other_, fork_, 0));  // the event is not captured
  });
  EXPECT_EQ((std::vector{cudaGraphNodeTypeKernel, cudaGraphNodeTypeEventRecord, cudaGraphNodeTypeWaitEvent,
                         cudaGraphNodeTypeKernel}),
            types(graph));
  EXPECT_EQ((Edges{{0, 1}, {1, 2}, {2, 3}}), edges(graph));
  GIVES(cudaSuccess, cudaEventQuery(fork_));

  const cudaGraphExec_t executable = instantiate(graph);
  clear();
  Busy busy(other_);
  OK(put(8, other_));
  OK(cudaEventRecord(join_, other_));
  OK(cudaGraphLaunch(executable, stream_));
  GIVES(cudaSuccess, cudaEventSynchronize(fork_));  // in the middle
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream_));
  busy.end();
  EXPECT_EQ(9, read());

  GIVES(cudaErrorIllegalState, cudaEventRecordWithFlags(fork_, stream_, cudaEventRecordExternal));
  GIVES(cudaErrorIllegalState, cudaStreamWaitEvent(stream_, fork_, cudaEventWaitExternal));
  GIVES(cudaErrorInvalidValue, cudaEventRecordWithFlags(fork_, stream_, 8));
  GIVES(cudaErrorInvalidValue, cudaStreamWaitEvent(stream_, fork_, 8));
  GIVES(cudaSuccess, cudaEventRecordWithFlags(fork_, stream_, cudaEventRecordDefault));
}

}  // namespace
}  // namespace graphcache::test
