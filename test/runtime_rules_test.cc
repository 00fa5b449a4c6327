// The rules of the CUDA runtime that graphcache relies on, each as a test. The file runs unchanged against cudart on a
// GPU and against hostrt: where the two differ, hostrt is wrong. It therefore looks at nothing but results of runtime
// calls and memory; what only hostrt can show is in hostrt_test.cc.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels.h"

void PrintTo(cudaError_t error, std::ostream* os) { *os << cudaGetErrorName(error); }

namespace graphcache::test {
namespace {

#define OK(call) ASSERT_EQ(cudaSuccess, (call))
#define GIVES(error, call) EXPECT_EQ(error, (call))

constexpr int kCount = 1024;  // elements of each test's buffers
constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
constexpr auto kThreadLocal = cudaStreamCaptureModeThreadLocal;
constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;

using Body = std::function<void()>;
using Nodes = std::vector<cudaGraphNode_t>;
using Edges = std::vector<std::pair<int, int>>;  // positions of nodes

template <typename... P>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream,
                   std::type_identity_t<P>... values) {
  void* arguments[] = {static_cast<void*>(&values)..., nullptr};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, 0, stream);
}

// Kernel node parameters that keep their values.
template <typename... P>
class Params {
 public:
  Params(void (*kernel)(P...), dim3 grid, dim3 block, std::type_identity_t<P>... values) : values_(values...) {
    raw_.func = reinterpret_cast<void*>(kernel);
    raw_.gridDim = grid;
    raw_.blockDim = block;
    std::apply(
        [this](auto&... value) {
          int i = 0;
          ((pointers_[i++] = &value), ...);
        },
        values_);
    raw_.kernelParams = pointers_;
  }
  Params(const Params&) = delete;
  const cudaKernelNodeParams* get() const { return &raw_; }

 private:
  cudaKernelNodeParams raw_ = {};
  std::tuple<P...> values_;
  void* pointers_[sizeof...(P) + 1];
};

template <typename Call>
auto on_other_thread(Call&& call) {
  decltype(call()) result;
  std::thread([&] { result = call(); }).join();
  return result;
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

  // The graphs and executables that these give are destroyed at the end of the test.
  cudaGraph_t keep(cudaGraph_t graph) { return graphs_.emplace_back(graph); }

  cudaGraph_t capture(const Body& body) {
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaStreamBeginCapture(stream_, kThreadLocal));
    body();
    GIVES(cudaSuccess, cudaStreamEndCapture(stream_, &graph));
    return keep(graph);
  }

  cudaGraphExec_t instantiate(cudaGraph_t graph, unsigned long long flags = 0) {
    cudaGraphExec_t executable = nullptr;
    GIVES(cudaSuccess, cudaGraphInstantiate(&executable, graph, flags));
    return executables_.emplace_back(executable);
  }

  void forget(cudaGraph_t graph) { std::erase(graphs_, graph); }

  // Runs the executable on fresh memory and gives element 0.
  float run(cudaGraphExec_t executable) {
    clear();
    GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_));
    return read();
  }

  static Nodes nodes(cudaGraph_t graph) {
    std::size_t count = 0;
    GIVES(cudaSuccess, cudaGraphGetNodes(graph, nullptr, &count));
    Nodes all(count);
    GIVES(cudaSuccess, cudaGraphGetNodes(graph, count != 0 ? all.data() : nullptr, &count));
    return all;
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

  // Ends a capture that must still be valid, and gives the number of its nodes.
  std::size_t end_valid(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamCaptureStatusActive, status(stream));
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    return graph != nullptr ? nodes(keep(graph)).size() : 0;
  }

  // Ends a capture that must be invalid, and finds the stream usable afterwards (facts 3).
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
  std::vector<cudaGraph_t> graphs_;
  std::vector<cudaGraphExec_t> executables_;
};

// ---- Launches, memory, events, errors ----

TEST_F(RuntimeRules, KernelsSeeTheirGridAndBlock) {
  OK(launch(record_launch, dim3(5, 3, 2), dim3(4, 2, 3), stream_, ints()));
  OK(launch(count_threads, dim3(5, 3, 2), dim3(4, 2, 3), stream_, ints(6)));
  const int expected[] = {5, 3, 2, 4, 2, 3, 5 * 3 * 2 * 4 * 2 * 3};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(expected[i], read<int>(i)) << i;
}

TEST_F(RuntimeRules, KernelsComputeEveryElement) {
  OK(launch(fill, 4, 128, stream_, device_, 500, 3.0f));
  OK(launch(scale, 2, 256, stream_, device_ + 512, device_, 500, 2.0f));
  OK(launch(axpy, 500, 1, stream_, device_ + 512, device_, 500, 0.5f));
  for (int i : {0, 1, 127, 128, 499}) EXPECT_EQ(7.5f, read(512 + i)) << i;
  EXPECT_EQ(0, read(1012));
}

TEST_F(RuntimeRules, ParametersOfAllSizesArriveWhole) {
  auto* out = reinterpret_cast<double*>(device_);
  OK(launch(many, 1, 1, stream_, out, 'A', 2.5, -3, 4.5f, 5000000000LL, 250, -7, 8.25f, 60000, -10.125));
  const double expected[] = {'A', 2.5, -3, 4.5, 5000000000.0, 250, -7, 8.25, 60000, -10.125};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(expected[i], read<double>(i)) << i;
  const Mixed sent = {'m', 1.25, -2, {3, 4, 5}, 200};
  OK(launch(copy_struct, 1, 1, stream_, reinterpret_cast<Mixed*>(device_), sent));
  const Mixed got = read<Mixed>();
  EXPECT_EQ('m', got.letter);
  EXPECT_EQ(1.25, got.real);
  EXPECT_EQ(-2, got.small);
  EXPECT_EQ(5, got.numbers[2]);
  EXPECT_EQ(200, got.last);
}

TEST_F(RuntimeRules, LaunchesThatCannotBeAreRefused) {
  const dim3 bad_blocks[] = {dim3(0), dim3(1, 0), dim3(1025), dim3(32, 33), dim3(1, 1, 65)};
  for (const dim3& block : bad_blocks) GIVES(cudaErrorInvalidValue, launch(count_threads, 1, block, stream_, ints()));
  for (const dim3& grid : {dim3(0), dim3(1, 1, 0), dim3(1, 65536)}) {
    GIVES(cudaErrorInvalidValue, launch(count_threads, grid, 1, stream_, ints()));
  }
  void* arguments[] = {nullptr};
  GIVES(cudaErrorInvalidValue,
        cudaLaunchKernel(reinterpret_cast<const void*>(count_threads), 1, 1, arguments, 1 << 20, stream_));
  GIVES(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(nullptr, 1, 1, arguments, 0, stream_));
  static int not_a_kernel;
  GIVES(cudaErrorInvalidResourceHandle, cudaLaunchKernel(&not_a_kernel, 1, 1, arguments, 0, stream_));
  EXPECT_EQ(0, read<int>());
}

