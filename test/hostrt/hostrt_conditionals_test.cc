// Conditional nodes of hostrt. docs/semantics.md describes their behaviour on a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "conditional/conditional.h"
#include "hostrt_objects.h"

namespace graphcache::test {
namespace {

void set_from(cudaGraphConditionalHandle handle, const unsigned* condition) {
  if (!hostrt::set_conditional(handle, *condition)) throw 0;
}
GRAPHCACHE_HOST_KERNEL(set_from)

void lower(unsigned* value) { --*value; }
GRAPHCACHE_HOST_KERNEL(lower)

constexpr auto kSwitch = static_cast<cudaGraphConditionalNodeType>(2);  // older toolkits have no name for it

class HostrtConditionals : public HostrtObjects {
 protected:
  using Enqueue = std::function<void(cudaStream_t, unsigned)>;

  static cudaGraphNodeParams params_of(cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                                       unsigned size) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    return params;
  }
  static cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, cudaGraphNodeParams* params) {
    return add_node(node, graph, nullptr, 0, params);
  }
  // Adds an if node to the graph, and returns its body.
  static cudaGraph_t add_if(cudaGraph_t graph) {
    cudaGraphNodeParams params = params_of(handle_of(graph), cudaGraphCondTypeIf, 1);
    cudaGraphNode_t node = nullptr;
    GIVES(cudaSuccess, add(&node, graph, &params));
    return params.conditional.phGraph_out[0];
  }
  static cudaError_t begin_in(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* behind = nullptr) {
    return cudaStreamBeginCaptureToGraph(stream, graph, behind, nullptr, behind != nullptr ? 1 : 0,
                                         cudaStreamCaptureModeThreadLocal);
  }
  static cudaGraphConditionalHandle handle_of(cudaGraph_t graph, unsigned value = 0, unsigned flags = 0) {
    cudaGraphConditionalHandle handle = 0;
    GIVES(cudaSuccess, cudaGraphConditionalHandleCreate(&handle, graph, value, flags));
    return handle;
  }
  // Captures the bodies on other_.
  std::vector<cudaGraph_t> add_bodies(cudaGraph_t graph, cudaGraphConditionalHandle handle,
                                      cudaGraphConditionalNodeType type, unsigned size, const Enqueue& enqueue,
                                      cudaGraphNode_t* node = nullptr) {
    cudaGraphNodeParams params = params_of(handle, type, size);
    cudaGraphNode_t added = nullptr;
    GIVES(cudaSuccess, add(&added, graph, &params));
    if (node != nullptr) *node = added;
    const std::vector<cudaGraph_t> bodies(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    for (unsigned i = 0; i < size; ++i) {
      GIVES(cudaSuccess, begin_in(other_, bodies[i]));
      enqueue(other_, i);
      cudaGraph_t captured = nullptr;
      GIVES(cudaSuccess, cudaStreamEndCapture(other_, &captured));
      EXPECT_EQ(captured, bodies[i]);
    }
    return bodies;
  }
  // A kernel that sets the condition, then the node, then a kernel that writes 9.
  cudaGraph_t with_condition(cudaGraphConditionalNodeType type, unsigned size, const Enqueue& enqueue) {
    return capture([&] {
      const cudaGraph_t graph = graph_of_capture();
      handle_ = handle_of(graph);
      GIVES(cudaSuccess, launch(set_from, 1, 1, stream_, handle_, &condition_));
      cudaGraphNode_t node = nullptr;
      bodies_ = add_bodies(graph, handle_, type, size, enqueue, &node);
      GIVES(cudaSuccess, add_dependency(graph, nodes_of(graph)[0], node));
      GIVES(cudaSuccess, set_capture_dependency(stream_, node));
      GIVES(cudaSuccess, write(9, stream_));
    });
  }
  // Bodies that write 1, and bodies that write their numbers.
  Enqueue one() {
    return [this](cudaStream_t on, unsigned) { OK(write(1, on)); };
  }
  Enqueue number() {
    return [this](cudaStream_t on, unsigned i) { OK(write(static_cast<int>(i), on)); };
  }
  Values launched_with(cudaGraphExec_t executable, unsigned condition) {
    condition_ = condition;
    return launched(executable);
  }

  unsigned condition_ = 0;
  cudaGraphConditionalHandle handle_ = 0;
  std::vector<cudaGraph_t> bodies_;
};

TEST_F(HostrtConditionals, AnIfRunsItsBodyOrItsElse) {
  const cudaGraphExec_t alone = instantiate(with_condition(cudaGraphCondTypeIf, 1, one()));
  EXPECT_EQ(Values({9}), launched_with(alone, 0));
  EXPECT_EQ(Values({1, 9}), launched_with(alone, 1));
  EXPECT_EQ(Values({1, 9}), launched_with(alone, 7));
  const cudaGraphExec_t two = instantiate(with_condition(cudaGraphCondTypeIf, 2, number()));
  EXPECT_EQ(Values({1, 9}), launched_with(two, 0));
  EXPECT_EQ(Values({0, 9}), launched_with(two, 1));
}

TEST_F(HostrtConditionals, AWhileRepeatsItsBody) {
  const cudaGraphExec_t executable =
      instantiate(with_condition(cudaGraphCondTypeWhile, 1, [&](cudaStream_t on, unsigned) {
        OK(write(1, on));
        OK(launch(lower, 1, 1, on, &condition_));
        OK(launch(set_from, 1, 1, on, handle_, &condition_));
      }));
  EXPECT_EQ(Values({1, 1, 1, 9}), launched_with(executable, 3));
  EXPECT_EQ(Values({9}), launched_with(executable, 0));
}

TEST_F(HostrtConditionals, ASwitchRunsOneBodyOrNone) {
  const cudaGraphExec_t executable = instantiate(with_condition(kSwitch, 3, number()));
  for (const unsigned value : {0u, 1u, 2u}) {
    EXPECT_EQ(Values({static_cast<int>(value), 9}), launched_with(executable, value));
  }
  EXPECT_EQ(Values({9}), launched_with(executable, 3));
  EXPECT_EQ(Values({9}), launched_with(executable, ~0u));
}

TEST_F(HostrtConditionals, TheDefaultIsSetAtEachLaunchIfThatIsWanted) {
  for (const unsigned flags : {0u, unsigned{cudaGraphCondAssignDefault}}) {
    for (const unsigned value : {0u, 1u}) {
      const cudaGraph_t graph = empty_graph();
      add_bodies(graph, handle_of(graph, value, flags), cudaGraphCondTypeIf, 1, one());
      const cudaGraphExec_t executable = instantiate(graph);
      const Values expected = flags != 0 && value != 0 ? Values({1}) : Values({});
      EXPECT_EQ(expected, launched(executable));
      EXPECT_EQ(expected, launched(executable));
      if (flags == 0) expected_misuses_ += 2;  // Nothing has set the condition.
    }
  }
}

TEST_F(HostrtConditionals, TheLedgerCountsNodesOfBodiesButNotTheirGraphs) {
  const cudaGraph_t graph = with_condition(cudaGraphCondTypeIf, 2, one());
  EXPECT_EQ(before_.graphs + 1, hostrt::ledger().graphs);
  EXPECT_EQ(before_.nodes + 5, hostrt::ledger().nodes);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(5u, hostrt::ledger().executable_nodes);
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(Values({1, 9}), launched_with(executable, 1));  // the executable keeps the condition
  OK(cudaGraphExecDestroy(executable));
  EXPECT_EQ(before_, hostrt::ledger());
}

TEST_F(HostrtConditionals, OneExecutableAtATimeAndNoClone) {
  const cudaGraph_t graph = with_condition(cudaGraphCondTypeIf, 1, one());
  const cudaGraphExec_t first = instantiate(graph);
  GIVES(cudaErrorNotSupported, instantiation_error(graph));
  OK(cudaGraphExecDestroy(first));
  EXPECT_EQ(Values({1, 9}), launched_with(instantiate(graph), 1));
  GIVES(cudaErrorNotSupported, clone_error(graph));
  GIVES(cudaErrorNotSupported, clone_error(bodies_[0]));
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&node, empty_graph(), nullptr, 0, graph));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(bodies_[0]));
  expect_misuse("cudaGraphDestroy: the graph belongs to a conditional node");
}

