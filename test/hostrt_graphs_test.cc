// What the library asks of templates and executables, and work in flight, as far as only hostrt can show it.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "graphcache/hostrt.h"
#include "hostrt_support.h"

namespace graphcache::test {
namespace {

void see_cluster(dim3* out) { *out = hostrt::cluster_dim(); }

void hold_the_stream(cudaStream_t stream) { hostrt::hold(stream); }

}  // namespace
}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::see_cluster)
GRAPHCACHE_HOST_KERNEL(graphcache::test::hold_the_stream)

namespace graphcache::test {
namespace {

template <typename... P>
const void* address(void (*kernel)(P...)) {
  return reinterpret_cast<const void*>(kernel);
}

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

using GetKernelNode = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
using SetKernelNode = CUresult (*)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*);
using ParameterInfo = CUresult (*)(CUfunction, std::size_t, std::size_t*, std::size_t*);

// Edges as positions of their nodes.
std::vector<std::pair<std::size_t, std::size_t>> edges_of(cudaGraph_t graph) {
  const Nodes nodes = nodes_of(graph);
  const auto position = [&](cudaGraphNode_t node) {
    return std::find(nodes.begin(), nodes.end(), node) - nodes.begin();
  };
  std::size_t count = 16;
  Nodes from(count), to(count);
#if CUDART_VERSION >= 13000
  EXPECT_EQ(cudaSuccess, cudaGraphGetEdges(graph, from.data(), to.data(), nullptr, &count));
#else
  EXPECT_EQ(cudaSuccess, cudaGraphGetEdges(graph, from.data(), to.data(), &count));
#endif
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (std::size_t i = 0; i < count; ++i) edges.emplace_back(position(from[i]), position(to[i]));
  return edges;
}

Nodes dependencies_of(cudaGraphNode_t node) {
  std::size_t count = 16;
  Nodes dependencies(count);
#if CUDART_VERSION >= 13000
  EXPECT_EQ(cudaSuccess, cudaGraphNodeGetDependencies(node, dependencies.data(), nullptr, &count));
#else
  EXPECT_EQ(cudaSuccess, cudaGraphNodeGetDependencies(node, dependencies.data(), &count));
#endif
  dependencies.resize(count);
  return dependencies;
}

using HostrtGraphs = HostrtLogTest;

// ---- The driver's questions ----

TEST_F(HostrtGraphs, TheDriverTellsAKernelNodesParameters) {
  const auto get = driver_function<GetKernelNode>("cuGraphKernelNodeGetParams");
  const cudaGraph_t graph = capture([&] {
    int* log = log_;
    int* count = &count_;
    int value = 7;
    void* arguments[] = {&log, &count, &value};
    OK(cudaLaunchKernel(address(append), dim3(2, 3, 4), dim3(5, 6, 7), arguments, 96, stream_));
  });
  const cudaGraphNode_t node = nodes_of(graph)[0];
  CUDA_KERNEL_NODE_PARAMS params;
  std::memset(&params, 0xff, sizeof params);
  ASSERT_EQ(CUDA_SUCCESS, get(node, &params));
  cudaFunction_t function = nullptr;
  OK(cudaGetFuncBySymbol(&function, address(append)));
  EXPECT_EQ(function, params.func);
  EXPECT_EQ(nullptr, params.kern);
  EXPECT_EQ(nullptr, params.ctx);
  EXPECT_EQ(nullptr, params.extra);
  const unsigned shape[] = {params.gridDimX,  params.gridDimY,  params.gridDimZ,      params.blockDimX,
                            params.blockDimY, params.blockDimZ, params.sharedMemBytes};
  EXPECT_EQ((std::vector<unsigned>{2, 3, 4, 5, 6, 7, 96}), std::vector<unsigned>(shape, shape + 7));
  EXPECT_EQ(log_, *static_cast<int**>(params.kernelParams[0]));
  EXPECT_EQ(7, *static_cast<int*>(params.kernelParams[2]));

  const cudaGraphExec_t executable = instantiate(graph);
  OK(patch(executable, node, 8));  // the executable's affair: the node's values stay
  EXPECT_EQ(7, *static_cast<int*>(params.kernelParams[2]));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, get(nullptr, &params));
  EXPECT_EQ(2u, hostrt::calls("cudaGraphKernelNodeGetParams"));
}

