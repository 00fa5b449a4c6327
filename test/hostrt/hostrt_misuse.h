// Shared by the suites of misuse: whether hostrt reported one and with which words, and overlapping calls.
#pragma once

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>

#include "graphcache/hostrt.h"
#include "hostrt_support.h"

namespace graphcache::test {

class HostrtMisuse : public HostrtSumTest {
 protected:
  // Resets hostrt after a fatal error.
  void restart() {
    SetUp();
    expected_misuses_ = 0;
  }

  cudaError_t patch(cudaGraphExec_t executable, cudaGraphNode_t node) {
    const Params params(add, 1, 1, &sum_, 1, 10.0f);
    return cudaGraphExecKernelNodeSetParams(executable, node, params.get());
  }

  unsigned char* device_memory(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMalloc(&memory, bytes));
    return static_cast<unsigned char*>(memory);
  }

  // The result of work: the error of the call that enqueued it, or of the following synchronization.
  cudaError_t outcome(cudaError_t enqueued) {
    const cudaError_t finished = cudaStreamSynchronize(stream_);
    return enqueued != cudaSuccess ? enqueued : finished;
  }

  template <typename Matcher>
  void expect_misuse(Matcher&& matcher) {
    EXPECT_EQ(++expected_misuses_, hostrt::misuses());
    EXPECT_THAT(hostrt::last_misuse(), matcher);
  }
  // Expects one more misuse, with these words as its first line, and these places.
  void expect_misuse(const std::string& words, std::initializer_list<const char*> places) {
    expect_misuse(testing::StartsWith(words + "\n"));
    for (const char* const place : places) {
      EXPECT_THAT(hostrt::last_misuse(), testing::HasSubstr(std::string("\n  ") + place + ", call "));
    }
  }
  void expect_no_misuse() { EXPECT_EQ(expected_misuses_, hostrt::misuses()) << hostrt::last_misuse(); }

  // Calls for two threads. Their objects exist before they begin.
  using Work = std::function<void()>;
  static Work instantiates(cudaGraph_t graph) {
    return [graph] { instantiate(graph); };
  }
  static Work launches(cudaGraphExec_t executable, cudaStream_t stream) {
    return [executable, stream] { GIVES(cudaSuccess, cudaGraphLaunch(executable, stream)); };
  }
  static Work lists(cudaGraph_t graph) {
    return [graph] {
      std::size_t count = 0;
      GIVES(cudaSuccess, cudaGraphGetNodes(graph, nullptr, &count));
    };
  }
  static Work asks(cudaGraphNode_t node) {
    return [node] {
      cudaGraphNodeType type;
      GIVES(cudaSuccess, cudaGraphNodeGetType(node, &type));
    };
  }
  static Work updates(cudaGraphExec_t executable, cudaGraph_t graph) {
    return [executable, graph] {
      cudaGraphExecUpdateResultInfo info = {};
      GIVES(cudaSuccess, cudaGraphExecUpdate(executable, graph, &info));
    };
  }
};

// Makes two calls overlap: both have begun before either can continue, because a host function blocks them.
class Overlap {
 public:
  Overlap(cudaStream_t stream, const std::function<void()>& a, const std::function<void()>& b) {
    std::thread first([&] { run(a); });
    std::thread second([&] { run(b); });
    EXPECT_EQ(cudaSuccess, cudaLaunchHostFunc(stream, &Overlap::wait, this));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
    first.join();
    second.join();
    EXPECT_TRUE(overlapped_);
  }

 private:
  void run(const std::function<void()>& call) {
    while (!go_) std::this_thread::yield();
    call();
  }

  static void wait(void* self) {
    auto& overlap = *static_cast<Overlap*>(self);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    overlap.go_ = true;
    while (hostrt::threads_inside() < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    overlap.overlapped_ = hostrt::threads_inside() == 3;
  }

  std::atomic<bool> go_{false};
  bool overlapped_ = false;
};

}  // namespace graphcache::test
