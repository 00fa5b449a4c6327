// The result of cudaGraphExecUpdate when a node other than a kernel node changes, and the effect on the executable:
// part of the table "What an update says and does" of docs/semantics.md. For GPUs only, like update_answers_test.cc.
#include <cuda.h>  // only for its types
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "conditional/conditional.h"
#include "cuda/compat.h"
#include "update_answers.h"

namespace graphcache::test {
namespace {

using namespace std::chrono_literals;

class UpdateAnswersOfOtherNodesTest : public UpdateAnswersTest {
 protected:
  // A graph with one child node that is a clone of `child`; destroys `child`.
  cudaGraph_t parent_of(cudaGraph_t child) {
    cudaGraph_t graph = nullptr;
    cudaGraphNode_t node = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    CUDA_OK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
    CUDA_OK(cudaGraphDestroy(child));
    return graph;
  }
  cudaGraph_t parent(const Enqueue& enqueue) { return parent_of(captured(enqueue)); }

  cudaGraph_t set_by_hand(void* at, unsigned value, unsigned element_size, std::size_t width) {
    cudaGraph_t graph = nullptr;
    cudaGraphNode_t node = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    const cudaMemsetParams params = {
        .dst = at, .pitch = 0, .value = value, .elementSize = element_size, .width = width, .height = 1};
    CUDA_OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
    return graph;
  }

  // Adds a conditional node. `enqueue` captures each of its bodies.
  void add_conditional(cudaGraph_t graph, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                       unsigned bodies, const Enqueue& enqueue) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = bodies;
    cudaGraphNode_t node = nullptr;
    CUDA_OK(add_node(&node, graph, nullptr, 0, &params));
    for (unsigned i = 0; i < bodies && params.conditional.phGraph_out != nullptr; ++i) {
      cudaGraph_t body = params.conditional.phGraph_out[i];
      CUDA_OK(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
      enqueue();
      CUDA_OK(cudaStreamEndCapture(stream, &body));
    }
  }

  cudaGraphConditionalHandle handle_of(cudaGraph_t graph, unsigned condition) {
    cudaGraphConditionalHandle handle = {};
    CUDA_OK(cudaGraphConditionalHandleCreate(&handle, graph, condition, cudaGraphCondAssignDefault));
    return handle;
  }

  // A graph of one conditional node. Each launch starts with `condition`.
  cudaGraph_t conditional(const Enqueue& enqueue, unsigned condition = 1,
                          cudaGraphConditionalNodeType type = cudaGraphCondTypeIf, unsigned bodies = 1) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    add_conditional(graph, handle_of(graph, condition), type, bodies, enqueue);
    return graph;
  }

  Enqueue set(int at, int value, std::size_t bytes) {
    return [=, this] { CUDA_OK(cudaMemsetAsync(memory.get() + at, value, bytes, stream)); };
  }
  Enqueue set_2d(int value, std::size_t width) {
    return [=, this] { CUDA_OK(cudaMemset2DAsync(memory.get(), 128, value, width, 4, stream)); };
  }
  Enqueue launching(const Change& change, int value = 1) {
    return [=, this] { launch(change, value); };
  }

