// Graphs that allocate: facts 25 and 29.
#include "misuses.h"
#include "rules.h"

namespace graphcache::test {
namespace {

class MemoryRules : public RuntimeRules {
 protected:
  void TearDown() override {
    RuntimeRules::TearDown();
    cudaDeviceGraphMemTrim(0);
  }

  // Allocates memory_, stores the value, copies it to device_ and, if wanted, frees.
  cudaGraph_t allocating(float value, bool freed) {
    return capture([&] {
      OK(cudaMallocAsync(reinterpret_cast<void**>(&memory_), 64, stream_));
      OK(launch(fill, 1, 1, stream_, memory_, 1, value));
      OK(cudaMemcpyAsync(device_, memory_, sizeof(float), cudaMemcpyDeviceToDevice, stream_));
      if (freed) {
        OK(cudaFreeAsync(memory_, stream_));
      }
    });
  }

  static unsigned long long attribute(cudaGraphMemAttributeType type) {
    unsigned long long value = 0;
    GIVES(cudaSuccess, cudaDeviceGetGraphMemAttribute(0, type, &value));
    return value;
  }

  float* memory_ = nullptr;  // of the latest allocating()
};

using Fact25 = MemoryRules;
using Fact29 = MemoryRules;

TEST_F(Fact25, AGraphThatAllocatesHasOneExecutableAtATime) {
  const cudaGraph_t graph = allocating(5, true);
  const cudaGraphExec_t executable = instantiate(graph);
  GIVES(cudaErrorNotSupported, instantiation_error(graph));
  GIVES(cudaErrorNotSupported, instantiation_error(graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  destroy(executable);
  EXPECT_EQ(5, run(instantiate(graph)));
}

TEST_F(Fact25, AGraphThatAllocatesIsNotClonedEmbeddedOrTakenApart) {
  const cudaGraph_t graph = allocating(5, true), parent = make_graph();
  const Nodes all = nodes(graph);
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorNotSupported, clone_error(graph));
  GIVES(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, graph));
  GIVES(cudaErrorNotSupported, cudaGraphDestroyNode(all[0]));
  GIVES(cudaErrorNotSupported, cudaGraphDestroyNode(all[1]));  // a kernel
  GIVES(cudaErrorNotSupported, remove_edge(graph, all[1], all[2]));
  OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  GIVES(cudaSuccess, add_edge(graph, all[3], node));
  const cudaGraphExec_t executable = instantiate(graph);
  for (cudaGraphNode_t fixed : {all[0], all[3]}) {
    GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, fixed, 0));
  }
  OK(cudaGraphExecKernelNodeSetParams(executable, all[1], Params(fill, 1, 1, memory_, 1, 6.0f).get()));
  EXPECT_EQ(6, run(executable));
}

TEST_F(Fact25, AnUpdateTakesAGraphOverUnlessAnotherExecutableHasIt) {
  const cudaGraph_t first = allocating(1, true), second = allocating(2, true);
  const cudaGraph_t plain = capture([this] { OK(put(5, stream_)); });
  const cudaGraphExec_t executable = instantiate(first), of_plain = instantiate(plain);
  GIVES(cudaSuccess, update(executable, first));
  GIVES(cudaErrorNotSupported, update(of_plain, first));
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, plain));
  EXPECT_EQ(1, run(executable));
  EXPECT_EQ(5, run(of_plain));

  GIVES(cudaSuccess, update(executable, second));
  EXPECT_EQ(2, run(executable));
  GIVES(cudaErrorNotSupported, instantiation_error(second));
  const cudaGraphExec_t another = instantiate(first);
  GIVES(cudaErrorNotSupported, update(executable, first));
  EXPECT_EQ(2, run(executable));
  EXPECT_EQ(1, run(another));
}

TEST_F(Fact25, MemoryFreedInTheGraphNeedsNoOtherFree) {
  misuses_on_purpose = true;
  const cudaGraphExec_t executable = instantiate(allocating(5, true));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(5, run(executable));
  GIVES(cudaErrorInvalidValue, cudaFree(memory_));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory_, stream_));
}

TEST_F(Fact25, MemoryLeftByALaunchIsFreedBeforeTheNext) {
  misuses_on_purpose = true;
  const cudaGraphExec_t executable = instantiate(allocating(5, false));
  GIVES(cudaErrorInvalidValue, cudaFree(memory_));  // not allocated yet
  EXPECT_EQ(5, run(executable));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_));
  GIVES(cudaSuccess, cudaGraphUpload(executable, stream_));
  EXPECT_EQ(5, read());
  GIVES(cudaSuccess, cudaFree(memory_));
  GIVES(cudaErrorInvalidValue, cudaFree(memory_));
  EXPECT_EQ(5, run(executable));
  GIVES(cudaSuccess, cudaFreeAsync(memory_, stream_));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory_, stream_));
  GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_));
  GIVES(cudaSuccess, cudaStreamSynchronize(stream_));
  GIVES(cudaSuccess, cudaFreeAsync(memory_, other_));
  GIVES(cudaSuccess, cudaStreamSynchronize(other_));
}

