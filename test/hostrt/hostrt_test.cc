// What only hostrt has: its ledger, misuses, kernels as host functions. Rules that it shares with the real runtime are
// in rules_*_test.cc.

#include "graphcache/hostrt.h"

#include <cuda_runtime_api.h>
#include <device_launch_parameters.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "hostrt_support.h"
#include "in_threads.h"

namespace graphcache::test {
namespace {

template <typename T, int kN>
void store_product(T* p) {
  *p = T(kN) * static_cast<T>(blockDim.x);
}

void nothing() {}

void throw_something(int) { throw std::runtime_error("from a kernel"); }

void not_registered(int) {}

}  // namespace
}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::store_product<float, 3>)
GRAPHCACHE_HOST_KERNEL(graphcache::test::nothing)
GRAPHCACHE_HOST_KERNEL(graphcache::test::throw_something)
GRAPHCACHE_HOST_KERNEL((graphcache::test::nothing))  // registered twice, and in parentheses: harmless

namespace graphcache::test {
namespace {

// ---- Kernels ----

TEST_F(Hostrt, TemplatesAndKernelsWithoutParametersCanBeRegistered) {
  float value = 0;
  OK(launch(store_product<float, 3>, 1, dim3(7), stream_, &value));
  EXPECT_EQ(21, value);
  OK(cudaLaunchKernel(reinterpret_cast<const void*>(nothing), 2, 2, nullptr, 0, stream_));
  EXPECT_EQ(2u, hostrt::kernels_run());
}

// Registered directly, because compilers warn about every function with such a parameter.
TEST_F(Hostrt, OverAlignedParametersAreAligned) {
  static const int function = 0;
  static std::uintptr_t misaligned = 1;
  const hostrt::internal::Parameter parameters[] = {{1, 1}, {64, 64}, {4, 4}};
  hostrt::internal::add_kernel(
      "wide", &function,
      [](const void*, void* const* arguments) {
        misaligned =
            reinterpret_cast<std::uintptr_t>(arguments[1]) % 64 + reinterpret_cast<std::uintptr_t>(arguments[2]) % 4;
      },
      parameters, 3);
  char bytes[64] = {};
  void* arguments[] = {bytes, bytes, bytes};
  OK(cudaLaunchKernel(&function, 1, 1, arguments, 0, stream_));
  EXPECT_EQ(0u, misaligned);
}

TEST_F(Hostrt, UnregisteredFunctionsAreNamedAsMisuse) {
  testing::internal::CaptureStderr();
  GIVES(cudaErrorInvalidResourceHandle, launch(not_registered, 1, 1, stream_, 1));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::StartsWith("graphcache hostrt: misuse: cudaLaunchKernel: "));
  expect_misuse(
      "cudaLaunchKernel: graphcache::test::(anonymous namespace)::not_registered(int) is not registered by "
      "GRAPHCACHE_HOST_KERNEL");
  static int not_a_function;
  GIVES(cudaErrorInvalidResourceHandle, cudaLaunchKernel(&not_a_function, 1, 1, nullptr, 0, stream_));
  ++expected_misuses_;
  EXPECT_THAT(hostrt::last_misuse(),
              testing::ContainsRegex("^cudaLaunchKernel: [^ ]+ is not registered by GRAPHCACHE_HOST_KERNEL\n"));
  cudaFuncAttributes attributes;
  GIVES(cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes(&attributes, &not_a_function));
  GIVES(cudaErrorInvalidDeviceFunction,
        cudaFuncSetAttribute(nullptr, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024));
}

TEST_F(Hostrt, SharedMemoryIsLimitedForEachKernelAndDevice) {
  hostrt::set_device_count(2);
  const auto* const kernel = reinterpret_cast<const void*>(nothing);
  constexpr int kDefault = 48 << 10, kLarge = 100 << 10;
  const auto launch_with = [&](std::size_t bytes) {
    return cudaLaunchKernel(kernel, 1, 1, nullptr, bytes, cudaStreamPerThread);
  };
  OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kLarge));

  // Nodes are checked as launches are.
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(kernel);
  params.gridDim = params.blockDim = 1;
  params.sharedMemBytes = kLarge;
  const cudaGraph_t graph = empty_graph();
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  const cudaGraphExec_t executable = instantiate(graph);
  params.sharedMemBytes = kLarge + 1;
  GIVES(cudaErrorInvalidValue, cudaGraphExecKernelNodeSetParams(executable, node, &params));

  OK(cudaSetDevice(1));
  GIVES(cudaErrorInvalidValue, launch_with(kDefault + 1));
  OK(launch_with(kDefault));
  OK(cudaSetDevice(0));
  OK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 50));
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, kernel));
  EXPECT_EQ(50, attributes.preferredShmemCarveout);
  GIVES(cudaErrorInvalidValue, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 101));
  GIVES(cudaErrorNotSupported, cudaFuncSetAttribute(kernel, cudaFuncAttributeRequiredClusterWidth, 2));
  GIVES(cudaErrorInvalidValue, cudaFuncGetAttributes(nullptr, kernel));
}