  // Expects that nodes of a graph inside a node answer as any others.
  void expect_answers_inside(const std::function<cudaGraph_t(const Enqueue&)>& inside) {
    const auto report_changes = [&](const Enqueue& to, int LaunchReport::*seen) {
      return of_report(inside(launching(nullptr)), inside(to), seen);
    };
    EXPECT_EQ(of_memory(inside(set(0, 1, 64)), inside(set(0, 5, 64))), Answer::kApplied);
    EXPECT_EQ(report_changes(launching(nullptr, 2), &LaunchReport::value), Answer::kApplied);
    EXPECT_EQ(report_changes(launching(grid(3)), &LaunchReport::grid), Answer::kApplied);
    if (!has_clusters()) return;
    EXPECT_EQ(report_changes(launching(cluster(2)), &LaunchReport::cluster), Answer::kLie);
  }
};

TEST_F(UpdateAnswersOfOtherNodesTest, SetsMayChangeAllButTheShapeOfTwoDimensions) {
  EXPECT_EQ(of_memory(set(0, 1, 64), set(0, 5, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set(0, 1, 64), set(4096, 1, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set(0, 1, 64), set(0, 1, 4096)), Answer::kApplied);
  EXPECT_EQ(of_memory(set(0, 1, 4096), set(0, 1, 63)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_2d(1, 64), set_2d(6, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_2d(1, 64), set_2d(1, 100)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(set(0, 1, 256), set_2d(1, 64)), Answer::kRefusedParameters);
}

TEST_F(UpdateAnswersOfOtherNodesTest, SetsMayChangeTheirElementSize) {
  char* const p = memory.get();
  EXPECT_EQ(of_memory(set_by_hand(p, 0x01020304, 4, 64), set_by_hand(p, 0x05060708, 4, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_by_hand(p, 0x01020304, 4, 64), set_by_hand(p, 0x01020304, 4, 100)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_by_hand(p, 1, 1, 64), set_by_hand(p, 1, 4, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_by_hand(p, 1, 4, 64), set_by_hand(p, 1, 2, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_by_hand(p, 1, 4, 64), set_by_hand(p, 1, 1, 64)), Answer::kApplied);
}

TEST_F(UpdateAnswersOfOtherNodesTest, SetsMayMoveToMemoryOfAnotherKind) {
  char *managed = nullptr, *pinned = nullptr;
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 64, cudaMemAttachGlobal));
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), 64));
  before_launch = [=] {
    std::memset(managed, 0, 64);
    std::memset(pinned, 0, 64);
  };
  const auto seen = [=, this] { return std::array{memory.first(), managed[0], pinned[0]}; };
  const auto moved = [&](char* from, char* to) {
    return answer<std::array<char, 3>>(set_by_hand(from, 1, 1, 64), set_by_hand(to, 1, 1, 64), seen);
  };
  EXPECT_EQ(moved(memory.get(), managed), Answer::kApplied);
  EXPECT_EQ(moved(managed, memory.get()), Answer::kApplied);
  EXPECT_EQ(moved(memory.get(), pinned), Answer::kApplied);
  EXPECT_EQ(moved(pinned, managed), Answer::kApplied);
  CUDA_OK(cudaFree(managed));
  CUDA_OK(cudaFreeHost(pinned));
}

TEST_F(UpdateAnswersOfOtherNodesTest, CopiesMayChangeAllButTheirKindAndTwoDimensions) {
  char* const p = memory.get();
  const DeviceBuffer<char> device(4096, 3), second(4096, 4);
  const PinnedBuffer<char> of_host(4096, 1), another_of_host(4096, 2);
  const char *const pinned = of_host.get(), *const other = another_of_host.get();
  char* managed = nullptr;
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 4096, cudaMemAttachGlobal));
  std::memset(managed, 5, 4096);
  const std::vector<char> pageable(4096, 7);
  const auto copy = [&](const char* from, std::size_t bytes, cudaMemcpyKind kind) {
    return [=, this] { CUDA_OK(cudaMemcpyAsync(p, from, bytes, kind, stream)); };
  };
  const auto copy_2d = [&](const char* from, std::size_t width) {
    return [=, this] { CUDA_OK(cudaMemcpy2DAsync(p, 128, from, 128, width, 4, cudaMemcpyDeviceToDevice, stream)); };
  };
  const auto copy_3d = [&](char* from, std::size_t width, std::size_t depth) {
    cudaMemcpy3DParms params = {};
    params.srcPtr = {from, 64, 64, 4};
    params.dstPtr = {p, 128, 128, 4};
    params.extent = {width, 4, depth};
    params.kind = cudaMemcpyDeviceToDevice;
    return [=, this] { CUDA_OK(cudaMemcpy3DAsync(&params, stream)); };
  };
  const auto any = cudaMemcpyDefault;
  const auto up = cudaMemcpyHostToDevice;
  const auto across = cudaMemcpyDeviceToDevice;
  EXPECT_EQ(of_memory(copy(pinned, 64, any), copy(other, 64, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, any), copy(pinned, 4096, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, any), copy(device.get(), 64, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(device.get(), 64, any), copy(managed, 64, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(device.get(), 64, across), copy(managed, 64, across)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(managed, 64, any), copy(pinned, 64, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, up), copy(pageable.data(), 64, up)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, up), copy(device.get(), 64, across)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy(pinned, 64, up), copy(other, 64, any)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy(device.get(), 256, across), copy_2d(device.get(), 64)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy_2d(device.get(), 64), copy_2d(second.get(), 64)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy_2d(device.get(), 64), copy_2d(device.get(), 100)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy_3d(device.get(), 32, 4), copy_3d(second.get(), 32, 4)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy_3d(device.get(), 32, 4), copy_3d(device.get(), 48, 4)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy_3d(device.get(), 32, 4), copy_3d(device.get(), 32, 3)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy_2d(device.get(), 32), copy_3d(device.get(), 32, 4)), Answer::kRefusedParameters);
  CUDA_OK(cudaFree(managed));
}

TEST_F(UpdateAnswersOfOtherNodesTest, CopiesMayNotMoveToAnotherDevicesMemory) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  const DeviceBuffer<char> near(64, 3);
  CUDA_OK(cudaSetDevice(1));
  const DeviceBuffer<char> far(64, 4);
  CUDA_OK(cudaSetDevice(0));
  const auto copy = [&](const char* from) {
    return [=, this] { CUDA_OK(cudaMemcpyAsync(memory.get(), from, 64, cudaMemcpyDefault, stream)); };
  };
  EXPECT_EQ(of_memory(copy(near.get()), copy(far.get())), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(copy(far.get()), copy(near.get())), Answer::kRefusedParameters);
}

TEST_F(UpdateAnswersOfOtherNodesTest, NodeOfAnotherTypeIsRefused) {
  const auto copy = [this] { CUDA_OK(cudaMemcpyAsync(memory.get(), report.get(), 4, cudaMemcpyDefault, stream)); };
  EXPECT_EQ(of_memory(set(0, 1, 64), copy), Answer::kRefusedNodeType);
  EXPECT_EQ(of_memory(launching(nullptr), set(0, 1, 64)), Answer::kRefusedNodeType);
  EXPECT_EQ(of_memory(captured(set(0, 1, 64)), parent(set(0, 5, 64))), Answer::kRefusedNodeType);
}

TEST_F(UpdateAnswersOfOtherNodesTest, NodesOfAChildAnswerAsAnyNode) {
  expect_answers_inside([this](const Enqueue& enqueue) { return parent(enqueue); });
  EXPECT_EQ(of_memory(parent_of(parent(set(0, 1, 64))), parent_of(parent(set(0, 5, 64)))), Answer::kApplied);
  EXPECT_EQ(of_memory(parent(set_2d(1, 64)), parent(set_2d(1, 100))), Answer::kRefusedParameters);
}

TEST_F(UpdateAnswersOfOtherNodesTest, AnotherTopologyOfAChildIsRefused) {
  const auto two = [this](int second) {
    return [=, this] {
      set(0, 1, 64)();
      set(second, 5, 64)();
    };
  };
  const Stream other;
  const auto side_by_side = [&] {
    let_follow(other, stream);
    set(0, 1, 64)();
    CUDA_OK(cudaMemsetAsync(memory.get() + 4096, 5, 64, other));
    let_follow(stream, other);
  };
  EXPECT_EQ(of_memory(parent(set(0, 1, 64)), parent(two(4096))), Answer::kRefusedTopology);
  EXPECT_EQ(of_memory(parent(two(4096)), parent(set(0, 1, 64))), Answer::kRefusedTopology);
  EXPECT_EQ(of_memory(parent(two(2048)), parent(side_by_side)), Answer::kRefusedTopology);
  EXPECT_EQ(of_memory(parent(launching(nullptr)), parent(set(0, 1, 64))), Answer::kRefusedNodeType);
}

TEST_F(UpdateAnswersOfOtherNodesTest, HostFunctionAndItsDataAreApplied) {
  std::array<int, 2> called = {};
  before_launch = [&] { called = {}; };
  const auto by = [this](cudaHostFn_t function, int* data) {
    return captured([=, this] { CUDA_OK(cudaLaunchHostFunc(stream, function, data)); });
  };
  const cudaHostFn_t one = [](void* data) { *static_cast<int*>(data) = 1; };
  const cudaHostFn_t two = [](void* data) { *static_cast<int*>(data) = 2; };
  const auto seen = [&] { return called; };
  using Called = std::array<int, 2>;
  EXPECT_EQ(answer<Called>(by(one, &called[0]), by(two, &called[0]), seen), Answer::kApplied);
  EXPECT_EQ(answer<Called>(by(one, &called[0]), by(one, &called[1]), seen), Answer::kApplied);
}

TEST_F(UpdateAnswersOfOtherNodesTest, EventToRecordIsApplied) {
  cudaEvent_t start = nullptr, events[2] = {};
  for (cudaEvent_t* event : {&start, &events[0], &events[1]}) CUDA_OK(cudaEventCreate(event));
  before_launch = [&] {  // both are recorded now, and one of them again by the graph
    for (cudaEvent_t event : {start, events[0], events[1]}) CUDA_OK(cudaEventRecord(event, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    std::this_thread::sleep_for(10ms);
  };
  const auto records = [&](cudaEvent_t event) {
    return captured([&] { CUDA_OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal)); });
  };
  const auto seen = [&] {
    std::array<bool, 2> again = {};
    for (int i = 0; i < 2; ++i) {
      float ms = 0;
      CUDA_OK(cudaEventElapsedTime(&ms, start, events[i]));
      again[i] = ms > 5;
    }
    return again;
  };
  EXPECT_EQ((answer<std::array<bool, 2>>(records(events[0]), records(events[1]), seen)), Answer::kApplied);
  for (cudaEvent_t event : {start, events[0], events[1]}) CUDA_OK(cudaEventDestroy(event));
}

TEST_F(UpdateAnswersOfOtherNodesTest, EventToWaitForIsApplied) {
  const Event early, late;
  const Stream held;
  std::atomic<bool> released = false;
  bool waited = false;
  CUDA_OK(cudaEventRecord(early, held));
  before_launch = [&] {  // `late` is recorded once `held` is released
    released = false;
    const cudaHostFn_t wait = [](void* data) {
      while (!*static_cast<std::atomic<bool>*>(data)) std::this_thread::yield();
    };
    CUDA_OK(cudaLaunchHostFunc(held, wait, &released));
    CUDA_OK(cudaEventRecord(late, held));
  };
  after_launch = [&] {  // work that does not wait was done long before
    const auto end = std::chrono::steady_clock::now() + 200ms;
    do {
      waited = cudaStreamQuery(stream) == cudaErrorNotReady;
    } while (waited && std::chrono::steady_clock::now() < end);
    cudaGetLastError();
    released = true;
    CUDA_OK(cudaStreamSynchronize(held));
  };
  const auto waits = [&](cudaEvent_t event) {
    return captured([&] { CUDA_OK(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal)); });
  };
  const auto seen = [&] { return waited; };
  EXPECT_EQ(answer<bool>(waits(early), waits(late), seen), Answer::kApplied);
  EXPECT_EQ(answer<bool>(waits(late), waits(early), seen), Answer::kApplied);
}