TEST_F(RuntimeRules, AStreamKeepsTheOrder) {
  for (int i = 0; i < 8; ++i) OK(launch(append, 1, 1, stream_, ints(1), ints(), 10 * i));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(10 * i, read<int>(1 + i));
}

TEST_F(RuntimeRules, ImplicitStreamsRunWork) {
  for (cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    OK(plus(1, stream));
    OK(cudaStreamSynchronize(stream));
    GIVES(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
  }
  EXPECT_EQ(3, read());
}

TEST_F(RuntimeRules, StreamsTellWhatTheyAre) {
  cudaStream_t urgent = nullptr;
  OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -100));  // clamped
  int least = 0, greatest = 0, priority = 0;
  [[maybe_unused]] int device = -1;
  unsigned flags = 0;
  unsigned long long id = 0, other_id = 0;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OK(cudaStreamGetPriority(urgent, &priority));
  EXPECT_EQ(greatest, priority);
  OK(cudaStreamGetFlags(urgent, &flags));
  EXPECT_EQ(unsigned{cudaStreamNonBlocking}, flags);
  OK(cudaStreamGetId(urgent, &id));
  OK(cudaStreamGetId(stream_, &other_id));
  EXPECT_NE(id, other_id);
#if CUDART_VERSION >= 12080
  OK(cudaStreamGetDevice(urgent, &device));
  EXPECT_EQ(0, device);
#endif
  OK(cudaStreamDestroy(urgent));
  GIVES(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&urgent, 8));
}

TEST_F(RuntimeRules, CopiesAndFillsOfNothingAreAllowed) {
  GIVES(cudaSuccess, cudaMemset(nullptr, 0, 0));
  GIVES(cudaSuccess, cudaMemcpyAsync(device_, device_ + 8, 0, cudaMemcpyDeviceToDevice, stream_));
  GIVES(cudaErrorInvalidValue, cudaMemcpy(nullptr, device_, 4, cudaMemcpyDeviceToDevice));
  GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpy(device_, device_ + 8, 4, static_cast<cudaMemcpyKind>(7)));
  void* memory = device_;
  GIVES(cudaSuccess, cudaMalloc(&memory, 0));
  EXPECT_EQ(nullptr, memory);
  GIVES(cudaSuccess, cudaFree(nullptr));
  int variable = 0;
  GIVES(cudaErrorInvalidValue, cudaFree(&variable));
}

TEST_F(RuntimeRules, EventsThatWereNeverRecordedAreDone) {
  GIVES(cudaSuccess, cudaEventQuery(fork_));
  GIVES(cudaSuccess, cudaEventSynchronize(fork_));
  GIVES(cudaSuccess, cudaStreamWaitEvent(stream_, fork_, 0));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(nullptr, stream_));
  float ms = -1;
  GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, fork_, join_));  // without timing
}

TEST_F(RuntimeRules, ErrorsLatchPerThread) {
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
  GIVES(cudaSuccess, on_other_thread([] { return cudaGetLastError(); }));
  GIVES(cudaSuccess, cudaSetDevice(0));  // a success does not clear the slot
  GIVES(cudaErrorInvalidDevice, cudaPeekAtLastError());
  GIVES(cudaErrorInvalidDevice, cudaGetLastError());
  GIVES(cudaSuccess, cudaGetLastError());
  EXPECT_STREQ("cudaErrorStreamCaptureInvalidated", cudaGetErrorName(cudaErrorStreamCaptureInvalidated));
}

// ---- Capture ----

TEST_F(RuntimeRules, ACaptureRecordsAndDoesNotRun) {
  const cudaGraph_t graph = capture([&] { OK(put(4, stream_)); });
  EXPECT_EQ(0, read());
  EXPECT_EQ(4, run(instantiate(graph)));
}

TEST_F(RuntimeRules, ACaptureFreezesArguments) {
  float value = 3;
  float* target = device_;
  int count = 1;
  void* arguments[] = {&target, &count, &value};
  const cudaGraph_t graph =
      capture([&] { OK(cudaLaunchKernel(reinterpret_cast<const void*>(fill), 1, 1, arguments, 0, stream_)); });
  value = 9;
  target = nullptr;
  EXPECT_EQ(3, run(instantiate(graph)));
}

TEST_F(RuntimeRules, AnEmptyCaptureIsLegal) {
  const cudaGraph_t graph = capture([] {});
  EXPECT_TRUE(nodes(graph).empty());
  EXPECT_EQ(0, run(instantiate(graph)));
}

TEST_F(RuntimeRules, TheLegacyStreamCannotBeCapturedThePerThreadStreamCan) {
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(nullptr, kRelaxed));
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(cudaStreamLegacy, kThreadLocal));
  begin(cudaStreamPerThread, kThreadLocal);
  EXPECT_EQ(cudaStreamCaptureStatusNone, on_other_thread([this] { return status(cudaStreamPerThread); }));
  EXPECT_EQ(1u, end_valid(cudaStreamPerThread));
}

TEST_F(RuntimeRules, BeginningTwiceIsAnErrorThatBreaksNothing) {
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(stream_, kThreadLocal));
  EXPECT_EQ(1u, end_valid(stream_));
}