TEST_F(HostrtGraphs, TheDriverTellsWhereParametersLie) {
  const auto info = driver_function<ParameterInfo>("cuFuncGetParamInfo");
  cudaFunction_t function = nullptr;
  OK(cudaGetFuncBySymbol(&function, address(many)));
  const std::vector<std::pair<std::size_t, std::size_t>> expected = {
      {0, 8}, {8, 1}, {16, 8}, {24, 2}, {28, 4}, {32, 8}, {40, 1}, {44, 4}, {48, 4}, {52, 2}, {56, 8}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::size_t offset = 99, size = 99;
    EXPECT_EQ(CUDA_SUCCESS, info(function, i, &offset, &size));
    EXPECT_EQ(expected[i], std::make_pair(offset, size)) << "parameter " << i;
  }
  std::size_t offset = 99, size = 99;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, info(function, expected.size(), &offset, &size));
  EXPECT_EQ(99u, offset);
  EXPECT_EQ(CUDA_SUCCESS, info(function, 1, &offset, nullptr));
  EXPECT_EQ(8u, offset);
  EXPECT_EQ(expected.size() + 2, hostrt::calls("cudaFuncGetParamInfo"));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, info(reinterpret_cast<CUfunction>(this), 0, &offset, &size));
  expect_misuse("cudaFuncGetParamInfo: the function is not registered by GRAPHCACHE_HOST_KERNEL");
  GIVES(cudaSuccess, cudaPeekAtLastError());
}

TEST_F(HostrtGraphs, DriverCallsCanFailAndLeaveTheLastErrorAlone) {
  const auto get = driver_function<GetKernelNode>("cuGraphKernelNodeGetParams");
  const auto info = driver_function<ParameterInfo>("cuFuncGetParamInfo");
  const cudaGraphNode_t node = nodes_of(capture_values({1}))[0];
  CUDA_KERNEL_NODE_PARAMS params = {};
  std::size_t offset = 0;
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(5));
  hostrt::fail_call("cudaGraphKernelNodeGetParams", 1, cudaErrorMemoryAllocation);
  hostrt::fail_call("cudaFuncGetParamInfo", 1, cudaErrorNotSupported);
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, get(node, &params));
  EXPECT_EQ(nullptr, params.func);
  EXPECT_EQ(CUDA_SUCCESS, get(node, &params));
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, info(params.func, 0, &offset, nullptr));
  EXPECT_EQ(CUDA_SUCCESS, info(params.func, 0, &offset, nullptr));
  GIVES(cudaErrorInvalidDevice, cudaGetLastError());
}

TEST_F(HostrtGraphs, DriverCallsNeedAContext) {
  const auto get = driver_function<GetKernelNode>("cuGraphKernelNodeGetParams");
  const auto info = driver_function<ParameterInfo>("cuFuncGetParamInfo");
  const auto set = driver_function<SetKernelNode>("cuGraphExecKernelNodeSetParams");
  const cudaGraph_t graph = capture_values({1});
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphNode_t node = nodes_of(graph)[0];
  CUDA_KERNEL_NODE_PARAMS params = {};
  ASSERT_EQ(CUDA_SUCCESS, get(node, &params));
  const auto expect_refusal = [&](const char* words, auto&& call) {
    std::thread([&] {
      EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, call());
      GIVES(cudaSuccess, cudaPeekAtLastError());
    }).join();
    expect_misuse(words);
  };
  std::size_t offset = 0;
  expect_refusal("cudaGraphKernelNodeGetParams: the driver was called by a thread without a context",
                 [&] { return get(node, &params); });
  expect_refusal("cudaFuncGetParamInfo: the driver was called by a thread without a context",
                 [&] { return info(params.func, 0, &offset, nullptr); });
  expect_refusal("cudaGraphExecKernelNodeSetParams: the driver was called by a thread without a context",
                 [&] { return set(executable, node, &params); });
}

