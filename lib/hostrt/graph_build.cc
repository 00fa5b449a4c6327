// Calls that make graphs: create, destroy, clone, add nodes and dependencies.

#include <algorithm>
#include <utility>

#include "graph.h"
#include "params.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

cudaError_t create(const Call& call, cudaGraph_t* out, unsigned flags) {
  if (out == nullptr || flags != 0) return cudaErrorInvalidValue;
  *out = create_graph(call.state).handle;
  return cudaSuccess;
}

cudaError_t destroy(const Call& call, cudaGraph_t handle) {
  Graph* graph = find_graph(call, handle);
  if (graph == nullptr) return cudaErrorInvalidValue;
  // "All operations other than destroy and node removal are permitted on the graph while the capture ... is in
  // progress"
  if (graph->capture != nullptr) return cudaErrorIllegalState;
  destroy_graph(call.state, *graph);
  return cudaSuccess;
}

cudaError_t clone(const Call& call, cudaGraph_t* out, cudaGraph_t handle) {
  if (out == nullptr) return cudaErrorInvalidValue;
  Graph* original = find_graph(call, handle);
  if (original == nullptr) return cudaErrorInvalidValue;
  Graph& copy = create_graph(call.state);
  // Nodes first: a dependency may have been added to a later node. Dependencies keep their order, while the edges of a
  // clone are listed by the positions of their ends, whatever the order in the original (tried).
  for (const Node* node : original->nodes) add_node(call.state, copy, node->params, {}).original = node->handle;
  for (const Node* node : original->nodes) {
    Node* twin = copy.nodes[node->position];
    for (const Edge& edge : node->dependencies) {
      Node* from = copy.nodes[edge.from->position];
      twin->dependencies.push_back(Edge{from, edge.data});
      from->dependents.push_back(twin);
    }
  }
  *out = copy.handle;
  return cudaSuccess;
}

// Nodes are never taken out of a graph, so a twin is where its original is.
cudaError_t find_in_clone(const Call& call, cudaGraphNode_t* out, cudaGraphNode_t handle, cudaGraph_t clone_handle) {
  const Node* original = find_node(call, handle);
  const Graph* clone = find_graph(call, clone_handle);
  if (out == nullptr || original == nullptr || clone == nullptr) return cudaErrorInvalidValue;
  if (original->position >= clone->nodes.size()) return cudaErrorInvalidValue;
  const Node* twin = clone->nodes[original->position];
  if (twin->original != handle) return cudaErrorInvalidValue;
  *out = twin->handle;
  return cudaSuccess;
}

