// Child graphs on hostrt: ownership, counts and patches that only hostrt can show.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <set>

#include "hostrt_objects.h"

namespace graphcache::test {
namespace {

TEST_F(HostrtObjects, TheLedgerCountsNodesOfChildrenButNotTheirGraphs) {
  const cudaGraph_t graph = with_child({1, 2}, with_child({3}, capture_values({4, 5})), {6});
  EXPECT_EQ(before_.graphs + 1, hostrt::ledger().graphs);
  EXPECT_EQ(8u, hostrt::ledger().nodes);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(8u, hostrt::ledger().executable_nodes);
  EXPECT_EQ(Values({1, 2, 3, 4, 5, 6}), launched(executable));
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
  OK(cudaGraphDestroyNode(node));
  std::size_t count = 0;
  GIVES(cudaErrorInvalidValue, cudaGraphGetNodes(inner, nullptr, &count));
  expect_misuse("cudaGraphGetNodes: graph was destroyed");
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
  EXPECT_EQ(Values({5, 6, 7, 8}), launched(executable));
}

// Its nodes do not mix with the neighbouring nodes, whatever the random order.
TEST_F(HostrtObjects, AChildRunsAsOneWhenDeferred) {
  const cudaGraph_t graph = capture_values({1});
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, capture_values({2, 3})));
  EXPECT_EQ((std::set<Values>{{1, 2, 3}, {2, 3, 1}}), orders_of(instantiate(graph)));
}

}  // namespace
}  // namespace graphcache::test
