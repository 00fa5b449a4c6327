#include "conditional_nodes.h"

#include <algorithm>
#include <utility>

#include "any_nodes.h"
#include "graph.h"
#include "graphcache/hostrt.h"
#include "state.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

// By number, because older toolkits have no name for it.
constexpr int kSwitch = 2;

bool is_size_allowed(const cudaConditionalNodeParams& params) {
  switch (static_cast<int>(params.type)) {
    case cudaGraphCondTypeIf:
      return params.size == 1 || params.size == 2;
    case cudaGraphCondTypeWhile:
      return params.size == 1;
    case kSwitch:
      return params.size >= 1;
    default:
      return false;
  }
}

// "The conditional handle must be associated with a conditional node in this graph or one of its children."
bool is_inside(const State& state, const Graph& graph, cudaGraph_t of) {
  const Graph* at = &graph;
  while (at->handle != of && at->parent != nullptr) at = at->parent->graph;
  return at->handle == of && state.graphs.find(of) != nullptr;
}

cudaError_t create_handle(const Call& call, cudaGraphConditionalHandle* out, cudaGraph_t handle, unsigned value,
                          unsigned flags) {
  Graph* const graph = find_graph(call, handle);
  if (out == nullptr || graph == nullptr || (flags & ~unsigned{cudaGraphCondAssignDefault}) != 0) {
    return cudaErrorInvalidValue;
  }
  auto condition = std::make_shared<Condition>();
  condition->graph = handle;
  condition->number = graph->conditions.size();
  condition->default_value = value;
  condition->assigns_default = flags != 0;
  std::erase_if(call.state.conditions, [](const auto& entry) { return entry.second.expired(); });
  *out = ++call.state.last_condition;
  call.state.conditions[*out] = condition;
  graph->conditions.push_back(std::move(condition));
  return cudaSuccess;
}

cudaError_t read_conditional(const Call& call, const Graph& graph, const cudaConditionalNodeParams& from,
                             ConditionalParams* params) {
  const auto found = call.state.conditions.find(from.handle);
  params->condition = found != call.state.conditions.end() ? found->second.lock() : nullptr;
  if (params->condition == nullptr || params->condition->has_node || !is_size_allowed(from)) {
    return cudaErrorInvalidValue;
  }
  if (!is_inside(call.state, graph, params->condition->graph)) return cudaErrorInvalidValue;
  params->type = from.type;
  return cudaSuccess;
}

// A null pointer is refused in the same way as a conditional node.
bool is_conditional(const cudaGraphNodeParams* params) {
  return params == nullptr || params->type == cudaGraphNodeTypeConditional;
}

cudaError_t add(const Call& call, cudaGraphNode_t* out, cudaGraph_t handle, const cudaGraphNode_t* dependencies,
                const cudaGraphEdgeData* data, std::size_t count, cudaGraphNodeParams* wanted) {
  Graph* const graph = find_graph(call, handle);
  if (out == nullptr || graph == nullptr || wanted == nullptr) return cudaErrorInvalidValue;
  std::vector<Edge> edges;
  cudaError_t error = read_dependencies(call, *graph, dependencies, data, count, &edges);
  if (error != cudaSuccess) return error;
  ConditionalParams params;
  error = read_conditional(call, *graph, wanted->conditional, &params);
  if (error != cudaSuccess) return error;
  params.condition->has_node = true;
  params.handles = std::make_shared<std::vector<cudaGraph_t>>();
  for (unsigned i = 0; i < wanted->conditional.size; ++i) {
    Graph& body = create_graph(call.state);
    body.device = graph->device;
    params.bodies.push_back(&body);
    params.handles->push_back(body.handle);
  }
  const std::vector<Graph*> bodies = params.bodies;
  wanted->conditional.phGraph_out = params.handles->data();
  Node& node = add_node(call.state, *graph, std::move(params), edges);
  for (Graph* const body : bodies) body->parent = &node;
  *out = node.handle;
  return cudaSuccess;
}

}  // namespace

