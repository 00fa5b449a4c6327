// Calls that enumerate graphs: nodes, edges, roots, types, dependencies.

#include <algorithm>
#include <vector>

#include "graph.h"

namespace graphcache::hostrt {
namespace {

cudaError_t list_nodes(const Call& call, cudaGraph_t handle, cudaGraphNode_t* out, std::size_t* count, bool roots) {
  const Graph* graph = find_graph(call, handle);
  if (graph == nullptr || count == nullptr) return cudaErrorInvalidValue;
  std::vector<const Node*> listed;
  for (const Node* node : graph->nodes) {
    if (!roots || node->dependencies.empty()) listed.push_back(node);
  }
  hand_out(
      out != nullptr, listed.size(), count, [&](std::size_t i) { out[i] = listed[i]->handle; },
      [&](std::size_t i) { out[i] = nullptr; });
  return cudaSuccess;
}

struct DirectedEdge {
  const Node* to;
  Edge edge;
};

// The edges in the order in which they were added.
std::vector<DirectedEdge> edges_from(const Node& source) {
  std::vector<DirectedEdge> edges;
  for (const Node* target : source.dependents) {
    for (const Edge& edge : target->dependencies) {
      if (edge.from == &source) edges.push_back({target, edge});
    }
  }
  return edges;
}

bool any_annotated(const std::vector<DirectedEdge>& edges) {
  return std::any_of(edges.begin(), edges.end(),
                     [](const DirectedEdge& directed) { return !is_plain(directed.edge.data); });
}

// "... cudaErrorLossyQuery" if edge data would be dropped silently (facts 7).
cudaError_t hand_out_edges(const std::vector<DirectedEdge>& edges, cudaGraphNode_t* from, cudaGraphNode_t* to,
                           cudaGraphEdgeData* data, bool has_arrays, std::size_t* count) {
  if (has_arrays && data == nullptr && any_annotated(edges)) return cudaErrorLossyQuery;
  hand_out(
      has_arrays, edges.size(), count,
      [&](std::size_t i) {
        from[i] = edges[i].edge.from->handle;
        if (to != nullptr) to[i] = edges[i].to->handle;
        if (data != nullptr) data[i] = edges[i].edge.data;
      },
      [&](std::size_t i) {
        from[i] = nullptr;
        if (to != nullptr) to[i] = nullptr;
        if (data != nullptr) data[i] = {};
      });
  return cudaSuccess;
}

cudaError_t list_edges(const Call& call, cudaGraph_t handle, cudaGraphNode_t* from, cudaGraphNode_t* to,
                       cudaGraphEdgeData* data, std::size_t* count) {
  const Graph* graph = find_graph(call, handle);
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr)) return cudaErrorInvalidValue;
  std::vector<DirectedEdge> edges;
  for (const Node* source : graph->nodes) {
    const std::vector<DirectedEdge> outgoing = edges_from(*source);
    edges.insert(edges.end(), outgoing.begin(), outgoing.end());
  }
  return hand_out_edges(edges, from, to, data, from != nullptr, count);
}

cudaError_t list_dependencies(const Call& call, cudaGraphNode_t handle, cudaGraphNode_t* out, cudaGraphEdgeData* data,
                              std::size_t* count) {
  const Node* node = find_node(call, handle);
  if (node == nullptr || count == nullptr) return cudaErrorInvalidValue;
  std::vector<DirectedEdge> edges;
  for (const Edge& edge : node->dependencies) edges.push_back({node, edge});
  return hand_out_edges(edges, out, nullptr, data, out != nullptr, count);
}

cudaError_t list_dependents(const Call& call, cudaGraphNode_t handle, cudaGraphNode_t* out, cudaGraphEdgeData* data,
                            std::size_t* count) {
  const Node* node = find_node(call, handle);
  if (node == nullptr || count == nullptr) return cudaErrorInvalidValue;
  const std::vector<DirectedEdge> edges = edges_from(*node);
  if (out != nullptr && data == nullptr && any_annotated(edges)) return cudaErrorLossyQuery;
  hand_out(
      out != nullptr, edges.size(), count,
      [&](std::size_t i) {
        out[i] = edges[i].to->handle;
        if (data != nullptr) data[i] = edges[i].edge.data;
      },
      [&](std::size_t i) {
        out[i] = nullptr;
        if (data != nullptr) data[i] = {};
      });
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* numNodes) {
  return enter({Function::kGraphGetNodes, graph},
               [&](const Call& call) { return list_nodes(call, graph, nodes, numNodes, false); });
}

cudaError_t CUDARTAPI cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* pRootNodes, size_t* pNumRootNodes) {
  return enter({Function::kGraphGetRootNodes, graph},
               [&](const Call& call) { return list_nodes(call, graph, pRootNodes, pNumRootNodes, true); });
}

cudaError_t CUDARTAPI cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType* pType) {
  return enter({Function::kGraphNodeGetType, node}, [&](const Call& call) {
    const Node* found = find_node(call, node);
    if (found == nullptr || pType == nullptr) return cudaErrorInvalidValue;
    *pType = type_of(*found);
    return cudaSuccess;
  });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                        cudaGraphEdgeData* edgeData, size_t* numEdges) {
#else
cudaError_t CUDARTAPI cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                        size_t* numEdges) {
  return enter({Function::kGraphGetEdges, graph},
               [&](const Call& call) { return list_edges(call, graph, from, to, nullptr, numEdges); });
}

cudaError_t CUDARTAPI cudaGraphGetEdges_v2(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                           cudaGraphEdgeData* edgeData, size_t* numEdges) {
#endif
  return enter({Function::kGraphGetEdges, graph},
               [&](const Call& call) { return list_edges(call, graph, from, to, edgeData, numEdges); });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* pDependencies,
                                                   cudaGraphEdgeData* edgeData, size_t* pNumDependencies) {
#else
cudaError_t CUDARTAPI cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* pDependencies,
                                                   size_t* pNumDependencies) {
  return enter({Function::kGraphNodeGetDependencies, node}, [&](const Call& call) {
    return list_dependencies(call, node, pDependencies, nullptr, pNumDependencies);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependencies_v2(cudaGraphNode_t node, cudaGraphNode_t* pDependencies,
                                                      cudaGraphEdgeData* edgeData, size_t* pNumDependencies) {
#endif
  return enter({Function::kGraphNodeGetDependencies, node}, [&](const Call& call) {
    return list_dependencies(call, node, pDependencies, edgeData, pNumDependencies);
  });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* pDependentNodes,
                                                     cudaGraphEdgeData* edgeData, size_t* pNumDependentNodes) {
#else
cudaError_t CUDARTAPI cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* pDependentNodes,
                                                     size_t* pNumDependentNodes) {
  return enter({Function::kGraphNodeGetDependentNodes, node}, [&](const Call& call) {
    return list_dependents(call, node, pDependentNodes, nullptr, pNumDependentNodes);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependentNodes_v2(cudaGraphNode_t node, cudaGraphNode_t* pDependentNodes,
                                                        cudaGraphEdgeData* edgeData, size_t* pNumDependentNodes) {
#endif
  return enter({Function::kGraphNodeGetDependentNodes, node}, [&](const Call& call) {
    return list_dependents(call, node, pDependentNodes, edgeData, pNumDependentNodes);
  });
}

}  // extern "C"
