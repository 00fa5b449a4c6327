// Conditional nodes: the conditions that they read, and the graphs of their bodies. All functions expect the state to
// be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_CONDITIONAL_NODES_H_
#define GRAPHCACHE_LIB_HOSTRT_CONDITIONAL_NODES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "objects.h"

namespace graphcache::hostrt {

struct State;

// What a handle stands for. Owned by its graph, and by programs of that graph, which may outlive it.
struct Condition {
  cudaGraph_t graph = nullptr;  // that it was made for; by handle
  std::size_t number = 0;       // among those of its graph
  unsigned default_value = 0;
  bool assigns_default = false;  // at each launch
  bool has_node = false;
  unsigned value = 0;
};

// Calls visit(graph) for the graphs that are inside of the node: its child graph, or its bodies.
template <typename Visit>
void for_each_inner(const NodeParams& params, Visit&& visit) {
  if (const auto* child = std::get_if<ChildParams>(&params)) visit(*child->graph);
  if (const auto* conditional = std::get_if<ConditionalParams>(&params)) {
    for (Graph* body : conditional->bodies) {
      if (body != nullptr) visit(*body);  // Else it went with its capture.
    }
  }
}

bool has_conditional_nodes(const Graph& graph);
bool is_body(const Graph& graph);

// Whether a body may hold the nodes of the graph: "kernel nodes, empty nodes, child graphs, memsets, memcopies, and
// conditionals", but no copies from or to pageable memory (tried).
bool may_be_in_body(const State& state, const Graph& graph);

// The node that has the graph for a body loses it, and must not be met again.
void forget_body(Graph& graph);

// What runs next: the number of a body, or as many as there are for none.
std::size_t chosen_body(const ConditionalParams& params);

// The conditions of a program's nodes, those in bodies included, that each launch begins with a value of its own.
void add_conditions(const Program& program, ConditionStart* start);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_CONDITIONAL_NODES_H_
