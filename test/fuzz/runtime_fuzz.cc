// Random programs of runtime calls against hostrt. Each call must return an error that the runtime has and latch it. It
// must not crash, hang or leak, whatever the order of the calls and the state of the handles.
//
// A program is a list of operations. To add an operation, add a line to kOperations. If GRAPHCACHE_FUZZ_TRACE is set,
// each is printed with its result.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>
#include <string>

#include "conditional/conditional.h"
#include "cuda/compat.h"
#include "hostrt/functions.h"
#include "launch.h"
#include "runtime_world.h"

namespace graphcache::test {
namespace {

void note_nodes(World& w, const cudaGraphNode_t* nodes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) w.nodes.add(nodes[i]);
}

// Calls add(out, graph, dependencies, count), for functions that add a node of some type.
template <class Add>
cudaError_t add_node(World& w, Add&& add) {
  const World::Nodes after = w.some_nodes();
  const cudaGraph_t graph = w.graph();
  return add(w.new_node(), graph, after.nodes.data(), after.count);
}

cudaError_t launch_with_attributes(World& w) {
  World::Launch& launch = w.launch();
  std::array<cudaLaunchAttribute, 2> attributes;
  std::memset(static_cast<void*>(attributes.data()), 0, sizeof attributes);
  for (cudaLaunchAttribute& attribute : attributes) {
    attribute.id = static_cast<cudaLaunchAttributeID>(w.in.below(20));
    attribute.val.clusterDim.x = static_cast<unsigned>(w.in.below(9));
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = w.shape();
  config.blockDim = w.shape();
  config.dynamicSmemBytes = w.in.byte();
  config.stream = w.stream();
  config.attrs = w.in.chance(16) ? nullptr : attributes.data();
  config.numAttrs = static_cast<unsigned>(w.in.below(3));
  return cudaLaunchKernelExC(w.in.chance(8) ? nullptr : &config, launch.function, launch.arguments());
}

cudaError_t launch(World& w) {
  World::Launch& launch = w.launch();
  return cudaLaunchKernel(launch.function, w.shape(), w.shape(), launch.arguments(), w.in.byte(), w.stream());
}

cudaError_t read_capture(World& w) {
  CaptureInfo info;
  const cudaError_t error = capture_info(w.stream(), &info);
  if (error != cudaSuccess || info.status != cudaStreamCaptureStatusActive) return error;
  note_nodes(w, info.dependencies, info.dependency_count);
  w.graphs.add(info.graph);  // nodes may be added to it, but it must not be destroyed
  return error;
}

cudaError_t update_capture(World& w) {
  World::Nodes some = w.some_nodes();
  const auto flags = static_cast<unsigned>(w.in.below(3));
#if CUDART_VERSION >= 13000
  return cudaStreamUpdateCaptureDependencies(w.stream(), some.nodes.data(), nullptr, some.count, flags);
#else
  return cudaStreamUpdateCaptureDependencies(w.stream(), some.nodes.data(), some.count, flags);
#endif
}

cudaError_t add_edges(World& w) {
  const World::Nodes from = w.some_nodes();
  const World::Nodes to = w.some_nodes();
  const std::size_t count = std::min(from.count, to.count);
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(w.graph(), from.nodes.data(), to.nodes.data(), nullptr, count);
#else
  return cudaGraphAddDependencies(w.graph(), from.nodes.data(), to.nodes.data(), count);
#endif
}

cudaError_t list_nodes(World& w) {
  std::array<cudaGraphNode_t, 8> nodes{};
  std::size_t count = w.in.below(nodes.size() + 1);
  const std::size_t room = count;
  const bool roots = w.in.chance(64);
  cudaGraphNode_t* const out = w.in.chance(64) ? nullptr : nodes.data();
  const cudaError_t error =
      roots ? cudaGraphGetRootNodes(w.graph(), out, &count) : cudaGraphGetNodes(w.graph(), out, &count);
  if (error == cudaSuccess && out != nullptr) note_nodes(w, out, std::min(room, count));
  return error;
}

cudaError_t remove_edges(World& w) {
  const World::Nodes from = w.some_nodes();
  const World::Nodes to = w.some_nodes();
  const std::size_t count = std::min(from.count, to.count);
#if CUDART_VERSION >= 13000
  return cudaGraphRemoveDependencies(w.graph(), from.nodes.data(), to.nodes.data(), nullptr, count);
#else
  return cudaGraphRemoveDependencies(w.graph(), from.nodes.data(), to.nodes.data(), count);
#endif
}

// A graph that is added to itself has twice its nodes.
cudaError_t add_child(World& w) {
  constexpr std::size_t kMaxNodes = 1000;
  if (hostrt::ledger().nodes > kMaxNodes) return cudaSuccess;
  return add_node(w, [&](auto... at) { return cudaGraphAddChildGraphNode(at..., w.graph()); });
}

// The node returns the address at which its launches allocate.
cudaError_t add_allocation(World& w) {
  cudaMemAllocNodeParams* const params = w.alloc_params();
  const cudaError_t error = add_node(w, [&](auto... at) { return cudaGraphAddMemAllocNode(at..., params); });
  if (error == cudaSuccess) w.blocks.add(params->dptr);
  return error;
}

cudaError_t list_dependencies(World& w) {
  std::array<cudaGraphNode_t, 8> nodes{};
  std::array<cudaGraphEdgeData, 8> edges{};
  std::size_t count = w.in.below(nodes.size() + 1);
  return dependencies_by_runtime(w.node(), nodes.data(), w.in.chance(64) ? nullptr : edges.data(), &count);
}

// Like a program that changes one argument: with the node's own arrays.
cudaError_t patch_with_own_params(World& w) {
  cudaKernelNodeParams params = {};
  const cudaGraphNode_t node = w.node();
  if (const cudaError_t error = cudaGraphKernelNodeGetParams(node, &params); error != cudaSuccess) return error;
  params.gridDim = w.shape();
  return w.in.chance(64) ? cudaGraphKernelNodeSetParams(node, &params)
                         : cudaGraphExecKernelNodeSetParams(w.executable(), node, &params);
}

cudaError_t attribute(World& w) {
  cudaLaunchAttributeValue value;
  std::memset(static_cast<void*>(&value), 0, sizeof value);
  const auto id = static_cast<cudaLaunchAttributeID>(w.in.below(20));
  const cudaGraphNode_t node = w.node();
  if (w.in.chance(128)) return cudaGraphKernelNodeGetAttribute(node, id, &value);
  value.clusterDim.x = static_cast<unsigned>(w.in.below(9));
  value.clusterDim.y = value.clusterDim.z = 1;
  return cudaGraphKernelNodeSetAttribute(node, id, &value);
}

cudaError_t arm_failure(World& w) {
  static constexpr cudaError_t kErrors[] = {cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorUnknown,
                                            cudaErrorStreamCaptureInvalidated, cudaErrorGraphExecUpdateFailure};
  const char* function = hostrt::kFunctionNames[w.in.byte() % hostrt::kFunctionCount];
  // These two functions read the error that a call has latched.
  if (std::string(function).find("LastError") != std::string::npos) function = "*";
  hostrt::fail_call(function, static_cast<int>(w.in.below(4)), w.in.pick(kErrors), static_cast<int>(w.in.below(4)) - 1);
  return cudaSuccess;
}

cudaError_t exchange_mode(World& w) {
  auto mode = static_cast<cudaStreamCaptureMode>(w.in.below(4));
  return cudaThreadExchangeStreamCaptureMode(w.in.chance(8) ? nullptr : &mode);
}

struct Operation {
  const char* name;
  cudaError_t (*run)(World& w);
};

// clang-format off
#define CALL(...) {#__VA_ARGS__, [](World& w) -> cudaError_t { return __VA_ARGS__; }}
#define CALL_ALONE(...) {#__VA_ARGS__, [](World&) -> cudaError_t { return __VA_ARGS__; }}
#define ADD(name, ...) {#name, [](World& w) { return add_node(w, [&](auto... at) { return name(at..., __VA_ARGS__); }); }}
const Operation kOperations[] = {
    CALL(cudaStreamCreateWithFlags(w.new_stream(), w.flags())),
    CALL(cudaStreamCreateWithPriority(w.new_stream(), w.flags(), static_cast<int>(w.in.below(8)) - 6)),
    CALL(cudaStreamDestroy(w.stream())),
    CALL(cudaStreamSynchronize(w.stream())),
    CALL(cudaStreamQuery(w.stream())),
    CALL(cudaStreamWaitEvent(w.stream(), w.event(), w.flags())),
    CALL(cudaStreamGetPriority(w.stream(), w.out<int>())),
    CALL(cudaStreamGetFlags(w.stream(), w.out<unsigned>())),
    CALL(cudaStreamGetId(w.stream(), w.out<unsigned long long>())),
    CALL(stream_device(w.stream(), w.out<int>()).error),
    CALL(cudaEventCreateWithFlags(w.new_event(), w.flags())),
    CALL(cudaEventDestroy(w.event())),
    CALL(cudaEventRecord(w.event(), w.stream())),
    CALL(cudaEventQuery(w.event())),
    CALL(cudaEventSynchronize(w.event())),
    CALL(cudaEventElapsedTime(w.out<float>(), w.event(), w.event())),
    CALL(cudaSetDevice(w.device())),
    CALL(cudaGetDevice(w.out<int>())),
    CALL_ALONE(cudaDeviceSynchronize()),
    CALL(cudaGetDeviceProperties(w.out<cudaDeviceProp>(), w.device())),
    CALL(cudaDeviceGetAttribute(w.out<int>(), static_cast<cudaDeviceAttr>(w.in.byte()), w.device())),
    CALL(cudaDeviceGetStreamPriorityRange(w.out<int>(), w.out<int>())),
    CALL(cudaDeviceGraphMemTrim(w.device())),
    CALL(cudaMalloc(w.blocks.slot(w.in), w.size())),
    CALL(cudaMallocHost(w.host_blocks.slot(w.in), w.size())),
    CALL(cudaHostAlloc(w.host_blocks.slot(w.in), w.size(), w.flags())),
    CALL(cudaFree(w.blocks.any(w.in))),
    CALL(cudaFree(w.host_blocks.any(w.in))),
    CALL(cudaFreeHost(w.host_blocks.any(w.in))),
    CALL(cudaHostRegister(w.address(), w.bytes(), w.flags())),
    CALL(cudaHostUnregister(w.address())),
    CALL(cudaPointerGetAttributes(w.out<cudaPointerAttributes>(), w.address())),
    CALL(cudaPointerGetAttributes(w.out<cudaPointerAttributes>(), w.blocks.any(w.in))),
    CALL(cudaMemGetInfo(w.out<std::size_t>(), w.out<std::size_t>())),
    CALL(cudaMemcpy(w.address(), w.address(), w.bytes(), w.copy_kind())),
    CALL(cudaMemcpyAsync(w.address(), w.address(), w.bytes(), w.copy_kind(), w.stream())),
    CALL(cudaMemset(w.address(), w.in.byte(), w.bytes())),
    CALL(cudaMemsetAsync(w.address(), w.in.byte(), w.bytes(), w.stream())),
    CALL(launch(w)),
    CALL(launch_with_attributes(w)),
    CALL(cudaLaunchHostFunc(w.stream(), w.host_function(), w.arena())),
    CALL(cudaStreamBeginCapture(w.stream(), static_cast<cudaStreamCaptureMode>(w.flags()))),
    CALL(cudaStreamEndCapture(w.stream(), w.new_graph())),
    CALL(cudaStreamIsCapturing(w.stream(), w.out<cudaStreamCaptureStatus>())),
    CALL(read_capture(w)),
    CALL(update_capture(w)),
    CALL(exchange_mode(w)),
    CALL(cudaGraphCreate(w.new_graph(), w.in.chance(8) ? 1 : 0)),
    CALL(cudaGraphDestroy(w.graph())),
    CALL(cudaGraphClone(w.new_graph(), w.graph())),
    CALL(cudaGraphNodeFindInClone(w.new_node(), w.node(), w.graph())),
    CALL(list_nodes(w)),
    CALL(list_dependencies(w)),
    CALL(add_edges(w)),
    ADD(cudaGraphAddKernelNode, w.kernel_params()),
    ADD(cudaGraphAddMemcpyNode1D, w.address(), w.address(), w.bytes(), w.copy_kind()),
    ADD(cudaGraphAddMemsetNode, w.memset_params()),
    ADD(cudaGraphAddHostNode, w.host_params()),
    CALL(add_node(w, cudaGraphAddEmptyNode)),
    CALL(cudaGraphNodeGetType(w.node(), w.out<cudaGraphNodeType>())),
    CALL(cudaGraphKernelNodeGetParams(w.node(), w.out<cudaKernelNodeParams>())),
    CALL(cudaGraphKernelNodeSetParams(w.node(), w.kernel_params())),
    CALL(cudaGraphMemcpyNodeGetParams(w.node(), w.out<cudaMemcpy3DParms>())),
    CALL(cudaGraphMemsetNodeGetParams(w.node(), w.out<cudaMemsetParams>())),
    CALL(cudaGraphHostNodeGetParams(w.node(), w.out<cudaHostNodeParams>())),
    CALL(attribute(w)),
    CALL(cudaGraphInstantiate(w.new_executable(), w.graph(), w.in.chance(64) ? w.in.byte() : 0)),
    CALL(cudaGraphExecDestroy(w.executable())),
    CALL(cudaGraphLaunch(w.executable(), w.stream())),
    CALL(cudaGraphUpload(w.executable(), w.stream())),
    CALL(cudaGraphExecUpdate(w.executable(), w.graph(), w.out<cudaGraphExecUpdateResultInfo>())),
    CALL(cudaGraphExecKernelNodeSetParams(w.executable(), w.node(), w.kernel_params())),
    CALL(patch_with_own_params(w)),
    CALL(cudaGraphExecMemcpyNodeSetParams(w.executable(), w.node(), w.memcpy_params())),
    CALL(cudaGraphExecMemcpyNodeSetParams1D(w.executable(), w.node(), w.address(), w.address(), w.bytes(), w.copy_kind())),
    CALL(cudaGraphExecMemsetNodeSetParams(w.executable(), w.node(), w.memset_params())),
    CALL(cudaGraphNodeSetEnabled(w.executable(), w.node(), w.flags())),
    CALL(cudaGraphNodeGetEnabled(w.executable(), w.node(), w.out<unsigned>())),
    CALL(cudaEventRecordWithFlags(w.event(), w.stream(), w.flags())),
    CALL(cudaMallocAsync(w.blocks.slot(w.in), w.size(), w.stream())),
    CALL(cudaFreeAsync(w.blocks.any(w.in), w.stream())),
    CALL(cudaDeviceGetGraphMemAttribute(w.device(), static_cast<cudaGraphMemAttributeType>(w.flags()), w.out<std::uint64_t>())),
    CALL(cudaDeviceSetGraphMemAttribute(w.device(), static_cast<cudaGraphMemAttributeType>(w.flags()), w.out<std::uint64_t>())),
    CALL(remove_edges(w)),
    CALL(cudaGraphDestroyNode(w.node())),
    CALL(add_child(w)),
    CALL(cudaGraphChildGraphNodeGetGraph(w.node(), w.new_graph())),
    CALL(cudaGraphExecChildGraphNodeSetParams(w.executable(), w.node(), w.graph())),
    ADD(cudaGraphAddEventRecordNode, w.event()),
    ADD(cudaGraphAddEventWaitNode, w.event()),
    CALL(cudaGraphEventRecordNodeGetEvent(w.node(), w.new_event())),
    CALL(cudaGraphEventWaitNodeGetEvent(w.node(), w.new_event())),
    CALL(cudaGraphEventRecordNodeSetEvent(w.node(), w.event())),
    CALL(cudaGraphEventWaitNodeSetEvent(w.node(), w.event())),
    CALL(cudaGraphExecEventRecordNodeSetEvent(w.executable(), w.node(), w.event())),
    CALL(cudaGraphExecEventWaitNodeSetEvent(w.executable(), w.node(), w.event())),
    CALL(add_allocation(w)),
    ADD(cudaGraphAddMemFreeNode, w.blocks.any(w.in)),
    CALL(cudaGraphMemAllocNodeGetParams(w.node(), w.out<cudaMemAllocNodeParams>())),
    CALL(cudaGraphMemFreeNodeGetParams(w.node(), w.out<void*>())),
    CALL(cudaUserObjectCreate(w.new_user_object(), w.arena(), w.host_function(), w.flags(), w.flags())),
    CALL(cudaUserObjectRetain(w.user_object(), w.flags())),
    CALL(cudaUserObjectRelease(w.user_object(), w.flags())),
    CALL(cudaGraphRetainUserObject(w.graph(), w.user_object(), w.flags(), w.flags())),
    CALL(cudaGraphReleaseUserObject(w.graph(), w.user_object(), w.flags())),
    CALL(cudaGraphKernelNodeCopyAttributes(w.node(), w.node())),
    CALL(cudaGraphMemcpyNodeSetParams1D(w.node(), w.address(), w.address(), w.bytes(), w.copy_kind())),
    CALL(cudaGraphMemsetNodeSetParams(w.node(), w.memset_params())),
    CALL(cudaGraphHostNodeSetParams(w.node(), w.host_params())),
    CALL(cudaGraphExecHostNodeSetParams(w.executable(), w.node(), w.host_params())),
    CALL(cudaGraphExecGetFlags(w.executable(), w.out<unsigned long long>())),
    CALL(arm_failure(w)),
    CALL((hostrt::defer(w.in.byte()), cudaSuccess)),
    CALL_ALONE((hostrt::clear_failures(), cudaSuccess)),
    CALL((hostrt::hold(w.stream()), cudaSuccess)),
    CALL((void(hostrt::release(w.stream())), cudaSuccess)),
    CALL((hostrt::set_execution(w.in.chance(250)), cudaSuccess)),
};
#undef ADD
#undef CALL_ALONE
#undef CALL
// clang-format on

constexpr int kMaxOperations = 200;

void run(Input input) {
  static const bool trace = std::getenv("GRAPHCACHE_FUZZ_TRACE") != nullptr;
  {
    World world(input);
    for (int i = 0; i < kMaxOperations && !input.done(); ++i) {
      const Operation& operation = input.pick(kOperations);
      cudaGetLastError();
      const cudaError_t error = operation.run(world);
      world.settle();
      if (trace) std::fprintf(stderr, "%s: %s\n", operation.name, cudaGetErrorName(error));
      FUZZ_CHECK(std::string(cudaGetErrorName(error)) != "unrecognized error code", operation.name);
      if (error != cudaSuccess && error != cudaErrorNotReady) {
        FUZZ_CHECK(cudaPeekAtLastError() == error, operation.name);
      }
    }
    hostrt::ledger();  // checks its counts
  }
  FUZZ_CHECK(hostrt::ledger() == hostrt::Ledger(), "after reset()");
  FUZZ_CHECK(cudaGetLastError() == cudaSuccess, "after reset()");
}

}  // namespace
}  // namespace graphcache::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  graphcache::test::run(graphcache::test::Input(data, size));
  return 0;
}