// The only way to tell the two apart is the order of their nodes.
TEST_F(Fact25, ACaptureGetsMemoryAgainThatItFreesBefore) {
  float *first = nullptr, *beside = nullptr;
  const auto allocate = [](float** out, cudaStream_t on) {
    OK(cudaMallocAsync(reinterpret_cast<void**>(out), 64, on));
  };
  const cudaGraph_t graph = capture([&] {
    fork_and_join(
        [&] {
          allocate(&first, stream_);
          OK(launch(fill, 1, 1, stream_, first, 1, 5.0f));
          OK(cudaFreeAsync(first, stream_));
          allocate(&memory_, stream_);
          OK(launch(fill, 1, 1, stream_, memory_, 1, 7.0f));
          OK(cudaMemcpyAsync(device_, memory_, sizeof(float), cudaMemcpyDeviceToDevice, stream_));
        },
        [&] {
          allocate(&beside, other_);
          OK(cudaFreeAsync(beside, other_));
        });
  });
  EXPECT_EQ(first, memory_);
  EXPECT_NE(first, beside);
  const cudaGraphExec_t executable = instantiate(graph);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(7, run(executable));
    GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_));  // the second one is left
    GIVES(cudaSuccess, cudaFree(first));
  }
}

TEST_F(Fact25, AutoFreeOnLaunchFreesMemoryOfTheLastLaunch) {
  const cudaGraphExec_t executable = instantiate(allocating(5, false), cudaGraphInstantiateFlagAutoFreeOnLaunch);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(5, run(executable));
  GIVES(cudaSuccess, cudaFree(memory_));
  EXPECT_EQ(5, run(executable));
  destroy(executable);
  GIVES(cudaSuccess, cudaFree(memory_));  // the memory of the last launch belongs to the program
}

TEST_F(Fact25, MemoryIsRegisteredByTheFirstLaunchAndThatOfTheLastOutlivesExecutableAndGraph) {
  const cudaGraph_t graph = allocating(5, false);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(cudaMemoryTypeUnregistered, memory_type(memory_));
  run(executable);
  EXPECT_EQ(cudaMemoryTypeDevice, memory_type(memory_));
  destroy(executable);
  const cudaGraphExec_t again = instantiate(graph);
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(again, stream_));
  destroy(again);
  destroy(graph);
  EXPECT_EQ(cudaMemoryTypeDevice, memory_type(memory_));
  OK(launch(scale, 1, 1, stream_, device_, memory_, 1, 2.0f));
  EXPECT_EQ(10, read());
  GIVES(cudaSuccess, cudaFree(memory_));
}

TEST_F(Fact25, AnotherGraphMayFree) {
  const cudaGraph_t graph = allocating(5, false);
  const cudaGraph_t freeing = capture([&] { OK(cudaFreeAsync(memory_, stream_)); });
  EXPECT_EQ(std::vector{cudaGraphNodeTypeMemFree}, types(freeing));
  const cudaGraphExec_t executable = instantiate(graph), frees = instantiate(freeing);
  GIVES(cudaErrorNotSupported, instantiation_error(freeing));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(frees, stream_));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(5, run(executable));
    GIVES(cudaSuccess, cudaGraphLaunch(frees, stream_));
  }
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(frees, stream_));
}

TEST_F(Fact25, TrimmingGivesMemoryBack) {
  OK(cudaDeviceGraphMemTrim(0));
  const cudaGraphExec_t executable = instantiate(allocating(5, false));
  EXPECT_EQ(0u, attribute(cudaGraphMemAttrReservedMemCurrent));
  run(executable);
  OK(cudaDeviceGraphMemTrim(0));
  const unsigned long long used = attribute(cudaGraphMemAttrUsedMemCurrent);
  EXPECT_GE(used, 64u);
  EXPECT_GE(attribute(cudaGraphMemAttrReservedMemCurrent), used);
  EXPECT_GE(attribute(cudaGraphMemAttrUsedMemHigh), used);
  EXPECT_EQ(5, read());
  OK(cudaFree(memory_));
  OK(cudaDeviceGraphMemTrim(0));
  EXPECT_EQ(0u, attribute(cudaGraphMemAttrUsedMemCurrent));
  EXPECT_EQ(0u, attribute(cudaGraphMemAttrReservedMemCurrent));
  EXPECT_GE(attribute(cudaGraphMemAttrReservedMemHigh), used);

  unsigned long long value = 0;
  OK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &value));
  EXPECT_EQ(0u, attribute(cudaGraphMemAttrReservedMemHigh));
  GIVES(cudaErrorInvalidValue, cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &value));
  value = 5;
  GIVES(cudaErrorInvalidValue, cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &value));
  GIVES(cudaErrorInvalidDevice, cudaDeviceGetGraphMemAttribute(1000, cudaGraphMemAttrUsedMemHigh, &value));
  GIVES(cudaErrorInvalidDevice, cudaDeviceGraphMemTrim(1000));
}