#if CUDART_VERSION >= 12050
TEST_F(HostrtGraphs, DriverFunctionsAreThereFromTheirVersionOn) {
  void* function = this;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
  OK(cudaGetDriverEntryPointByVersion("cuFuncGetParamInfo", &function, 12030, cudaEnableDefault, &result));
  EXPECT_EQ(cudaDriverEntryPointVersionNotSufficent, result);
  EXPECT_EQ(nullptr, function);
  OK(cudaGetDriverEntryPointByVersion("cuFuncGetParamInfo", &function, 12040, cudaEnableDefault, &result));
  EXPECT_EQ(cudaDriverEntryPointSuccess, result);
  EXPECT_NE(nullptr, function);
  OK(cudaGetDriverEntryPointByVersion("cuNoSuchCall", &function, 13000, cudaEnableDefault, &result));
  EXPECT_EQ(cudaDriverEntryPointSymbolNotFound, result);
  EXPECT_EQ(nullptr, function);
}
#endif

TEST_F(HostrtGraphs, PointersTellWhatTheyPointTo) {
  hostrt::set_device_count(2);
  char* device = nullptr;
  char* host = nullptr;
  OK(cudaSetDevice(1));
  OK(cudaMalloc(reinterpret_cast<void**>(&device), 1000));
  OK(cudaMallocHost(reinterpret_cast<void**>(&host), 100));
  OK(cudaSetDevice(0));
  const auto expect = [](cudaMemoryType type, int device, void* on_device, void* on_host, const void* pointer) {
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, pointer));
    EXPECT_EQ(type, attributes.type);
    EXPECT_EQ(device, attributes.device);
    EXPECT_EQ(on_device, attributes.devicePointer);
    EXPECT_EQ(on_host, attributes.hostPointer);
  };
  for (char* inside : {device, device + 1, device + 999}) expect(cudaMemoryTypeDevice, 1, inside, nullptr, inside);
  for (char* inside : {host, host + 99}) expect(cudaMemoryTypeHost, 1, inside, inside, inside);
  char variable = 0;
  for (char* outside : {device + 1000, device - 1, host + 100, &variable}) {
    expect(cudaMemoryTypeUnregistered, -2, nullptr, outside, outside);
  }
  OK(cudaFree(device));
  OK(cudaFreeHost(host));
  for (char* freed : {device, device + 5, host}) expect(cudaMemoryTypeUnregistered, -2, nullptr, freed, freed);
  GIVES(cudaErrorInvalidValue, cudaPointerGetAttributes(nullptr, &variable));
}

TEST_F(HostrtGraphs, HostNodesTellTheirFunction) {
  const auto function = [](void* counter) { ++*static_cast<int*>(counter); };
  const cudaGraph_t graph = capture([&] {
    OK(cudaLaunchHostFunc(stream_, function, &count_));
    OK(write(1, stream_));
  });
  cudaHostNodeParams params = {};
  OK(cudaGraphHostNodeGetParams(nodes_of(graph)[0], &params));
  EXPECT_EQ(static_cast<cudaHostFn_t>(function), params.fn);
  EXPECT_EQ(&count_, params.userData);
  GIVES(cudaErrorInvalidValue, cudaGraphHostNodeGetParams(nodes_of(graph)[1], &params));
  GIVES(cudaErrorInvalidValue, cudaGraphHostNodeGetParams(nodes_of(graph)[0], nullptr));
}

TEST_F(HostrtGraphs, CopiesCanBePatchedByTheirStructure) {
  int from[4] = {1, 2, 3, 4}, to[4] = {};
  const cudaGraph_t graph =
      capture([&] { OK(cudaMemcpyAsync(to, from, sizeof(int), cudaMemcpyDeviceToDevice, stream_)); });
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  cudaMemcpy3DParms params = {};
  OK(cudaGraphMemcpyNodeGetParams(node, &params));
  params.srcPos.x = sizeof(int);
  params.dstPtr.ptr = to + 2;
  params.extent.width = 2 * sizeof(int);
  OK(cudaGraphExecMemcpyNodeSetParams(executable, node, &params));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{0, 0, 2, 3}), Values(to, to + 4));

  const auto refused = [&](cudaError_t error, auto&& change) {
    cudaMemcpy3DParms changed = params;
    change(changed);
    GIVES(error, cudaGraphExecMemcpyNodeSetParams(executable, node, &changed));
  };
  refused(cudaErrorNotSupported, [](auto& p) { p.extent.height = 2; });
  refused(cudaErrorNotSupported, [](auto& p) { p.extent.depth = 2; });
  refused(cudaErrorNotSupported, [](auto& p) { p.dstPos.y = 1; });
  refused(cudaErrorNotSupported, [&](auto& p) { p.srcArray = reinterpret_cast<cudaArray_t>(this); });
  refused(cudaErrorInvalidValue, [](auto& p) { p.extent.width = 0; });
  refused(cudaErrorInvalidValue, [](auto& p) { p.srcPtr.ptr = nullptr; });
  refused(cudaErrorInvalidValue, [](auto& p) { p.kind = cudaMemcpyHostToDevice; });
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams(executable, node, nullptr));
  to[2] = to[3] = 0;
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{0, 0, 2, 3}), Values(to, to + 4));
}

