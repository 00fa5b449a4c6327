// Queries of nodes, parameters and pointers by the driver and the runtime, as the library makes them; only what hostrt
// alone can show.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conditional/condition.h"
#include "graph/host_memory_support.h"
#include "graph/setter.h"
#include "hostrt_support.h"

namespace graphcache::test {
namespace {

using HostrtGraphs = HostrtLogTest;

template <typename... P>
const void* address(void (*kernel)(P...)) {
  return reinterpret_cast<const void*>(kernel);
}

template <typename... P>
cudaFunction_t function_at(void (*kernel)(P...)) {
  cudaFunction_t function = nullptr;
  GIVES(cudaSuccess, cudaGetFuncBySymbol(&function, address(kernel)));
  return function;
}

using GetKernelNode = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
using SetKernelNode = CUresult (*)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*);
using ParameterInfo = CUresult (*)(CUfunction, std::size_t, std::size_t*, std::size_t*);
using LaunchKernel = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  CUstream, void**, void**);

TEST_F(HostrtGraphs, TheDriverReportsAKernelNodesParameters) {
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
  EXPECT_EQ(function_at(append), params.func);
  EXPECT_EQ(nullptr, params.kern);
  CUcontext current = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, driver_function<CUresult (*)(CUcontext*)>("cuCtxGetCurrent")(&current));
  EXPECT_NE(nullptr, current);
  EXPECT_EQ(current, params.ctx);
  EXPECT_EQ(nullptr, params.extra);
  const unsigned shape[] = {params.gridDimX,  params.gridDimY,  params.gridDimZ,      params.blockDimX,
                            params.blockDimY, params.blockDimZ, params.sharedMemBytes};
  EXPECT_EQ((std::vector<unsigned>{2, 3, 4, 5, 6, 7, 96}), std::vector<unsigned>(shape, shape + 7));
  EXPECT_EQ(log_, *static_cast<int**>(params.kernelParams[0]));
  EXPECT_EQ(7, *static_cast<int*>(params.kernelParams[2]));

  const cudaGraphExec_t executable = instantiate(graph);
  OK(patch(executable, node, 8));  // changes only the executable; the node keeps its values
  EXPECT_EQ(7, *static_cast<int*>(params.kernelParams[2]));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, get(nullptr, &params));
  EXPECT_EQ(2u, hostrt::calls("cudaGraphKernelNodeGetParams"));
}

TEST_F(HostrtGraphs, TheDriverReportsTheOffsetsOfParameters) {
  const auto info = driver_function<ParameterInfo>("cuFuncGetParamInfo");
  const cudaFunction_t function = function_at(many);
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
  ++expected_misuses_;
  EXPECT_THAT(hostrt::last_misuse(),
              testing::ContainsRegex("^cudaFuncGetParamInfo: .* is not registered by GRAPHCACHE_HOST_KERNEL\n"));
  GIVES(cudaSuccess, cudaPeekAtLastError());
}

// The arguments of append() as one buffer.
struct PackedArguments {
  int* log;
  int* count;
  int value;

  CUresult launch(cudaStream_t stream, void** arguments = nullptr) {
    const auto launch_kernel = driver_function<LaunchKernel>("cuLaunchKernel");
    return launch_kernel(function_at(append), 1, 1, 1, 1, 1, 1, 0, stream, arguments, extra_);
  }