TEST_F(RuntimeRules, EndingWithoutBeginningIsAnError) {
  cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(this);
  GIVES(cudaErrorIllegalState, cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ(nullptr, graph);
}

TEST_F(RuntimeRules, OnlyARelaxedCaptureMayEndOnAnotherThread) {
  for (auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
    begin(stream_, mode);
    cudaGraph_t graph = nullptr;
    const cudaError_t error = on_other_thread([&] { return cudaStreamEndCapture(stream_, &graph); });
    EXPECT_EQ(mode == kRelaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread, error);
    EXPECT_EQ(mode == kRelaxed, graph != nullptr);
    if (graph != nullptr) keep(graph);
    EXPECT_EQ(cudaStreamCaptureStatusNone, status(stream_));  // the capture is gone either way
  }
}

TEST_F(RuntimeRules, AnyThreadMayAddToACapture) {
  begin(stream_, kThreadLocal);
  GIVES(cudaSuccess, on_other_thread([this] { return plus(1, stream_); }));
  EXPECT_EQ(2u, end_valid(stream_));
}

TEST_F(RuntimeRules, UnsafeCallsDependOnModeAndThread) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  void* old = nullptr;
  const std::pair<const char*, std::function<cudaError_t()>> unsafe[] = {
      {"cudaMalloc", [&] { return cudaMalloc(&old, 64); }},
      {"cudaFree", [&] { return cudaFree(std::exchange(old, nullptr)); }},
      {"cudaMallocHost", [&] { return cudaMallocHost(&old, 64); }},
      {"cudaFreeHost", [&] { return cudaFreeHost(std::exchange(old, nullptr)); }},
      {"cudaEventQuery", [&] { return cudaEventQuery(fork_); }},
      {"cudaEventSynchronize", [&] { return cudaEventSynchronize(fork_); }},
      {"cudaStreamQuery", [&] { return cudaStreamQuery(other_); }},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(other_); }},
      {"cudaGraphInstantiate",
       [&] {
         cudaGraphExec_t executable = nullptr;
         const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
         if (error == cudaSuccess) executables_.push_back(executable);
         return error;
       }},
      {"cudaGraphExecDestroy",
       [&] {
         const cudaError_t error = cudaGraphExecDestroy(executables_.back());
         if (error == cudaSuccess) executables_.pop_back();
         return error;
       }},
  };
  executables_.push_back(nullptr);  // what a forbidden destruction is called on: the mode is checked first
  for (const auto& [name, call] : unsafe) {
    SCOPED_TRACE(name);
    begin(stream_, kRelaxed);
    GIVES(cudaSuccess, std::strcmp(name, "cudaGraphExecDestroy") == 0 ? cudaSuccess : call());
    end_valid(stream_);
    begin(stream_, kThreadLocal);
    GIVES(cudaErrorStreamCaptureUnsupported, call());
    end_invalid(stream_);
    begin(stream_, kGlobal);
    GIVES(cudaErrorStreamCaptureUnsupported, on_other_thread(call));
    end_invalid(stream_);
  }
  std::erase(executables_, nullptr);
}

TEST_F(RuntimeRules, AThreadsModeSaysWhichCapturesCount) {
  for (auto thread_mode : {kGlobal, kThreadLocal, kRelaxed}) {
    for (auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
      for (bool same_thread : {true, false}) {
        const bool forbidden =
            thread_mode != kRelaxed && mode != kRelaxed && (same_thread || (mode == kGlobal && thread_mode == kGlobal));
        SCOPED_TRACE(testing::Message() << thread_mode << ' ' << mode << ' ' << same_thread);
        const auto query = [&] {
          cudaStreamCaptureMode exchanged = thread_mode;
          cudaThreadExchangeStreamCaptureMode(&exchanged);
          const cudaError_t error = cudaEventQuery(fork_);
          cudaThreadExchangeStreamCaptureMode(&exchanged);
          EXPECT_EQ(thread_mode, exchanged);  // push and pop
          return error;
        };
        begin(stream_, mode);
        const cudaError_t error = same_thread ? query() : on_other_thread(query);
        EXPECT_EQ(forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess, error);
        if (forbidden) {
          end_invalid(stream_);
        } else {
          end_valid(stream_);
        }
      }
    }
  }
}

TEST_F(RuntimeRules, SafeCallsLeaveCapturesAlone) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  std::size_t free = 0, total = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaGraphExecUpdateResultInfo info = {};
  begin(stream_, kGlobal);
  GIVES(cudaSuccess, cudaMemset(device_, 0, 64));  // on the legacy stream, beside a non-blocking one
  GIVES(cudaSuccess, cudaMemcpy(device_ + 64, &free, sizeof free, cudaMemcpyHostToDevice));
  GIVES(cudaSuccess, cudaMemGetInfo(&free, &total));
  GIVES(cudaSuccess, cudaDeviceGraphMemTrim(0));
  GIVES(cudaSuccess, cudaStreamCreate(&stream));
  GIVES(cudaSuccess, cudaStreamDestroy(stream));
  GIVES(cudaSuccess, cudaEventCreate(&event));
  GIVES(cudaSuccess, cudaEventDestroy(event));
  GIVES(cudaSuccess, cudaGraphExecUpdate(executable, graph, &info));
  GIVES(cudaSuccess, cudaGraphLaunch(executable, other_));
  GIVES(cudaSuccess, put(1, nullptr));
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
  EXPECT_EQ(1u, end_valid(stream_));
}

TEST_F(RuntimeRules, CallsOnCapturedThingsBreakACaptureInEveryMode) {
  const cudaGraphExec_t executable = instantiate(capture([this] { OK(put(1, stream_)); }));
  const std::pair<cudaError_t, std::function<cudaError_t()>> calls[] = {
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(stream_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaGraphLaunch(executable, stream_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaGraphUpload(executable, stream_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return on_other_thread([] { return cudaDeviceSynchronize(); }); }},
      {cudaErrorCapturedEvent, [&] { return cudaEventQuery(fork_); }},
      {cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(fork_); }},
      {cudaErrorStreamCaptureImplicit, [&] { return cudaStreamWaitEvent(nullptr, fork_, 0); }},
      {cudaErrorInvalidValue, [&] { return launch(count_threads, 1, 1025, stream_, ints()); }},
  };
  for (const auto& [error, call] : calls) {
    SCOPED_TRACE(&error - &calls[0].first);
    begin(stream_, kRelaxed);
    OK(cudaEventRecord(fork_, stream_));
    GIVES(error, call());
    end_invalid(stream_);
  }
}

TEST_F(RuntimeRules, RefusedCallsThatBreakNothing) {
  static int not_a_kernel;
  void* arguments[] = {nullptr};
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(nullptr, 1, 1, arguments, 0, stream_));
  GIVES(cudaErrorInvalidResourceHandle, cudaLaunchKernel(&not_a_kernel, 1, 1, arguments, 0, stream_));
  GIVES(cudaErrorInvalidValue, cudaMemcpyAsync(nullptr, device_, 4, cudaMemcpyDeviceToDevice, stream_));
  GIVES(cudaErrorInvalidValue, cudaLaunchHostFunc(stream_, nullptr, nullptr));
  GIVES(cudaSuccess, cudaMemcpyAsync(device_, device_ + 8, 0, cudaMemcpyDeviceToDevice, stream_));
  GIVES(cudaSuccess, cudaMemsetAsync(device_, 0, 0, stream_));
  EXPECT_EQ(1u, end_valid(stream_));  // and nothing of nothing is no node
}

