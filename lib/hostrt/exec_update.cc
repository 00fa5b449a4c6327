// cudaGraphExecUpdate pairs the nodes of an executable with those of a template, checks every pair, and only then takes
// the template's parameters. An update that fails leaves the executable unchanged (facts 20).
//
// Pairing starts at the exit nodes, in the order in which they became that, and follows dependencies in the order of
// the edges (facts 22). A capture gives them the order of its stream's dependencies at its end. So two captures that
// enqueued their branches in different orders still pair correctly if they joined them in the same order.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "attributes.h"
#include "exec.h"
#include "graph.h"
#include "params.h"

namespace graphcache::hostrt {
namespace {

struct Refusal {
  cudaGraphExecUpdateResult result = cudaGraphExecUpdateSuccess;
  const Node* node = nullptr;
  const Node* from = nullptr;
};

class Pairing {
 public:
  Pairing(const Program& program, const Graph& graph)
      : program_(program),
        partners_(graph.nodes.size(), kNone),
        is_taken_(program.nodes.size(), false),
        graph_(graph) {}

  // Returns false if topologies or node types differ. refusal() then names the place.
  bool pair_all() {
    if (program_.nodes.size() != graph_.nodes.size()) return refuse(cudaGraphExecUpdateErrorTopologyChanged, nullptr);
    const std::vector<std::uint32_t>& mine = program_.exits;
    const std::vector<Node*>& exits = graph_.exits;
    if (exits.size() != mine.size()) {
      // "hGraph has more exit nodes ...: errorNode is set to one of the exit nodes in hGraph". With fewer exit nodes,
      // no node is named.
      return refuse(cudaGraphExecUpdateErrorTopologyChanged, exits.size() > mine.size() ? exits[0] : nullptr);
    }
    for (std::size_t i = 0; i < exits.size(); ++i) {
      if (!pair(mine[i], exits[i], nullptr)) return false;
    }
    while (!open_.empty()) {
      const Node* node = open_.back();
      open_.pop_back();
      if (!pair_dependencies(node)) return false;
    }
    // A node that no exit node depends on lies on a cycle, in a graph that could not be instantiated.
    for (const Node* node : graph_.nodes) {
      if (partners_[node->position] == kNone) return refuse(cudaGraphExecUpdateErrorTopologyChanged, node);
    }
    return true;
  }

