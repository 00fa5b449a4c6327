// Shared by the suites of hostrt: a fresh runtime for each test, and work that shows how often and in which order it
// ran.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "cuda/compat.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "runtime.h"

namespace graphcache::test {

template <typename Function>
Function driver_function(const char* name, [[maybe_unused]] unsigned version = 12040) {
  void* function = nullptr;
#if CUDART_VERSION >= 12050
  EXPECT_EQ(cudaSuccess, cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, nullptr));
#else
  EXPECT_EQ(cudaSuccess, cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, nullptr));
#endif
  return reinterpret_cast<Function>(function);
}

using LoadLibrary = CUresult (*)(CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                                 unsigned);
using GetKernel = CUresult (*)(CUkernel*, CUlibrary, const char*);

// A kernel of the library's own. Any loaded library has all of these.
inline CUkernel library_kernel(const char* name) {
  const auto load = driver_function<LoadLibrary>("cuLibraryLoadData");
  const auto get = driver_function<GetKernel>("cuLibraryGetKernel");
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, load(&library, "any", nullptr, nullptr, 0, nullptr, nullptr, 0));
  EXPECT_EQ(CUDA_SUCCESS, get(&kernel, library, name));
  return kernel;
}

// Lets device code write into a kernel node.
inline cudaGraphDeviceNode_t on_device(cudaGraphNode_t node) {
  cudaLaunchAttributeValue updatable;
  std::memset(&updatable, 0, sizeof updatable);
  updatable.deviceUpdatableKernelNode.deviceUpdatable = 1;
  GIVES(cudaSuccess, cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeDeviceUpdatableKernelNode, &updatable));
  return updatable.deviceUpdatableKernelNode.devNode;
}

// For host nodes and the destructors of user objects.
inline void count_call(void* count) { ++*static_cast<int*>(count); }
inline void no_call(void*) {}

class HostrtTest : public testing::Test {
 protected:
  void SetUp() override {
    hostrt::reset();
    OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override { hostrt::reset(); }

  cudaGraph_t capture(const std::function<void()>& body) {
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    body();
    GIVES(cudaSuccess, cudaStreamEndCapture(stream_, &graph));
    return graph;
  }

  // Makes memory of the test known to the device, until a reset.
  template <class T>
  static void pin(T& memory) {
    GIVES(cudaSuccess, cudaHostRegister(&memory, sizeof memory, cudaHostRegisterDefault));
  }

  static cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream = nullptr;
    GIVES(cudaSuccess, cudaStreamCreateWithFlags(&stream, flags));
    return stream;
  }
  static cudaEvent_t new_event() {
    cudaEvent_t event = nullptr;
    GIVES(cudaSuccess, cudaEventCreate(&event));
    return event;
  }

  // The graph into which stream_ is being captured.
  cudaGraph_t graph_of_capture() {
    CaptureInfo info;
    GIVES(cudaSuccess, capture_info(stream_, &info));
    return info.graph;
  }

  static cudaGraph_t empty_graph() {
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaGraphCreate(&graph, 0));
    return graph;
  }

  static cudaGraph_t clone_of(cudaGraph_t graph) {
    cudaGraph_t clone = nullptr;
    GIVES(cudaSuccess, cudaGraphClone(&clone, graph));
    return clone;
  }

  static cudaGraphExec_t instantiate(cudaGraph_t graph, unsigned long long flags = 0) {
    cudaGraphExec_t executable = nullptr;
    GIVES(cudaSuccess, cudaGraphInstantiate(&executable, graph, flags));
    return executable;
  }

  // Expects one more misuse, with these words as its first line.
  void expect_misuse(const char* words) {
    EXPECT_EQ(++expected_misuses_, hostrt::misuses());
    const std::string message = hostrt::last_misuse();
    EXPECT_EQ(words, message.substr(0, message.find('\n')));
  }

  cudaStream_t stream_ = nullptr;
  std::uint64_t expected_misuses_ = 0;
};

class HostrtSumTest : public HostrtTest {
 protected:
  // A graph of `count` kernels that each add 1 to sum_.
  cudaGraph_t capture_adds(int count = 1) {
    return capture([&] {
      for (int i = 0; i < count; ++i) GIVES(cudaSuccess, launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
    });
  }

  float sum_ = 0;
};

// For tests of hostrt itself: calls are counted from the begin of the test.
class Hostrt : public HostrtSumTest {
 protected:
  void SetUp() override {
    hostrt::reset();
    OK(cudaStreamCreate(&stream_));
    hostrt::reset_calls();
  }
};

using Values = std::vector<int>;

class HostrtLogTest : public HostrtTest {
 protected:
  void SetUp() override {
    hostrt::reset();
    pin(log_);
    create_streams();
  }

  virtual void create_streams() {
    OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
    OK(cudaEventCreate(&event_));
  }

  cudaError_t write(int value, cudaStream_t stream) { return launch(append, 1, 1, stream, log_, &count_, value); }

  // Kernels that each append their value to log_.
  cudaGraph_t capture_values(const Values& values) {
    return capture([&] {
      for (int value : values) GIVES(cudaSuccess, write(value, stream_));
    });
  }

  cudaError_t update(cudaGraphExec_t executable, cudaGraph_t graph) {
    return cudaGraphExecUpdate(executable, graph, &info_);
  }

  cudaError_t patch(cudaGraphExec_t executable, cudaGraphNode_t node, int value) {
    const Params params(append, 1, 1, log_, &count_, value);
    return cudaGraphExecKernelNodeSetParams(executable, node, params.get());
  }

  // The values appended since the last call.
  Values taken() {
    Values values(log_, log_ + count_);
    count_ = 0;
    return values;
  }

  // A fresh runtime that defers work by this seed.
  void begin(std::uint64_t seed) {
    hostrt::reset();
    hostrt::defer(seed);
    count_ = 0;
    pin(log_);
    create_streams();
  }

  // The order in which `program` appends its values with this seed.
  Values order(std::uint64_t seed, const std::function<void()>& program) {
    begin(seed);
    program();
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    EXPECT_EQ(0u, hostrt::misuses()) << hostrt::last_misuse();
    return taken();
  }

  // Its orders with all seeds.
  std::set<Values> orders(const std::function<void()>& program) {
    std::set<Values> all;
    for (std::uint64_t seed = 0; seed < seeds_ && !HasFailure(); ++seed) all.insert(order(seed, program));
    return all;
  }

  std::uint64_t seeds_ = 400;
  cudaStream_t other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaGraphExecUpdateResultInfo info_ = {};
  int log_[64] = {};
  int count_ = 0;
};

}  // namespace graphcache::test