TEST_F(RuntimeRules, TheLegacyStreamMayNotMeetACapturingBlockingStream) {
  const std::function<cudaError_t()> breaking[] = {
      [&] { return put(1, nullptr); },
      [&] { return cudaMemset(device_, 0, 64); },
      [&] { return cudaMemcpy(device_, device_ + 64, 64, cudaMemcpyDeviceToDevice); },
      [&] { return cudaEventRecord(join_, nullptr); },
      [&] { return cudaStreamSynchronize(nullptr); },
      [&] { return cudaStreamBeginCapture(nullptr, kRelaxed); },
      [&] { return on_other_thread([this] { return put(1, nullptr); }); },
  };
  for (const auto& call : breaking) {
    begin(blocking_, kRelaxed);
    GIVES(cudaErrorStreamCaptureImplicit, call());
    end_invalid(blocking_);
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  begin(blocking_, kRelaxed);
  GIVES(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(nullptr, &status));
  EXPECT_EQ(1u, end_valid(blocking_));
  begin(blocking_, kRelaxed);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(blocking_));
  GIVES(cudaErrorStreamCaptureImplicit, put(1, nullptr));  // until the invalidated capture has ended, too
  end_invalid(blocking_);
}

TEST_F(RuntimeRules, AnInvalidatedCaptureSaysSoUntilItEnds) {
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaEventQuery(join_));
  GIVES(cudaErrorStreamCaptureInvalidated, put(1, stream_));
  GIVES(cudaErrorStreamCaptureInvalidated, cudaEventRecord(fork_, stream_));
  GIVES(cudaErrorStreamCaptureUnsupported, cudaEventQuery(join_));
  GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(stream_, kThreadLocal));
  end_invalid(stream_);
}

TEST_F(RuntimeRules, ForkAndJoinGiveEdges) {
  const cudaGraph_t graph = capture([&] {
    OK(put(1, stream_));
    fork_and_join([&] { OK(plus(2, stream_)); }, [&] { OK(plus(30, other_, 1)); });
    OK(launch(axpy, 1, 1, stream_, device_, device_ + 1, 1, 1.0f));
  });
  EXPECT_EQ((Edges{{0, 1}, {0, 2}, {1, 3}, {2, 3}}), edges(graph));
  EXPECT_EQ(33, run(instantiate(graph)));
}

TEST_F(RuntimeRules, ForkedWorkMustBeJoined) {
  begin(stream_, kThreadLocal);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(other_, fork_, 0));
  EXPECT_EQ(cudaStreamCaptureStatusActive, status(other_));
  GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(other_, kThreadLocal));
  EXPECT_EQ(1u, end_valid(stream_));  // a fork without work needs no join
  EXPECT_EQ(cudaStreamCaptureStatusNone, status(other_));

  begin(stream_, kThreadLocal);
  fork_and_join([] {}, [&] { OK(plus(1, other_)); });
  OK(plus(1, other_));  // behind the join
  cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(this);
  GIVES(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ(nullptr, graph);
  EXPECT_EQ(cudaStreamCaptureStatusNone, status(other_));
}

TEST_F(RuntimeRules, DestroyingAForkedStreamDoesNotJoinItsWork) {
  cudaStream_t forked = nullptr;
  OK(cudaStreamCreateWithFlags(&forked, cudaStreamNonBlocking));
  begin(stream_, kThreadLocal);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(forked, fork_, 0));
  OK(plus(1, forked));
  GIVES(cudaSuccess, cudaStreamDestroy(forked));
  cudaGraph_t graph = nullptr;
  GIVES(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(stream_, &graph));
}

TEST_F(RuntimeRules, DestroyingTheCapturingStreamEndsItsCapture) {
  cudaStream_t stream = nullptr;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  begin(stream, kGlobal);
  GIVES(cudaSuccess, cudaStreamDestroy(stream));
  GIVES(cudaSuccess, cudaEventQuery(fork_));  // nothing captures any more
}

TEST_F(RuntimeRules, ACaptureEndsOnTheStreamThatBeganIt) {
  begin(stream_, kRelaxed);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(other_, fork_, 0));
  cudaGraph_t graph = nullptr;
  GIVES(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(other_, &graph));
  end_invalid(stream_);
}

TEST_F(RuntimeRules, ACaptureDependsOnNothingOutside) {
  begin(stream_, kThreadLocal);
  GIVES(cudaSuccess, cudaStreamWaitEvent(stream_, join_, 0));  // never recorded
  EXPECT_EQ(1u, end_valid(stream_));
  OK(cudaEventRecord(join_, other_));
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(stream_, join_, 0));
  end_invalid(stream_);
}

TEST_F(RuntimeRules, TwoCapturesCannotMerge) {
  begin(stream_, kThreadLocal);
  begin(other_, kThreadLocal);
  OK(cudaEventRecord(fork_, other_));
  GIVES(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(stream_, fork_, 0));
  cudaGraph_t graph = nullptr;
  GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(other_, &graph));
  end_invalid(stream_);
}

TEST_F(RuntimeRules, AnEventOfAnEndedCaptureIsInvalidUntilRecordedAgain) {
  capture([&] {
    OK(put(1, stream_));
    OK(cudaEventRecord(fork_, stream_));
  });
  GIVES(cudaErrorInvalidValue, cudaEventQuery(fork_));
  GIVES(cudaErrorInvalidValue, cudaStreamWaitEvent(other_, fork_, 0));
  OK(cudaEventRecord(fork_, other_));
  GIVES(cudaSuccess, cudaEventSynchronize(fork_));
}