  std::size_t bytes = 24;
  void* extra_[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &log, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
};

TEST_F(HostrtGraphs, ArgumentsMayBePassedAsOneBuffer) {
  const auto get = driver_function<GetKernelNode>("cuGraphKernelNodeGetParams");
  const auto set = driver_function<SetKernelNode>("cuGraphExecKernelNodeSetParams");
  PackedArguments packed{log_, &count_, 5};
  EXPECT_EQ(CUDA_SUCCESS, packed.launch(stream_));
  packed.bytes = 20;  // without the padding at the end
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(CUDA_SUCCESS, packed.launch(stream_)); });
  packed.value = 6;  // the node has a copy
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{5, 5}), taken());

  CUDA_KERNEL_NODE_PARAMS params = {};
  ASSERT_EQ(CUDA_SUCCESS, get(nodes_of(graph)[0], &params));
  EXPECT_EQ(nullptr, params.kernelParams);
  ASSERT_NE(nullptr, params.extra);
  EXPECT_EQ(CU_LAUNCH_PARAM_BUFFER_POINTER, params.extra[0]);
  EXPECT_EQ(5, static_cast<const PackedArguments*>(params.extra[1])->value);
  EXPECT_EQ(CU_LAUNCH_PARAM_BUFFER_SIZE, params.extra[2]);
  EXPECT_EQ(20u, *static_cast<std::size_t*>(params.extra[3]));
  EXPECT_EQ(CU_LAUNCH_PARAM_END, params.extra[4]);
  cudaKernelNodeParams of_runtime = {};
  OK(cudaGraphKernelNodeGetParams(nodes_of(graph)[0], &of_runtime));
  EXPECT_EQ(nullptr, of_runtime.kernelParams);
  EXPECT_EQ(params.extra, of_runtime.extra);

  params.extra = packed.extra_;
  EXPECT_EQ(CUDA_SUCCESS, set(executable, nodes_of(graph)[0], &params));
  OK(cudaGraphLaunch(executable, stream_));
  OK(patch(executable, nodes_of(graph)[0], 7));  // one by one again
  OK(cudaGraphLaunch(executable, stream_));
  of_runtime.extra = packed.extra_;
  packed.value = 8;
  OK(cudaGraphKernelNodeSetParams(nodes_of(graph)[0], &of_runtime));
  const cudaGraph_t clone = clone_of(graph);
  ASSERT_EQ(CUDA_SUCCESS, get(nodes_of(clone)[0], &params));
  ASSERT_NE(nullptr, params.extra);
  EXPECT_EQ(8, static_cast<const PackedArguments*>(params.extra[1])->value);
  OK(cudaGraphLaunch(instantiate(clone), stream_));
  OK(update(executable, clone));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{6, 7, 8, 8}), taken());

  OK(cudaGraphKernelNodeSetParams(nodes_of(graph)[0], Params(append, 1, 1, log_, &count_, 9).get()));
  ASSERT_EQ(CUDA_SUCCESS, get(nodes_of(graph)[0], &params));
  EXPECT_EQ(nullptr, params.extra);
  EXPECT_EQ(9, *static_cast<int*>(params.kernelParams[2]));
}

TEST_F(HostrtGraphs, ABufferOfArgumentsMustBeWholeAndTheOnlyOne) {
  PackedArguments packed{log_, &count_, 5};
  void* arguments[] = {&packed.log, &packed.count, &packed.value};
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, packed.launch(stream_, arguments));
  for (const std::size_t wrong : {std::size_t{19}, std::size_t{25}}) {
    packed.bytes = wrong;
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, packed.launch(stream_));
    const std::string words = "cudaLaunchKernel: graphcache::test::append has arguments of 20 bytes, and the buffer ";
    expect_misuse((words + std::to_string(wrong)).c_str());
  }
  packed.bytes = 24;
  packed.extra_[2] = CU_LAUNCH_PARAM_END;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, packed.launch(stream_));
  packed.extra_[2] = &packed;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, packed.launch(stream_));
  EXPECT_EQ(Values{}, taken());
}

TEST_F(HostrtGraphs, TheDriverNamesItsErrors) {
  const auto name_of = driver_function<CUresult (*)(CUresult, const char**)>("cuGetErrorName");
  const auto text_of = driver_function<CUresult (*)(CUresult, const char**)>("cuGetErrorString");
  const char* text = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, name_of(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ("CUDA_ERROR_OUT_OF_MEMORY", text);
  EXPECT_EQ(CUDA_SUCCESS, text_of(CUDA_ERROR_MISALIGNED_ADDRESS, &text));
  EXPECT_STREQ("misaligned address", text);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, name_of(static_cast<CUresult>(cudaErrorInvalidPitchValue), &text));
  EXPECT_EQ(nullptr, text);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, text_of(CUDA_SUCCESS, nullptr));
}

TEST_F(HostrtGraphs, TheDriverReportsTheNamesOfKernels) {
  const auto get_name = driver_function<CUresult (*)(const char**, CUfunction)>("cuFuncGetName");
  const cudaFunction_t function = function_at(many);
  const char* name = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, get_name(&name, function));
  EXPECT_STREQ("graphcache::test::many", name);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, get_name(nullptr, function));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, get_name(&name, nullptr));
  EXPECT_EQ(3u, hostrt::calls("cudaFuncGetName"));
  hostrt::fail_call("cudaFuncGetName", 1, cudaErrorUnknown);
  EXPECT_EQ(CUDA_ERROR_UNKNOWN, get_name(&name, function));
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
  const auto expect_refusal = [&](const std::string& name, auto&& call) {
    std::thread([&] {
      EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, call());
      GIVES(cudaSuccess, cudaPeekAtLastError());
    }).join();
    expect_misuse((name + ": the driver was called by a thread without a context").c_str());
  };
  std::size_t offset = 0;
  expect_refusal("cudaGraphKernelNodeGetParams", [&] { return get(node, &params); });
  expect_refusal("cudaFuncGetParamInfo", [&] { return info(params.func, 0, &offset, nullptr); });
  expect_refusal("cudaGraphExecKernelNodeSetParams", [&] { return set(executable, node, &params); });
}