TEST_F(Fact25, AllocationNodesCanBeAddedByHand) {
  const cudaGraph_t graph = make_graph();
  cudaMemAllocNodeParams allocation = {};
  allocation.poolProps.allocType = cudaMemAllocationTypePinned;
  allocation.poolProps.location = {cudaMemLocationTypeDevice, 0};
  cudaGraphNode_t allocates = nullptr, uses = nullptr, copies = nullptr, frees = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemAllocNode(&allocates, graph, nullptr, 0, &allocation));  // 0 bytes
  allocation.bytesize = 100;
  allocation.poolProps.location.id = 1000;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemAllocNode(&allocates, graph, nullptr, 0, &allocation));
  allocation.poolProps.location.id = 0;
  OK(cudaGraphAddMemAllocNode(&allocates, graph, nullptr, 0, &allocation));
  auto* memory = static_cast<float*>(allocation.dptr);
  ASSERT_NE(nullptr, memory);
  cudaMemAllocNodeParams back = {};
  OK(cudaGraphMemAllocNodeGetParams(allocates, &back));
  EXPECT_EQ(100u, back.bytesize);
  EXPECT_EQ(memory, back.dptr);

  OK(cudaGraphAddKernelNode(&uses, graph, &allocates, 1, Params(fill, 1, 1, memory, 1, 8.0f).get()));
  OK(cudaGraphAddMemcpyNode1D(&copies, graph, &uses, 1, device_, memory, sizeof(float), cudaMemcpyDeviceToDevice));
  for (void* wrong : {static_cast<void*>(memory + 1), static_cast<void*>(device_), static_cast<void*>(nullptr)}) {
    GIVES(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&frees, graph, &copies, 1, wrong));
  }
  OK(cudaGraphAddMemFreeNode(&frees, graph, &copies, 1, memory));
  void* freed = nullptr;
  OK(cudaGraphMemFreeNodeGetParams(frees, &freed));
  EXPECT_EQ(memory, freed);
  cudaGraphNode_t twice = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&twice, graph, &frees, 1, memory));
  EXPECT_EQ((std::vector{cudaGraphNodeTypeMemAlloc, cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                         cudaGraphNodeTypeMemFree}),
            types(graph));
  EXPECT_EQ(8, run(instantiate(graph)));
}

// cuBLAS without its own workspace allocates in this way.
TEST_F(Fact29, AnAllocationDuringACaptureBecomesANode) {
  const cudaGraph_t graph = allocating(9, true);
  EXPECT_EQ((std::vector{cudaGraphNodeTypeMemAlloc, cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                         cudaGraphNodeTypeMemFree}),
            types(graph));
  EXPECT_EQ(9, run(instantiate(graph)));

  begin(stream_, kGlobal);
  void* nothing = this;
  GIVES(cudaSuccess, cudaMallocAsync(&nothing, 0, stream_));
  EXPECT_EQ(nullptr, nothing);
  GIVES(cudaSuccess, cudaFreeAsync(nullptr, stream_));
  EXPECT_EQ(1u, end_valid(stream_));
}

TEST_F(Fact29, ACaptureFreesOnlyMemoryOfGraphs) {
  misuses_on_purpose = true;
  void* eager = nullptr;
  OK(cudaMallocAsync(&eager, 64, stream_));
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(eager, stream_));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(device_, stream_));
  void* own = nullptr;
  OK(cudaMallocAsync(&own, 64, stream_));
  OK(cudaFreeAsync(own, stream_));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(own, stream_));
  EXPECT_EQ(3u, end_valid(stream_));
  GIVES(cudaSuccess, cudaFreeAsync(eager, stream_));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(eager, stream_));
}

TEST_F(Fact29, AnEagerAllocationBesideACaptureIsAnUnsafeCall) {
  void* memory = nullptr;
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaMallocAsync(&memory, 64, other_));
  end_invalid(stream_);
  begin(stream_, kGlobal);
  GIVES(cudaErrorStreamCaptureUnsupported, on_other_thread([&] { return cudaMallocAsync(&memory, 64, other_); }));
  end_invalid(stream_);
  begin(stream_, kThreadLocal);
  GIVES(cudaSuccess, on_other_thread([&] { return cudaMallocAsync(&memory, 64, other_); }));
  EXPECT_EQ(1u, end_valid(stream_));
  GIVES(cudaSuccess, cudaFreeAsync(memory, other_));
}

}  // namespace
}  // namespace graphcache::test