#if CUDART_VERSION >= 13000
TEST_F(RuntimeRules, CaptureInfoTellsTheNextDependencies) {
  cudaStreamCaptureStatus active = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* data = nullptr;
  std::size_t count = 0;
  begin(stream_, kThreadLocal);
  OK(cudaStreamGetCaptureInfo(stream_, &active, &id, &graph, &last, &data, &count));
  EXPECT_EQ(cudaStreamCaptureStatusActive, active);
  EXPECT_NE(0u, id);
  ASSERT_EQ(1u, count);
  EXPECT_EQ(nodes(graph), Nodes(1, last[0]));
  GIVES(cudaErrorIllegalState, cudaGraphDestroy(graph));

  // A node added by hand becomes part of the order when it is Set (facts 8).
  Params adder(add, 1, 1, device_, 1, 10.0f);
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddKernelNode(&node, graph, last, count, adder.get()));
  GIVES(cudaErrorInvalidValue, cudaStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1, 7));
  OK(cudaStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
  OK(launch(scale, 1, 1, stream_, device_, device_, 1, 2.0f));
  OK(cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ((Edges{{0, 1}, {1, 2}}), edges(keep(graph)));
  EXPECT_EQ(22, run(instantiate(graph)));
  GIVES(cudaErrorIllegalState, cudaStreamUpdateCaptureDependencies(stream_, nullptr, nullptr, 0, 0));
}

TEST_F(RuntimeRules, EdgeDataIsNotDroppedSilently) {
  cudaStreamCaptureStatus active;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* data = nullptr;
  std::size_t count = 0;
  begin(stream_, kThreadLocal);
  OK(cudaStreamGetCaptureInfo(stream_, &active, nullptr, nullptr, &last, nullptr, &count));
  cudaGraphNode_t node = last[0];
  cudaGraphEdgeData programmatic = {};
  programmatic.from_port = cudaGraphKernelNodePortProgrammatic;
  programmatic.type = cudaGraphDependencyTypeProgrammatic;
  OK(cudaStreamUpdateCaptureDependencies(stream_, &node, &programmatic, 1, cudaStreamSetCaptureDependencies));
  GIVES(cudaErrorLossyQuery, cudaStreamGetCaptureInfo(stream_, &active, nullptr, nullptr, &last, nullptr, &count));
  OK(cudaStreamGetCaptureInfo(stream_, &active, nullptr, nullptr, &last, &data, &count));
  EXPECT_EQ(cudaGraphDependencyTypeProgrammatic, data[0].type);
  OK(plus(1, stream_));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream_, &graph));
  cudaGraphNode_t from = nullptr, to = nullptr;
  cudaGraphEdgeData edge = {};
  count = 1;
  GIVES(cudaErrorLossyQuery, cudaGraphGetEdges(keep(graph), &from, &to, nullptr, &count));
  OK(cudaGraphGetEdges(graph, &from, &to, &edge, &count));
  EXPECT_EQ(cudaGraphDependencyTypeProgrammatic, edge.type);
  EXPECT_EQ(cudaGraphKernelNodePortProgrammatic, edge.from_port);

  const cudaGraph_t plain = capture([&] {
    for (int i = 0; i < 2; ++i) OK(plus(1, stream_));
  });
  cudaGraphExecUpdateResultInfo info = {};
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(instantiate(plain), graph, &info));
  EXPECT_EQ(cudaGraphExecUpdateErrorTopologyChanged, info.result);
  EXPECT_EQ(to, info.errorNode);
  EXPECT_EQ(from, info.errorFromNode);
}
#endif

TEST_F(RuntimeRules, OnlyCapturedNodesInheritThePriority) {
  int least = 0, greatest = 0;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t urgent = nullptr;
  OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  begin(urgent, kThreadLocal);
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(urgent, &graph));
  OK(cudaStreamDestroy(urgent));
  keep(graph);
  Params adder(add, 1, 1, device_, 1, 1.0f);
  cudaGraphNode_t manual = nullptr;
  OK(cudaGraphAddKernelNode(&manual, graph, nullptr, 0, adder.get()));
  cudaLaunchAttributeValue value = {};
  OK(cudaGraphKernelNodeGetAttribute(nodes(graph)[0], cudaLaunchAttributePriority, &value));
  EXPECT_EQ(greatest, value.priority);
  OK(cudaGraphKernelNodeGetAttribute(manual, cudaLaunchAttributePriority, &value));
  EXPECT_EQ(0, value.priority);
  value.priority = greatest - 100;
  OK(cudaGraphKernelNodeSetAttribute(manual, cudaLaunchAttributePriority, &value));
  OK(cudaGraphKernelNodeGetAttribute(manual, cudaLaunchAttributePriority, &value));
  EXPECT_EQ(greatest, value.priority);
}

void count_up(void* counter) { ++*static_cast<int*>(counter); }

TEST_F(RuntimeRules, HostFunctionsRunInOrderAndInGraphs) {
  int counter = 0;
  OK(cudaLaunchHostFunc(stream_, count_up, &counter));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, counter);
  const cudaGraph_t graph = capture([&] { OK(cudaLaunchHostFunc(stream_, count_up, &counter)); });
  EXPECT_EQ(1, counter);
  run(instantiate(graph));
  EXPECT_EQ(2, counter);
}

// ---- Graphs ----

TEST_F(RuntimeRules, GraphsCanBeBuiltByHand) {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  keep(graph);
  cudaGraphNode_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  const float* source = device_ + 8;
  Params adder(add, 1, 1, device_, 1, 10.0f);
  cudaMemsetParams zero = {device_ + 8, 0, 0x40, 1, 4, 1};  // 3.0039f in every byte
  OK(cudaGraphAddMemsetNode(&a, graph, nullptr, 0, &zero));
  OK(cudaGraphAddMemcpyNode1D(&b, graph, &a, 1, device_, source, sizeof(float), cudaMemcpyDeviceToDevice));
  OK(cudaGraphAddKernelNode(&c, graph, &b, 1, adder.get()));
  OK(cudaGraphAddEmptyNode(&d, graph, nullptr, 0));
#if CUDART_VERSION >= 13000
  OK(cudaGraphAddDependencies(graph, &c, &d, nullptr, 1));
  GIVES(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &c, &d, nullptr, 1));  // there already
#else
  OK(cudaGraphAddDependencies(graph, &c, &d, 1));
  GIVES(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &c, &d, 1));
#endif
  EXPECT_EQ((Edges{{0, 1}, {1, 2}, {2, 3}}), edges(graph));
  const cudaGraphNodeType expected[] = {cudaGraphNodeTypeMemset, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeKernel,
                                        cudaGraphNodeTypeEmpty};
  for (int i = 0; i < 4; ++i) {
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(nodes(graph)[i], &type));
    EXPECT_EQ(expected[i], type);
  }
  cudaGraphNode_t roots[2] = {};
  std::size_t count = 2;
  OK(cudaGraphGetRootNodes(graph, roots, &count));
  EXPECT_EQ(1u, count);
  EXPECT_EQ(a, roots[0]);
  float sum = 0;
  std::memset(&sum, 0x40, sizeof sum);
  EXPECT_EQ(sum + 10, run(instantiate(graph)));
}

TEST_F(RuntimeRules, BadNodesAreRefused) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  const cudaGraph_t stranger = capture([this] { OK(put(1, stream_)); });
  const cudaGraphNode_t own = nodes(graph)[0], foreign = nodes(stranger)[0];
  const cudaGraphNode_t twice[] = {own, own};
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, graph, twice, 2));
  GIVES(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, graph, &foreign, 1));
  GIVES(cudaErrorInvalidValue,
        cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, device_, device_ + 8, 0, cudaMemcpyDeviceToDevice));
  Params empty(add, 0, 1, device_, 1, 1.0f);
  GIVES(cudaErrorInvalidValue, cudaGraphAddKernelNode(&node, graph, nullptr, 0, empty.get()));
  EXPECT_EQ(1u, nodes(graph).size());

  OK(cudaGraphAddEmptyNode(&node, graph, &own, 1));
#if CUDART_VERSION >= 13000
  OK(cudaGraphAddDependencies(graph, &node, &own, nullptr, 1));
#else
  OK(cudaGraphAddDependencies(graph, &node, &own, 1));
#endif
  cudaGraphExec_t executable = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, graph, 0));  // a cycle
}

