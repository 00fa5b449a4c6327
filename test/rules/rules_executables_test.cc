// Executables, their patches and their launches: facts 12 to 15 and 18.
#include "misuses.h"
#include "rules.h"

namespace graphcache::test {
namespace {

using Fact12 = RuntimeRules;
using Fact13 = RuntimeRules;
using Fact14 = RuntimeRules;
using Fact15 = RuntimeRules;
using Fact18 = RuntimeRules;

TEST_F(Fact12, OnlyNodesOfTheBasePatchAnExecutable) {
  misuses_on_purpose = true;
  const cudaGraph_t base = capture([this] { OK(put(1, stream_)); });
  const cudaGraph_t other = capture([this] { OK(put(2, stream_)); });
  const cudaGraph_t clone = clone_of(base);
  const cudaGraphNode_t base_node = nodes(base)[0], other_node = nodes(other)[0], clone_node = nodes(clone)[0];
  const cudaGraphExec_t executable = instantiate(base), of_clone = instantiate(clone);
  GIVES(cudaSuccess, patch(of_clone, clone_node, 9));
  GIVES(cudaErrorInvalidValue, patch(of_clone, base_node, 9));
  GIVES(cudaErrorInvalidValue, patch(executable, clone_node, 9));
  GIVES(cudaErrorInvalidValue, patch(executable, other_node, 9));

  OK(update(executable, other));
  EXPECT_EQ(2, run(executable));
  GIVES(cudaErrorInvalidValue, patch(executable, other_node, 9));
  GIVES(cudaSuccess, patch(executable, base_node, 9));
  EXPECT_EQ(9, run(executable));

  cudaGraphNode_t late = nullptr;
  OK(cudaGraphAddKernelNode(&late, base, nullptr, 0, Params(fill, 1, 1, device_, 1, 9.0f).get()));
  GIVES(cudaErrorInvalidValue, patch(executable, late, 9));
  destroy(base);
  GIVES(cudaErrorInvalidValue, patch(executable, base_node, 9));
  EXPECT_EQ(9, run(executable));
}

TEST_F(RuntimeRules, FlagsOfAnExecutable) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  cudaGraphExec_t executable = nullptr;
  for (const unsigned long long flags : {unsigned{cudaGraphInstantiateFlagUpload}, 16u}) {
    GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, graph, flags));
  }
  for (const unsigned long long flags : {0u, 1u, 8u, 9u}) {
    OK(cudaGraphInstantiate(&executable, graph, flags));
    unsigned long long found = 0;
    OK(cudaGraphExecGetFlags(executable, &found));
    EXPECT_EQ(flags & cudaGraphInstantiateFlagAutoFreeOnLaunch, found);
    OK(cudaGraphExecDestroy(executable));
  }
}

TEST_F(Fact13, PatchesStayInTheExecutable) {
  const cudaGraph_t graph = capture([this] { OK(put(1, stream_)); });
  const cudaGraphNode_t node = nodes(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph), twin = instantiate(graph);
  OK(patch(executable, node, 2));
  EXPECT_EQ(2, run(executable));
  EXPECT_EQ(1, run(twin));
  EXPECT_EQ(1, run(instantiate(graph)));
  OK(patch(twin, node, 3));  // two executables of one graph take its nodes (facts 12)
  EXPECT_EQ(2, run(executable));
  EXPECT_EQ(3, run(twin));
  OK(update(executable, graph));  // restores the template's values (facts 13)
  EXPECT_EQ(1, run(executable));
  OK(cudaGraphKernelNodeSetParams(node, Params(fill, 1, 1, device_, 1, 3.0f).get()));
  EXPECT_EQ(1, run(executable));
  OK(update(executable, graph));
  EXPECT_EQ(3, run(executable));
}

TEST_F(Fact13, PatchesMayChangeShapeAndFunction) {
  const cudaGraph_t graph = capture([this] { OK(launch(count_threads, 2, 3, stream_, ints())); });
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphNode_t node = nodes(graph)[0];
  OK(cudaGraphExecKernelNodeSetParams(executable, node, Params(count_threads, dim3(4, 2), 5, ints()).get()));
  clear();
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(40, read<int>());
  OK(patch(executable, node, 6));
  EXPECT_EQ(6, run(executable));
}