// The library uses the driver for these.
TEST_F(HostrtGraphs, TheDriverLoadsLibrariesAndRunsTheirKernels) {
  const auto load = driver_function<LoadLibrary>("cuLibraryLoadData");
  const auto get = driver_function<GetKernel>("cuLibraryGetKernel");
  const auto unload = driver_function<CUresult (*)(CUlibrary)>("cuLibraryUnload");
  const auto function_of = driver_function<CUresult (*)(CUfunction*, CUkernel)>("cuKernelGetFunction");
  const auto add = driver_function<CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t,
                                                const CUDA_KERNEL_NODE_PARAMS*)>("cuGraphAddKernelNode");
  const auto launch = driver_function<LaunchKernel>("cuLaunchKernel");
  const char image[] = "any";
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(5));
  hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, load(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, load(&library, image, nullptr, nullptr, 1, nullptr, nullptr, 0));
  // Libraries belong to no context, so a thread without one may load them.
  std::thread([&] {
    EXPECT_EQ(CUDA_SUCCESS, load(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    EXPECT_EQ(CUDA_ERROR_NOT_FOUND, get(&kernel, library, "none"));
    EXPECT_EQ(CUDA_SUCCESS, get(&kernel, library, setter::kSmallName));
    GIVES(cudaSuccess, cudaPeekAtLastError());
  }).join();
  GIVES(cudaErrorInvalidDevice, cudaGetLastError());

  setter::Value<setter::kSmall> node = {{1, 2}}, value = {{3, 4}}, given = {{5, 6}};
  void *to_node = &node, *to_value = &value;
  void* node_arguments[] = {&to_node, &given};
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.kern = kernel;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = 2;
  params.kernelParams = node_arguments;
  const cudaGraph_t graph = empty_graph();
  cudaGraphNode_t handle = nullptr;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, add(&handle, graph, nullptr, 0, nullptr));
  ASSERT_EQ(CUDA_SUCCESS, add(&handle, graph, nullptr, 0, &params));
  OK(cudaGraphLaunch(instantiate(graph), stream_));
  CUfunction function = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, function_of(&function, kernel));
  void* arguments[] = {&to_value, &given};
  EXPECT_EQ(CUDA_SUCCESS, launch(function, 1, 1, 1, 2, 1, 1, 0, stream_, arguments, nullptr));
  OK(cudaStreamSynchronize(stream_));
  for (const auto& written : {node, value}) {
    EXPECT_EQ(5u, written.bytes[0]);
    EXPECT_EQ(6u, written.bytes[1]);
  }

  EXPECT_EQ(CUDA_SUCCESS, unload(library));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, unload(library));
  expect_misuse("cudaLibraryUnload: the library is not loaded");
  EXPECT_EQ(3u, hostrt::calls("cudaLibraryLoadData"));
  EXPECT_EQ(2u, hostrt::calls("cudaLibraryGetKernel"));
  EXPECT_EQ(2u, hostrt::calls("cudaLibraryUnload"));
  EXPECT_EQ(1u, hostrt::calls("cudaGraphAddKernelNode"));
  EXPECT_EQ(1u, hostrt::calls("cudaLaunchKernel"));
}

