// Calls on child graph nodes of templates. The calls on executables are in exec_update.cc, because they follow the same
// rules as cudaGraphExecUpdate.

#include "graph.h"

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphAddChildGraphNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                                 const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                                 cudaGraph_t childGraph) {
  return add_by_hand(
      Function::kGraphAddChildGraphNode, pGraphNode, graph, pDependencies, numDependencies,
      [&](const Call& call, const Graph& parent, NodeParams* params) {
        Graph* child = find_graph(call, childGraph);
        if (child == nullptr) return cudaErrorInvalidValue;
        if (child == &parent) return call.misuse(cudaErrorInvalidValue, "a graph as its own child: the driver crashes");
        // "If childGraph contains allocation nodes, free nodes, or conditional nodes, this call will return an error."
        // A handle without a node counts as well.
        const bool has_conditions = has_conditional_nodes(*child) || !child->conditions.empty();
        if (has_memory_nodes(*child) || has_conditions) return cudaErrorNotSupported;
        *params = ChildParams{&clone_graph(call.state, *child), nullptr};
        return cudaSuccess;
      },
      [](const Call&, Node& node) { std::get<ChildParams>(node.params).graph->parent = &node; }, childGraph);
}

cudaError_t CUDARTAPI cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* pGraph) {
  return enter({Function::kGraphChildGraphNodeGetGraph, node}, [&](const Call& call) {
    const ChildParams* params = params_of<ChildParams>(call, node);
    if (params == nullptr || pGraph == nullptr) return cudaErrorInvalidValue;
    *pGraph = params->graph->handle;
    return cudaSuccess;
  });
}

}  // extern "C"