TEST_F(Hostrt, MissingArgumentsAreMisuse) {
  GIVES(cudaErrorInvalidValue, cudaLaunchKernel(reinterpret_cast<const void*>(add), 1, 1, nullptr, 0, stream_));
  expect_misuse("cudaLaunchKernel: graphcache::test::add launched without its arguments");
}

TEST_F(Hostrt, AKernelThatThrowsIsTheEndOfEverything) {
  GIVES(cudaErrorLaunchFailure, launch(throw_something, 1, 1, stream_, 1));
  GIVES(cudaErrorLaunchFailure, launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
  EXPECT_EQ(0, sum_);
  hostrt::reset();
  OK(cudaStreamCreate(&stream_));
  OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  EXPECT_EQ(1, sum_);
}

TEST_F(Hostrt, WithoutExecutionCallsAreCheckedAndNothingRuns) {
  const cudaGraphExec_t executable = instantiate(capture_adds());
  pin(sum_);
  hostrt::set_execution(false);
  OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaMemset(&sum_, 0xff, sizeof sum_));
  GIVES(cudaErrorInvalidValue, launch(add, 0, 1, stream_, &sum_, 1, 1.0f));
  EXPECT_EQ(0, sum_);
  EXPECT_EQ(0u, hostrt::kernels_run());
  EXPECT_EQ(1u, hostrt::calls("cudaGraphLaunch"));
  hostrt::set_execution(true);
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(1, sum_);
}

// ---- Registered memory ----

TEST_F(Hostrt, RegisteredMemoryIsPinnedUntilItIsUnregistered) {
  std::vector<unsigned char> memory(64);
  const auto type_at = [&](std::size_t at) { return memory_type(memory.data() + at); };
  EXPECT_EQ(cudaMemoryTypeUnregistered, type_at(16));
  GIVES(cudaErrorInvalidValue, cudaHostRegister(nullptr, 16, cudaHostRegisterDefault));
  GIVES(cudaErrorInvalidValue, cudaHostRegister(memory.data(), 0, cudaHostRegisterDefault));
  OK(cudaHostRegister(memory.data() + 16, 32, cudaHostRegisterDefault));
  EXPECT_EQ(cudaMemoryTypeUnregistered, type_at(15));
  EXPECT_EQ(cudaMemoryTypeHost, type_at(16));
  EXPECT_EQ(cudaMemoryTypeHost, type_at(47));
  EXPECT_EQ(cudaMemoryTypeUnregistered, type_at(48));
  GIVES(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(memory.data(), 17, cudaHostRegisterDefault));
  GIVES(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(memory.data()));
  OK(cudaHostUnregister(memory.data() + 16));
  EXPECT_EQ(cudaMemoryTypeUnregistered, type_at(16));
}

// ---- Ledger ----