// A graph that allocates again has at least another address.
TEST_F(UpdateAnswersOfOtherNodesTest, AllocationsAreRefused) {
  const auto allocates = [this](std::size_t bytes, int value) {
    return captured([=, this] {
      void* p = nullptr;
      CUDA_OK(cudaMallocAsync(&p, bytes, stream));
      CUDA_OK(cudaMemsetAsync(p, value, 64, stream));
      CUDA_OK(cudaMemcpyAsync(memory.get(), p, 64, cudaMemcpyDeviceToDevice, stream));
      CUDA_OK(cudaFreeAsync(p, stream));
    });
  };
  EXPECT_EQ(of_memory(allocates(4096, 1), allocates(4096, 5)), Answer::kNotSupported);
  EXPECT_EQ(of_memory(allocates(4096, 1), allocates(64 << 20, 5)), Answer::kNotSupported);
}

// Every graph has its own handles, so each of these includes another handle.
TEST_F(UpdateAnswersOfOtherNodesTest, BodyAndDefaultOfAConditionAreApplied) {
  expect_answers_inside([this](const Enqueue& enqueue) { return conditional(enqueue); });
  EXPECT_EQ(of_memory(conditional(set(0, 1, 64)), conditional(set(0, 1, 64), 0)), Answer::kApplied);
  EXPECT_EQ(of_memory(conditional(set(0, 1, 64), 0), conditional(set(0, 1, 64))), Answer::kApplied);
}

