// Shared by the suites of hostrt: a fresh runtime for each test, and work that shows how often and in which order it
// ran.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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
    create_streams();
  }

  void create_streams() {
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

  cudaStream_t other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaGraphExecUpdateResultInfo info_ = {};
  int log_[64] = {};
  int count_ = 0;
};

}  // namespace graphcache::test