TEST_F(Hostrt, TheLedgerCountsLiveObjects) {
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
  void* pinned = nullptr;
  const cudaGraph_t graph = capture_adds(3);
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaEventCreate(&event));
  OK(cudaMalloc(&memory, 100));
  OK(cudaHostAlloc(&pinned, 7, cudaHostAllocDefault));
  OK(launch(add, 1, 1, cudaStreamPerThread, &sum_, 1, 1.0f));  // implicit streams do not count
  hostrt::Ledger expected;
  expected.streams = expected.events = expected.graphs = expected.executables = 1;
  expected.nodes = expected.executable_nodes = 3;
  expected.allocations = expected.host_allocations = 1;
  expected.allocated_bytes = 100;
  expected.host_allocated_bytes = 7;
  EXPECT_EQ(expected, hostrt::ledger());

  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  ++expected.captures;
  ++expected.graphs;
  EXPECT_EQ(expected, hostrt::ledger());
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream_));  // destroys the graph
  --expected.graphs;
  EXPECT_EQ(expected, hostrt::ledger());
  GIVES(cudaErrorStreamCaptureInvalidated, end_of_capture_error(stream_));

  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  OK(cudaEventDestroy(event));
  OK(cudaFree(memory));
  OK(cudaFreeHost(pinned));
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  OK(cudaStreamDestroy(stream_));  // ends the capture
  EXPECT_EQ(hostrt::Ledger{}, hostrt::ledger());
}

TEST_F(Hostrt, ManagedMemoryIsAllocatedAsTheDevicesIs) {
  void* memory = nullptr;
  OK(cudaMallocManaged(&memory, 100, cudaMemAttachHost));
  EXPECT_EQ(1u, hostrt::ledger().allocations);
  EXPECT_EQ(100u, hostrt::ledger().allocated_bytes);
  hostrt::fail_call("cudaMallocManaged", 1, cudaErrorMemoryAllocation);
  void* none = nullptr;
  GIVES(cudaErrorMemoryAllocation, cudaMallocManaged(&none, 100, cudaMemAttachGlobal));
  OK(cudaFree(memory));
  EXPECT_EQ(0u, hostrt::ledger().allocations);
  EXPECT_EQ(cudaMemoryTypeUnregistered, memory_type(memory));
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  expect_misuse("cudaFree: memory was freed");
}

TEST_F(Hostrt, MemoryInfoFollowsAllocations) {
  std::size_t free_before = 0, free_after = 0, total = 0;
  void* memory = nullptr;
  OK(cudaMemGetInfo(&free_before, &total));
  OK(cudaMalloc(&memory, 4096));
  OK(cudaMemGetInfo(&free_after, &total));
  EXPECT_EQ(4096u, free_before - free_after);
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(memory) % 256);
  GIVES(cudaErrorMemoryAllocation, cudaMalloc(&memory, total + 1));
}

TEST_F(Hostrt, ResetGivesAFreshWorld) {
  const cudaGraphExec_t executable = instantiate(capture_adds());
  hostrt::fail_call("*", 1, cudaErrorUnknown, -1);
  GIVES(cudaErrorUnknown, cudaGraphLaunch(executable, stream_));
  hostrt::set_device_count(2);
  hostrt::reset();
  EXPECT_EQ(hostrt::Ledger{}, hostrt::ledger());
  EXPECT_EQ(0u, hostrt::calls());
  EXPECT_TRUE(hostrt::call_counts().empty());
  GIVES(cudaSuccess, cudaPeekAtLastError());
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(1));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, nullptr));
  expect_misuse("cudaGraphLaunch: executable graph was destroyed");
}

// ---- Misuse ----