// The part that all cudaGraphAdd...Node calls share. `make(call, &params)` reads and checks the node's own parameters.
template <typename Make>
cudaError_t add(Function function, cudaGraphNode_t* out, cudaGraph_t handle, const cudaGraphNode_t* dependencies,
                std::size_t dependency_count, Make&& make) {
  return enter(function, [&](const Call& call) -> cudaError_t {
    if (out == nullptr) return cudaErrorInvalidValue;
    Graph* graph = find_graph(call, handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    std::vector<Edge> edges;
    cudaError_t error = read_dependencies(call, *graph, dependencies, nullptr, dependency_count, &edges);
    if (error != cudaSuccess) return error;
    NodeParams params;
    error = make(call, &params);
    if (error != cudaSuccess) return error;
    *out = add_node(call.state, *graph, std::move(params), edges).handle;
    return cudaSuccess;
  });
}

cudaError_t add_dependencies(const Call& call, cudaGraph_t handle, const cudaGraphNode_t* from,
                             const cudaGraphNode_t* to, const cudaGraphEdgeData* data, std::size_t count) {
  Graph* graph = find_graph(call, handle);
  if (graph == nullptr || ((from == nullptr || to == nullptr) && count != 0)) return cudaErrorInvalidValue;
  std::vector<std::pair<Node*, Edge>> added;
  for (std::size_t i = 0; i < count; ++i) {
    Node* source = find_node(call, from[i]);
    Node* target = find_node(call, to[i]);
    if (source == nullptr || target == nullptr || source == target) return cudaErrorInvalidValue;
    if (source->graph != graph || target->graph != graph) return cudaErrorInvalidValue;
    if (std::find(source->dependents.begin(), source->dependents.end(), target) != source->dependents.end()) {
      return cudaErrorInvalidValue;
    }
    added.emplace_back(target, Edge{source, data != nullptr ? data[i] : cudaGraphEdgeData{}});
  }
  // A cycle is not noticed here but by the instantiation, as by the real driver.
  for (auto& [target, edge] : added) {
    target->dependencies.push_back(edge);
    edge.from->dependents.push_back(target);
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphCreate(cudaGraph_t* pGraph, unsigned int flags) {
  return enter(Function::kGraphCreate, [&](const Call& call) { return create(call, pGraph, flags); });
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
  return enter(Function::kGraphDestroy, [&](const Call& call) { return destroy(call, graph); });
}

cudaError_t CUDARTAPI cudaGraphClone(cudaGraph_t* pGraphClone, cudaGraph_t originalGraph) {
  return enter(Function::kGraphClone, [&](const Call& call) { return clone(call, pGraphClone, originalGraph); });
}

cudaError_t CUDARTAPI cudaGraphNodeFindInClone(cudaGraphNode_t* pNode, cudaGraphNode_t originalNode,
                                               cudaGraph_t clonedGraph) {
  return enter(Function::kGraphNodeFindInClone,
               [&](const Call& call) { return find_in_clone(call, pNode, originalNode, clonedGraph); });
}

cudaError_t CUDARTAPI cudaGraphAddKernelNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                             const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                             const struct cudaKernelNodeParams* pNodeParams) {
  return add(Function::kGraphAddKernelNode, pGraphNode, graph, pDependencies, numDependencies,
             [&](const Call& call, NodeParams* params) {
               return read_kernel(call, pNodeParams, &params->emplace<KernelParams>());
             });
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode1D(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                               const cudaGraphNode_t* pDependencies, size_t numDependencies, void* dst,
                                               const void* src, size_t count, enum cudaMemcpyKind kind) {
  return add(Function::kGraphAddMemcpyNode1D, pGraphNode, graph, pDependencies, numDependencies,
             [&](const Call&, NodeParams* params) {
               *params = CopyParams{dst, src, count, kind};
               return count == 0 ? cudaErrorInvalidValue : check_copy(dst, src, kind);
             });
}

cudaError_t CUDARTAPI cudaGraphAddMemsetNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                             const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                             const struct cudaMemsetParams* pMemsetParams) {
  return add(Function::kGraphAddMemsetNode, pGraphNode, graph, pDependencies, numDependencies,
             [&](const Call&, NodeParams* params) { return read_fill(pMemsetParams, &params->emplace<FillParams>()); });
}

cudaError_t CUDARTAPI cudaGraphAddEmptyNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                            const cudaGraphNode_t* pDependencies, size_t numDependencies) {
  return add(Function::kGraphAddEmptyNode, pGraphNode, graph, pDependencies, numDependencies,
             [](const Call&, NodeParams*) { return cudaSuccess; });
}

cudaError_t CUDARTAPI cudaGraphAddHostNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                           const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                           const struct cudaHostNodeParams* pNodeParams) {
  return add(Function::kGraphAddHostNode, pGraphNode, graph, pDependencies, numDependencies,
             [&](const Call&, NodeParams* params) {
               if (pNodeParams == nullptr || pNodeParams->fn == nullptr) return cudaErrorInvalidValue;
               *params = HostParams{pNodeParams->fn, pNodeParams->userData};
               return cudaSuccess;
             });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                               const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData,
                                               size_t numDependencies) {
#else
cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                               const cudaGraphNode_t* to, size_t numDependencies) {
  return enter(Function::kGraphAddDependencies,
               [&](const Call& call) { return add_dependencies(call, graph, from, to, nullptr, numDependencies); });
}

cudaError_t CUDARTAPI cudaGraphAddDependencies_v2(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                  const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData,
                                                  size_t numDependencies) {
#endif
  return enter(Function::kGraphAddDependencies,
               [&](const Call& call) { return add_dependencies(call, graph, from, to, edgeData, numDependencies); });
}

}  // extern "C"
