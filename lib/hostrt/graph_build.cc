// Calls that build graphs: create, destroy, clone, add nodes and dependencies.

#include <algorithm>
#include <utility>

#include "attributes.h"
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
  if (graph->parent != nullptr) {
    return call.misuse(cudaErrorInvalidValue, std::holds_alternative<ChildParams>(graph->parent->params)
                                                  ? "the graph belongs to a child graph node"
                                                  : "the graph belongs to a conditional node");
  }
  destroy_graph(call.state, *graph);
  return cudaSuccess;
}

cudaError_t clone(const Call& call, cudaGraph_t* out, cudaGraph_t handle) {
  if (out == nullptr) return cudaErrorInvalidValue;
  Graph* original = find_graph(call, handle);
  if (original == nullptr) return cudaErrorInvalidValue;
  // "Cloning is not supported for graphs which contain memory allocation nodes, memory free nodes ..."
  if (has_memory_nodes(*original) || has_device_updatable_nodes(*original) || !original->conditions.empty() ||
      is_body(*original)) {
    return cudaErrorNotSupported;
  }
  *out = clone_graph(call.state, *original).handle;
  return cudaSuccess;
}

cudaError_t find_in_clone(const Call& call, cudaGraphNode_t* out, cudaGraphNode_t handle, cudaGraph_t clone_handle) {
  const Node* original = find_node(call, handle);
  const Graph* clone = find_graph(call, clone_handle);
  if (out == nullptr || original == nullptr || clone == nullptr) return cudaErrorInvalidValue;
  const auto twin = std::find_if(clone->nodes.begin(), clone->nodes.end(),
                                 [&](const Node* node) { return node->original == handle; });
  if (twin == clone->nodes.end()) return cudaErrorInvalidValue;
  *out = (*twin)->handle;
  return cudaSuccess;
}

// For calls that remove nodes or edges. "All operations other than destroy and node removal are permitted on the graph
// while the capture ... is in progress"; "Nodes and edges of the graph cannot be deleted" if the graph allocates
// memory.
cudaError_t admit_removal(const Graph& graph) {
  if (graph.capture != nullptr) return cudaErrorIllegalState;
  return has_memory_nodes(graph) ? cudaErrorNotSupported : cudaSuccess;
}

cudaError_t remove_node(const Call& call, cudaGraphNode_t handle) {
  Node* node = find_node(call, handle);
  if (node == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = admit_removal(*node->graph); error != cudaSuccess) return error;
  const auto* kernel = std::get_if<KernelParams>(&node->params);
  if (kernel != nullptr && is_device_updatable(*kernel)) return cudaErrorNotSupported;
  // Its handle is without a node from now on.
  if (auto* conditional = std::get_if<ConditionalParams>(&node->params)) conditional->condition->has_node = false;
  destroy_node(call.state, *node);
  return cudaSuccess;
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
  // This call does not detect a cycle; instantiation does, as in the real driver.
  for (const auto& [target, edge] : added) connect(*target, edge);
  return cudaSuccess;
}