TEST_F(Fact13, BadPatchesAreRefusedAndChangeNothing) {
  misuses_on_purpose = true;
  const cudaGraph_t graph = capture([&] {
    OK(put(1, stream_));
    OK(cudaMemsetAsync(device_ + 8, 0, 16, stream_));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  const Nodes all = nodes(graph);
  static int not_a_kernel;
  Params good(fill, 1, 1, device_, 1, 2.0f);
  const auto patched = [&](auto change, cudaGraphNode_t node) {
    cudaKernelNodeParams params = *good.get();
    change(params);
    return cudaGraphExecKernelNodeSetParams(executable, node, &params);
  };
  using P = cudaKernelNodeParams;
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.gridDim.x = 0; }, all[0]));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.blockDim.x = 2048; }, all[0]));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.kernelParams = nullptr; }, all[0]));
  GIVES(cudaErrorInvalidDeviceFunction, patched([](P& p) { p.func = nullptr; }, all[0]));
  // CUDA 13.5 returns the second error.
  const cudaError_t no_kernel = patched([](P& p) { p.func = &not_a_kernel; }, all[0]);
  EXPECT_TRUE(no_kernel == kNoKernel || no_kernel == cudaErrorInvalidValue) << no_kernel;
  GIVES(cudaErrorInvalidValue, patched([](P&) {}, all[1]));  // another type
  EXPECT_EQ(1, run(executable));
}

TEST_F(Fact13, CopiesAndFillsCanBePatched) {
  const cudaGraph_t graph = capture([&] {
    OK(cudaMemsetAsync(device_ + 8, 0, 16, stream_));
    OK(cudaMemcpyAsync(device_, device_ + 8, 4, cudaMemcpyDeviceToDevice, stream_));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  const Nodes all = nodes(graph);
  cudaMemsetParams set = {device_ + 32, 0, 0x42280000, 4, 3, 1};  // 42.0f
  OK(cudaGraphExecMemsetNodeSetParams(executable, all[0], &set));
  const auto kind = cudaMemcpyDeviceToDevice;
  OK(cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], device_, device_ + 34, 4, kind));
  EXPECT_EQ(42, run(executable));
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], device_, device_ + 34, 0, kind));
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], nullptr, device_ + 34, 4, kind));
  float host = 0;
  GIVES(cudaErrorInvalidValue,
        cudaGraphExecMemcpyNodeSetParams1D(executable, all[1], device_, &host, 4, cudaMemcpyHostToDevice));
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(executable, all[0], device_, device_ + 34, 4, kind));
  for (auto change :
       {+[](cudaMemsetParams& p) { p.width = 0; }, +[](cudaMemsetParams& p) { p.elementSize = 3; },
        +[](cudaMemsetParams& p) { p.dst = nullptr; }, +[](cudaMemsetParams& p) { p.height = 2, p.pitch = 64; }}) {
    cudaMemsetParams bad = set;
    change(bad);
    GIVES(cudaErrorInvalidValue, cudaGraphExecMemsetNodeSetParams(executable, all[0], &bad));
  }
  EXPECT_EQ(42, run(executable));
}

// Of copies the driver crashes or hangs in the same place, so that only a set of the node before can be tried.
TEST_F(Fact13, AGraphWithFreedMemoryMakesNoExecutableUntilItsNodeIsSet) {
  void* freed = nullptr;
  OK(cudaMalloc(&freed, 1 << 20));
  const cudaGraph_t sets = capture([&] {
    OK(put(5, stream_));
    OK(cudaMemsetAsync(freed, 1, 4, stream_));
  });
  const cudaGraph_t copies = capture([&] {
    OK(put(6, stream_));
    OK(cudaMemcpyAsync(device_ + 1, freed, 4, cudaMemcpyDefault, stream_));
  });
  const cudaGraph_t other = capture([&] {
    OK(put(7, stream_));
    OK(cudaMemsetAsync(device_ + 1, 1, 4, stream_));
  });
  const cudaGraphExec_t executable = instantiate(other);
  OK(cudaFree(freed));
  GIVES(cudaErrorInvalidValue, instantiation_error(sets));
  EXPECT_TRUE(refuses(cudaGraphExecUpdateError, executable, sets));
  EXPECT_EQ(7, run(executable));
  cudaMemsetParams params = {};
  OK(cudaGraphMemsetNodeGetParams(nodes(sets)[1], &params));
  EXPECT_EQ(freed, params.dst);
  params.dst = device_ + 1;
  OK(cudaGraphMemsetNodeSetParams(nodes(sets)[1], &params));
  EXPECT_EQ(5, run(instantiate(sets)));
  OK(update(executable, sets));
  EXPECT_EQ(5, run(executable));
  OK(cudaGraphMemcpyNodeSetParams1D(nodes(copies)[1], device_ + 1, device_, 4, cudaMemcpyDefault));
  EXPECT_EQ(6, run(instantiate(copies)));
  EXPECT_EQ(6, read(1));
}