TEST_F(UpdateAnswersOfOtherNodesTest, TypeBodiesAndHandlesOfAConditionAreRefused) {
  const auto type = [this](cudaGraphConditionalNodeType type) { return conditional(set(0, 1, 64), 0, type); };
  EXPECT_EQ(of_report(type(cudaGraphCondTypeIf), type(cudaGraphCondTypeWhile), nullptr), Answer::kRefusedNode);
  const auto two_sets = [this] {
    set(0, 1, 64)();
    set(4096, 1, 64)();
  };
  EXPECT_EQ(of_memory(conditional(set(0, 1, 64)), conditional(two_sets)), Answer::kRefusedTopology);
#if CUDART_VERSION >= 12080  // with an else body
  EXPECT_EQ(of_memory(conditional(set(0, 1, 64), 0), conditional(set(0, 1, 64), 0, cudaGraphCondTypeIf, 2)),
            Answer::kRefusedNode);
#endif
  // Two nodes, one of which is entered. Only their handles decide which one.
  const auto entering = [this](bool first) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    const cudaGraphConditionalHandle yes = handle_of(graph, 1), no = handle_of(graph, 0);
    add_conditional(graph, first ? yes : no, cudaGraphCondTypeIf, 1, set(0, 1, 64));
    add_conditional(graph, first ? no : yes, cudaGraphCondTypeIf, 1, set(4096, 1, 64));
    return graph;
  };
  EXPECT_EQ(of_memory(entering(true), entering(false)), Answer::kRefusedNode);
}