// ---- Clones ----

TEST_F(HostrtGraphs, ACloneKeepsTheOrderOfNodesAndDependencies) {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t nodes[4];
  for (cudaGraphNode_t& node : nodes) OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  const cudaGraphNode_t from[] = {nodes[0], nodes[0], nodes[2], nodes[1], nodes[0]};
  const cudaGraphNode_t to[] = {nodes[3], nodes[1], nodes[3], nodes[3], nodes[2]};
#if CUDART_VERSION >= 13000
  OK(cudaGraphAddDependencies(graph, from, to, nullptr, 5));
#else
  OK(cudaGraphAddDependencies(graph, from, to, 5));
#endif
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  using Edges = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ((Edges{{0, 3}, {0, 1}, {0, 2}, {1, 3}, {2, 3}}), edges_of(graph));
  EXPECT_EQ((Edges{{0, 1}, {0, 2}, {0, 3}, {1, 3}, {2, 3}}), edges_of(clone));  // as on a GPU (tried)
  const Nodes twins = nodes_of(clone);
  EXPECT_EQ((Nodes{twins[0], twins[2], twins[1]}), dependencies_of(twins[3]));
}

TEST_F(HostrtGraphs, NodesAreFoundInAClone) {
  const cudaGraph_t graph = capture_values({1, 2, 3});
  const Nodes nodes = nodes_of(graph);
  cudaGraph_t clone = nullptr, second = nullptr;
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphClone(&second, clone));
  const Nodes twins = nodes_of(clone);
  cudaGraphNode_t found = nullptr;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    OK(cudaGraphNodeFindInClone(&found, nodes[i], clone));
    EXPECT_EQ(twins[i], found);
  }
  cudaGraphNode_t added = nullptr;
  OK(cudaGraphAddEmptyNode(&added, graph, nullptr, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, added, clone));      // newer than the clone
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, nodes[0], second));  // a clone of the clone
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, twins[0], graph));   // the other way round
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(nullptr, nodes[0], clone));
  EXPECT_EQ(0u, hostrt::misuses());
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, nodes[0], clone));
  expect_misuse("cudaGraphNodeFindInClone: node was destroyed");
}

TEST_F(HostrtGraphs, AnExecutableOfACloneTakesTheClonesNodes) {
  const cudaGraph_t graph = capture_values({1, 2});
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  const cudaGraphExec_t executable = instantiate(clone);
  GIVES(cudaErrorInvalidValue, patch(executable, nodes_of(graph)[1], 5));
  OK(patch(executable, nodes_of(clone)[1], 6));
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{1, 6}), taken());
  EXPECT_EQ(0u, hostrt::misuses());
}

TEST_F(HostrtGraphs, AnUpdateFromACloneKeepsWhatIsDisabled) {
  const cudaGraph_t graph = capture_values({1, 2, 3});
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphNodeSetEnabled(executable, nodes_of(graph)[1], 0));
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, capture_values({4, 5, 6})));
  OK(update(executable, clone));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{4, 6}), taken());
  unsigned enabled = 1;
  OK(cudaGraphNodeGetEnabled(executable, nodes_of(graph)[1], &enabled));
  EXPECT_EQ(0u, enabled);
  GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, nodes_of(clone)[1], 1));  // not of the base
  OK(cudaGraphNodeSetEnabled(executable, nodes_of(graph)[1], 1));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{4, 5, 6}), taken());
}

TEST_F(HostrtGraphs, NodesOfADestroyedBasePatchNothing) {
  const cudaGraph_t graph = capture_values({1});
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  GIVES(cudaErrorInvalidValue, patch(executable, nodes_of(capture_values({2}))[0], 3));
  EXPECT_EQ(0u, hostrt::misuses());
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, patch(executable, node, 4));
  expect_misuse("cudaGraphExecKernelNodeSetParams: node was destroyed");
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{1}), taken());
}