bool has_conditional_nodes(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node* node) { return std::holds_alternative<ConditionalParams>(node->params); });
}

bool is_body(const Graph& graph) {
  return graph.parent != nullptr && std::holds_alternative<ConditionalParams>(graph.parent->params);
}

bool may_be_in_body(const State& state, const Graph& graph) {
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node* node) {
    if (const auto* copy = std::get_if<CopyParams>(&node->params)) {
      return !is_pageable(state, copy->source) && !is_pageable(state, copy->destination);
    }
    bool may_be = true;
    for_each_inner(node->params, [&](const Graph& inner) { may_be = may_be && may_be_in_body(state, inner); });
    switch (node_type(node->params)) {
      case cudaGraphNodeTypeHost:
      case cudaGraphNodeTypeEventRecord:
      case cudaGraphNodeTypeWaitEvent:
      case cudaGraphNodeTypeMemAlloc:
      case cudaGraphNodeTypeMemFree:
        return false;
      default:
        return may_be;
    }
  });
}

void forget_body(Graph& graph) {
  auto& bodies = std::get<ConditionalParams>(graph.parent->params).bodies;
  std::replace(bodies.begin(), bodies.end(), &graph, static_cast<Graph*>(nullptr));
}

std::size_t chosen_body(const ConditionalParams& params) {
  const unsigned value = params.condition->value;
  return params.type == kSwitch ? value : std::size_t{value == 0};
}

void add_conditions(const Program& program, ConditionStart* start) {
  for (const ProgramNode& node : program.nodes) {
    const auto* conditional = std::get_if<ConditionalParams>(&node.params);
    if (conditional == nullptr) continue;
    start->conditions.push_back(conditional->condition);
    for (const auto& body : conditional->programs) add_conditions(*body, start);
  }
}

bool set_conditional(cudaGraphConditionalHandle handle, unsigned value) {
  State& world = state();  // called by running work, whose thread holds the lock
  if (!this_thread().in_work) return false;
  const auto found = world.conditions.find(handle);
  const auto condition = found != world.conditions.end() ? found->second.lock() : nullptr;
  if (condition == nullptr) return false;
  condition->value = value;
  condition->is_set = true;
  return true;
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* pHandle_out, cudaGraph_t graph,
                                                       unsigned int defaultLaunchValue, unsigned int flags) {
  return enter({Function::kGraphConditionalHandleCreate, graph},
               [&](const Call& call) { return create_handle(call, pHandle_out, graph, defaultLaunchValue, flags); });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaGraphAddNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                       const cudaGraphNode_t* pDependencies, const cudaGraphEdgeData* dependencyData,
                                       size_t numDependencies, struct cudaGraphNodeParams* nodeParams) {
#else
cudaError_t CUDARTAPI cudaGraphAddNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                       const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                       struct cudaGraphNodeParams* nodeParams) {
  if (!is_conditional(nodeParams)) {
    const CallerScope caller(__builtin_return_address(0));
    return latch(this_thread(), add_any(pGraphNode, graph, pDependencies, nullptr, numDependencies, nodeParams));
  }
  return enter({Function::kGraphAddNode, graph}, [&](const Call& call) {
    return add(call, pGraphNode, graph, pDependencies, nullptr, numDependencies, nodeParams);
  });
}

cudaError_t CUDARTAPI cudaGraphAddNode_v2(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                          const cudaGraphNode_t* pDependencies, const cudaGraphEdgeData* dependencyData,
                                          size_t numDependencies, struct cudaGraphNodeParams* nodeParams) {
#endif
  if (!is_conditional(nodeParams)) {
    const CallerScope caller(__builtin_return_address(0));
    return latch(this_thread(), add_any(pGraphNode, graph, pDependencies, dependencyData, numDependencies, nodeParams));
  }
  return enter({Function::kGraphAddNode, graph}, [&](const Call& call) {
    return add(call, pGraphNode, graph, pDependencies, dependencyData, numDependencies, nodeParams);
  });
}

}  // extern "C"