TEST_F(HostrtGraphs, AMisalignedConditionIsAMisalignedAddress) {
  const CUkernel kernel = library_kernel(condition::kSetName);
  cudaGraphConditionalHandle handle = 0;
  unsigned numbers[2] = {};
  void* misaligned = reinterpret_cast<char*>(numbers) + 1;
  void* kept = nullptr;
  void* arguments[] = {&handle, &misaligned, &kept};
  GIVES(cudaErrorMisalignedAddress, cudaLaunchKernel(kernel, 1, 1, arguments, 0, stream_));
  GIVES(cudaErrorMisalignedAddress, cudaDeviceSynchronize());
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

TEST_F(HostrtGraphs, PointerAttributesAreReported) {
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
  const cudaGraph_t graph = capture([&] {
    OK(cudaLaunchHostFunc(stream_, count_call, &count_));
    OK(write(1, stream_));
  });
  cudaHostNodeParams params = {};
  OK(cudaGraphHostNodeGetParams(nodes_of(graph)[0], &params));
  EXPECT_EQ(&count_call, params.fn);
  EXPECT_EQ(&count_, params.userData);
  GIVES(cudaErrorInvalidValue, cudaGraphHostNodeGetParams(nodes_of(graph)[1], &params));
  GIVES(cudaErrorInvalidValue, cudaGraphHostNodeGetParams(nodes_of(graph)[0], nullptr));
}

TEST_F(HostrtGraphs, CopiesCanBePatchedByTheirStructure) {
  int from[4] = {1, 2, 3, 4}, to[4] = {};
  pin(from);
  pin(to);
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
  refused(cudaErrorInvalidPitchValue, [](auto& p) { p.extent.height = 2; });  // of several rows
  refused(cudaErrorInvalidValue, [](auto& p) {
    p.extent = {4, 1, 2};
    p.srcPtr.pitch = p.dstPtr.pitch = 8;
    p.srcPtr.ysize = p.dstPtr.ysize = 1;
  });
  refused(cudaErrorNotSupported, [&](auto& p) { p.srcArray = reinterpret_cast<cudaArray_t>(this); });
  refused(cudaErrorInvalidValue, [](auto& p) { p.extent.width = 0; });
  refused(cudaErrorInvalidValue, [](auto& p) { p.srcPtr.ptr = nullptr; });
  refused(cudaErrorInvalidValue, [](auto& p) { p.kind = cudaMemcpyHostToDevice; });
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams(executable, node, nullptr));
  to[2] = to[3] = 0;
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ((Values{0, 0, 2, 3}), Values(to, to + 4));
}

// Two ends of a copy, by the kind of their memory.
class HostrtCopies : public HostrtLogTest {
 protected:
  enum Memory { kDevice, kManaged, kPinned, kPageable };
  struct Ends {
    Memory to, from;
  };

  // Makes a copy between the first ends, changes it to the second ends by an update or a patch, and launches it.
  cudaError_t outcome(Ends first, Ends second, cudaMemcpyKind kind, bool by_update) {
    hostrt::reset();
    create_streams();
    void* memory[2][4] = {{}, {}};
    for (int i = 0; i < 2; ++i) {
      GIVES(cudaSuccess, cudaMalloc(&memory[i][kDevice], sizeof(int)));
      GIVES(cudaSuccess, cudaMallocManaged(&memory[i][kManaged], sizeof(int), cudaMemAttachGlobal));
      GIVES(cudaSuccess, cudaMallocHost(&memory[i][kPinned], sizeof(int)));
      memory[i][kPageable] = pageable_ + i;
      for (void* one : memory[i]) *static_cast<int*>(one) = 5 + i;
    }
    const auto captured = [&](Ends ends) {
      return capture([&] {
        GIVES(cudaSuccess, cudaMemcpyAsync(memory[0][ends.to], memory[1][ends.from], sizeof(int), kind, stream_));
      });
    };
    const cudaGraph_t graph = captured(first);
    const cudaGraphNode_t node = nodes_of(graph)[0];
    executable_ = instantiate(graph);
    if (by_update) {
      GIVES(cudaSuccess, update(executable_, captured(second)));
    } else {
      GIVES(cudaSuccess, cudaGraphExecMemcpyNodeSetParams1D(executable_, node, memory[0][second.to],
                                                            memory[1][second.from], sizeof(int), kind));
    }
    const cudaError_t launched = cudaGraphLaunch(executable_, stream_);
    const cudaError_t error = launched != cudaSuccess ? launched : cudaStreamSynchronize(stream_);
    EXPECT_EQ(error == cudaSuccess ? 6 : 5, *static_cast<int*>(memory[0][second.to]));
    EXPECT_EQ(error, cudaStreamSynchronize(stream_));  // if it is an error, the context is lost
    EXPECT_EQ(0u, hostrt::misuses());
    return error;
  }

  cudaGraphExec_t executable_ = nullptr;
  int pageable_[2];
};

