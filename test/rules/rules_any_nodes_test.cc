// Calls on nodes of any type, compared with those on nodes of one type.
#include <atomic>

#include "conditional/conditional.h"
#include "cuda/compat.h"
#include "rules.h"

namespace graphcache::test {
namespace {

class AnyNodes : public RuntimeRules {
 protected:
  static cudaGraphNodeParams of_type(cudaGraphNodeType type) {
    cudaGraphNodeParams params = {};
    params.type = type;
    return params;
  }
  static cudaGraphNodeParams kernel(const cudaKernelNodeParams& kernel) {
    cudaGraphNodeParams params = of_type(cudaGraphNodeTypeKernel);
    params.kernel.func = kernel.func;
    params.kernel.gridDim = kernel.gridDim;
    params.kernel.blockDim = kernel.blockDim;
    params.kernel.sharedMemBytes = kernel.sharedMemBytes;
    params.kernel.kernelParams = kernel.kernelParams;
    return params;
  }
  static cudaGraphNodeParams set(void* address, unsigned value, std::size_t bytes) {
    cudaGraphNodeParams params = of_type(cudaGraphNodeTypeMemset);
    params.memset.dst = address;
    params.memset.value = value;
    params.memset.elementSize = 1;
    params.memset.width = bytes;
    params.memset.height = 1;
    return params;
  }
  static cudaGraphNodeParams copy(void* to, void* from, std::size_t bytes) {
    cudaGraphNodeParams params = of_type(cudaGraphNodeTypeMemcpy);
    params.memcpy.copyParams.dstPtr = {to, bytes, bytes, 1};
    params.memcpy.copyParams.srcPtr = {from, bytes, bytes, 1};
    params.memcpy.copyParams.extent = {bytes, 1, 1};
    params.memcpy.copyParams.kind = cudaMemcpyDeviceToDevice;
    return params;
  }
  static cudaGraphNodeParams call(cudaHostFn_t function, void* data) {
    cudaGraphNodeParams params = of_type(cudaGraphNodeTypeHost);
    params.host.fn = function;
    params.host.userData = data;
    return params;
  }

  // A node behind the most recently added one.
  cudaGraphNode_t append(cudaGraph_t graph, cudaGraphNodeParams params) {
    cudaGraphNode_t node = nullptr;
    GIVES(cudaSuccess, add_node(&node, graph, &last_, last_ != nullptr ? 1 : 0, &params));
    return last_ = node;
  }
  static cudaError_t patch(cudaGraphExec_t executable, cudaGraphNode_t node, cudaGraphNodeParams params) {
    return cudaGraphExecNodeSetParams(executable, node, &params);
  }
  static cudaError_t change(cudaGraphNode_t node, cudaGraphNodeParams params) {
    return cudaGraphNodeSetParams(node, &params);
  }