TEST_F(UpdateAnswersOfOtherNodesTest, BatchedWritesMayChangeAllButTheirNumber) {
  const auto batch = reinterpret_cast<CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned)>(
      driver_function("cuStreamBatchMemOp"));
  if (batch == nullptr) GTEST_SKIP() << "this driver has no batched memory operations";
  // Writes `value` to each of `numbers`.
  const auto writes = [&](std::vector<int> numbers, unsigned value) {
    return captured([&] {
      std::vector<CUstreamBatchMemOpParams> operations(numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        CUstreamBatchMemOpParams& operation = operations[i];
        std::memset(&operation, 0, sizeof operation);
        operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        operation.writeValue.address = reinterpret_cast<std::uintptr_t>(memory.get() + 4 * numbers[i]);
        operation.writeValue.value = value;
      }
      EXPECT_EQ(batch(stream, static_cast<unsigned>(operations.size()), operations.data(), 0), CUDA_SUCCESS);
    });
  };
  EXPECT_EQ(of_memory(writes({0}, 1), writes({0}, 5)), Answer::kApplied);
  EXPECT_EQ(of_memory(writes({0}, 1), writes({7}, 1)), Answer::kApplied);
  EXPECT_EQ(of_memory(writes({0, 1}, 1), writes({0, 1}, 5)), Answer::kApplied);
  EXPECT_EQ(of_memory(writes({0}, 1), writes({0, 1}, 1)), Answer::kRefusedParameters);
}

}  // namespace
}  // namespace graphcache::test
