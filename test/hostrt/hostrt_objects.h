// Shared by the suites of graphs' user objects, children, memory and events: what is alive before a test, and graphs
// that contain others.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "graphcache/hostrt.h"
#include "hostrt_support.h"

namespace graphcache::test {

class HostrtObjects : public HostrtLogTest {
 protected:
  void SetUp() override {
    HostrtLogTest::SetUp();
    before_ = hostrt::ledger();
  }

  // Forgets whatever a test leaves undestroyed, without running destructors of user objects.
  void TearDown() override {
    EXPECT_EQ(expected_misuses_, hostrt::misuses()) << hostrt::last_misuse();
    const int destroyed = destroyed_;
    hostrt::reset();
    EXPECT_EQ(destroyed, destroyed_);
  }

  // A graph of kernels, a child graph and further kernels. The child's own graph is destroyed.
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

  // The values that a launch appends.
  Values launched(cudaGraphExec_t executable) {
    EXPECT_EQ(cudaSuccess, cudaGraphLaunch(executable, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
    return taken();
  }

  // The orders of these values with so many seeds of deferred execution.
  std::set<Values> orders_of(cudaGraphExec_t executable, std::uint64_t seeds = 50) {
    std::set<Values> orders;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      hostrt::defer(seed);
      orders.insert(launched(executable));
    }
    return orders;
  }

  // An object that only the graph holds and whose destructor increments destroyed_.
  cudaUserObject_t give_object(cudaGraph_t graph) {
    cudaUserObject_t object = nullptr;
    EXPECT_EQ(cudaSuccess, cudaUserObjectCreate(&object, &destroyed_, count_call, 1, cudaUserObjectNoDestructorSync));
    EXPECT_EQ(cudaSuccess, cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    return object;
  }

  hostrt::Ledger before_;
  int destroyed_ = 0;
};

}  // namespace graphcache::test