// ---- Updates that lie, updates that are refused ----

TEST_F(HostrtGraphs, KernelsSeeTheirClusterSize) {
  dim3 seen(0, 0, 0);
  const auto expect = [&](unsigned x, unsigned y) {
    EXPECT_EQ(std::make_pair(x, y), std::make_pair(seen.x, seen.y));
    EXPECT_EQ(1u, seen.z);
  };
  OK(launch(see_cluster, 4, 1, stream_, &seen));
  expect(1, 1);
  const auto launch_it = [&] { OK(launch_in_clusters(see_cluster, dim3(4, 3), 1, dim3(2, 3), stream_, &seen)); };
  launch_it();
  expect(2, 3);
  const cudaGraph_t graph = capture(launch_it);
  OK(launch(see_cluster, 4, 1, stream_, &seen));
  expect(1, 1);
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  OK(cudaGraphLaunch(instantiate(clone), stream_));
  expect(2, 3);
}

// Facts 19: each pair of sizes was tried.
TEST_F(HostrtGraphs, AnUpdateKeepsTheOldClusterSize) {
  dim3 seen(0, 0, 0);
  const auto graph_of = [&](unsigned cluster) {
    const cudaGraph_t graph = capture([&] { OK(launch(see_cluster, 4, 1, stream_, &seen)); });
    if (cluster != 0) {
      cudaLaunchAttributeValue value = {};
      value.clusterDim.x = cluster;
      value.clusterDim.y = value.clusterDim.z = 1;
      EXPECT_EQ(cudaSuccess,
                cudaGraphKernelNodeSetAttribute(nodes_of(graph)[0], cudaLaunchAttributeClusterDimension, &value));
    }
    return graph;
  };
  for (const auto& [before, after] : {std::pair(2u, 4u), std::pair(1u, 4u), std::pair(0u, 4u), std::pair(4u, 0u)}) {
    const cudaGraphExec_t executable = instantiate(graph_of(before));
    OK(update(executable, graph_of(after)));
    EXPECT_EQ(cudaGraphExecUpdateSuccess, info_.result);
    OK(cudaGraphLaunch(executable, stream_));
    EXPECT_EQ(before == 0 ? 1 : before, seen.x) << "from " << before << " to " << after;
  }
}

TEST_F(HostrtGraphs, AnArmedRefusalOfAnUpdateSaysSo) {
  const cudaGraphExec_t executable = instantiate(capture_values({1, 2}));
  const cudaGraph_t graph = capture_values({3, 4});
  const auto expect_info = [&](cudaGraphExecUpdateResult result) {
    EXPECT_EQ(result, info_.result);
    EXPECT_EQ(nullptr, info_.errorNode);
    EXPECT_EQ(nullptr, info_.errorFromNode);
    std::memset(&info_, 0, sizeof info_);
  };
  hostrt::fail_call("cudaGraphExecUpdate", 2, cudaErrorGraphExecUpdateFailure);
  hostrt::fail_call("cudaGraphExecUpdate", 3, cudaErrorMemoryAllocation);
  hostrt::fail_call("cudaGraphExecUpdate", 4, cudaErrorGraphExecUpdateFailure);
  OK(update(executable, graph));
  expect_info(cudaGraphExecUpdateSuccess);
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, capture_values({5, 6})));
  expect_info(cudaGraphExecUpdateErrorNotSupported);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGetLastError());  // latches (facts 20)
  GIVES(cudaErrorMemoryAllocation, update(executable, capture_values({5, 6})));
  expect_info(cudaGraphExecUpdateError);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, graph, nullptr));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{3, 4}), taken());
}

// ---- Work in flight ----