cudaError_t remove_dependencies(const Call& call, cudaGraph_t handle, const cudaGraphNode_t* from,
                                const cudaGraphNode_t* to, const cudaGraphEdgeData* data, std::size_t count) {
  Graph* graph = find_graph(call, handle);
  if (graph == nullptr || ((from == nullptr || to == nullptr) && count != 0)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  if (const cudaError_t error = admit_removal(*graph); error != cudaSuccess) return error;
  std::vector<std::pair<Node*, Edge>> removed;
  for (std::size_t i = 0; i < count; ++i) {
    Node* source = find_node(call, from[i]);
    Node* target = find_node(call, to[i]);
    if (source == nullptr || target == nullptr) return cudaErrorInvalidValue;
    if (source->graph != graph || target->graph != graph) return cudaErrorInvalidValue;
    // "Specifying an edge that does not exist in the graph, with data matching edgeData, results in an error."
    const Edge edge{source, data != nullptr ? data[i] : cudaGraphEdgeData{}};
    const auto& edges = target->dependencies;
    if (std::find(edges.begin(), edges.end(), edge) == edges.end()) return cudaErrorInvalidValue;
    removed.emplace_back(target, edge);
  }
  for (const auto& [target, edge] : removed) disconnect(*target, edge);
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
  return enter({Function::kGraphDestroy, graph}, [&](const Call& call) { return destroy(call, graph); });
}

cudaError_t CUDARTAPI cudaGraphClone(cudaGraph_t* pGraphClone, cudaGraph_t originalGraph) {
  return enter({Function::kGraphClone, originalGraph},
               [&](const Call& call) { return clone(call, pGraphClone, originalGraph); });
}

cudaError_t CUDARTAPI cudaGraphNodeFindInClone(cudaGraphNode_t* pNode, cudaGraphNode_t originalNode,
                                               cudaGraph_t clonedGraph) {
  return enter({Function::kGraphNodeFindInClone, originalNode, clonedGraph},
               [&](const Call& call) { return find_in_clone(call, pNode, originalNode, clonedGraph); });
}

cudaError_t CUDARTAPI cudaGraphAddKernelNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                             const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                             const struct cudaKernelNodeParams* pNodeParams) {
  return add_by_hand(Function::kGraphAddKernelNode, pGraphNode, graph, pDependencies, numDependencies,
                     [&](const Call& call, const Graph&, NodeParams* params) {
                       KernelParams& kernel = params->emplace<KernelParams>();
                       kernel.device = call.thread.device;
                       return read_kernel(call, pNodeParams, &kernel);
                     });
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                             const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                             const struct cudaMemcpy3DParms* pCopyParams) {
  return add_by_hand(Function::kGraphAddMemcpyNode, pGraphNode, graph, pDependencies, numDependencies,
                     [&](const Call&, const Graph&, NodeParams* params) {
                       return read_copy(pCopyParams, &params->emplace<CopyParams>());
                     });
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode1D(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                               const cudaGraphNode_t* pDependencies, size_t numDependencies, void* dst,
                                               const void* src, size_t count, enum cudaMemcpyKind kind) {
  return add_by_hand(Function::kGraphAddMemcpyNode1D, pGraphNode, graph, pDependencies, numDependencies,
                     [&](const Call&, const Graph&, NodeParams* params) {
                       *params = CopyParams{dst, src, count, kind};
                       return count == 0 ? cudaErrorInvalidValue : check_copy(dst, src, kind);
                     });
}

cudaError_t CUDARTAPI cudaGraphAddMemsetNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                             const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                             const struct cudaMemsetParams* pMemsetParams) {
  return add_by_hand(Function::kGraphAddMemsetNode, pGraphNode, graph, pDependencies, numDependencies,
                     [&](const Call&, const Graph&, NodeParams* params) {
                       return read_fill(pMemsetParams, &params->emplace<FillParams>());
                     });
}

cudaError_t CUDARTAPI cudaGraphAddEmptyNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                            const cudaGraphNode_t* pDependencies, size_t numDependencies) {
  return add_by_hand(Function::kGraphAddEmptyNode, pGraphNode, graph, pDependencies, numDependencies,
                     [](const Call&, const Graph&, NodeParams*) { return cudaSuccess; });
}

cudaError_t CUDARTAPI cudaGraphAddHostNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                           const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                           const struct cudaHostNodeParams* pNodeParams) {
  return add_by_hand(Function::kGraphAddHostNode, pGraphNode, graph, pDependencies, numDependencies,
                     [&](const Call&, const Graph&, NodeParams* params) {
                       return read_host(pNodeParams, &params->emplace<HostParams>());
                     });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                               const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData,
                                               size_t numDependencies) {
#else
cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                               const cudaGraphNode_t* to, size_t numDependencies) {
  return enter({Function::kGraphAddDependencies, graph},
               [&](const Call& call) { return add_dependencies(call, graph, from, to, nullptr, numDependencies); });
}

cudaError_t CUDARTAPI cudaGraphAddDependencies_v2(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                  const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData,
                                                  size_t numDependencies) {
#endif
  return enter({Function::kGraphAddDependencies, graph},
               [&](const Call& call) { return add_dependencies(call, graph, from, to, edgeData, numDependencies); });
}

cudaError_t CUDARTAPI cudaGraphDestroyNode(cudaGraphNode_t node) {
  return enter({Function::kGraphDestroyNode, node}, [&](const Call& call) { return remove_node(call, node); });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                  const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData,
                                                  size_t numDependencies) {
#else
cudaError_t CUDARTAPI cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                  const cudaGraphNode_t* to, size_t numDependencies) {
  return enter({Function::kGraphRemoveDependencies, graph},
               [&](const Call& call) { return remove_dependencies(call, graph, from, to, nullptr, numDependencies); });
}

cudaError_t CUDARTAPI cudaGraphRemoveDependencies_v2(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData,
                                                     size_t numDependencies) {
#endif
  return enter({Function::kGraphRemoveDependencies, graph},
               [&](const Call& call) { return remove_dependencies(call, graph, from, to, edgeData, numDependencies); });
}

}  // extern "C"
