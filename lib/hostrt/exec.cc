// Executable graphs: instantiation, launch, destruction.

#include "exec.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

#include "attributes.h"
#include "capture.h"
#include "device_nodes.h"
#include "event_nodes.h"
#include "graph.h"
#include "params.h"
#include "schedule.h"
#include "work.h"

namespace graphcache::hostrt {

bool has_its_memory(State& state, const NodeParams& params) {
  if (const auto* fill = std::get_if<FillParams>(&params)) return !is_freed(state, fill->destination);
  const auto* copy = std::get_if<CopyParams>(&params);
  if (copy == nullptr) return true;
  if (is_freed(state, copy->destination) || is_freed(state, copy->source)) {
    report_misuse(state, state.endings.here, "an executable gets a copy of freed memory, where the driver may crash");
    return false;
  }
  if (is_other(state, copy->destination, copy->destination_id) || is_other(state, copy->source, copy->source_id)) {
    report_misuse(state, state.endings.here,
                  "an executable gets a copy of memory that was freed and given out again since the copy was set: its "
                  "launch may lose the context");
  }
  return true;
}

namespace {

std::optional<std::size_t> find_position(const Program& program, const Node& node) {
  const auto is_twin = [&](const ProgramNode& candidate) {
    return candidate.base_node == node.handle;  // handles are never given out twice
  };
  if (node.position < program.nodes.size() && is_twin(program.nodes[node.position])) return node.position;
  // Nodes before it may have been removed from the graph.
  const auto found = std::find_if(program.nodes.begin(), program.nodes.end(), is_twin);
  if (found == program.nodes.end()) return std::nullopt;
  return static_cast<std::size_t>(found - program.nodes.begin());
}

// The program made from the graph inside the node.
template <typename AnyParams>
auto& inner_program(AnyParams& params, const Graph& inner) {
  if (auto* child = std::get_if<ChildParams>(&params)) return child->program;
  const auto& bodies = std::get<ConditionalParams>(inner.parent->params).bodies;
  const auto index = std::find(bodies.begin(), bodies.end(), &inner) - bodies.begin();
  return std::get<ConditionalParams>(params).programs[static_cast<std::size_t>(index)];
}

const ProgramNode* find_twin(const Program& root, const Node& node) {
  const Program* program = &root;
  if (node.graph->parent != nullptr) {
    const ProgramNode* outer = find_twin(root, *node.graph->parent);
    if (outer == nullptr) return nullptr;
    program = inner_program(outer->params, *node.graph).get();
  }
  const std::optional<std::size_t> position = find_position(*program, node);
  return position.has_value() ? &program->nodes[*position] : nullptr;
}

}  // namespace

const ProgramNode* find_program_node(const Call& call, const Executable& executable, cudaGraphNode_t handle) {
  const Node* node = find_node(call, handle);
  return node != nullptr ? find_twin(*executable.program, *node) : nullptr;
}

Program& writable(std::shared_ptr<Program>& program) {
  if (program.use_count() > 1) program = std::make_shared<Program>(*program);
  return *program;
}

ProgramNode& writable_node(Executable& executable, const Node& node) {
  const Node* parent = node.graph->parent;
  Program& program = parent == nullptr
                         ? writable(executable.program)
                         : writable(inner_program(writable_node(executable, *parent).params, *node.graph));
  return program.nodes[*find_position(program, node)];
}

bool has_only_executable(const State& state, cudaGraph_t graph) {
  bool found = false;
  state.executables.for_each([&](const Executable& executable) { found = found || executable.only_one_of == graph; });
  return found;
}

std::size_t node_count(const Program& program) {
  std::size_t count = program.nodes.size();
  for (const ProgramNode& node : program.nodes) {
    if (const auto* child = std::get_if<ChildParams>(&node.params)) count += node_count(*child->program);
    if (const auto* conditional = std::get_if<ConditionalParams>(&node.params)) {
      for (const auto& body : conditional->programs) count += node_count(*body);
    }
  }
  return count;
}

namespace {

// An upload needs cudaGraphInstantiateWithParams.
constexpr unsigned long long kKnownFlags = cudaGraphInstantiateFlagAutoFreeOnLaunch |
                                           cudaGraphInstantiateFlagDeviceLaunch |
                                           cudaGraphInstantiateFlagUseNodePriority;

// A topological order; where the edges leave a choice, the node created first comes first. The result is shorter than
// the graph if the edges form a cycle.
std::vector<std::uint32_t> execution_order(const Graph& graph) {
  std::vector<std::size_t> waiting_for(graph.nodes.size());
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (const Node* node : graph.nodes) {
    waiting_for[node->position] = node->dependencies.size();
    if (node->dependencies.empty()) ready.push(static_cast<std::uint32_t>(node->position));
  }
  std::vector<std::uint32_t> order;
  order.reserve(graph.nodes.size());
  while (!ready.empty()) {
    const std::uint32_t position = ready.top();
    ready.pop();
    order.push_back(position);
    for (const Node* dependent : graph.nodes[position]->dependents) {
      if (--waiting_for[dependent->position] == 0) ready.push(static_cast<std::uint32_t>(dependent->position));
    }
  }
  return order;
}

// Returns null if the graph cannot be executed: its edges form a cycle, or it fills pageable or freed memory.
std::shared_ptr<Program> make_program(State& state, const Graph& graph, const std::shared_ptr<DeviceNodes>& nodes) {
  auto program = std::make_shared<Program>();
  program->device_nodes = nodes;
  nodes->has_forks |= has_forks(graph);
  program->order = execution_order(graph);
  if (program->order.size() != graph.nodes.size()) return nullptr;
  program->nodes.reserve(graph.nodes.size());
  for (const Node* node : graph.nodes) {
    const auto* fill = std::get_if<FillParams>(&node->params);
    if (fill != nullptr && is_pageable(state, fill->destination)) return nullptr;
    if (!has_its_memory(state, node->params)) return nullptr;
    ProgramNode& twin = program->nodes.emplace_back();
    twin.base_node = node->handle;
    twin.params = node->params;
    if (auto* copy = std::get_if<CopyParams>(&twin.params)) {
      copy->is_of_device = is_of_device(state, *copy);
      copy->devices = devices_of(state, *copy);
    }
    for (const Edge& edge : node->dependencies) {
      twin.dependencies.push_back({static_cast<std::uint32_t>(edge.from->position), edge.data});
    }
    for (const Node* dependent : node->dependents) {
      twin.dependents.push_back(static_cast<std::uint32_t>(dependent->position));
    }
    const auto* kernel = std::get_if<KernelParams>(&node->params);
    if (kernel != nullptr && is_device_updatable(*kernel)) nodes->all[node->handle] = {*kernel, kernel->grid};
    if (const auto* child = std::get_if<ChildParams>(&node->params)) {
      std::shared_ptr<Program> inner = make_program(state, *child->graph, nodes);
      if (inner == nullptr) return nullptr;
      program->has_events |= inner->has_events;
      program->has_host_functions |= inner->has_host_functions;
      twin.params = ChildParams{nullptr, std::move(inner)};
    }
    if (auto* conditional = std::get_if<ConditionalParams>(&twin.params)) {
      for (const Graph* body : std::exchange(conditional->bodies, {})) {
        if (body == nullptr || !may_be_in_body(state, *body)) return nullptr;
        conditional->programs.push_back(make_program(state, *body, nodes));
        if (conditional->programs.back() == nullptr) return nullptr;
      }
    }
    const cudaGraphNodeType type = node_type(node->params);
    program->has_events |= type == cudaGraphNodeTypeEventRecord || type == cudaGraphNodeTypeWaitEvent;
    program->has_host_functions |= type == cudaGraphNodeTypeHost;
    program->has_memory |= type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree;
  }
  for (const Node* node : graph.exits) program->exits.push_back(static_cast<std::uint32_t>(node->position));
  hold(state, *program, graph);
  return program;
}

// "If graph contains any allocation or free nodes, there can be at most one executable graph in existence for that
// graph at a time"; "the same also applies if graph contains any device-updatable kernel nodes". For graphs with
// conditional nodes, "only one instantiation ... may exist at any point in time".
bool allows_one_executable(const Graph& graph) {
  return has_memory_nodes(graph) || has_device_updatable_nodes(graph) || has_conditional_nodes(graph);
}

// "Handles not associated with a conditional node may cause graph instantiation to fail". On the real driver it does
// fail.
bool has_unused_condition(const Graph& graph) {
  return std::any_of(graph.conditions.begin(), graph.conditions.end(),
                     [](const auto& condition) { return !condition->has_node; });
}

// Whether any executable was made from it.
bool has_executable(const State& state, cudaGraph_t graph) {
  bool found = false;
  state.executables.for_each([&](const Executable& executable) { found = found || executable.base == graph; });
  return found;
}

cudaError_t instantiate(const Call& call, cudaGraphExec_t* out, cudaGraph_t handle, unsigned long long flags) {
  if ((flags & ~kKnownFlags) != 0) return cudaErrorInvalidValue;
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  if (out == nullptr) return cudaErrorInvalidValue;
  const Graph* graph = find_graph(call, handle);
  if (graph == nullptr) return cudaErrorInvalidValue;
  if (graph->parent != nullptr) return cudaErrorNotSupported;
  if (has_unused_condition(*graph)) return cudaErrorInvalidValue;
  const auto nodes = std::make_shared<DeviceNodes>();
  nodes->uses_node_priority = (flags & cudaGraphInstantiateFlagUseNodePriority) != 0;
  std::shared_ptr<Program> program = make_program(call.state, *graph, nodes);
  if (program == nullptr) return cudaErrorInvalidValue;
  const bool is_only_one = allows_one_executable(*graph);
  if (is_only_one && has_only_executable(call.state, handle)) return cudaErrorNotSupported;
  // This counts also those that were made before the graph had conditional nodes.
  if (has_conditional_nodes(*graph) && has_executable(call.state, handle)) return cudaErrorNotSupported;

  auto owned = std::make_unique<Executable>();
  Executable& executable = *owned;
  executable.device = graph->device;
  executable.flags = flags;
  executable.base = handle;
  if (is_only_one) executable.only_one_of = handle;
  executable.program = std::move(program);
  executable.handle = reinterpret_cast<cudaGraphExec_t>(call.state.executables.add(std::move(owned)));
  *out = executable.handle;
  return cudaSuccess;
}

cudaError_t destroy(const Call& call, cudaGraphExec_t handle) {
  // This check comes before the lookup of the handle, as in the real driver (facts 6).
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  Executable* const executable = find_executable(call, handle);
  if (executable == nullptr) return cudaErrorInvalidValue;
  // Otherwise a thread of the real driver may crash (docs/semantics.md).
  if (executable->program->has_host_functions && !has_passed(call.state, executable->last_run)) {
    (void)call.misuse(cudaErrorInvalidValue, "an executable with host functions is destroyed in flight");
  }
  if (executable->program->device_nodes->upload == DeviceNodes::Upload::kGoingOn) {
    (void)call.misuse(cudaErrorInvalidValue,
                      "an executable is destroyed behind an upload that the host did not wait for");
  }
  call.state.executables.remove(handle);  // launches in flight hold on to the program (facts 17)
  return cudaSuccess;
}

// For launch and upload: if the stream is capturing, the call fails and invalidates the capture (facts 5).
cudaError_t prepare(const Call& call, cudaGraphExec_t handle, cudaStream_t stream_handle, Executable** executable,
                    Stream** stream) {
  *stream = find_stream(call, stream_handle);
  if (*stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_capture(call.state, **stream); error != cudaSuccess) return error;
  *executable = find_executable(call, handle);
  return *executable != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

bool copies_pageable(const State& state, const Program& program) {
  return std::any_of(program.nodes.begin(), program.nodes.end(), [&](const ProgramNode& node) {
    if (const auto* child = std::get_if<ChildParams>(&node.params)) return copies_pageable(state, *child->program);
    const auto* copy = std::get_if<CopyParams>(&node.params);
    return copy != nullptr && (is_pageable(state, copy->source) || is_pageable(state, copy->destination));
  });
}

cudaError_t launch(const Call& call, cudaGraphExec_t handle, cudaStream_t stream_handle) {
  Executable* executable = nullptr;
  Stream* stream = nullptr;
  cudaError_t error = prepare(call, handle, stream_handle, &executable, &stream);
  if (error != cudaSuccess) return error;
  const Program& program = *executable->program;
  if (program.has_events && !events_exist(call, program)) return cudaErrorInvalidValue;
  if (program.has_memory) error = launch_memory(call, *executable);
  if (error != cudaSuccess) return error;
  note_stray(call, *stream);
  wait_for(call.state, *stream, executable->last_run);  // a launch held in another stream (facts 15)
  if (!program.device_nodes->all.empty()) {
    enqueue(call.state, *stream, make_start(call.state, *stream, program.device_nodes));
  }
  ConditionStart conditions;
  add_conditions(program, &conditions);
  if (!conditions.conditions.empty()) enqueue(call.state, *stream, std::move(conditions));
  if (program.has_events) {
    enqueue_in_steps(call.state, *stream, executable->program);
  } else {
    enqueue(call.state, *stream, GraphRun{executable->program, call.state.endings.here});
  }
  executable->last_run = mark(call.state, *stream);
  // The launch has read and written pageable memory by the time it returns (docs/semantics.md).
  if (call.state.deferred && copies_pageable(call.state, program)) finish(call.state, *stream);
  return cudaSuccess;
}

// "Currently only kernel, memset and memcpy nodes are supported."
const ProgramNode* find_node_to_enable(const Call& call, const Executable& executable, cudaGraphNode_t handle) {
  const ProgramNode* found = find_program_node(call, executable, handle);
  const bool is_supported = found != nullptr && (std::holds_alternative<KernelParams>(found->params) ||
                                                 std::holds_alternative<CopyParams>(found->params) ||
                                                 std::holds_alternative<FillParams>(found->params));
  return is_supported ? found : nullptr;
}

cudaError_t set_enabled(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node, unsigned enabled) {
  Executable* executable = find_executable(call, handle);
  if (executable == nullptr || find_node_to_enable(call, *executable, node) == nullptr) return cudaErrorInvalidValue;
  writable_node(*executable, *call.state.nodes.find(node)).enabled = enabled != 0;
  return cudaSuccess;
}

cudaError_t get_enabled(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node, unsigned* enabled) {
  const Executable* executable = find_executable(call, handle);
  if (executable == nullptr || enabled == nullptr) return cudaErrorInvalidValue;
  const ProgramNode* found = find_node_to_enable(call, *executable, node);
  if (found == nullptr) return cudaErrorInvalidValue;
  *enabled = found->enabled ? 1 : 0;
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph, unsigned long long flags) {
  return enter({Function::kGraphInstantiate, graph},
               [&](const Call& call) { return instantiate(call, pGraphExec, graph, flags); });
}

cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                                    unsigned long long flags) {
  return enter({Function::kGraphInstantiateWithFlags, graph},
               [&](const Call& call) { return instantiate(call, pGraphExec, graph, flags); });
}

cudaError_t CUDARTAPI cudaGraphExecGetFlags(cudaGraphExec_t graphExec, unsigned long long* flags) {
  return enter({Function::kGraphExecGetFlags, graphExec}, [&](const Call& call) {
    const Executable* executable = find_executable(call, graphExec);
    if (executable == nullptr || flags == nullptr) return cudaErrorInvalidValue;
    // The driver does not return it, although the description excludes cudaGraphInstantiateFlagUpload alone.
    *flags = executable->flags & ~static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
  return enter({Function::kGraphExecDestroy, graphExec}, [&](const Call& call) { return destroy(call, graphExec); });
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return enter({Function::kGraphLaunch, graphExec}, [&](const Call& call) { return launch(call, graphExec, stream); });
}

cudaError_t CUDARTAPI cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return enter({Function::kGraphUpload, graphExec}, [&](const Call& call) {
    Executable* executable = nullptr;
    Stream* target = nullptr;
    const cudaError_t error = prepare(call, graphExec, stream, &executable, &target);
    if (error != cudaSuccess) return error;
    wait_for(call.state, *target, executable->last_run);  // the upload is ordered "behind ... any previous launches"
    upload(call.state, *target, executable->program->device_nodes);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphNodeSetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                              unsigned int isEnabled) {
  return enter({Function::kGraphNodeSetEnabled, hGraphExec, hNode},
               [&](const Call& call) { return set_enabled(call, hGraphExec, hNode, isEnabled); });
}

cudaError_t CUDARTAPI cudaGraphNodeGetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                              unsigned int* isEnabled) {
  return enter({Function::kGraphNodeGetEnabled, hGraphExec, hNode},
               [&](const Call& call) { return get_enabled(call, hGraphExec, hNode, isEnabled); });
}

}  // extern "C"
