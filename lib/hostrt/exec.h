// Functions shared by the calls on executable graphs. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_EXEC_H_
#define GRAPHCACHE_LIB_HOSTRT_EXEC_H_

#include "state.h"

namespace graphcache::hostrt {

// The executable's node that corresponds to a template's node, or null. Only nodes of the graph that the executable was
// instantiated from, and of graphs embedded in it, have one, and only while that graph exists (facts 12).
const ProgramNode* find_program_node(const Call& call, const Executable& executable, cudaGraphNode_t node);

// The same node for writing. If a launch still holds the program, the executable gets a copy of it first (facts 14).
ProgramNode& writable_node(Executable& executable, const Node& node);
Program& writable(std::shared_ptr<Program>& program);

// Finds the node of the right type and lets `change` read and check its new parameters.
template <typename Params, typename Change>
cudaError_t patch(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node, Change&& change) {
  Executable* executable = find_executable(call, handle);
  if (executable == nullptr) return cudaErrorInvalidValue;
  const ProgramNode* found = find_program_node(call, *executable, node);
  if (found == nullptr || !std::holds_alternative<Params>(found->params)) return cudaErrorInvalidValue;
  NodeParams& params = writable_node(*executable, *call.state.nodes.find(node)).params;
  const cudaError_t error = change(std::get<Params>(params));
  if (error == cudaSuccess) set_place(params, call.state.endings.here);
  return error;
}

// Patches a kernel node. The runtime looks the function up on the current device, which must be the node's; the driver
// uses the context that it is given.
cudaError_t patch_kernel(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node,
                         const cudaKernelNodeParams* wanted, bool on_current_device);

// Gives an executable's copy other parameters by a patch or an update.
void move_copy(CopyParams& params, const CopyParams& wanted);

// Whether the graph has an executable and may have no second one.
bool has_only_executable(const State& state, cudaGraph_t graph);

// Whether the memory of a copy or fill was not freed. Else no executable can be made or updated with it: the driver
// refuses a fill, and crashes or hangs at a copy, which is a misuse.
bool has_its_memory(State& state, const NodeParams& params);

// Counts the nodes of child graphs as well.
std::size_t node_count(const Program& program);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_EXEC_H_