  cudaGraphNode_t last_ = nullptr;
};

TEST_F(AnyNodes, AreAddedPatchedAndChanged) {
  std::atomic<int> first = 0, second = 0;
  const cudaGraph_t child = capture([this] { OK(plus(1, stream_)); });
  const cudaGraph_t graph = make_graph();
  const cudaGraphNode_t sets = append(graph, set(device_, 0, 2 * sizeof(float)));
  const cudaGraphNode_t fills = append(graph, kernel(*Params(fill, 1, 1, device_, 1, 3.0f).get()));
  append(graph, of_type(cudaGraphNodeTypeEmpty));
  cudaGraphNodeParams of_child = of_type(cudaGraphNodeTypeGraph);
  of_child.graph.graph = child;
  append(graph, of_child);
  const cudaGraphNode_t copies = append(graph, copy(device_ + 1, device_, sizeof(float)));
  const cudaGraphNode_t calls = append(graph, call(count_up, &first));
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(4, run(executable));
  EXPECT_EQ(4, read(1));
  EXPECT_EQ(1, first);

  OK(patch(executable, fills, kernel(*Params(fill, 1, 1, device_, 1, 6.0f).get())));
  OK(patch(executable, sets, set(device_ + 2, 1, sizeof(float))));
  OK(patch(executable, copies, copy(device_ + 3, device_, sizeof(float))));
  OK(patch(executable, calls, call(count_up, &second)));
  EXPECT_EQ(7, run(executable));
  EXPECT_EQ(0, read(1));
  EXPECT_EQ(0x01010101, read<int>(2));
  EXPECT_EQ(7, read(3));
  EXPECT_EQ(1, first);
  EXPECT_EQ(1, second);

  // The graph is unchanged until it is changed itself.
  EXPECT_EQ(4, run(instantiate(graph)));
  EXPECT_EQ(0, read(3));
  OK(change(fills, kernel(*Params(fill, 1, 1, device_, 1, 8.0f).get())));
  OK(change(sets, set(device_, 0, sizeof(float))));
  OK(change(copies, copy(device_ + 4, device_, sizeof(float))));
  OK(change(calls, call(count_up, &second)));
  EXPECT_EQ(9, run(instantiate(graph)));
  EXPECT_EQ(9, read(4));
  EXPECT_EQ(2, second);
}

TEST_F(AnyNodes, AreRefusedByCallsOfAnotherType) {
  const cudaGraph_t graph = make_graph();
  const cudaGraphNode_t node = append(graph, set(device_, 0, sizeof(float)));
  const cudaGraphExec_t executable = instantiate(graph);
  GIVES(cudaErrorInvalidValue, patch(executable, node, kernel(*Params(fill, 1, 1, device_, 1, 3.0f).get())));
  GIVES(cudaErrorInvalidValue, change(node, kernel(*Params(fill, 1, 1, device_, 1, 3.0f).get())));
  GIVES(cudaErrorInvalidValue, cudaGraphExecNodeSetParams(executable, node, nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeSetParams(node, nullptr));
}

// The library reads nodes by these calls or by those on one type.
TEST_F(AnyNodes, AreReadByTheLibrary) {
  std::atomic<int> counter = 0;
  const cudaGraph_t child = capture([this] { OK(plus(1, stream_)); });
  const cudaGraph_t graph = make_graph();

  cudaMemsetParams found_set = {};
  OK(cudaGraphMemsetNodeGetParams(append(graph, set(device_ + 1, 5, 12)), &found_set));
  EXPECT_EQ(device_ + 1, found_set.dst);
  EXPECT_EQ(5u, found_set.value);
  EXPECT_EQ(1u, found_set.elementSize);
  EXPECT_EQ(12u, found_set.width);
  EXPECT_EQ(1u, found_set.height);

  cudaMemcpy3DParms found_copy = {};
  OK(cudaGraphMemcpyNodeGetParams(append(graph, copy(device_ + 3, device_ + 2, 8)), &found_copy));
  EXPECT_EQ(device_ + 3, found_copy.dstPtr.ptr);
  EXPECT_EQ(device_ + 2, found_copy.srcPtr.ptr);
  EXPECT_EQ(8u, found_copy.extent.width);
  EXPECT_EQ(cudaMemcpyDeviceToDevice, found_copy.kind);

  cudaHostNodeParams found_call = {};
  unsigned sync_mode = 9;
  OK(host_params(append(graph, call(count_up, &counter)), &found_call, &sync_mode).error);
  EXPECT_EQ(&count_up, found_call.fn);
  EXPECT_EQ(&counter, found_call.userData);
  EXPECT_EQ(0u, sync_mode);

  cudaGraphNodeParams params = of_type(cudaGraphNodeTypeGraph);
  params.graph.graph = child;
  cudaGraph_t embedded = nullptr;
  OK(cudaGraphChildGraphNodeGetGraph(append(graph, params), &embedded));
  ASSERT_NE(nullptr, embedded);
  EXPECT_NE(child, embedded);
  EXPECT_EQ(1u, nodes(embedded).size());
}

TEST_F(AnyNodes, OfMemoryAreReadByTheLibrary) {
  const cudaGraph_t graph = make_graph();
  cudaGraphNodeParams allocates = of_type(cudaGraphNodeTypeMemAlloc);
  allocates.alloc.poolProps.allocType = cudaMemAllocationTypePinned;
  allocates.alloc.poolProps.location.type = cudaMemLocationTypeDevice;
  allocates.alloc.bytesize = 4096;
  cudaGraphNode_t node = nullptr;
  OK(add_node(&node, graph, nullptr, 0, &allocates));
  ASSERT_NE(nullptr, allocates.alloc.dptr);
  AddressRange memory;
  OK(node_memory(node, cudaGraphNodeTypeMemAlloc, &memory).error);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(allocates.alloc.dptr), memory.begin);
  EXPECT_EQ(4096u, memory.size);

  cudaGraphNodeParams frees = of_type(cudaGraphNodeTypeMemFree);
  frees.free.dptr = allocates.alloc.dptr;
  cudaGraphNode_t end = nullptr;
  OK(add_node(&end, graph, &node, 1, &frees));
  AddressRange freed;
  OK(node_memory(end, cudaGraphNodeTypeMemFree, &freed).error);
  EXPECT_EQ(memory.begin, freed.begin);
}

#if CUDART_VERSION >= 13020

TEST_F(AnyNodes, ReportTheirTypes) {
  int version = 0;
  OK(cudaDriverGetVersion(&version));
  if (version < 13020) GTEST_SKIP() << "a driver for CUDA " << version << " has no cudaGraphNodeGetParams";
  const cudaGraph_t graph = make_graph();
  const Params params(fill, 2, 3, device_, 1, 3.0f);
  cudaGraphNodeParams found = {};
  OK(cudaGraphNodeGetParams(append(graph, kernel(*params.get())), &found));
  EXPECT_EQ(cudaGraphNodeTypeKernel, found.type);
  EXPECT_EQ(2u, found.kernel.gridDim.x);
  EXPECT_EQ(3u, found.kernel.blockDim.x);
  EXPECT_EQ(3.0f, *static_cast<float*>(found.kernel.kernelParams[2]));

  cudaGraphNodeParams calls = call(count_up, nullptr);
  calls.host.syncMode = cudaHostTaskSpinWait;
  const cudaGraphNode_t node = append(graph, calls);
  OK(cudaGraphNodeGetParams(node, &found));
  EXPECT_EQ(cudaGraphNodeTypeHost, found.type);
  EXPECT_EQ(&count_up, found.host.fn);
  EXPECT_EQ(unsigned{cudaHostTaskSpinWait}, found.host.syncMode);
  cudaHostNodeParams ignored = {};
  unsigned sync_mode = 0;
  OK(host_params(node, &ignored, &sync_mode).error);
  EXPECT_EQ(unsigned{cudaHostTaskSpinWait}, sync_mode);

  OK(cudaGraphNodeGetParams(append(graph, of_type(cudaGraphNodeTypeEmpty)), &found));
  EXPECT_EQ(cudaGraphNodeTypeEmpty, found.type);
  GIVES(cudaErrorInvalidValue, cudaGraphNodeGetParams(node, nullptr));
}

#endif

}  // namespace
}  // namespace graphcache::test
