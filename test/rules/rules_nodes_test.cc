// Device-updatable nodes, host nodes and user objects: facts 26 to 28.
#include <atomic>
#include <chrono>
#include <cstring>

#include "misuses.h"
#include "rules.h"

namespace graphcache::test {
namespace {

class DeviceUpdatable : public RuntimeRules {
 protected:
  // `filler` fills the value's bytes before it is set.
  static cudaError_t make_updatable(cudaGraphNode_t node, int filler = 0) {
    cudaLaunchAttributeValue value;
    std::memset(&value, filler, sizeof value);
    value.deviceUpdatableKernelNode.deviceUpdatable = 1;
    return cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeDeviceUpdatableKernelNode, &value);
  }

  cudaGraph_t updatable(float value) {
    const cudaGraph_t graph = capture([&] { OK(put(value, stream_)); });
    GIVES(cudaSuccess, make_updatable(nodes(graph)[0]));
    return graph;
  }
};

// An object that counts its destruction, and the caller's reference to it.
class Owned {
 public:
  explicit Owned(unsigned references = 1) {
    GIVES(cudaSuccess,
          cudaUserObjectCreate(&handle_, &destroyed_, count_up, references, cudaUserObjectNoDestructorSync));
  }

  cudaUserObject_t handle() const { return handle_; }
  void give_to(cudaGraph_t graph) {
    GIVES(cudaSuccess, cudaGraphRetainUserObject(graph, handle_, 1, cudaGraphUserObjectMove));
  }
  int destroyed() const { return destroyed_; }

  // Like destroyed(), but gives the driver's thread time to destroy what executables held.
  int destroyed_soon() const {
    for (int i = 0; i < 1000 && destroyed_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return destroyed_;
  }

 private:
  std::atomic<int> destroyed_ = 0;
  cudaUserObject_t handle_ = nullptr;
};

class UserObjects : public RuntimeRules {
 protected:
  // An executable that is the only holder of the object.
  cudaGraphExec_t holder_of(Owned& object) {
    const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
    object.give_to(graph);
    const cudaGraphExec_t executable = instantiate(graph);
    destroy(graph);
    return executable;
  }

  // Gives the driver's thread time for a wrong destruction: waits until it has destroyed the object of `idle`, an
  // executable that was never launched, or for a second.
  void destroy_and_wait(cudaGraphExec_t idle, const Owned& object) {
    destroy(idle);
    object.destroyed_soon();
  }
};

using Fact26 = DeviceUpdatable;
using Fact27 = RuntimeRules;
using Fact28 = UserObjects;

TEST_F(Fact26, AGraphWithUpdatableNodesHasOneExecutableAtATimeThatTheHostPatchesAllTheSame) {
  const cudaGraph_t graph = updatable(3);
  const cudaGraphNode_t node = nodes(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  GIVES(cudaErrorNotSupported, instantiation_error(graph));
  OK(cudaGraphUpload(executable, stream_));
  EXPECT_EQ(3, run(executable));
  OK(patch(executable, node, 4));
  EXPECT_EQ(4, run(executable));
  OK(cudaGraphNodeSetEnabled(executable, node, 0));
  EXPECT_EQ(0, run(executable));
  destroy(executable);
  EXPECT_EQ(3, run(instantiate(graph)));
}

TEST_F(Fact26, UpdatesFromOrToUpdatableNodesAreRefused) {
  const cudaGraph_t graph = updatable(3), plain = capture([this] { OK(put(1, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph), of_plain = instantiate(plain);
  GIVES(cudaErrorNotSupported, update(executable, graph));
  GIVES(cudaErrorNotSupported, update(executable, plain));
  GIVES(cudaErrorNotSupported, update(of_plain, graph));
  EXPECT_EQ(3, run(executable));
  EXPECT_EQ(1, run(of_plain));
}

TEST_F(Fact26, AnUpdatableNodeStaysOneAndStays) {
  const cudaGraph_t graph = updatable(3);
  const cudaGraphNode_t node = nodes(graph)[0];
  cudaLaunchAttributeValue value = {};
  OK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeDeviceUpdatableKernelNode, &value));
  EXPECT_EQ(1, value.deviceUpdatableKernelNode.deviceUpdatable);
  EXPECT_NE(nullptr, value.deviceUpdatableKernelNode.devNode);
  GIVES(cudaSuccess, make_updatable(node));
  value = {};
  GIVES(cudaErrorNotSupported,
        cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeDeviceUpdatableKernelNode, &value));
  GIVES(cudaErrorNotSupported, clone_error(graph));
  GIVES(cudaErrorNotSupported, cudaGraphDestroyNode(node));
}

TEST_F(Fact26, TheAttributeMustBeZeroedBeforeItIsFilled) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  GIVES(cudaErrorInvalidValue, make_updatable(nodes(graph)[0], 0x5a));
  instantiate(graph);
  instantiate(graph);  // the node itself holds none

  const auto launched = [&](int filler) {
    cudaLaunchAttribute attribute;
    std::memset(&attribute, filler, sizeof attribute);
    attribute.id = cudaLaunchAttributeDeviceUpdatableKernelNode;
    attribute.val.deviceUpdatableKernelNode.deviceUpdatable = 1;
    cudaLaunchConfig_t config = {
        .gridDim = 1, .blockDim = 1, .dynamicSmemBytes = 0, .stream = stream_, .attrs = &attribute, .numAttrs = 1};
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(do_nothing), nullptr);
  };
  GIVES(cudaErrorNotSupported, launched(0));  // outside of a capture
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorInvalidValue, launched(0x5a));
  GIVES(cudaSuccess, launched(0));
  EXPECT_EQ(2u, end_valid(stream_));
}