TEST_F(HostrtConditionals, AHandleIsForOneNodeOfItsGraph) {
  const cudaGraph_t graph = empty_graph(), other = empty_graph();
  const cudaGraphConditionalHandle handle = handle_of(graph);
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorInvalidValue, instantiation_error(graph));  // it has no node
  GIVES(cudaErrorNotSupported, clone_error(graph));
  const auto refuses = [&](cudaError_t error, cudaGraph_t in, cudaGraphNodeParams params) {
    GIVES(error, add(&node, in, &params));
  };
  refuses(cudaErrorInvalidValue, graph, params_of(0, cudaGraphCondTypeIf, 1));
  refuses(cudaErrorInvalidValue, graph, params_of(handle, cudaGraphCondTypeIf, 0));
  refuses(cudaErrorInvalidValue, graph, params_of(handle, cudaGraphCondTypeIf, 3));
  refuses(cudaErrorInvalidValue, graph, params_of(handle, cudaGraphCondTypeWhile, 2));
  refuses(cudaErrorInvalidValue, graph, params_of(handle, kSwitch, 0));
  refuses(cudaErrorInvalidValue, other, params_of(handle, cudaGraphCondTypeIf, 1));
  cudaGraphNodeParams params = params_of(handle, cudaGraphCondTypeIf, 1);
  OK(add(&node, graph, &params));
  refuses(cudaErrorInvalidValue, graph, params_of(handle, cudaGraphCondTypeIf, 1));
  cudaGraphNodeParams semaphore = {};
  semaphore.type = cudaGraphNodeTypeExtSemaphoreSignal;
  refuses(cudaErrorNotSupported, graph, semaphore);
  cudaGraphConditionalHandle none = 0;
  GIVES(cudaErrorInvalidValue, cudaGraphConditionalHandleCreate(&none, nullptr, 0, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphConditionalHandleCreate(&none, graph, 0, 8));
  GIVES(cudaErrorInvalidValue, cudaGraphConditionalHandleCreate(nullptr, graph, 0, 0));
  EXPECT_FALSE(hostrt::set_conditional(handle, 1));  // not from a kernel
}