// Without the sets, the launch loses the context.
TEST_F(Fact13, ACopyOfMemoryThatIsRegisteredAnewIsWholeOnceItIsSet) {
  alignas(4096) static float memory[1024];
  OK(cudaHostRegister(memory, sizeof memory, cudaHostRegisterDefault));
  const auto captured = [&](float value) {
    return capture([&] {
      OK(put(value, stream_));
      OK(cudaMemcpyAsync(device_ + 1, memory, 4, cudaMemcpyDefault, stream_));
    });
  };
  const cudaGraph_t first = captured(1), second = captured(2);
  const cudaGraphExec_t executable = instantiate(captured(3));
  OK(cudaHostUnregister(memory));
  OK(cudaHostRegister(memory, sizeof memory, cudaHostRegisterDefault));
  memory[0] = 5;
  cudaMemcpy3DParms copy = {};
  OK(cudaGraphMemcpyNodeGetParams(nodes(first)[1], &copy));
  OK(cudaGraphMemcpyNodeSetParams(nodes(first)[1], &copy));
  OK(cudaGraphMemcpyNodeSetParams1D(nodes(second)[1], device_ + 1, memory, 4, cudaMemcpyDefault));
  int value = 0;
  for (const cudaGraph_t graph : {first, second}) {
    ++value;
    EXPECT_EQ(value, run(instantiate(graph)));
    EXPECT_EQ(5, read(1));
    OK(update(executable, graph));
    OK(put(0, stream_));
    EXPECT_EQ(value, run(executable));
    EXPECT_EQ(5, read(1));
  }
  OK(cudaHostUnregister(memory));
}

TEST_F(Fact14, LaunchesOfOneExecutableKeepTheValuesTheyWereGiven) {
  const cudaGraph_t graph = capture([this] { OK(plus(1, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  for (int i = 1; i <= 50; ++i) {  // patches do not affect launches in flight (facts 14)
    OK(cudaGraphExecKernelNodeSetParams(executable, nodes(graph)[0], Params(append, 1, 1, ints(1), ints(), i).get()));
    OK(cudaGraphLaunch(executable, stream_));
  }
  for (int i = 1; i <= 50; ++i) EXPECT_EQ(i, read<int>(i));
}

TEST_F(Fact14, PatchesAndUpdatesDoNotReachALaunchInFlight) {
  const cudaGraph_t graph = capture([this] { OK(plus(1, stream_)); });
  const cudaGraph_t other = capture([this] { OK(plus(100, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph);
  Busy busy(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaGraphExecKernelNodeSetParams(executable, nodes(graph)[0], Params(add, 1, 1, device_, 1, 10.0f).get()));
  OK(cudaGraphLaunch(executable, stream_));
  OK(update(executable, other));
  OK(cudaGraphLaunch(executable, stream_));
  busy.end();
  EXPECT_EQ(111, read());
}

TEST_F(Fact15, OneExecutableRunsOnceAtATimeInWhicheverStreams) {
  const cudaGraph_t graph = capture([this] { OK(plus(1, stream_)); });
  const cudaGraphExec_t executable = instantiate(graph), twin = instantiate(graph);
  Busy busy(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaGraphLaunch(twin, other_));
  GIVES(cudaSuccess, cudaStreamSynchronize(other_));
  OK(cudaGraphLaunch(executable, other_));
  GIVES(cudaErrorNotReady, cudaStreamQuery(other_));
  busy.end();
  EXPECT_EQ(3, read());
}

TEST_F(Fact18, AnExecutableRunsOnItsOwnDevice) {
  int devices = 0;
  OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  using Number = unsigned long long;
  auto* here = reinterpret_cast<Number*>(device_);
  OK(launch(record_device, 1, 1, stream_, here));
  const Number own = read<Number>();
  const cudaGraphExec_t executable = instantiate(capture([&] { OK(launch(record_device, 1, 1, stream_, here)); }));
  void* there = nullptr;
  cudaStream_t elsewhere = nullptr;
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&there, sizeof own));
  OK(cudaStreamCreateWithFlags(&elsewhere, cudaStreamNonBlocking));
  OK(launch(record_device, 1, 1, elsewhere, static_cast<Number*>(there)));
  OK(cudaStreamSynchronize(elsewhere));
  Number other = own;
  OK(cudaMemcpy(&other, there, sizeof other, cudaMemcpyDeviceToHost));
  EXPECT_NE(own, other);
  for (int current : {1, 0}) {
    OK(cudaSetDevice(0));
    clear();  // memory of this device, because a set made by another device is refused
    OK(cudaSetDevice(current));
    OK(cudaGraphLaunch(executable, elsewhere));
    OK(cudaStreamSynchronize(elsewhere));
    EXPECT_EQ(own, read<Number>());
  }
  OK(cudaFree(there));
  OK(cudaStreamDestroy(elsewhere));
}

}  // namespace
}  // namespace graphcache::test
