// The rules of the CUDA runtime. Each is a test named after its fact (docs/semantics.md lists the facts); a rule
// without a number has the fixture RuntimeRules. The rules_*_test.cc run unchanged against cudart on a GPU and against
// hostrt: where the two differ, hostrt is wrong. So they only examine results of runtime calls and memory. What only
// hostrt can show is in hostrt_test.cc.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "graphcache/hostrt.h"
#include "kernels.h"
#include "on_gpu.h"
#include "runtime.h"

namespace graphcache::test {

inline constexpr int kCount = 1024;  // elements of each test's buffers
inline constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
inline constexpr auto kThreadLocal = cudaStreamCaptureModeThreadLocal;
inline constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;

using Body = std::function<void()>;
using Edges = std::vector<std::pair<int, int>>;  // positions of nodes

template <typename Call>
auto on_other_thread(Call&& call) {
  decltype(call()) result;
  std::thread([&] { result = call(); }).join();
  return result;
}

// Keeps a stream busy: later work on the stream begins at end(), which waits for that.
class Busy {
 public:
  explicit Busy(cudaStream_t stream) : stream_(stream) {
    if (!kOnGpu) {
      hostrt::hold(stream);
      return;
    }
    GIVES(cudaSuccess, cudaMallocHost(&flag_, sizeof(int)));
    *static_cast<volatile int*>(flag_) = 0;
    GIVES(cudaSuccess, launch(wait_for, 1, 1, stream, static_cast<const int*>(flag_)));
  }
  ~Busy() { end(); }
  Busy(const Busy&) = delete;

  void end() {
    if (stream_ == nullptr) return;
    if (kOnGpu) {
      *static_cast<volatile int*>(flag_) = 1;
    } else {
      GIVES(cudaSuccess, hostrt::release(stream_));
    }
    GIVES(cudaSuccess, cudaStreamSynchronize(stream_));
    GIVES(cudaSuccess, cudaFreeHost(flag_));
    stream_ = nullptr;
  }

 private:
  cudaStream_t stream_;
  void* flag_ = nullptr;  // null on hostrt
};

// For host nodes and the destructors of user objects.
inline void count_up(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

// On hostrt work may run and fail at once, so the launch's result is ignored.
inline void fail_in(cudaStream_t stream) { launch(fault, 1, 1, stream); }

// Ends a process that a death test began: successfully if nothing failed in it, else after printing the failure.
[[noreturn]] inline void leave() {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed()) std::fprintf(stderr, "%s:%d: %s\n", part.file_name(), part.line_number(), part.message());
  }
  std::_Exit(result.Failed() ? 1 : 0);
}