TEST_F(HostrtConditionals, AnUpdateAndAPatchReachIntoBodies) {
  const auto graph = [&](unsigned size, int value, int count = 1) {
    return with_condition(cudaGraphCondTypeIf, size, [&, value, count](cudaStream_t on, unsigned) {
      for (int i = 0; i < count; ++i) OK(write(value, on));
    });
  };
  const cudaGraph_t base = graph(1, 1);
  const cudaGraphNode_t kernel = nodes_of(bodies_[0])[0];
  const cudaGraphExec_t executable = instantiate(base);
  OK(patch(executable, kernel, 5));
  EXPECT_EQ(Values({5, 9}), launched_with(executable, 1));
  OK(update(executable, graph(1, 2)));
  EXPECT_EQ(Values({2, 9}), launched_with(executable, 1));
  EXPECT_EQ(Values({9}), launched_with(executable, 0));
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, graph(2, 3)));
  EXPECT_EQ(cudaGraphExecUpdateErrorNotSupported, info_.result);
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, graph(1, 3, 2)));
  EXPECT_EQ(cudaGraphExecUpdateErrorTopologyChanged, info_.result);
  EXPECT_EQ(Values({2, 9}), launched_with(executable, 1));
}

TEST_F(HostrtConditionals, ABodyHoldsNeitherHostFunctionsNorCopiesOfPageableMemory) {
  static int pageable = 0;
  const Enqueue forbidden[] = {
      [](cudaStream_t on, unsigned) { OK(cudaLaunchHostFunc(on, no_call, nullptr)); },
      [](cudaStream_t on, unsigned) {
        void* memory = nullptr;
        OK(cudaMallocAsync(&memory, 64, on));
        OK(cudaFreeAsync(memory, on));
      },
      [this](cudaStream_t on, unsigned) { OK(cudaEventRecordWithFlags(event_, on, cudaEventRecordExternal)); },
      [this](cudaStream_t on, unsigned) {
        OK(cudaMemcpyAsync(log_, &pageable, sizeof pageable, cudaMemcpyHostToDevice, on));
      }};
  for (const Enqueue& enqueue : forbidden) {
    SCOPED_TRACE(&enqueue - forbidden);
    const cudaGraph_t graph = with_condition(cudaGraphCondTypeIf, 1, enqueue);
    GIVES(cudaErrorInvalidValue, instantiation_error(graph));
  }
}