TEST_F(HostrtGraphs, AHeldStreamKeepsItsWork) {
  OK(write(1, stream_));
  hostrt::hold(stream_);
  int from = 5, to = 0;
  OK(write(2, stream_));
  OK(cudaMemcpyAsync(&to, &from, sizeof to, cudaMemcpyDefault, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(cudaLaunchHostFunc(
      stream_, [](void* counter) { *static_cast<int*>(counter) += 10; }, &to));
  EXPECT_EQ((Values{1}), taken());
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream_));
  GIVES(cudaErrorNotReady, cudaEventQuery(event_));
  GIVES(cudaSuccess, cudaPeekAtLastError());  // an answer, not an error
  OK(cudaStreamQuery(other_));
  OK(write(3, other_));
  EXPECT_EQ((Values{3}), taken());
  OK(hostrt::release(stream_));
  EXPECT_EQ((Values{2}), taken());
  EXPECT_EQ(15, to);
  OK(cudaStreamQuery(stream_));
  OK(cudaEventQuery(event_));
  OK(write(4, stream_));
  EXPECT_EQ((Values{4}), taken());
}

TEST_F(HostrtGraphs, EventsAreReadyWhenWhatIsInFrontOfThemIs) {
  OK(cudaEventQuery(event_));  // never recorded
  OK(cudaEventRecord(event_, stream_));
  hostrt::hold(stream_);
  OK(cudaEventQuery(event_));  // recorded ahead
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream_));
  OK(cudaEventRecord(event_, stream_));
  GIVES(cudaErrorNotReady, cudaEventQuery(event_));
  float milliseconds = 0;
  GIVES(cudaErrorNotReady, cudaEventElapsedTime(&milliseconds, event_, event_));
  OK(cudaEventRecord(event_, other_));
  OK(cudaEventQuery(event_));  // the latest record counts
  OK(cudaEventRecord(event_, stream_));
  OK(cudaEventDestroy(event_));
  OK(hostrt::release(stream_));
  EXPECT_EQ(0u, hostrt::misuses());
}

TEST_F(HostrtGraphs, WhateverWaitsReleases) {
  void* memory = nullptr;
  void* pinned = nullptr;
  cudaStream_t blocking = nullptr;
  int variable = 0;
  OK(cudaMalloc(&memory, 8));
  OK(cudaMallocHost(&pinned, 8));
  OK(cudaStreamCreate(&blocking));
  const auto expect_release = [&](cudaStream_t stream, auto&& wait) {
    hostrt::hold(stream);
    OK(write(1, stream));
    OK(cudaEventRecord(event_, stream));
    EXPECT_EQ((Values{}), taken());
    OK(wait());
    EXPECT_EQ((Values{1}), taken());
    OK(cudaEventQuery(event_));
  };
  const auto copy = [&] { return cudaMemcpy(&variable, &variable, sizeof variable, cudaMemcpyDefault); };
  expect_release(stream_, [&] { return cudaStreamSynchronize(stream_); });
  expect_release(stream_, [&] { return cudaEventSynchronize(event_); });
  expect_release(stream_, [&] { return cudaDeviceSynchronize(); });
  expect_release(stream_, [&] { return cudaFree(memory); });
  expect_release(stream_, [&] { return cudaFreeHost(pinned); });
  expect_release(blocking, copy);
  expect_release(blocking, [&] { return cudaStreamSynchronize(cudaStreamLegacy); });
  expect_release(stream_, [&] { return cudaStreamDestroy(stream_); });
  hostrt::hold(other_);
  OK(write(2, other_));
  OK(copy());  // not a blocking stream: nothing to wait for
  OK(cudaStreamSynchronize(blocking));
  GIVES(cudaErrorNotReady, cudaStreamQuery(other_));
  EXPECT_EQ((Values{}), taken());
}

TEST_F(HostrtGraphs, LaunchesInFlightOutliveTheirExecutable) {
  const cudaGraph_t graph = capture_values({1, 2});
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(patch(executable, nodes_of(graph)[0], 3));  // for later launches only (facts 14)
  OK(cudaGraphLaunch(executable, stream_));
  OK(update(executable, capture_values({5, 6})));
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ((Values{}), taken());
  EXPECT_EQ(0u, hostrt::ledger().executables);
  OK(hostrt::release(stream_));
  EXPECT_EQ((Values{1, 2, 3, 2, 5, 6}), taken());
}