  std::vector<std::uint32_t> take_partners() { return std::move(partners_); }
  const Refusal& refusal() const { return refusal_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  bool refuse(cudaGraphExecUpdateResult result, const Node* node, const Node* from = nullptr) {
    refusal_ = {result, node, from};
    return false;
  }

  // `dependent` is the node through which this pair was reached, if any.
  bool pair(std::uint32_t position, const Node* node, const Node* dependent) {
    std::uint32_t& partner = partners_[node->position];
    if (partner == position) return true;
    if (partner != kNone || is_taken_[position]) {
      return refuse(cudaGraphExecUpdateErrorTopologyChanged, dependent != nullptr ? dependent : node,
                    dependent != nullptr ? node : nullptr);
    }
    const ProgramNode& mine = program_.nodes[position];
    if (mine.params.index() != node->params.index()) return refuse(cudaGraphExecUpdateErrorNodeTypeChanged, node);
    if (mine.dependencies.size() != node->dependencies.size()) {
      return refuse(cudaGraphExecUpdateErrorTopologyChanged, node);
    }
    partner = position;
    is_taken_[position] = true;
    open_.push_back(node);
    return true;
  }

  bool pair_dependencies(const Node* node) {
    const ProgramNode& mine = program_.nodes[partners_[node->position]];
    for (std::size_t i = 0; i < node->dependencies.size(); ++i) {
      const Edge& edge = node->dependencies[i];
      const auto& wanted = mine.dependencies[i];
      if (!(Edge{nullptr, edge.data} == Edge{nullptr, wanted.data})) {
        return refuse(cudaGraphExecUpdateErrorTopologyChanged, node, edge.from);
      }
      if (!pair(wanted.position, edge.from, node)) return false;
    }
    return true;
  }

  const Program& program_;
  std::vector<std::uint32_t> partners_;  // position in the program of each node of the graph
  std::vector<bool> is_taken_;           // whether each node of the program has a partner
  const Graph& graph_;
  std::vector<const Node*> open_;
  Refusal refusal_;
};

bool same_attribute(const KernelParams& a, const KernelParams& b, cudaLaunchAttributeID id) {
  cudaLaunchAttributeValue of_a;
  cudaLaunchAttributeValue of_b;
  get_attribute(a, id, &of_a);
  get_attribute(b, id, &of_b);
  return id == cudaLaunchAttributePriority ? of_a.priority == of_b.priority : of_a.cooperative == of_b.cooperative;
}

// Checks the limitations in the header's description of cudaGraphExecUpdate. Like the real driver, it ignores all other
// attributes, so an update can succeed and change nothing (facts 19).
cudaGraphExecUpdateResult compare(const NodeParams& mine, const NodeParams& wanted, unsigned long long flags) {
  if (const auto* kernel = std::get_if<KernelParams>(&mine)) {
    const auto& other = std::get<KernelParams>(wanted);
    if (kernel->device != other.device) return cudaGraphExecUpdateErrorUnsupportedFunctionChange;  // (facts 21)
    if (!same_attribute(*kernel, other, cudaLaunchAttributeCooperative)) {
      return cudaGraphExecUpdateErrorAttributesChanged;
    }
    if ((flags & cudaGraphInstantiateFlagUseNodePriority) != 0 &&
        !same_attribute(*kernel, other, cudaLaunchAttributePriority)) {
      return cudaGraphExecUpdateErrorAttributesChanged;
    }
  } else if (const auto* copy = std::get_if<CopyParams>(&mine)) {
    if (!may_become(*copy, std::get<CopyParams>(wanted))) return cudaGraphExecUpdateErrorParametersChanged;
  } else if (const auto* fill = std::get_if<FillParams>(&mine)) {
    if (!may_become(*fill, std::get<FillParams>(wanted))) return cudaGraphExecUpdateErrorParametersChanged;
  }
  return cudaGraphExecUpdateSuccess;
}

// How the nodes of a graph, and recursively those of its child graphs, pair with those of a program.
struct Plan {
  std::vector<std::uint32_t> partners;  // position in the program of each node of the graph
  std::vector<Plan> inner;              // plans of child graphs and bodies, in the order of their nodes in the graph
};

Refusal make_plan(const Program& program, const Graph& graph, unsigned long long flags, Plan* plan) {
  Pairing pairing(program, graph);
  if (!pairing.pair_all()) return pairing.refusal();
  plan->partners = pairing.take_partners();
  for (const Node* node : graph.nodes) {
    const NodeParams& mine = program.nodes[plan->partners[node->position]].params;
    if (const auto* child = std::get_if<ChildParams>(&mine)) {
      const Graph& inner = *std::get<ChildParams>(node->params).graph;
      const Refusal refusal = make_plan(*child->program, inner, flags, &plan->inner.emplace_back());
      if (refusal.result != cudaGraphExecUpdateSuccess) return refusal;
    } else if (const auto* conditional = std::get_if<ConditionalParams>(&mine)) {
      const auto& other = std::get<ConditionalParams>(node->params);
      if (conditional->type != other.type || conditional->programs.size() != other.bodies.size() ||
          conditional->condition->number != other.condition->number) {
        return {cudaGraphExecUpdateErrorNotSupported, node, nullptr};
      }
      for (std::size_t i = 0; i < other.bodies.size(); ++i) {
        const Refusal refusal =
            make_plan(*conditional->programs[i], *other.bodies[i], flags, &plan->inner.emplace_back());
        if (refusal.result != cudaGraphExecUpdateSuccess) return refusal;
      }
    } else if (!has_its_memory(state(), node->params)) {
      return {cudaGraphExecUpdateError, node, nullptr};
    } else if (const auto result = compare(mine, node->params, flags); result != cudaGraphExecUpdateSuccess) {
      return {result, node, nullptr};
    }
  }
  return {};
}

void take_over(NodeParams& mine, const NodeParams& wanted) {
  auto* kernel = std::get_if<KernelParams>(&mine);
  if (auto* copy = std::get_if<CopyParams>(&mine)) return move_copy(*copy, std::get<CopyParams>(wanted));
  if (kernel == nullptr) {
    mine = wanted;
    return;
  }
  const auto& other = std::get<KernelParams>(wanted);
  kernel->kernel = other.kernel;
  kernel->grid = other.grid;
  kernel->block = other.block;
  kernel->shared_bytes = other.shared_bytes;
  kernel->arguments = other.arguments;
}

void apply(State& state, const Plan& plan, const Graph& graph, std::shared_ptr<Program>& target) {
  Program& program = writable(target);
  auto inner_plan = plan.inner.begin();
  for (const Node* node : graph.nodes) {
    NodeParams& mine = program.nodes[plan.partners[node->position]].params;
    if (auto* child = std::get_if<ChildParams>(&mine)) {
      apply(state, *inner_plan++, *std::get<ChildParams>(node->params).graph, child->program);
    } else if (auto* conditional = std::get_if<ConditionalParams>(&mine)) {
      const auto& other = std::get<ConditionalParams>(node->params);
      conditional->condition = other.condition;
      for (std::size_t i = 0; i < other.bodies.size(); ++i) {
        apply(state, *inner_plan++, *other.bodies[i], conditional->programs[i]);
      }
    } else {
      take_over(mine, node->params);
    }
  }
  hold(state, program, graph);
}

// "Neither hGraph nor hGraphExec may contain device-updatable kernel nodes"; this includes an executable and its own
// graph. A graph that allocates memory and has its one executable cannot update another executable.
bool may_update(const State& state, const Executable& executable, const Graph& graph) {
  if (has_device_updatable_nodes(graph)) return false;
  if (has_memory_nodes(graph) && executable.only_one_of != graph.handle && has_only_executable(state, graph.handle)) {
    return false;
  }
  return std::none_of(executable.program->nodes.begin(), executable.program->nodes.end(), [](const auto& node) {
    const auto* kernel = std::get_if<KernelParams>(&node.params);
    return kernel != nullptr && is_device_updatable(*kernel);
  });
}

cudaError_t update(const Call& call, cudaGraphExec_t handle, cudaGraph_t graph_handle,
                   cudaGraphExecUpdateResultInfo* info) {
  if (info != nullptr) *info = {cudaGraphExecUpdateError, nullptr, nullptr};
  Executable* executable = find_executable(call, handle);
  const Graph* graph = find_graph(call, graph_handle);
  if (executable == nullptr || graph == nullptr) return cudaErrorInvalidValue;
  if (!may_update(call.state, *executable, *graph)) {
    if (info != nullptr) info->result = cudaGraphExecUpdateSuccess;  // the real runtime reports success here as well
    return cudaErrorNotSupported;
  }

  Plan plan;
  const Refusal refusal = make_plan(*executable->program, *graph, executable->flags, &plan);
  if (info != nullptr) {
    *info = {refusal.result, refusal.node != nullptr ? refusal.node->handle : nullptr,
             refusal.from != nullptr ? refusal.from->handle : nullptr};
  }
  if (refusal.result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
  apply(call.state, plan, *graph, executable->program);
  // the previous graph may be instantiated again
  if (executable->only_one_of != nullptr) executable->only_one_of = graph->handle;
  return cudaSuccess;
}

// "As though the nodes contained in node's graph had the parameters contained in childGraph's nodes at instantiation".
cudaError_t set_child(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node, cudaGraph_t graph_handle) {
  const Graph* graph = find_graph(call, graph_handle);
  const Executable* executable = find_executable(call, handle);
  if (graph == nullptr || executable == nullptr) return cudaErrorInvalidValue;
  if (has_memory_nodes(*graph) || has_conditional_nodes(*graph)) return cudaErrorGraphExecUpdateFailure;
  return patch<ChildParams>(call, handle, node, [&](ChildParams& child) {
    Plan plan;
    const Refusal refusal = make_plan(*child.program, *graph, executable->flags, &plan);
    if (refusal.result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
    apply(call.state, plan, *graph, child.program);
    return cudaSuccess;
  });
}

// Returns an armed failure. Callers also judge an update by its result info (facts 20). So for a refused update the
// info gives a reason that names no node; for any other error it is what a failed call leaves there.
cudaError_t refuse_as_injected(cudaError_t error, cudaGraphExecUpdateResultInfo* info) {
  const bool refused = error == cudaErrorGraphExecUpdateFailure;
  if (info != nullptr) {
    *info = {refused ? cudaGraphExecUpdateErrorNotSupported : cudaGraphExecUpdateError, nullptr, nullptr};
  }
  return error;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" cudaError_t CUDARTAPI cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                                                      cudaGraph_t childGraph) {
  return enter({Function::kGraphExecChildGraphNodeSetParams, hGraphExec, node},
               [&](const Call& call) { return set_child(call, hGraphExec, node, childGraph); });
}

extern "C" cudaError_t CUDARTAPI cudaGraphExecUpdate(cudaGraphExec_t hGraphExec, cudaGraph_t hGraph,
                                                     cudaGraphExecUpdateResultInfo* resultInfo) {
  return enter(
      {Function::kGraphExecUpdate, hGraphExec, hGraph},
      [&](const Call& call) { return update(call, hGraphExec, hGraph, resultInfo); },
      [&](const Call&, cudaError_t error) { return refuse_as_injected(error, resultInfo); });
}