// Runs what loses the context in a process of its own.
inline void in_own_process(const Body& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [&] {
    body();
    leave();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

class RuntimeRules : public testing::Test {
 protected:
  void SetUp() override {
    OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
    OK(cudaStreamCreate(&blocking_));
    OK(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
    void* memory = nullptr;
    OK(cudaMalloc(&memory, kCount * sizeof(double)));
    device_ = static_cast<float*>(memory);
    clear();
  }

  void TearDown() override {
    GIVES(cudaSuccess, cudaDeviceSynchronize());  // fails if a test left a capture behind
    for (cudaGraphExec_t executable : executables_) GIVES(cudaSuccess, cudaGraphExecDestroy(executable));
    for (cudaGraph_t graph : graphs_) GIVES(cudaSuccess, cudaGraphDestroy(graph));
    GIVES(cudaSuccess, cudaFree(device_));
    for (cudaEvent_t event : {fork_, join_}) GIVES(cudaSuccess, cudaEventDestroy(event));
    for (cudaStream_t stream : {stream_, other_, blocking_}) GIVES(cudaSuccess, cudaStreamDestroy(stream));
    cudaGetLastError();
  }

  void clear() {
    OK(cudaMemset(device_, 0, kCount * sizeof(double)));
    OK(cudaDeviceSynchronize());
  }

  template <typename T = float>
  T read(int index = 0) {
    T value = {};
    GIVES(cudaSuccess, cudaDeviceSynchronize());
    GIVES(cudaSuccess, cudaMemcpy(&value, reinterpret_cast<T*>(device_) + index, sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }

  int* ints(int offset = 0) { return reinterpret_cast<int*>(device_) + offset; }

  cudaError_t put(float value, cudaStream_t stream, int index = 0) {
    return launch(fill, 1, 1, stream, device_ + index, 1, value);
  }
  cudaError_t plus(float value, cudaStream_t stream, int index = 0) {
    return launch(add, 1, 1, stream, device_ + index, 1, value);
  }

  // Destroys the graphs and executables at the end of the test.
  cudaGraph_t keep(cudaGraph_t graph) { return graphs_.emplace_back(graph); }

  cudaGraph_t capture(const Body& body) {
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaStreamBeginCapture(stream_, kThreadLocal));
    body();
    GIVES(cudaSuccess, cudaStreamEndCapture(stream_, &graph));
    return keep(graph);
  }

  // Kernels that add so much each.
  cudaGraph_t capture_adds(int count, float value = 1) {
    return capture([&] {
      for (int i = 0; i < count; ++i) OK(plus(value, stream_));
    });
  }

  cudaGraph_t clone_of(cudaGraph_t graph) {
    cudaGraph_t clone = nullptr;
    GIVES(cudaSuccess, cudaGraphClone(&clone, graph));
    return keep(clone);
  }

  cudaGraphExec_t instantiate(cudaGraph_t graph, unsigned long long flags = 0) {
    cudaGraphExec_t executable = nullptr;
    GIVES(cudaSuccess, cudaGraphInstantiate(&executable, graph, flags));
    return executables_.emplace_back(executable);
  }

  void destroy(cudaGraph_t graph) {
    std::erase(graphs_, graph);
    GIVES(cudaSuccess, cudaGraphDestroy(graph));
  }
  void destroy(cudaGraphExec_t executable) {
    std::erase(executables_, executable);
    GIVES(cudaSuccess, cudaGraphExecDestroy(executable));
  }

  cudaError_t update(cudaGraphExec_t executable, cudaGraph_t graph) {
    info_ = {};
    return cudaGraphExecUpdate(executable, graph, &info_);
  }
  // Whether it refuses the update, for this reason.
  testing::AssertionResult refuses(cudaGraphExecUpdateResult result, cudaGraphExec_t executable, cudaGraph_t graph) {
    const cudaError_t error = update(executable, graph);
    if (error == cudaErrorGraphExecUpdateFailure && info_.result == result) return testing::AssertionSuccess();
    return testing::AssertionFailure() << cudaGetErrorName(error) << ", result " << info_.result << ", not " << result;
  }

  // Makes a kernel node one that puts this value.
  cudaError_t patch(cudaGraphExec_t executable, cudaGraphNode_t node, float value) {
    return cudaGraphExecKernelNodeSetParams(executable, node, Params(fill, 1, 1, device_, 1, value).get());
  }

  // Runs the executable on fresh memory and returns element 0.
  float run(cudaGraphExec_t executable) {
    clear();
    GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_));
    return read();
  }

  static Nodes nodes(cudaGraph_t graph) { return nodes_of(graph); }

  cudaGraph_t make_graph() {
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaGraphCreate(&graph, 0));
    return keep(graph);
  }

  static cudaGraphNodeType type_of(cudaGraphNode_t node) {
    cudaGraphNodeType type = cudaGraphNodeTypeCount;
    GIVES(cudaSuccess, cudaGraphNodeGetType(node, &type));
    return type;
  }

  static std::vector<cudaGraphNodeType> types(cudaGraph_t graph) {
    std::vector<cudaGraphNodeType> found;
    for (cudaGraphNode_t node : nodes(graph)) found.push_back(type_of(node));
    return found;
  }

  static cudaError_t add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
#else
    return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
  }

  static cudaError_t remove_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
    return cudaGraphRemoveDependencies(graph, &from, &to, nullptr, 1);
#else
    return cudaGraphRemoveDependencies(graph, &from, &to, 1);
#endif
  }

  static Nodes dependents(cudaGraphNode_t node) {
    std::size_t count = 16;
    Nodes found(count);
#if CUDART_VERSION >= 13000
    GIVES(cudaSuccess, cudaGraphNodeGetDependentNodes(node, found.data(), nullptr, &count));
#else
    GIVES(cudaSuccess, cudaGraphNodeGetDependentNodes(node, found.data(), &count));
#endif
    found.resize(count);
    return found;
  }

  static Edges edges(cudaGraph_t graph) {
    std::size_t count = 0;
    Nodes from(16), to(16);
#if CUDART_VERSION >= 13000
    GIVES(cudaSuccess, cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    GIVES(cudaSuccess, cudaGraphGetEdges(graph, from.data(), to.data(), nullptr, &count));
#else
    GIVES(cudaSuccess, cudaGraphGetEdges(graph, nullptr, nullptr, &count));
    GIVES(cudaSuccess, cudaGraphGetEdges(graph, from.data(), to.data(), &count));
#endif
    const Nodes all = nodes(graph);
    const auto position = [&](cudaGraphNode_t node) {
      return static_cast<int>(std::find(all.begin(), all.end(), node) - all.begin());
    };
    Edges found;
    for (std::size_t i = 0; i < count; ++i) found.emplace_back(position(from[i]), position(to[i]));
    std::sort(found.begin(), found.end());
    return found;
  }

  cudaStreamCaptureStatus status(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    GIVES(cudaSuccess, cudaStreamIsCapturing(stream, &status));
    return status;
  }

  // Begins a capture with one kernel in it.
  void begin(cudaStream_t stream, cudaStreamCaptureMode mode) {
    OK(cudaStreamBeginCapture(stream, mode));
    OK(plus(1, stream));
  }

  // Ends a capture that must still be valid, and returns its number of nodes.
  std::size_t end_valid(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamCaptureStatusActive, status(stream));
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    return graph != nullptr ? nodes(keep(graph)).size() : 0;
  }

  // Ends a capture that must be invalid, and expects that the stream can be used afterwards (facts 3).
  void end_invalid(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamCaptureStatusInvalidated, status(stream));
    cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(this);
    GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(nullptr, graph);
    EXPECT_EQ(cudaStreamCaptureStatusNone, status(stream));
    GIVES(cudaSuccess, put(5, stream));
    EXPECT_EQ(5, read());
    cudaGetLastError();
  }

  // Forks other_ from stream_, runs the two bodies in this order, and joins again.
  void fork_and_join(const Body& first, const Body& second) {
    OK(cudaEventRecord(fork_, stream_));
    OK(cudaStreamWaitEvent(other_, fork_, 0));
    first();
    second();
    OK(cudaEventRecord(join_, other_));
    OK(cudaStreamWaitEvent(stream_, join_, 0));
  }

  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaStream_t blocking_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  cudaEvent_t join_ = nullptr;
  float* device_ = nullptr;
  cudaGraphExecUpdateResultInfo info_ = {};  // of the last update
  std::vector<cudaGraph_t> graphs_;
  std::vector<cudaGraphExec_t> executables_;
};

}  // namespace graphcache::test
