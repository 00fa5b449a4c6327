#include "graph.h"

#include <algorithm>

namespace graphcache::hostrt {
namespace {

bool contains(const std::vector<Edge>& edges, const Node* from) {
  return std::any_of(edges.begin(), edges.end(), [from](const Edge& edge) { return edge.from == from; });
}

}  // namespace

Graph& create_graph(State& state) {
  auto owned = std::make_unique<Graph>();
  Graph& graph = *owned;
  graph.handle = reinterpret_cast<cudaGraph_t>(state.graphs.add(std::move(owned)));
  return graph;
}

void destroy_graph(State& state, Graph& graph) {
  for (const Node* node : graph.nodes) state.nodes.remove(node->handle);
  state.graphs.remove(graph.handle);
}

Node& add_node(State& state, Graph& graph, NodeParams params, const std::vector<Edge>& dependencies) {
  auto owned = std::make_unique<Node>();
  Node& node = *owned;
  node.graph = &graph;
  node.position = graph.nodes.size();
  node.params = std::move(params);
  node.dependencies = dependencies;
  graph.nodes.push_back(&node);
  node.handle = reinterpret_cast<cudaGraphNode_t>(state.nodes.add(std::move(owned)));
  for (const Edge& edge : node.dependencies) edge.from->dependents.push_back(&node);
  return node;
}

cudaError_t read_dependencies(const Call& call, const Graph& graph, const cudaGraphNode_t* nodes,
                              const cudaGraphEdgeData* data, std::size_t count, std::vector<Edge>* dependencies) {
  if (nodes == nullptr && count != 0) return cudaErrorInvalidValue;
  dependencies->reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Node* node = find_node(call, nodes[i]);
    // The same node twice is refused too, as by the real driver.
    if (node == nullptr || node->graph != &graph || contains(*dependencies, node)) return cudaErrorInvalidValue;
    dependencies->push_back(Edge{node, data != nullptr ? data[i] : cudaGraphEdgeData{}});
  }
  return cudaSuccess;
}

}  // namespace graphcache::hostrt