TEST_F(RuntimeRules, NodesTellTheirParameters) {
  const cudaGraph_t graph = capture([&] {
    OK(launch(scale, dim3(2, 3), dim3(4, 5), stream_, device_, device_ + 8, 6, 1.5f));
    OK(cudaMemcpyAsync(device_, device_ + 16, 40, cudaMemcpyDeviceToDevice, stream_));
    OK(cudaMemsetAsync(device_ + 1, 0x141, 12, stream_));
  });
  const Nodes all = nodes(graph);
  cudaKernelNodeParams kernel = {};
  OK(cudaGraphKernelNodeGetParams(all[0], &kernel));
  EXPECT_EQ(reinterpret_cast<void*>(scale), kernel.func);
  EXPECT_EQ(3u, kernel.gridDim.y);
  EXPECT_EQ(5u, kernel.blockDim.y);
  EXPECT_EQ(device_ + 8, *static_cast<float**>(kernel.kernelParams[1]));
  EXPECT_EQ(1.5f, *static_cast<float*>(kernel.kernelParams[3]));
  cudaMemcpy3DParms copy = {};
  OK(cudaGraphMemcpyNodeGetParams(all[1], &copy));
  EXPECT_EQ(device_ + 16, copy.srcPtr.ptr);
  EXPECT_EQ(device_, copy.dstPtr.ptr);
  EXPECT_EQ(40u, copy.extent.width);
  EXPECT_EQ(cudaMemcpyDeviceToDevice, copy.kind);
  cudaMemsetParams set = {};
  OK(cudaGraphMemsetNodeGetParams(all[2], &set));
  EXPECT_EQ(device_ + 1, set.dst);
  EXPECT_EQ(0x41u, set.value);
  EXPECT_EQ(1u, set.elementSize);
  EXPECT_EQ(12u, set.width);
  EXPECT_EQ(1u, set.height);
  GIVES(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(all[1], &kernel));
}

// ---- Executables ----

TEST_F(RuntimeRules, ExecutablesOutliveTheirGraph) {
  const cudaGraph_t graph = capture([this] { OK(put(7, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  forget(graph);
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(7, run(executable));
}

TEST_F(RuntimeRules, PatchesStayInTheExecutable) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  const cudaGraphNode_t node = nodes(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph), twin = instantiate(graph);
  OK(cudaGraphExecKernelNodeSetParams(executable, node, Params(fill, 1, 1, device_, 1, 2.0f).get()));
  EXPECT_EQ(2, run(executable));
  EXPECT_EQ(1, run(twin));
  EXPECT_EQ(1, run(instantiate(graph)));
  cudaGraphExecUpdateResultInfo info = {};
  OK(cudaGraphExecUpdate(executable, graph, &info));  // brings the template's values back (facts 13)
  EXPECT_EQ(1, run(executable));
  OK(cudaGraphKernelNodeSetParams(node, Params(fill, 1, 1, device_, 1, 3.0f).get()));
  EXPECT_EQ(1, run(executable));
  OK(cudaGraphExecUpdate(executable, graph, &info));
  EXPECT_EQ(3, run(executable));
}

TEST_F(RuntimeRules, PatchesMayChangeShapeAndFunction) {
  const cudaGraph_t graph = capture([this] { OK(launch(count_threads, 2, 3, stream_, ints())); });
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphNode_t node = nodes(graph)[0];
  OK(cudaGraphExecKernelNodeSetParams(executable, node, Params(count_threads, dim3(4, 2), 5, ints()).get()));
  clear();
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(40, read<int>());
  OK(cudaGraphExecKernelNodeSetParams(executable, node, Params(fill, 1, 1, device_, 1, 6.0f).get()));
  EXPECT_EQ(6, run(executable));
}

TEST_F(RuntimeRules, BadPatchesAreRefusedAndChangeNothing) {
  const cudaGraph_t graph = capture([&] {
    OK(put(1, stream_));
    OK(cudaMemsetAsync(device_ + 8, 0, 16, stream_));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  const Nodes all = nodes(graph);
  static int not_a_kernel;
  Params good(fill, 1, 1, device_, 1, 2.0f);
  const auto patched = [&](auto change, cudaGraphNode_t node) {
    cudaKernelNodeParams params = *good.get();
    change(params);
    return cudaGraphExecKernelNodeSetParams(executable, node, &params);
  };
  using P = cudaKernelNodeParams;
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.gridDim.x = 0; }, all[0]));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.blockDim.x = 2048; }, all[0]));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.kernelParams = nullptr; }, all[0]));
  GIVES(cudaErrorInvalidDeviceFunction, patched([](P& p) { p.func = nullptr; }, all[0]));
  GIVES(cudaErrorInvalidResourceHandle, patched([](P& p) { p.func = &not_a_kernel; }, all[0]));
  GIVES(cudaErrorInvalidValue, patched([](P&) {}, all[1]));  // another type
  EXPECT_EQ(1, run(executable));
}

TEST_F(RuntimeRules, OnlyNodesOfTheBasePatchAnExecutable) {
  const cudaGraph_t base = capture([this] { OK(put(1, stream_)); });
  const cudaGraph_t other = capture([this] { OK(put(2, stream_)); });
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, base));
  const cudaGraphNode_t base_node = nodes(base)[0], other_node = nodes(other)[0], clone_node = nodes(keep(clone))[0];
  const cudaGraphExec_t executable = instantiate(base), of_clone = instantiate(clone);
  Params patch(fill, 1, 1, device_, 1, 9.0f);
  const auto try_patch = [&](cudaGraphExec_t target, cudaGraphNode_t node) {
    return cudaGraphExecKernelNodeSetParams(target, node, patch.get());
  };
  GIVES(cudaSuccess, try_patch(of_clone, clone_node));
  GIVES(cudaErrorInvalidValue, try_patch(of_clone, base_node));
  GIVES(cudaErrorInvalidValue, try_patch(executable, clone_node));
  GIVES(cudaErrorInvalidValue, try_patch(executable, other_node));

  cudaGraphExecUpdateResultInfo info = {};
  OK(cudaGraphExecUpdate(executable, other, &info));
  EXPECT_EQ(2, run(executable));
  GIVES(cudaErrorInvalidValue, try_patch(executable, other_node));
  GIVES(cudaSuccess, try_patch(executable, base_node));
  EXPECT_EQ(9, run(executable));

  cudaGraphNode_t late = nullptr;
  OK(cudaGraphAddKernelNode(&late, base, nullptr, 0, patch.get()));
  GIVES(cudaErrorInvalidValue, try_patch(executable, late));
  forget(base);
  OK(cudaGraphDestroy(base));
  GIVES(cudaErrorInvalidValue, try_patch(executable, base_node));
  EXPECT_EQ(9, run(executable));
}

