// Building and destroying graphs, for capture and for the explicit calls. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_GRAPH_H_
#define GRAPHCACHE_LIB_HOSTRT_GRAPH_H_

#include <utility>
#include <vector>

#include "state.h"

namespace graphcache::hostrt {

Graph& create_graph(State& state);

// Copies nodes, edges, embedded graphs and references to user objects.
Graph& clone_graph(State& state, const Graph& original);

// Makes the node, which must have ChildParams, the owner of a clone of the graph.
void embed(State& state, Node& node, const Graph& graph);

// Invalidates the handles of the graph, of its nodes and of the graphs embedded in it.
void destroy_graph(State& state, Graph& graph);

// `dependencies` must be nodes of the same graph, each at most once.
Node& add_node(State& state, Graph& graph, NodeParams params, const std::vector<Edge>& dependencies);

// Edges between nodes of the same graph.
void connect(Node& target, const Edge& edge);
void disconnect(Node& target, const Edge& edge);

// Removes the node and its edges and invalidates its handle. Later nodes move up by one position.
void destroy_node(State& state, Node& node);

// Both look only at the graph itself: embedded graphs cannot have memory nodes, and their device-updatable nodes do not
// count.
bool has_memory_nodes(const Graph& graph);
bool has_device_updatable_nodes(const Graph& graph);

// Writes the handle by which device code updates the node into the attribute's value, or null if it may not.
void hand_out_device_node(const Node& node, cudaLaunchAttributeValue* value);

// Checks the dependencies as the cudaGraphAdd... calls do. `data` may be null.
cudaError_t read_dependencies(const Call& call, const Graph& graph, const cudaGraphNode_t* nodes,
                              const cudaGraphEdgeData* data, std::size_t count, std::vector<Edge>* dependencies);

// The common part of all cudaGraphAdd...Node calls. `make(call, graph, &params)` reads and checks the node's
// parameters; `finish(call, node)` is called with the new node. `named` is another graph that the call names.
template <typename Make, typename Finish>
[[gnu::always_inline]] inline cudaError_t add_by_hand(Function function, cudaGraphNode_t* out, cudaGraph_t handle,
                                                      const cudaGraphNode_t* dependencies, std::size_t dependency_count,
                                                      Make&& make, Finish&& finish, const void* named = nullptr) {
  return enter({function, handle, named}, [&](const Call& call) -> cudaError_t {
    if (out == nullptr) return cudaErrorInvalidValue;
    Graph* graph = find_graph(call, handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    NodeParams params;
    cudaError_t error = make(call, *graph, &params);
    if (error != cudaSuccess) return error;
    std::vector<Edge> edges;
    error = read_dependencies(call, *graph, dependencies, nullptr, dependency_count, &edges);
    if (error != cudaSuccess) return error;
    set_place(params, call.state.endings.here);
    Node& node = add_node(call.state, *graph, std::move(params), edges);
    finish(call, node);
    *out = node.handle;
    return cudaSuccess;
  });
}

template <typename Make>
[[gnu::always_inline]] inline cudaError_t add_by_hand(Function function, cudaGraphNode_t* out, cudaGraph_t handle,
                                                      const cudaGraphNode_t* dependencies, std::size_t dependency_count,
                                                      Make&& make) {
  return add_by_hand(function, out, handle, dependencies, dependency_count, std::forward<Make>(make),
                     [](const Call&, Node&) {});
}

// The node's parameters if it has this type, else null. Calls for another type fail.
template <typename Params>
Params* params_of(const Call& call, cudaGraphNode_t handle) {
  Node* node = find_node(call, handle);
  return node != nullptr && !node->reported_type ? std::get_if<Params>(&node->params) : nullptr;
}

// Returns an array as the query calls do. Without arrays, sets `*count` to the number of elements. With arrays, writes
// as many elements as fit, fills the rest with nulls and sets `*count` to the number written. `write(i)` writes element
// i, `clear(i)` clears place i.
template <typename Write, typename Clear>
void hand_out(bool has_arrays, std::size_t available, std::size_t* count, Write&& write, Clear&& clear) {
  if (has_arrays) {
    const std::size_t places = *count;
    for (std::size_t i = 0; i < places && i < available; ++i) write(i);
    for (std::size_t i = available; i < places; ++i) clear(i);
    *count = available < places ? available : places;
  } else {
    *count = available;
  }
}

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_GRAPH_H_
