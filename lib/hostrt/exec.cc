// Executable graphs from instantiation to destruction, and their launch.

#include "exec.h"

#include <functional>
#include <queue>
#include <utility>

#include "capture.h"
#include "schedule.h"
#include "work.h"

namespace graphcache::hostrt {

const ProgramNode* find_program_node(const Call& call, const Executable& executable, cudaGraphNode_t handle) {
  const Node* node = find_node(call, handle);
  if (node == nullptr || node->position >= executable.program->nodes.size()) return nullptr;
  const ProgramNode& found = executable.program->nodes[node->position];
  return found.base_node == handle ? &found : nullptr;  // handles are never given out twice
}

Program& writable_program(Executable& executable) {
  if (executable.program.use_count() > 1) executable.program = std::make_shared<Program>(*executable.program);
  return *executable.program;
}

namespace {

constexpr unsigned long long kKnownFlags = cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
                                           cudaGraphInstantiateFlagDeviceLaunch |
                                           cudaGraphInstantiateFlagUseNodePriority;

// Topological, the earlier created node first where the edges leave a choice. Shorter than the graph if there is a
// cycle.
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

cudaError_t instantiate(const Call& call, cudaGraphExec_t* out, cudaGraph_t handle, unsigned long long flags) {
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  if (out == nullptr || (flags & ~kKnownFlags) != 0) return cudaErrorInvalidValue;
  const Graph* graph = find_graph(call, handle);
  if (graph == nullptr) return cudaErrorInvalidValue;

  auto program = std::make_shared<Program>();
  program->order = execution_order(*graph);
  if (program->order.size() != graph->nodes.size()) return cudaErrorInvalidValue;
  program->nodes.reserve(graph->nodes.size());
  for (const Node* node : graph->nodes) {
    const auto* fill = std::get_if<FillParams>(&node->params);
    if (fill != nullptr && fill->destination == nullptr) return cudaErrorInvalidValue;
    ProgramNode& twin = program->nodes.emplace_back();
    twin.base_node = node->handle;
    twin.params = node->params;
    for (const Edge& edge : node->dependencies) {
      twin.dependencies.push_back({static_cast<std::uint32_t>(edge.from->position), edge.data});
    }
    for (const Node* dependent : node->dependents) {
      twin.dependents.push_back(static_cast<std::uint32_t>(dependent->position));
    }
  }

  auto owned = std::make_unique<Executable>();
  Executable& executable = *owned;
  executable.flags = flags;
  executable.program = std::move(program);
  executable.handle = reinterpret_cast<cudaGraphExec_t>(call.state.executables.add(std::move(owned)));
  *out = executable.handle;
  return cudaSuccess;
}

cudaError_t destroy(const Call& call, cudaGraphExec_t handle) {
  // Checked before the handle is looked at, as by the real driver (facts 6).
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  if (find_executable(call, handle) == nullptr) return cudaErrorInvalidValue;
  call.state.executables.remove(handle);  // launches in flight hold on to the program (facts 17)
  return cudaSuccess;
}

// Launch and upload: refused, and the end of a capture, when the stream captures (facts 5).
cudaError_t prepare(const Call& call, cudaGraphExec_t handle, cudaStream_t stream_handle, Executable** executable,
                    Stream** stream) {
  *stream = find_stream(call, stream_handle);
  if (*stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_capture(call.state, **stream); error != cudaSuccess) return error;
  *executable = find_executable(call, handle);
  return *executable != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t launch(const Call& call, cudaGraphExec_t handle, cudaStream_t stream_handle) {
  Executable* executable = nullptr;
  Stream* stream = nullptr;
  const cudaError_t error = prepare(call, handle, stream_handle, &executable, &stream);
  if (error != cudaSuccess || !call.state.execute) return error;
  wait_for(call.state, *stream, executable->last_run);  // a launch held in another stream (facts 15)
  enqueue(call.state, *stream, GraphRun{executable->program});
  executable->last_run = mark(call.state, *stream);
  return cudaSuccess;
}

cudaError_t set_enabled(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node, unsigned enabled) {
  Executable* executable = find_executable(call, handle);
  if (executable == nullptr) return cudaErrorInvalidValue;
  const ProgramNode* found = find_program_node(call, *executable, node);
  // "Currently only kernel, memset and memcpy nodes are supported."
  if (found == nullptr || std::holds_alternative<HostParams>(found->params) ||
      std::holds_alternative<EmptyParams>(found->params)) {
    return cudaErrorInvalidValue;
  }
  const auto position = found - executable->program->nodes.data();
  writable_program(*executable).nodes[position].enabled = enabled != 0;
  return cudaSuccess;
}

cudaError_t get_enabled(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node, unsigned* enabled) {
  const Executable* executable = find_executable(call, handle);
  if (executable == nullptr || enabled == nullptr) return cudaErrorInvalidValue;
  const ProgramNode* found = find_program_node(call, *executable, node);
  if (found == nullptr) return cudaErrorInvalidValue;
  *enabled = found->enabled ? 1 : 0;
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph, unsigned long long flags) {
  return enter(Function::kGraphInstantiate,
               [&](const Call& call) { return instantiate(call, pGraphExec, graph, flags); });
}

cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                                    unsigned long long flags) {
  return enter(Function::kGraphInstantiateWithFlags,
               [&](const Call& call) { return instantiate(call, pGraphExec, graph, flags); });
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
  return enter(Function::kGraphExecDestroy, [&](const Call& call) { return destroy(call, graphExec); });
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return enter(Function::kGraphLaunch, [&](const Call& call) { return launch(call, graphExec, stream); });
}

cudaError_t CUDARTAPI cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return enter(Function::kGraphUpload, [&](const Call& call) {
    Executable* executable = nullptr;
    Stream* target = nullptr;
    return prepare(call, graphExec, stream, &executable, &target);
  });
}

cudaError_t CUDARTAPI cudaGraphNodeSetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                              unsigned int isEnabled) {
  return enter(Function::kGraphNodeSetEnabled,
               [&](const Call& call) { return set_enabled(call, hGraphExec, hNode, isEnabled); });
}

cudaError_t CUDARTAPI cudaGraphNodeGetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                              unsigned int* isEnabled) {
  return enter(Function::kGraphNodeGetEnabled,
               [&](const Call& call) { return get_enabled(call, hGraphExec, hNode, isEnabled); });
}

}  // extern "C"