TEST_F(HostrtCopies, FromTheDevicesToPageableMemoryIsAnIllegalAddress) {
  constexpr Memory kAll[] = {kDevice, kManaged, kPinned, kPageable};
  for (const Memory first : kAll) {
    for (const Memory second : kAll) {
      SCOPED_TRACE(first * 10 + second);
      const bool is_illegal = (first == kDevice || first == kManaged) && second == kPageable;
      const cudaError_t expected = is_illegal ? cudaErrorIllegalAddress : cudaSuccess;
      for (const bool by_update : {false, true}) {
        GIVES(expected, outcome({first, kDevice}, {second, kDevice}, cudaMemcpyDefault, by_update));
        GIVES(expected, outcome({kDevice, first}, {kDevice, second}, cudaMemcpyDefault, by_update));
      }
    }
  }
  GIVES(cudaErrorIllegalAddress, outcome({kPinned, kManaged}, {kPageable, kManaged}, cudaMemcpyDefault, false));
  GIVES(cudaSuccess, outcome({kPageable, kManaged}, {kPinned, kManaged}, cudaMemcpyDefault, false));
  GIVES(cudaSuccess, outcome({kPageable, kManaged}, {kPageable, kPageable}, cudaMemcpyDefault, false));
  GIVES(cudaSuccess, outcome({kPinned, kDevice}, {kPageable, kDevice}, cudaMemcpyDeviceToHost, false));
  GIVES(cudaSuccess, outcome({kDevice, kPinned}, {kDevice, kPageable}, cudaMemcpyHostToDevice, false));
}

TEST_F(HostrtCopies, APatchBackMakesACopyWhole) {
  int *device = nullptr, *to = nullptr;
  int pageable = 7;
  OK(cudaMalloc(reinterpret_cast<void**>(&device), sizeof(int)));
  OK(cudaMalloc(reinterpret_cast<void**>(&to), sizeof(int)));
  *device = 6;
  const auto captured = [&](const int* from) {
    return capture([&] { OK(cudaMemcpyAsync(to, from, sizeof(int), cudaMemcpyDefault, stream_)); });
  };
  const cudaGraph_t graph = captured(device);
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  const auto patch_to = [&](const int* from) {
    return cudaGraphExecMemcpyNodeSetParams1D(executable, node, to, from, sizeof(int), cudaMemcpyDefault);
  };
  const auto expect_copied = [&](int value) {
    OK(cudaGraphLaunch(executable, stream_));
    OK(cudaStreamSynchronize(stream_));
    EXPECT_EQ(value, *to);
  };
  OK(patch_to(&pageable));
  OK(patch_to(device));
  expect_copied(6);
  OK(update(executable, captured(&pageable)));
  OK(update(executable, graph));
  expect_copied(6);
  const cudaGraph_t of_host = captured(&pageable);
  const cudaGraphExec_t other = instantiate(of_host);
  OK(update(other, graph));
  OK(cudaGraphExecMemcpyNodeSetParams1D(other, nodes_of(of_host)[0], to, &pageable, sizeof(int), cudaMemcpyDefault));
  OK(cudaGraphLaunch(other, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(7, *to);
}

// By a patch and by an update that change nothing. CUDA refuses the others.
TEST_F(HostrtCopies, AnAddressThatAnotherDeviceHasNowIsAnIllegalAddress) {
  using Kind = ReusedMemory::Kind;
  for (const bool by_update : {false, true}) {
    for (const int device : {0, 1}) {
      hostrt::reset();
      hostrt::set_device_count(2);
      create_streams();
      const PinnedBuffer<char> pinned(16);
      ReusedMemory memory(Kind::kPinned);
      const void* const from = memory.get();
      const auto captured = [&] {
        return capture([&] { GIVES(cudaSuccess, cudaMemcpyAsync(pinned.get(), from, 8, cudaMemcpyDefault, stream_)); });
      };
      const cudaGraph_t graph = captured();
      const cudaGraphExec_t executable = instantiate(graph);
      if (!memory.give_out_again(device == 0 ? Kind::kDevice : Kind::kOtherDevice)) {
        GTEST_SKIP() << "the allocator has other memory";
      }
      const auto patch = [&](void* to) {
        return cudaGraphExecMemcpyNodeSetParams1D(executable, nodes_of(graph)[0], to, from, 8, cudaMemcpyDefault);
      };
      GIVES(device == 0 ? cudaSuccess : cudaErrorInvalidValue, patch(pinned.get() + 8));
      GIVES(cudaSuccess, by_update ? update(executable, captured()) : patch(pinned.get()));
      GIVES(device == 0 ? cudaSuccess : cudaErrorIllegalAddress, cudaGraphLaunch(executable, stream_));
    }
  }
}

}  // namespace
}  // namespace graphcache::test
