#include "event_nodes.h"

#include "exec.h"
#include "graph.h"
#include "schedule.h"

namespace graphcache::hostrt {
namespace {

template <typename Params>
[[gnu::always_inline]] inline cudaError_t add(Function function, cudaGraphNode_t* out, cudaGraph_t graph,
                                              const cudaGraphNode_t* dependencies, std::size_t dependency_count,
                                              cudaEvent_t event) {
  return add_by_hand(function, out, graph, dependencies, dependency_count,
                     [&](const Call& call, const Graph&, NodeParams* params) {
                       if (find_event(call, event) == nullptr) return cudaErrorInvalidValue;
                       *params = Params{event};
                       return cudaSuccess;
                     });
}

template <typename Params>
[[gnu::always_inline]] inline cudaError_t get(Function function, cudaGraphNode_t node, cudaEvent_t* out) {
  return enter({function, node}, [&](const Call& call) {
    const Params* params = params_of<Params>(call, node);
    if (params == nullptr || out == nullptr) return cudaErrorInvalidValue;
    *out = params->event;
    return cudaSuccess;
  });
}

template <typename Params>
[[gnu::always_inline]] inline cudaError_t set(Function function, cudaGraphNode_t node, cudaEvent_t event) {
  return enter({function, node}, [&](const Call& call) {
    Params* params = params_of<Params>(call, node);
    if (params == nullptr || find_event(call, event) == nullptr) return cudaErrorInvalidValue;
    params->event = event;
    return cudaSuccess;
  });
}

template <typename Params>
[[gnu::always_inline]] inline cudaError_t set(Function function, cudaGraphExec_t executable, cudaGraphNode_t node,
                                              cudaEvent_t event) {
  return enter({function, executable, node}, [&](const Call& call) {
    return patch<Params>(call, executable, node, [&](Params& params) {
      if (find_event(call, event) == nullptr) return cudaErrorInvalidValue;
      params.event = event;
      return cudaSuccess;
    });
  });
}

// Visits the events of such nodes, in child graphs, too.
template <typename Params, typename Visitor>
void for_each_event(const Program& program, const Visitor& visit) {
  for (const ProgramNode& node : program.nodes) {
    if (const auto* params = std::get_if<Params>(&node.params)) visit(params->event);
    if (const auto* child = std::get_if<ChildParams>(&node.params)) for_each_event<Params>(*child->program, visit);
  }
}

}  // namespace

cudaError_t wait_for_events(const Call& call, Stream& stream, const Program& program) {
  cudaError_t error = cudaSuccess;
  const auto check = [&](cudaEvent_t event) {
    if (find_event(call, event) == nullptr) error = cudaErrorInvalidValue;
  };
  for_each_event<EventWaitParams>(program, check);
  for_each_event<EventRecordParams>(program, check);
  if (error != cudaSuccess) return error;
  for_each_event<EventWaitParams>(
      program, [&](cudaEvent_t event) { wait_for(call.state, stream, call.state.events.find(event)->mark); });
  return cudaSuccess;
}

void record_events(State& state, Stream& stream, const Program& program) {
  for_each_event<EventRecordParams>(program, [&](cudaEvent_t handle) {
    Event& event = *state.events.find(handle);
    event.recorded = true;
    event.capture_id = 0;
    event.captured.clear();
    event.mark = mark(state, stream);
  });
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphAddEventRecordNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                                  const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                                  cudaEvent_t event) {
  return add<EventRecordParams>(Function::kGraphAddEventRecordNode, pGraphNode, graph, pDependencies, numDependencies,
                                event);
}

cudaError_t CUDARTAPI cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event_out) {
  return get<EventRecordParams>(Function::kGraphEventRecordNodeGetEvent, node, event_out);
}

cudaError_t CUDARTAPI cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return set<EventRecordParams>(Function::kGraphEventRecordNodeSetEvent, node, event);
}

cudaError_t CUDARTAPI cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                                           cudaEvent_t event) {
  return set<EventRecordParams>(Function::kGraphExecEventRecordNodeSetEvent, hGraphExec, hNode, event);
}

cudaError_t CUDARTAPI cudaGraphAddEventWaitNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                                const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                                cudaEvent_t event) {
  return add<EventWaitParams>(Function::kGraphAddEventWaitNode, pGraphNode, graph, pDependencies, numDependencies,
                              event);
}

cudaError_t CUDARTAPI cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event_out) {
  return get<EventWaitParams>(Function::kGraphEventWaitNodeGetEvent, node, event_out);
}

cudaError_t CUDARTAPI cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return set<EventWaitParams>(Function::kGraphEventWaitNodeSetEvent, node, event);
}

cudaError_t CUDARTAPI cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                                         cudaEvent_t event) {
  return set<EventWaitParams>(Function::kGraphExecEventWaitNodeSetEvent, hGraphExec, hNode, event);
}

}  // extern "C"