TEST_F(RuntimeRules, CopiesAndFillsCanBePatched) {
  const cudaGraph_t graph = capture([&] {
    OK(cudaMemsetAsync(device_ + 8, 0, 16, stream_));
    OK(cudaMemcpyAsync(device_, device_ + 8, 4, cudaMemcpyDeviceToDevice, stream_));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  const Nodes all = nodes(graph);
  cudaMemsetParams set = {device_ + 32, 0, 0x42280000, 4, 3, 1};  // 42.0f
  OK(cudaGraphExecMemsetNodeSetParams(executable, all[0], &set));
  const auto kind = cudaMemcpyDeviceToDevice;
  OK(cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], device_, device_ + 34, 4, kind));
  EXPECT_EQ(42, run(executable));
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], device_, device_ + 34, 0, kind));
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], nullptr, device_ + 34, 4, kind));
  float host = 0;
  GIVES(cudaErrorInvalidValue,
        cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], device_, &host, 4, cudaMemcpyHostToDevice));
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(executable, all[0], device_, device_ + 34, 4, kind));
  for (auto change :
       {+[](cudaMemsetParams& p) { p.width = 0; }, +[](cudaMemsetParams& p) { p.elementSize = 3; },
        +[](cudaMemsetParams& p) { p.dst = nullptr; }, +[](cudaMemsetParams& p) { p.height = 2, p.pitch = 64; }}) {
    cudaMemsetParams bad = set;
    change(bad);
    GIVES(cudaErrorInvalidValue, cudaGraphExecMemsetNodeSetParams(executable, all[0], &bad));
  }
  EXPECT_EQ(42, run(executable));
}

TEST_F(RuntimeRules, DisabledNodesStayDisabledAcrossAnUpdate) {
  int counter = 0;
  const cudaGraph_t graph = capture([&] {
    OK(put(1, stream_));
    OK(plus(10, stream_));
    OK(cudaLaunchHostFunc(stream_, count_up, &counter));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  const Nodes all = nodes(graph);
  OK(cudaGraphNodeSetEnabled(executable, all[1], 0));
  EXPECT_EQ(1, run(executable));
  cudaGraphExecUpdateResultInfo info = {};
  OK(cudaGraphExecUpdate(executable, graph, &info));
  unsigned enabled = 1;
  OK(cudaGraphNodeGetEnabled(executable, all[1], &enabled));
  EXPECT_EQ(0u, enabled);
  EXPECT_EQ(1, run(executable));
  OK(cudaGraphNodeSetEnabled(executable, all[1], 1));
  EXPECT_EQ(11, run(executable));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, all[2], 0));  // a host node
}

TEST_F(RuntimeRules, UpdatesMayChangeValuesShapesAndFunctions) {
  const cudaGraphExec_t executable = instantiate(capture([&] {
    OK(launch(fill, 1, 1, stream_, device_, 1, 1.0f));
    OK(plus(1, stream_));
  }));
  cudaGraphExecUpdateResultInfo info = {};
  OK(cudaGraphExecUpdate(executable, capture([&] {
                           OK(launch(fill, 2, 2, stream_, device_, 4, 3.0f));
                           OK(launch(scale, 1, 4, stream_, device_, device_, 4, 5.0f));
                         }),
                         &info));
  EXPECT_EQ(cudaGraphExecUpdateSuccess, info.result);
  EXPECT_EQ(15, run(executable));
  EXPECT_EQ(15, read(3));
}

TEST_F(RuntimeRules, UpdatesPairBranchesCapturedInAnotherOrder) {
  const auto branches = [&](bool swapped, float a, float b) {
    return capture([&] {
      OK(put(0, stream_, 2));
      const Body first = [&] { OK(put(a, stream_)); };
      const Body second = [&] { OK(put(b, other_, 1)); };
      swapped ? fork_and_join(second, first) : fork_and_join(first, second);
      OK(plus(0, stream_));
    });
  };
  const cudaGraphExec_t executable = instantiate(branches(false, 1, 2));
  cudaGraphExecUpdateResultInfo info = {};
  OK(cudaGraphExecUpdate(executable, branches(true, 10, 20), &info));
  EXPECT_EQ(10, run(executable));
  EXPECT_EQ(20, read(1));
}

// The cache pairs the nodes of siblings, and of a graph and its clone, by their place in this list.
TEST_F(RuntimeRules, NodesAreListedInTheOrderOfTheCapturingCallsAlsoThoseOfAClone) {
  for (int round = 0; round < 20; ++round) {
    std::vector<float> order;
    float next = 1;
    const auto mark = [&](cudaStream_t stream) {
      order.push_back(next);
      OK(put(next++, stream));
    };
    const cudaGraph_t graph = capture([&] {
      for (int fork = 0; fork < 10; ++fork) {
        mark(stream_);
        fork_and_join([&] { mark((round + fork) % 2 == 0 ? stream_ : other_); },
                      [&] {
                        mark((round + fork) % 3 == 0 ? stream_ : other_);
                        mark(other_);
                      });
      }
    });
    cudaGraph_t clone = nullptr;
    OK(cudaGraphClone(&clone, graph));
    for (const cudaGraph_t listed : {graph, keep(clone)}) {
      std::vector<float> found;
      for (const cudaGraphNode_t node : nodes(listed)) {
        cudaKernelNodeParams params = {};
        OK(cudaGraphKernelNodeGetParams(node, &params));
        found.push_back(*static_cast<const float*>(params.kernelParams[2]));
      }
      EXPECT_EQ(found, order);
    }
  }
}

TEST_F(RuntimeRules, RefusedUpdatesSayWhyAndChangeNothing) {
  const cudaGraph_t chain = capture([&] {
    for (float value : {1.0f, 2.0f, 4.0f, 8.0f}) OK(plus(value, stream_));
  });
  const cudaGraphExec_t executable = instantiate(chain);
  const cudaGraph_t longer = capture([&] {
    for (int i = 0; i < 5; ++i) OK(plus(100, stream_));
  });
  const cudaGraph_t diamond = capture([&] {
    OK(plus(100, stream_));
    fork_and_join([&] { OK(plus(100, stream_)); }, [&] { OK(plus(100, other_)); });
    OK(plus(100, stream_));
  });
  const cudaGraph_t typed = capture([&] {
    for (int i = 0; i < 3; ++i) OK(plus(100, stream_));
    OK(cudaMemsetAsync(device_, 0, 4, stream_));
  });
  struct Case {
    cudaGraph_t graph;
    cudaGraphExecUpdateResult result;
    cudaGraphNode_t node;
  };
  for (const Case& c : {Case{longer, cudaGraphExecUpdateErrorTopologyChanged, nullptr},
                        Case{diamond, cudaGraphExecUpdateErrorTopologyChanged, nodes(diamond)[3]},
                        Case{typed, cudaGraphExecUpdateErrorNodeTypeChanged, nodes(typed)[3]}}) {
    cudaGraphExecUpdateResultInfo info = {};
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, c.graph, &info));
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGetLastError());
    EXPECT_EQ(c.result, info.result);
    EXPECT_EQ(c.node, info.errorNode);
    EXPECT_EQ(15, run(executable));
  }
}

