// Templates and executables: clones, and updates that lie or are refused, as far as only hostrt can show them.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "graphcache/hostrt.h"
#include "hostrt_support.h"

namespace graphcache::test {
namespace {

void see_cluster(dim3* out) { *out = hostrt::cluster_dim(); }

}  // namespace
}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::see_cluster)

namespace graphcache::test {
namespace {

using HostrtGraphs = HostrtLogTest;

// Edges as positions of their nodes.
std::vector<std::pair<std::size_t, std::size_t>> edges_of(cudaGraph_t graph) {
  const Nodes nodes = nodes_of(graph);
  const auto position = [&](cudaGraphNode_t node) {
    return std::find(nodes.begin(), nodes.end(), node) - nodes.begin();
  };
  std::size_t count = 16;
  Nodes from(count), to(count);
#if CUDART_VERSION >= 13000
  EXPECT_EQ(cudaSuccess, cudaGraphGetEdges(graph, from.data(), to.data(), nullptr, &count));
#else
  EXPECT_EQ(cudaSuccess, cudaGraphGetEdges(graph, from.data(), to.data(), &count));
#endif
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (std::size_t i = 0; i < count; ++i) edges.emplace_back(position(from[i]), position(to[i]));
  return edges;
}

Nodes dependencies_of(cudaGraphNode_t node) {
  std::size_t count = 16;
  Nodes dependencies(count);
#if CUDART_VERSION >= 13000
  EXPECT_EQ(cudaSuccess, cudaGraphNodeGetDependencies(node, dependencies.data(), nullptr, &count));
#else
  EXPECT_EQ(cudaSuccess, cudaGraphNodeGetDependencies(node, dependencies.data(), &count));
#endif
  dependencies.resize(count);
  return dependencies;
}

// ---- Clones ----

TEST_F(HostrtGraphs, ACloneKeepsTheOrderOfNodesAndDependencies) {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t nodes[4];
  for (cudaGraphNode_t& node : nodes) OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  const cudaGraphNode_t from[] = {nodes[0], nodes[0], nodes[2], nodes[1], nodes[0]};
  const cudaGraphNode_t to[] = {nodes[3], nodes[1], nodes[3], nodes[3], nodes[2]};
#if CUDART_VERSION >= 13000
  OK(cudaGraphAddDependencies(graph, from, to, nullptr, 5));
#else
  OK(cudaGraphAddDependencies(graph, from, to, 5));
#endif
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  using Edges = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ((Edges{{0, 3}, {0, 1}, {0, 2}, {1, 3}, {2, 3}}), edges_of(graph));
  EXPECT_EQ((Edges{{0, 1}, {0, 2}, {0, 3}, {1, 3}, {2, 3}}), edges_of(clone));  // as on a GPU (tried)
  const Nodes twins = nodes_of(clone);
  EXPECT_EQ((Nodes{twins[0], twins[2], twins[1]}), dependencies_of(twins[3]));
}

TEST_F(HostrtGraphs, NodesAreFoundInAClone) {
  const cudaGraph_t graph = capture_values({1, 2, 3});
  const Nodes nodes = nodes_of(graph);
  cudaGraph_t clone = nullptr, second = nullptr;
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphClone(&second, clone));
  const Nodes twins = nodes_of(clone);
  cudaGraphNode_t found = nullptr;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    OK(cudaGraphNodeFindInClone(&found, nodes[i], clone));
    EXPECT_EQ(twins[i], found);
  }
  cudaGraphNode_t added = nullptr;
  OK(cudaGraphAddEmptyNode(&added, graph, nullptr, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, added, clone));      // newer than the clone
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, nodes[0], second));  // a clone of the clone
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, twins[0], graph));   // the other way round
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(nullptr, nodes[0], clone));
  EXPECT_EQ(0u, hostrt::misuses());
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, nodes[0], clone));
  expect_misuse("cudaGraphNodeFindInClone: node was destroyed");
}

TEST_F(HostrtGraphs, AnExecutableOfACloneTakesTheClonesNodes) {
  const cudaGraph_t graph = capture_values({1, 2});
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  const cudaGraphExec_t executable = instantiate(clone);
  GIVES(cudaErrorInvalidValue, patch(executable, nodes_of(graph)[1], 5));
  OK(patch(executable, nodes_of(clone)[1], 6));
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{1, 6}), taken());
  EXPECT_EQ(0u, hostrt::misuses());
}