TEST_F(Fact27, HostFunctionsRunInOrderAndInGraphs) {
  std::atomic<int> counter = 0;
  OK(cudaLaunchHostFunc(stream_, count_up, &counter));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, counter);
  const cudaGraph_t graph = capture([&] { OK(cudaLaunchHostFunc(stream_, count_up, &counter)); });
  EXPECT_EQ(1, counter);
  run(instantiate(graph));
  EXPECT_EQ(2, counter);
}

TEST_F(Fact27, CallsInsideAHostFunctionAreRefused) {
  misuses_on_purpose = true;
  struct Seen {
    int device = 0;
    cudaStream_t stream = nullptr;
    cudaError_t errors[3] = {};
  } seen;
  seen.stream = other_;
  const auto function = [](void* data) {
    auto& found = *static_cast<Seen*>(data);
    void* memory = nullptr;
    found.errors[0] = cudaGetDevice(&found.device);
    found.errors[1] = cudaMalloc(&memory, 64);
    found.errors[2] = cudaStreamQuery(found.stream);
  };
  OK(cudaLaunchHostFunc(stream_, function, &seen));
  GIVES(cudaSuccess, cudaStreamSynchronize(stream_));
  for (cudaError_t error : seen.errors) EXPECT_EQ(cudaErrorNotPermitted, error);
}

TEST_F(Fact27, TheDataOfAHostNodeIsTheCallers) {
  std::atomic<int> first = 0, second = 0;
  const cudaGraph_t graph = make_graph();
  cudaGraphNode_t node = nullptr;
  cudaHostNodeParams params = {count_up, &first}, nobody = {nullptr, &first}, found = {};
  GIVES(cudaErrorInvalidValue, cudaGraphAddHostNode(&node, graph, nullptr, 0, &nobody));
  OK(cudaGraphAddHostNode(&node, graph, nullptr, 0, &params));
  const cudaGraphExec_t executable = instantiate(graph);
  first = 10;
  run(executable);
  EXPECT_EQ(11, first);

  params.userData = &second;
  OK(cudaGraphExecHostNodeSetParams(executable, node, &params));
  OK(cudaGraphHostNodeGetParams(node, &found));
  EXPECT_EQ(&first, found.userData);
  run(executable);
  EXPECT_EQ(11, first);
  EXPECT_EQ(1, second);
  OK(update(executable, graph));
  run(executable);
  EXPECT_EQ(12, first);
  OK(cudaGraphHostNodeSetParams(node, &params));
  OK(update(executable, graph));
  run(executable);
  EXPECT_EQ(2, second);
  GIVES(cudaErrorInvalidValue, cudaGraphExecHostNodeSetParams(executable, node, &nobody));
  GIVES(cudaErrorInvalidValue, cudaGraphHostNodeSetParams(node, &nobody));
  run(executable);
  EXPECT_EQ(3, second);
}

