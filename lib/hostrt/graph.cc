#include "graph.h"

#include <algorithm>

#include "attributes.h"

namespace graphcache::hostrt {
namespace {

bool contains(const std::vector<Edge>& edges, const Node* from) {
  return std::any_of(edges.begin(), edges.end(), [from](const Edge& edge) { return edge.from == from; });
}

template <typename Predicate>
bool any_node(const Graph& graph, Predicate&& predicate) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node* node) { return predicate(node->params); });
}

// Reports a misuse that crashes the real driver (docs/semantics.md).
void note_lost_body(State& state, const Node& node) {
  const auto* conditional = std::get_if<ConditionalParams>(&node.params);
  if (conditional == nullptr) return;
  const auto& bodies = conditional->bodies;
  if (std::find(bodies.begin(), bodies.end(), nullptr) == bodies.end()) return;
  report_misuse(state, state.endings.here, "a conditional node is destroyed whose body went with a broken capture");
}

// Invalidates a capture into a body whose node is being destroyed.
void forsake(const Graph& graph) {
  Capture* const capture = graph.capture;
  if (capture == nullptr || capture->graph != &graph) return;
  capture->invalidated = true;
  capture->graph = nullptr;
  capture->abandoned.clear();
  for (Stream* stream : capture->streams) stream->next.clear();
}

}  // namespace

Graph& create_graph(State& state) {
  auto owned = std::make_unique<Graph>();
  Graph& graph = *owned;
  graph.device = this_thread().device;
  graph.handle = reinterpret_cast<cudaGraph_t>(state.graphs.add(std::move(owned)));
  return graph;
}

Graph& clone_graph(State& state, const Graph& original) {
  Graph& copy = create_graph(state);
  copy.original = original.handle;
  // Nodes are copied first, because a dependency may have been added to a later node. Dependencies keep their order;
  // the edges of a clone are listed by the positions of their ends, whatever their order in the original.
  for (const Node* node : original.nodes) {
    Node& twin = add_node(state, copy, node->params, {});
    twin.original = node->handle;
    twin.reported_type = node->reported_type;
    if (const auto* child = std::get_if<ChildParams>(&node->params)) embed(state, twin, *child->graph);
  }
  for (const Node* node : original.nodes) {
    Node* twin = copy.nodes[node->position];
    for (const Edge& edge : node->dependencies) {
      connect(*twin, Edge{copy.nodes[edge.from->position], edge.data});
    }
  }
  copy.exits.clear();
  for (const Node* node : original.exits) copy.exits.push_back(copy.nodes[node->position]);
  copy_references(state, original, copy);
  return copy;
}

void embed(State& state, Node& node, const Graph& graph) {
  Graph& embedded = clone_graph(state, graph);
  embedded.parent = &node;
  std::get<ChildParams>(node.params).graph = &embedded;
}

void destroy_graph(State& state, Graph& graph) {
  for (const Node* node : graph.nodes) {
    note_lost_body(state, *node);
    for_each_inner(node->params, [&](Graph& inner) { destroy_graph(state, inner); });
    state.nodes.remove(node->handle);
  }
  forsake(graph);
  const std::unique_ptr<Graph> owned = state.graphs.remove(graph.handle);
  release_all(state, *owned);
}

Node& add_node(State& state, Graph& graph, NodeParams params, const std::vector<Edge>& dependencies) {
  auto owned = std::make_unique<Node>();
  Node& node = *owned;
  node.graph = &graph;
  node.position = graph.nodes.size();
  node.params = std::move(params);
  graph.nodes.push_back(&node);
  graph.exits.push_back(&node);
  node.handle = reinterpret_cast<cudaGraphNode_t>(state.nodes.add(std::move(owned)));
  for (const Edge& edge : dependencies) connect(node, edge);
  return node;
}

void connect(Node& target, const Edge& edge) {
  target.dependencies.push_back(edge);
  edge.from->dependents.push_back(&target);
  std::erase(target.graph->exits, edge.from);
}

void disconnect(Node& target, const Edge& edge) {
  Node* const from = edge.from;
  std::erase(target.dependencies, Edge(edge));
  std::erase(from->dependents, &target);
  if (from->dependents.empty()) target.graph->exits.push_back(from);
}

void destroy_node(State& state, Node& node) {
  while (!node.dependencies.empty()) disconnect(node, node.dependencies.front());
  std::erase(node.graph->exits, &node);
  for (Node* dependent : node.dependents) {
    std::erase_if(dependent->dependencies, [&](const Edge& edge) { return edge.from == &node; });
  }
  std::vector<Node*>& nodes = node.graph->nodes;
  nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(node.position));
  for (std::size_t i = node.position; i < nodes.size(); ++i) nodes[i]->position = i;
  for_each_inner(node.params, [&](Graph& inner) { destroy_graph(state, inner); });
  state.nodes.remove(node.handle);
}

bool has_memory_nodes(const Graph& graph) {
  return any_node(graph, [](const NodeParams& params) {
    return std::holds_alternative<AllocationParams>(params) || std::holds_alternative<FreeParams>(params);
  });
}

bool has_device_updatable_nodes(const Graph& graph) {
  return any_node(graph, [](const NodeParams& params) {
    const auto* kernel = std::get_if<KernelParams>(&params);
    return kernel != nullptr && is_device_updatable(*kernel);
  });
}

void hand_out_device_node(const Node& node, cudaLaunchAttributeValue* value) {
  const bool is_updatable = is_device_updatable(std::get<KernelParams>(node.params));
  value->deviceUpdatableKernelNode.devNode =
      is_updatable ? reinterpret_cast<cudaGraphDeviceNode_t>(node.handle) : nullptr;
}

cudaError_t read_dependencies(const Call& call, const Graph& graph, const cudaGraphNode_t* nodes,
                              const cudaGraphEdgeData* data, std::size_t count, std::vector<Edge>* dependencies) {
  if (nodes == nullptr && count != 0) return cudaErrorInvalidValue;
  dependencies->reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Node* node = find_node(call, nodes[i]);
    // Naming the same node twice is refused as well, as by the real driver.
    if (node == nullptr || node->graph != &graph || contains(*dependencies, node)) return cudaErrorInvalidValue;
    dependencies->push_back(Edge{node, data != nullptr ? data[i] : cudaGraphEdgeData{}});
  }
  return cudaSuccess;
}

}  // namespace graphcache::hostrt
