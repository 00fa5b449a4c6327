// What the suites of misuse share: whether hostrt reported one, and with which words.
#pragma once

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cstddef>

#include "graphcache/hostrt.h"
#include "hostrt_support.h"

namespace graphcache::test {

class HostrtMisuse : public HostrtSumTest {
 protected:
  // After an error that ended everything.
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

  // What became of work: the error of the call that enqueued it, or of the synchronization behind it.
  cudaError_t outcome(cudaError_t enqueued) {
    const cudaError_t finished = cudaStreamSynchronize(stream_);
    return enqueued != cudaSuccess ? enqueued : finished;
  }

  template <typename Matcher>
  void expect_misuse(Matcher&& matcher) {
    EXPECT_EQ(++expected_misuses_, hostrt::misuses());
    EXPECT_THAT(hostrt::last_misuse(), matcher);
  }
  void expect_no_misuse() { EXPECT_EQ(expected_misuses_, hostrt::misuses()) << hostrt::last_misuse(); }
};

}  // namespace graphcache::test
