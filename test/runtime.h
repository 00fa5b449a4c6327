// Shared by suites that call the CUDA runtime themselves: checks of results, parameters of kernel nodes, and queries.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <vector>

#include "launch.h"

inline void PrintTo(cudaError_t error, std::ostream* os) { *os << cudaGetErrorName(error); }

namespace graphcache::test {

#define OK(call) ASSERT_EQ(cudaSuccess, (call))
#define GIVES(error, call) EXPECT_EQ(error, (call))

// Kernel node parameters that keep their values.
template <class... P>
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

using Nodes = std::vector<cudaGraphNode_t>;

inline Nodes nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  GIVES(cudaSuccess, cudaGraphGetNodes(graph, nullptr, &count));
  Nodes nodes(count);
  GIVES(cudaSuccess, cudaGraphGetNodes(graph, count != 0 ? nodes.data() : nullptr, &count));
  return nodes;
}

// Calls that should fail, so that what they would return is not needed.
inline cudaError_t instantiation_error(cudaGraph_t graph, unsigned long long flags = 0) {
  cudaGraphExec_t executable = nullptr;
  return cudaGraphInstantiate(&executable, graph, flags);
}
inline cudaError_t clone_error(cudaGraph_t graph) {
  cudaGraph_t clone = nullptr;
  return cudaGraphClone(&clone, graph);
}
// Such a call must return no graph, else this is another error.
inline cudaError_t end_of_capture_error(cudaStream_t stream) {
  int other = 0;
  auto* graph = reinterpret_cast<cudaGraph_t>(&other);
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  return graph == nullptr ? error : cudaErrorUnknown;
}

inline cudaMemoryType memory_type(const void* pointer) {
  cudaPointerAttributes attributes = {};
  GIVES(cudaSuccess, cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type;
}

}  // namespace graphcache::test
