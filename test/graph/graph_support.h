// Shared by the suites of graphs: graphs that a test builds by hand, keeps, gives away or launches itself, and checks.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/graph.h"
#include "runs/threads_support.h"
#include "runtime.h"

namespace graphcache::test {

// A graph that this object destroys.
class Kept {
 public:
  explicit Kept(cudaGraph_t graph) : graph_(graph) {}
  Kept(Kept&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  ~Kept() {
    if (graph_ == nullptr) return;
    CUDA_OK(cudaGraphDestroy(graph_));
  }
  operator cudaGraph_t() const { return graph_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaGraph_t graph_;
};

// What an fn returns that gives its graph away.
inline Graph given(cudaGraph_t graph, std::vector<BoundArgument> bound = {}, std::shared_ptr<void> owner = nullptr) {
  return {.graph = graph, .bound = std::move(bound), .owner = std::move(owner), .give_away = true};
}

// An owner that is counted in `live` until it is released.
inline std::shared_ptr<void> counted_owner(std::atomic<int>& live) {
  ++live;
  return {&live, [](void* count) { --*static_cast<std::atomic<int>*>(count); }};
}

inline cudaGraph_t new_graph() {
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaGraphCreate(&graph, 0));
  return graph;
}

// Adds a node of kernel<<<grid, block>>>(values...) behind `last`, if that is a node, and returns it.
template <class... P>
cudaGraphNode_t add_kernel(cudaGraph_t graph, cudaGraphNode_t last, void (*kernel)(P...), dim3 grid, dim3 block,
                           std::type_identity_t<P>... values) {
  void* arguments[] = {static_cast<void*>(&values)..., nullptr};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(kernel);
  params.gridDim = grid;
  params.blockDim = block;
  params.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  CUDA_OK(cudaGraphAddKernelNode(&node, graph, last == nullptr ? nullptr : &last, last == nullptr ? 0 : 1, &params));
  return node;
}

}  // namespace graphcache::test