TEST_F(HostrtGraphs, WorkWaitsForHeldWorkElsewhere) {
  cudaStream_t third = nullptr;
  OK(cudaStreamCreate(&third));
  hostrt::hold(stream_);
  OK(write(1, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(write(2, stream_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(write(3, other_));
  OK(cudaEventRecord(event_, other_));
  OK(cudaStreamWaitEvent(third, event_, 0));
  OK(write(4, third));
  OK(write(5, cudaStreamLegacy));  // behind `third`, which is a blocking stream
  EXPECT_EQ((Values{}), taken());
  for (cudaStream_t stream : {stream_, other_, third, cudaStreamLegacy}) {
    GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
  }
  OK(cudaStreamSynchronize(cudaStreamLegacy));
  EXPECT_EQ((Values{1, 2, 3, 4, 5}), taken());
  for (cudaStream_t stream : {stream_, other_, third, cudaStreamLegacy}) OK(cudaStreamQuery(stream));

  hostrt::hold(cudaStreamLegacy);
  OK(write(6, cudaStreamLegacy));
  OK(write(7, third));
  OK(write(8, other_));  // not a blocking stream
  EXPECT_EQ((Values{8}), taken());
  OK(hostrt::release(cudaStreamLegacy));
  EXPECT_EQ((Values{6, 7}), taken());
}

TEST_F(HostrtGraphs, AnExecutableRunsOnceAtATime) {
  const cudaGraph_t graph = capture_values({1});
  const cudaGraphExec_t executable = instantiate(graph);
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(patch(executable, nodes_of(graph)[0], 2));
  OK(cudaGraphLaunch(executable, other_));
  OK(write(3, other_));
  EXPECT_EQ((Values{}), taken());
  OK(cudaStreamSynchronize(other_));  // needs the other launch
  EXPECT_EQ((Values{1, 2, 3}), taken());
  OK(cudaStreamQuery(stream_));
}

TEST_F(HostrtGraphs, StreamsAreReleasedOneByOne) {
  hostrt::hold(stream_);
  hostrt::hold(other_);
  hostrt::hold(other_);  // once is enough
  OK(write(1, stream_));
  OK(write(2, other_));
  OK(cudaStreamSynchronize(other_));
  EXPECT_EQ((Values{2}), taken());
  OK(hostrt::release(other_));  // no longer held: nothing happens
  OK(hostrt::release(stream_));
  EXPECT_EQ((Values{1}), taken());
}

TEST_F(HostrtGraphs, TheEndOfAThreadReleasesItsStream) {
  std::thread([&] {
    hostrt::hold(cudaStreamPerThread);
    OK(write(1, cudaStreamPerThread));
    EXPECT_EQ((Values{}), taken());
  }).join();
  EXPECT_EQ((Values{1}), taken());
}

TEST_F(HostrtGraphs, ResetDropsHeldWork) {
  hostrt::hold(stream_);
  OK(write(1, stream_));
  hostrt::reset();
  EXPECT_EQ((Values{}), taken());
  OK(write(2, nullptr));
  OK(cudaStreamQuery(nullptr));
  EXPECT_EQ((Values{2}), taken());
}

TEST_F(HostrtGraphs, HeldWorkThatFailsFailsItsRelease) {
  hostrt::hold(stream_);
  OK(launch(fault, 1, 1, stream_));
  OK(write(1, stream_));
  hostrt::hold(other_);
  OK(write(2, other_));
  GIVES(cudaErrorLaunchFailure, hostrt::release(stream_));
  GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
  GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(other_));
  EXPECT_EQ((Values{}), taken());
}

TEST_F(HostrtGraphs, WaitingForHeldWorkEndsWhenItFails) {
  hostrt::hold(stream_);
  OK(write(1, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(launch(fault, 1, 1, other_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(write(2, other_));
  OK(cudaEventRecord(event_, other_));
  GIVES(cudaErrorLaunchFailure, cudaEventSynchronize(event_));
  GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(other_));
  EXPECT_EQ((Values{1}), taken());
}

TEST_F(HostrtGraphs, OnlyLiveStreamsAreHeldAndNotByKernels) {
  OK(launch(hold_the_stream, 1, 1, stream_, other_));
  expect_misuse("hold: called from inside a kernel or a host function");
  OK(cudaStreamQuery(other_));
  OK(cudaStreamDestroy(other_));
  hostrt::hold(other_);
  expect_misuse("hold: not a live stream");
  GIVES(cudaErrorInvalidResourceHandle, hostrt::release(other_));
  expect_misuse("release: not a live stream");
}

}  // namespace
}  // namespace graphcache::test
