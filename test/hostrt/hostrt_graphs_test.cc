// Templates and executables: clones, cluster sizes and refused updates that only hostrt can show.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "hostrt_support.h"

namespace graphcache::test {
namespace {

void see_cluster(dim3* out) { *out = hostrt::cluster_dim(); }
GRAPHCACHE_HOST_KERNEL(see_cluster)

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
  EXPECT_EQ(cudaSuccess, dependencies_by_runtime(node, dependencies.data(), nullptr, &count));
  dependencies.resize(count);
  return dependencies;
}

// ---- Clones ----

TEST_F(HostrtGraphs, ACloneKeepsTheOrderOfNodesAndDependencies) {
  const cudaGraph_t graph = empty_graph();
  cudaGraphNode_t nodes[4];
  for (cudaGraphNode_t& node : nodes) OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  const cudaGraphNode_t from[] = {nodes[0], nodes[0], nodes[2], nodes[1], nodes[0]};
  const cudaGraphNode_t to[] = {nodes[3], nodes[1], nodes[3], nodes[3], nodes[2]};
#if CUDART_VERSION >= 13000
  OK(cudaGraphAddDependencies(graph, from, to, nullptr, 5));
#else
  OK(cudaGraphAddDependencies(graph, from, to, 5));
#endif
  const cudaGraph_t clone = clone_of(graph);
  using Edges = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ((Edges{{0, 3}, {0, 1}, {0, 2}, {1, 3}, {2, 3}}), edges_of(graph));
  EXPECT_EQ((Edges{{0, 1}, {0, 2}, {0, 3}, {1, 3}, {2, 3}}), edges_of(clone));  // as on a GPU
  const Nodes twins = nodes_of(clone);
  EXPECT_EQ((Nodes{twins[0], twins[2], twins[1]}), dependencies_of(twins[3]));
}

TEST_F(HostrtGraphs, ACloneHasTwinsOfItsOriginalsNodesAlone) {
  const cudaGraph_t graph = capture_values({1, 2});
  const cudaGraphNode_t node = nodes_of(graph)[1];
  const cudaGraph_t clone = clone_of(graph), second = clone_of(clone);
  cudaGraphNode_t found = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, node, second));               // a clone of the clone
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, nodes_of(clone)[1], graph));  // the reverse
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(nullptr, node, clone));
  EXPECT_EQ(0u, hostrt::misuses());
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, node, clone));
  expect_misuse("cudaGraphNodeFindInClone: node was destroyed");
}

// ---- Cluster sizes and refused updates ----

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
  OK(cudaGraphLaunch(instantiate(clone_of(graph)), stream_));
  expect(2, 3);
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
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGetLastError());  // latched (facts 20)
  GIVES(cudaErrorMemoryAllocation, update(executable, capture_values({5, 6})));
  expect_info(cudaGraphExecUpdateError);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, graph, nullptr));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{3, 4}), taken());
}

}  // namespace
}  // namespace graphcache::test