TEST_F(HostrtGraphs, AnUpdateFromACloneKeepsWhatIsDisabled) {
  const cudaGraph_t graph = capture_values({1, 2, 3});
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphNodeSetEnabled(executable, nodes_of(graph)[1], 0));
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, capture_values({4, 5, 6})));
  OK(update(executable, clone));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{4, 6}), taken());
  unsigned enabled = 1;
  OK(cudaGraphNodeGetEnabled(executable, nodes_of(graph)[1], &enabled));
  EXPECT_EQ(0u, enabled);
  GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, nodes_of(clone)[1], 1));  // not of the base
  OK(cudaGraphNodeSetEnabled(executable, nodes_of(graph)[1], 1));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{4, 5, 6}), taken());
}

TEST_F(HostrtGraphs, NodesOfADestroyedBasePatchNothing) {
  const cudaGraph_t graph = capture_values({1});
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  GIVES(cudaErrorInvalidValue, patch(executable, nodes_of(capture_values({2}))[0], 3));
  EXPECT_EQ(0u, hostrt::misuses());
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, patch(executable, node, 4));
  expect_misuse("cudaGraphExecKernelNodeSetParams: node was destroyed");
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{1}), taken());
}

// ---- Updates that lie, updates that are refused ----

TEST_F(HostrtGraphs, KernelsSeeTheirClusterSize) {
  dim3 seen(0, 0, 0);
  const auto expect = [&](unsigned x, unsigned y) {
    EXPECT_EQ(std::make_pair(x, y), std::make_pair(seen.x, seen.y));
    EXPECT_EQ(1u, seen.z);
  };
  OK(launch(see_cluster, 4, 1, stream_, &seen));
  expect(1, 1);
  const auto launch_it = [&] { OK(launch_in_clusters(see_cluster, dim3(4, 3), 1, dim3(2, 3), stream_, &seen)); };
  launch_it();
  expect(2, 3);
  const cudaGraph_t graph = capture(launch_it);
  OK(launch(see_cluster, 4, 1, stream_, &seen));
  expect(1, 1);
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphLaunch(instantiate(clone), stream_));
  expect(2, 3);
}

// Facts 19: each pair of sizes was tried.
TEST_F(HostrtGraphs, AnUpdateKeepsTheOldClusterSize) {
  dim3 seen(0, 0, 0);
  const auto graph_of = [&](unsigned cluster) {
    const cudaGraph_t graph = capture([&] { OK(launch(see_cluster, 4, 1, stream_, &seen)); });
    if (cluster != 0) {
      cudaLaunchAttributeValue value = {};
      value.clusterDim.x = cluster;
      value.clusterDim.y = value.clusterDim.z = 1;
      EXPECT_EQ(cudaSuccess,
                cudaGraphKernelNodeSetAttribute(nodes_of(graph)[0], cudaLaunchAttributeClusterDimension, &value));
    }
    return graph;
  };
  for (const auto& [before, after] : {std::pair(2u, 4u), std::pair(1u, 4u), std::pair(0u, 4u), std::pair(4u, 0u)}) {
    const cudaGraphExec_t executable = instantiate(graph_of(before));
    OK(update(executable, graph_of(after)));
    EXPECT_EQ(cudaGraphExecUpdateSuccess, info_.result);
    OK(cudaGraphLaunch(executable, stream_));
    EXPECT_EQ(before == 0 ? 1 : before, seen.x) << "from " << before << " to " << after;
  }
}

TEST_F(HostrtGraphs, AnArmedRefusalOfAnUpdateSaysSo) {
  const cudaGraphExec_t executable = instantiate(capture_values({1, 2}));
  const cudaGraph_t graph = capture_values({3, 4});
  const auto expect_info = [&](cudaGraphExecUpdateResult result) {
    EXPECT_EQ(result, info_.result);
    EXPECT_EQ(nullptr, info_.errorNode);
    EXPECT_EQ(nullptr, info_.errorFromNode);
    std::memset(&info_, 0, sizeof info_);
  };
  hostrt::fail_call("cudaGraphExecUpdate", 2, cudaErrorGraphExecUpdateFailure);
  hostrt::fail_call("cudaGraphExecUpdate", 3, cudaErrorMemoryAllocation);
  hostrt::fail_call("cudaGraphExecUpdate", 4, cudaErrorGraphExecUpdateFailure);
  OK(update(executable, graph));
  expect_info(cudaGraphExecUpdateSuccess);
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, capture_values({5, 6})));
  expect_info(cudaGraphExecUpdateErrorNotSupported);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGetLastError());  // latches (facts 20)
  GIVES(cudaErrorMemoryAllocation, update(executable, capture_values({5, 6})));
  expect_info(cudaGraphExecUpdateError);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, graph, nullptr));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{3, 4}), taken());
}

}  // namespace
}  // namespace graphcache::test