TEST_F(Fact27, HostFunctionsAreNotCalledAfterAnError) {
  const auto behind_a_fault = [this](bool in_a_graph) {
    std::atomic<int> counter = 0;
    const Body body = [&] {
      fail_in(stream_);
      cudaLaunchHostFunc(stream_, count_up, &counter);
    };
    if (in_a_graph) {
      const cudaGraph_t graph = capture(body);
      EXPECT_EQ(2u, nodes(graph).size());
      cudaGraphLaunch(instantiate(graph), stream_);
    } else {
      body();
    }
    GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
    GIVES(cudaErrorLaunchFailure, cudaLaunchHostFunc(stream_, count_up, &counter));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(0, counter);
  };
  in_own_process([&] { behind_a_fault(false); });
  in_own_process([&] { behind_a_fault(true); });
}

TEST_F(Fact28, ReferencesAreCountedAndTheLastOneDestroys) {
  Owned object(2);
  OK(cudaUserObjectRelease(object.handle(), 1));
  EXPECT_EQ(0, object.destroyed());
  OK(cudaUserObjectRetain(object.handle(), 2));
  OK(cudaUserObjectRelease(object.handle(), 2));
  EXPECT_EQ(0, object.destroyed());
  OK(cudaUserObjectRelease(object.handle(), 1));
  EXPECT_EQ(1, object.destroyed());  // at once, on this thread
}

TEST_F(Fact28, BadArgumentsAreRefused) {
  const auto kNoSync = cudaUserObjectNoDestructorSync;
  int data = 0;
  cudaUserObject_t object = nullptr;
  GIVES(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &data, count_up, 1, 0));
  GIVES(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &data, count_up, 1, 3));
  GIVES(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &data, count_up, 0, kNoSync));
  GIVES(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &data, nullptr, 1, kNoSync));
  GIVES(cudaErrorInvalidValue, cudaUserObjectCreate(nullptr, &data, count_up, 1, kNoSync));
  Owned good;
  const cudaGraph_t graph = make_graph();
  GIVES(cudaErrorInvalidValue, cudaUserObjectRetain(nullptr, 1));
  GIVES(cudaErrorInvalidValue, cudaUserObjectRelease(nullptr, 1));
  GIVES(cudaErrorInvalidValue, cudaUserObjectRetain(good.handle(), 0));
  GIVES(cudaErrorInvalidValue, cudaUserObjectRelease(good.handle(), 0));
  GIVES(cudaErrorInvalidValue, cudaGraphRetainUserObject(graph, good.handle(), 0, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphRetainUserObject(graph, good.handle(), 1, 2));
  GIVES(cudaErrorInvalidValue, cudaGraphRetainUserObject(graph, nullptr, 1, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphRetainUserObject(nullptr, good.handle(), 1, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphReleaseUserObject(graph, good.handle(), 0));
  OK(cudaUserObjectRelease(good.handle(), 1));
  EXPECT_EQ(1, good.destroyed());
}

TEST_F(Fact28, AGraphHoldsAnObjectUntilItReleasesItOrIsDestroyed) {
  const cudaGraph_t graph = make_graph();
  Owned moved, shared, released;
  moved.give_to(graph);
  OK(cudaGraphRetainUserObject(graph, shared.handle(), 1, 0));
  OK(cudaGraphRetainUserObject(graph, released.handle(), 2, 0));
  OK(cudaUserObjectRelease(released.handle(), 1));
  OK(cudaGraphReleaseUserObject(graph, released.handle(), 1));
  EXPECT_EQ(0, released.destroyed());
  OK(cudaGraphReleaseUserObject(graph, released.handle(), 1));
  EXPECT_EQ(1, released.destroyed());
  EXPECT_EQ(0, moved.destroyed());
  destroy(graph);
  EXPECT_EQ(1, moved.destroyed());
  EXPECT_EQ(0, shared.destroyed());
  OK(cudaUserObjectRelease(shared.handle(), 1));
  EXPECT_EQ(1, shared.destroyed());
}

TEST_F(Fact28, ClonesAndParentsHoldTheObjectsToo) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); }), parent = make_graph();
  Owned object;
  object.give_to(graph);
  cudaGraph_t clone = nullptr;
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, graph));
  destroy(graph);
  OK(cudaGraphDestroy(clone));
  EXPECT_EQ(0, object.destroyed());
  OK(cudaGraphDestroyNode(node));
  EXPECT_EQ(1, object.destroyed());
}