// As in a driver, which crashes afterwards.
TEST_F(HostrtConditionals, ABrokenCaptureTakesTheBodyAlong) {
  const cudaGraph_t graph = empty_graph(), body = add_if(graph);
  OK(begin_in(other_, body));
  GIVES(cudaErrorIllegalState, begin_in(stream_, body));
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(other_));
  GIVES(cudaErrorStreamCaptureInvalidated, end_of_capture_error(other_));
  std::size_t count = 0;
  GIVES(cudaErrorInvalidValue, cudaGraphGetNodes(body, nullptr, &count));
  expect_misuse("cudaGraphGetNodes: graph was destroyed");
  OK(cudaGraphDestroy(graph));
  expect_misuse("cudaGraphDestroy: a conditional node is destroyed whose body went with a broken capture");
}

TEST_F(HostrtConditionals, ACaptureEndsWithTheNodeThatItIsFor) {
  const cudaGraph_t graph = empty_graph();
  OK(begin_in(other_, add_if(graph)));
  OK(write(1, other_));
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorStreamCaptureInvalidated, end_of_capture_error(other_));
  OK(write(2, other_));
  EXPECT_EQ(Values({2}), taken());
}

TEST_F(HostrtConditionals, ACaptureContinuesBehindNodesOfTheGraph) {
  const cudaGraph_t graph = capture_values({1, 2});
  const cudaGraphNode_t first = nodes_of(graph)[0];
  OK(begin_in(other_, graph, &first));
  OK(write(3, other_));
  cudaGraph_t captured = nullptr;
  OK(cudaStreamEndCapture(other_, &captured));
  EXPECT_EQ(graph, captured);
  EXPECT_EQ((std::set<Values>{{1, 2, 3}, {1, 3, 2}}), orders_of(instantiate(graph)));
}

// Whatever the random order, the preceding kernel sets the condition first, and what follows the node runs last.
TEST_F(HostrtConditionals, ANodeRunsAsOneWhenDeferred) {
  const cudaGraph_t graph = with_condition(cudaGraphCondTypeIf, 1, [&](cudaStream_t on, unsigned) {
    OK(write(1, on));
    OK(write(2, on));
  });
  cudaGraphNode_t beside = nullptr;
  const Params of_beside(append, 1, 1, log_, &count_, 5);
  OK(cudaGraphAddKernelNode(&beside, graph, nullptr, 0, of_beside.get()));
  condition_ = 1;
  const std::set<Values> orders = orders_of(instantiate(graph), 100);
  EXPECT_EQ((std::set<Values>{{5, 1, 2, 9}, {1, 2, 5, 9}, {1, 2, 9, 5}}), orders);
}

TEST_F(HostrtConditionals, AConditionThatIsGoneIsAFault) {
  const cudaGraph_t graph = with_condition(cudaGraphCondTypeIf, 1, [](cudaStream_t, unsigned) {});
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorLaunchFailure, launch(set_from, 1, 1, stream_, handle_, &condition_));
}

TEST_F(HostrtConditionals, EachCallCanBeMadeToFail) {
  const cudaGraph_t graph = empty_graph();
  cudaGraphNodeParams params = params_of(handle_of(graph), cudaGraphCondTypeIf, 1);
  cudaGraphNode_t node = nullptr;
  hostrt::fail_call("cudaGraphAddNode", 1, cudaErrorMemoryAllocation);
  GIVES(cudaErrorMemoryAllocation, add(&node, graph, &params));
  cudaGraphConditionalHandle handle = 0;
  hostrt::fail_call("cudaGraphConditionalHandleCreate", 1, cudaErrorMemoryAllocation);
  GIVES(cudaErrorMemoryAllocation, cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
  hostrt::fail_call("cudaStreamBeginCaptureToGraph", 1, cudaErrorMemoryAllocation);
  GIVES(cudaErrorMemoryAllocation, begin_in(other_, capture_values({1})));
}

}  // namespace
}  // namespace graphcache::test