TEST_F(Hostrt, DestroyedHandlesAreRecognised) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaEvent_t event = new_event();
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  expect_misuse("cudaGraphDestroy: graph was destroyed");
  cudaGraphNodeType type;
  GIVES(cudaErrorInvalidValue, cudaGraphNodeGetType(node, &type));
  expect_misuse("cudaGraphNodeGetType: node was destroyed");
  GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, node, 1));
  expect_misuse("cudaGraphNodeSetEnabled: node was destroyed");
  OK(cudaGraphExecDestroy(executable));
  GIVES(cudaErrorInvalidValue, cudaGraphExecDestroy(executable));
  expect_misuse("cudaGraphExecDestroy: executable graph was destroyed");
  OK(cudaEventDestroy(event));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(event, stream_));
  expect_misuse("cudaEventRecord: event was destroyed");
  OK(cudaStreamDestroy(stream_));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream_));
  expect_misuse("cudaStreamSynchronize: stream was destroyed");
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(event)));
  expect_misuse("cudaGraphDestroy: graph never existed");
  int variable = 0;
  GIVES(cudaErrorInvalidValue, cudaFree(&variable));
  expect_misuse("cudaFree: not the address of live memory of this kind");
}

TEST_F(Hostrt, HandlesAreNeverGivenOutTwice) {
  std::set<cudaEvent_t> seen;
  for (int i = 0; i < 1000; ++i) {
    cudaEvent_t event = nullptr;
    OK(cudaEventCreate(&event));
    EXPECT_TRUE(seen.insert(event).second);
    OK(cudaEventDestroy(event));
  }
}

// ---- Devices, threads ----

TEST_F(Hostrt, DevicesHaveStreamsOfTheirOwn) {
  hostrt::set_device_count(2);
  int count = 0, device = -1;
  OK(cudaGetDeviceCount(&count));
  EXPECT_EQ(2, count);
  unsigned long long first = 0, second = 0;
  OK(cudaStreamGetId(nullptr, &first));
  OK(cudaSetDevice(1));
  OK(cudaStreamGetId(nullptr, &second));
  EXPECT_NE(first, second);
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(event, stream_));  // of the other device
  std::thread([&] { cudaGetDevice(&device); }).join();
  EXPECT_EQ(0, device);  // each thread has its own current device
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 1));
  EXPECT_STREQ("hostrt (CPU)", properties.name);
  for (auto attribute : {cudaDevAttrManagedMemory, cudaDevAttrConcurrentManagedAccess, cudaDevAttrMemoryPoolsSupported,
                         cudaDevAttrClockRate, cudaDevAttrMemoryClockRate}) {
    int value = 0;
    OK(cudaDeviceGetAttribute(&value, attribute, 1));
    EXPECT_LT(0, value) << attribute;
  }
}

TEST_F(Hostrt, AThreadsStreamEndsWithIt) {
  std::set<unsigned long long> ids;
  for (int i = 0; i < 3; ++i) {
    std::thread([&] {
      unsigned long long id = 0;
      EXPECT_EQ(cudaSuccess, cudaStreamGetId(cudaStreamPerThread, &id));
      EXPECT_EQ(cudaSuccess, cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeGlobal));
      ids.insert(id);
    }).join();
  }
  EXPECT_EQ(3u, ids.size());
  EXPECT_EQ(hostrt::ledger().captures, 0u);
}

TEST_F(Hostrt, ThreadsMayDoEverythingAtOnce) {
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<float> sums(kThreads);
  std::atomic<int> errors{0};
  const auto check = [&](cudaError_t error) { errors += error != cudaSuccess; };
  in_threads(kThreads, [&](int t) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < kRounds; ++i) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      check(launch(add, 1, 1, stream, &sums[t], 1, 1.0f));
      check(cudaStreamEndCapture(stream, &graph));
      check(cudaGraphInstantiate(&executable, graph, 0));
      check(cudaGraphLaunch(executable, stream));
      check(cudaGraphLaunch(executable, cudaStreamPerThread));
      check(cudaGraphExecDestroy(executable));
      check(cudaGraphDestroy(graph));
    }
    check(cudaStreamDestroy(stream));
  });
  EXPECT_EQ(0, errors);
  for (float sum : sums) EXPECT_EQ(2 * kRounds, sum);
  EXPECT_EQ(0u, hostrt::misuses()) << hostrt::last_misuse();
}

}  // namespace
}  // namespace graphcache::test
