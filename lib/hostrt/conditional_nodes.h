// Conditional nodes: their conditions and the graphs of their bodies. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_CONDITIONAL_NODES_H_
#define GRAPHCACHE_LIB_HOSTRT_CONDITIONAL_NODES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "objects.h"

namespace graphcache::hostrt {

struct State;

// The object behind a conditional handle. Its graph owns it, and so do programs of that graph, which may outlive the
// graph.
struct Condition {
  cudaGraph_t graph = nullptr;  // the graph that it was created for, by handle
  std::size_t number = 0;       // index in the conditions of that graph
  unsigned default_value = 0;
  bool assigns_default = false;  // each launch begins with the default value
  bool has_node = false;
  unsigned value = 0;
  bool is_set = false;  // in this launch, by its default or a kernel
};

// Calls visit(graph) for each graph inside the node: its child graph or its bodies.
template <typename Visit>
void for_each_inner(const NodeParams& params, Visit&& visit) {
  if (const auto* child = std::get_if<ChildParams>(&params)) visit(*child->graph);
  if (const auto* conditional = std::get_if<ConditionalParams>(&params)) {
    for (Graph* body : conditional->bodies) {
      if (body != nullptr) visit(*body);  // a null body was destroyed with its capture
    }
  }
}

bool has_conditional_nodes(const Graph& graph);
bool is_body(const Graph& graph);

// Whether the graph's nodes are allowed in a body: "kernel nodes, empty nodes, child graphs, memsets, memcopies, and
// conditionals". The driver also refuses copies from or to pageable memory.
bool may_be_in_body(const State& state, const Graph& graph);

// Removes the graph from the node that has it as a body.
void forget_body(Graph& graph);

// The number of the body that runs next, or the number of bodies if none does.
std::size_t chosen_body(const ConditionalParams& params);

// Adds the conditions of the program's nodes and of their bodies.
void add_conditions(const Program& program, ConditionStart* start);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_CONDITIONAL_NODES_H_