TEST_F(Fact28, AnExecutableHoldsTheObjectsOfItsGraph) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  Owned object, late;
  object.give_to(graph);
  const cudaGraphExec_t executable = instantiate(graph), twin = instantiate(graph);
  late.give_to(graph);
  destroy(graph);
  EXPECT_EQ(1, late.destroyed());  // added too late for the executables
  EXPECT_EQ(1, run(executable));
  destroy(executable);
  EXPECT_EQ(1, run(twin));
  EXPECT_EQ(0, object.destroyed());
  destroy(twin);
  EXPECT_EQ(1, object.destroyed_soon());
}

TEST_F(Fact28, ALaunchInFlightHoldsTheObjectsOfADestroyedExecutable) {
  Owned object, of_idle;
  const cudaGraphExec_t executable = holder_of(object), idle = holder_of(of_idle);
  Busy busy(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  destroy(executable);
  destroy_and_wait(idle, of_idle);
  EXPECT_EQ(0, object.destroyed());
  busy.end();
  EXPECT_EQ(1, object.destroyed_soon());
  EXPECT_EQ(1, of_idle.destroyed_soon());
  EXPECT_EQ(1, read());
}

TEST_F(Fact28, AnUpdateExchangesTheObjects) {
  const cudaGraph_t second = capture([this] { OK(put(2, stream_)); });
  Owned of_first, of_second, of_idle;
  of_second.give_to(second);
  const cudaGraphExec_t executable = holder_of(of_first), idle = holder_of(of_idle);
  Busy busy(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(update(executable, second));
  destroy_and_wait(idle, of_idle);
  EXPECT_EQ(0, of_first.destroyed());  // the launch in flight uses the first graph
  busy.end();
  EXPECT_EQ(1, of_first.destroyed_soon());
  EXPECT_EQ(1, of_idle.destroyed_soon());
  destroy(second);
  EXPECT_EQ(2, run(executable));
  EXPECT_EQ(0, of_second.destroyed());
  destroy(executable);
  EXPECT_EQ(1, of_second.destroyed_soon());
}

TEST_F(Fact28, ARefusedUpdateExchangesNothing) {
  const cudaGraph_t second = make_graph();
  Owned of_first, of_second;
  of_second.give_to(second);
  const cudaGraphExec_t executable = holder_of(of_first);
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, second));
  destroy(second);
  EXPECT_EQ(1, of_second.destroyed());
  EXPECT_EQ(0, of_first.destroyed());
  destroy(executable);
  EXPECT_EQ(1, of_first.destroyed_soon());
}

TEST_F(Fact28, DestructorsMayNotCallCuda) {
  misuses_on_purpose = true;
  static std::atomic<int> refused;
  refused = 0;
  const auto destructor = [](void*) {
    int device = 0;
    void* memory = nullptr;
    refused += cudaGetDevice(&device) == cudaErrorNotPermitted ? 1 : 0;
    refused += cudaMalloc(&memory, 64) == cudaErrorNotPermitted ? 1 : 0;
  };
  cudaUserObject_t object = nullptr;
  OK(cudaUserObjectCreate(&object, nullptr, destructor, 1, cudaUserObjectNoDestructorSync));
  OK(cudaUserObjectRelease(object, 1));
  EXPECT_EQ(2, refused);
}

}  // namespace
}  // namespace graphcache::test
