#include "event_nodes.h"

#include <memory>
#include <utility>

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

void record(State& state, Stream& stream, Event& event) {
  event.recorded = true;
  event.capture_id = 0;
  event.captured.clear();
  event.mark = mark(state, stream);
}

// Launches one node. A misuse of the node names the current call.
GraphRun run_alone(const State& state, const Program& all, const ProgramNode& one) {
  auto program = std::make_shared<Program>();
  program->device_nodes = all.device_nodes;
  ProgramNode& node = program->nodes.emplace_back();
  node.base_node = one.base_node;
  node.params = one.params;
  node.enabled = one.enabled;
  program->order.push_back(0);
  return {std::move(program), state.endings.here};
}

void enqueue_nodes(State& state, Stream& stream, const Program& program) {
  for (const std::uint32_t position : program.order) {
    const ProgramNode& node = program.nodes[position];
    const auto* child = std::get_if<ChildParams>(&node.params);
    if (child != nullptr && child->program->has_events) {
      enqueue_nodes(state, stream, *child->program);
    } else if (const auto* waits = std::get_if<EventWaitParams>(&node.params)) {
      wait_for(state, stream, state.events.find(waits->event)->mark);
    } else if (const auto* records = std::get_if<EventRecordParams>(&node.params)) {
      record(state, stream, *state.events.find(records->event));
    } else if (node.enabled) {
      enqueue(state, stream, run_alone(state, program, node));
    }
  }
}

}  // namespace

bool events_exist(const Call& call, const Program& program) {
  bool exist = true;
  for (const ProgramNode& node : program.nodes) {
    const auto* waits = std::get_if<EventWaitParams>(&node.params);
    const auto* records = std::get_if<EventRecordParams>(&node.params);
    const auto* child = std::get_if<ChildParams>(&node.params);
    if (waits != nullptr) exist &= find_event(call, waits->event) != nullptr;
    if (records != nullptr) exist &= find_event(call, records->event) != nullptr;
    if (child != nullptr) exist &= events_exist(call, *child->program);
  }
  return exist;
}

void enqueue_in_steps(State& state, Stream& stream, const std::shared_ptr<Program>& program) {
  enqueue_nodes(state, stream, *program);
  // Like any other launch, this one holds the program until it ends: user objects stay alive, and patches copy the
  // program.
  ProgramNode whole;
  whole.params = ChildParams{nullptr, program};
  whole.enabled = false;
  enqueue(state, stream, run_alone(state, *program, whole));
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