TEST_F(RuntimeRules, UpdatesCompareExitsAndAttributes) {
  cudaGraphExecUpdateResultInfo info = {};
  const cudaGraph_t chain = capture([&] {
    for (int i = 0; i < 3; ++i) OK(plus(1, stream_));
  });
  const cudaGraph_t fork = capture([&] {
    OK(plus(1, stream_));
    fork_and_join([&] { OK(plus(1, stream_)); }, [&] { OK(plus(1, other_)); });
  });
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(instantiate(chain), fork, &info));
  EXPECT_EQ(cudaGraphExecUpdateErrorTopologyChanged, info.result);
  EXPECT_EQ(nodes(fork)[1], info.errorNode);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(instantiate(fork), chain, &info));
  EXPECT_EQ(cudaGraphExecUpdateErrorTopologyChanged, info.result);
  EXPECT_EQ(nullptr, info.errorNode);

  const cudaGraph_t cooperative = capture([&] {
    for (int i = 0; i < 3; ++i) OK(plus(1, stream_));
  });
  cudaLaunchAttributeValue value = {};
  value.cooperative = 1;
  OK(cudaGraphKernelNodeSetAttribute(nodes(cooperative)[1], cudaLaunchAttributeCooperative, &value));
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(instantiate(chain), cooperative, &info));
  EXPECT_EQ(cudaGraphExecUpdateErrorAttributesChanged, info.result);
  EXPECT_EQ(nodes(cooperative)[1], info.errorNode);
}

TEST_F(RuntimeRules, FillsOfTwoDimensionsKeepTheirSize) {
  const auto fill_rows = [&](unsigned value, std::size_t height) {
    cudaGraph_t graph = nullptr;
    cudaGraphNode_t node = nullptr;
    const cudaMemsetParams rows = {device_, 512, value, 4, 2, height};
    GIVES(cudaSuccess, cudaGraphCreate(&graph, 0));
    GIVES(cudaSuccess, cudaGraphAddMemsetNode(&node, keep(graph), nullptr, 0, &rows));
    return graph;
  };
  const cudaGraph_t graph = fill_rows(0x3f800000, 3);  // 1.0f
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(1, run(executable));
  EXPECT_EQ(1, read(2 * 128 + 1));
  EXPECT_EQ(0, read(2 * 128 + 2));
  EXPECT_EQ(0, read(3 * 128));
  cudaGraphExecUpdateResultInfo info = {};
  for (std::size_t height : {1, 2, 4}) {
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, fill_rows(0, height), &info));
    EXPECT_EQ(cudaGraphExecUpdateErrorParametersChanged, info.result);
  }
  OK(cudaGraphExecUpdate(executable, fill_rows(0x42280000, 3), &info));
  EXPECT_EQ(42, run(executable));
}

TEST_F(RuntimeRules, AFillOfNothingKnownIsRefusedByTheInstantiation) {
  GIVES(cudaErrorInvalidValue, cudaMemsetAsync(nullptr, 0, 4, stream_));
  const cudaGraph_t graph = capture([&] { OK(cudaMemsetAsync(nullptr, 0, 4, stream_)); });
  cudaGraphExec_t executable = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, graph, 0));
}

TEST_F(RuntimeRules, UpdatesMayResizeCopiesButNotChangeTheirKind) {
  float host = 50;
  const auto copy = [&](const float* from, std::size_t count, cudaMemcpyKind kind) {
    return capture([=, this] { OK(cudaMemcpyAsync(device_ + 8, from, count * sizeof(float), kind, stream_)); });
  };
  const cudaGraphExec_t executable = instantiate(copy(device_, 2, cudaMemcpyDeviceToDevice));
  cudaGraphExecUpdateResultInfo info = {};
  OK(cudaGraphExecUpdate(executable, copy(device_, 4, cudaMemcpyDeviceToDevice), &info));
  const cudaGraph_t upload = copy(&host, 1, cudaMemcpyHostToDevice);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, upload, &info));
  EXPECT_EQ(cudaGraphExecUpdateErrorParametersChanged, info.result);
  EXPECT_EQ(nodes(upload)[0], info.errorNode);
  OK(launch(fill, 1, 4, stream_, device_, 4, 6.0f));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(6, read(11));
}

TEST_F(RuntimeRules, PrioritiesAreFixedOnlyWhenTheyAreUsed) {
  const auto with_priority = [&](int priority) {
    const cudaGraph_t graph = capture([&] { OK(put(static_cast<float>(10 - priority), stream_)); });
    cudaLaunchAttributeValue value = {};
    value.priority = priority;
    GIVES(cudaSuccess, cudaGraphKernelNodeSetAttribute(nodes(graph)[0], cudaLaunchAttributePriority, &value));
    return graph;
  };
  const cudaGraph_t calm = with_priority(0), urgent = with_priority(-1);
  const cudaGraphExec_t indifferent = instantiate(calm);
  const cudaGraphExec_t strict = instantiate(calm, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphExecUpdateResultInfo info = {};
  GIVES(cudaSuccess, cudaGraphExecUpdate(indifferent, urgent, &info));
  EXPECT_EQ(11, run(indifferent));
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(strict, urgent, &info));
  EXPECT_EQ(cudaGraphExecUpdateErrorAttributesChanged, info.result);
  EXPECT_EQ(10, run(strict));
}

TEST_F(RuntimeRules, LaunchesOfOneExecutableKeepTheValuesTheyWereGiven) {
  const cudaGraph_t graph = capture([this] { OK(plus(1, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  for (int i = 1; i <= 50; ++i) {  // patches do not reach launches in flight (facts 14)
    OK(cudaGraphExecKernelNodeSetParams(executable, nodes(graph)[0], Params(append, 1, 1, ints(1), ints(), i).get()));
    OK(cudaGraphLaunch(executable, stream_));
  }
  for (int i = 1; i <= 50; ++i) EXPECT_EQ(i, read<int>(i));
}

TEST_F(RuntimeRules, BadHandlesAndFlagsAreRefused) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphCreate(&graph, 5));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphExecDestroy(nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, stream_));
  GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, nullptr, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, capture([] {}), 0x4000));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamWaitEvent(stream_, nullptr, 0));
}

}  // namespace
}  // namespace graphcache::test
