// Memory that graphs and streams allocate: what is alive, and what counts as a misuse. Only hostrt can show this.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "hostrt_objects.h"

namespace graphcache::test {
namespace {

class HostrtGraphMemory : public HostrtObjects {
 protected:
  // A graph that allocates and appends 5 there.
  cudaGraph_t capture_allocation(int** memory, std::size_t bytes) {
    return capture([&] {
      EXPECT_EQ(cudaSuccess, cudaMallocAsync(reinterpret_cast<void**>(memory), bytes, stream_));
      EXPECT_EQ(cudaSuccess, launch(append, 1, 1, stream_, *memory, &count_, 5));
    });
  }
};

TEST_F(HostrtGraphMemory, TheLedgerShowsMemoryThatLaunchesLeaveAllocated) {
  int* memory = nullptr;
  const cudaGraph_t graph = capture_allocation(&memory, 1000);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(0u, hostrt::ledger().graph_allocations);
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory, stream_));
  expect_misuse("cudaFreeAsync: not the address of live memory of this kind");
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(1u, hostrt::ledger().graph_allocations);
  EXPECT_EQ(1000u, hostrt::ledger().graph_allocated_bytes);
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_));
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  EXPECT_EQ(1u, hostrt::ledger().graph_allocations);
  EXPECT_EQ(5, memory[0]);
  OK(cudaFreeAsync(memory, stream_));
  EXPECT_EQ(before_, hostrt::ledger());
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  expect_misuse("cudaFree: not the address of live memory of this kind");
}

TEST_F(HostrtGraphMemory, AFreeInFlightLetsTheNextLaunchIn) {
  int* memory = nullptr;
  const cudaGraphExec_t executable = instantiate(capture_allocation(&memory, 64));
  hostrt::hold(stream_);
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaFreeAsync(memory, stream_));
  OK(cudaGraphLaunch(executable, stream_));
  OK(hostrt::release(stream_));
  EXPECT_EQ(2, count_);
  EXPECT_EQ(5, memory[1]);
  EXPECT_NE(5, memory[0]) << "what the first launch wrote was freed";
}

TEST_F(HostrtObjects, AnUpdateMakesTheExecutableThatOfAnotherGraph) {
  int* first = nullptr;
  int* second = nullptr;
  const auto allocating = [&](int** memory) {
    return capture([&, memory] {
      EXPECT_EQ(cudaSuccess, cudaMallocAsync(reinterpret_cast<void**>(memory), 64, stream_));
      EXPECT_EQ(cudaSuccess, cudaMemsetAsync(*memory, 0, 4, stream_));
    });
  };
  const cudaGraph_t former = allocating(&first);
  const cudaGraph_t latter = allocating(&second);
  const cudaGraphExec_t executable = instantiate(former);
  OK(update(executable, latter));
  instantiate(former);
  GIVES(cudaErrorNotSupported, update(executable, former));
  EXPECT_EQ(cudaGraphExecUpdateSuccess, info_.result);
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(0, *second);
  GIVES(cudaErrorInvalidValue, cudaFree(first));
  expect_misuse("cudaFree: not the address of live memory of this kind");
  OK(cudaFree(second));
}

TEST_F(HostrtObjects, MemoryIsFreedInItsOwnGraphOrInOthersAndOnceInEach) {
  void* memory = nullptr;
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, 64, stream_)); });
  capture([&] {
    EXPECT_EQ(cudaSuccess, cudaFreeAsync(memory, stream_));
    EXPECT_EQ(cudaErrorInvalidValue, cudaFreeAsync(memory, stream_));
  });
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&node, graph, nullptr, 0, memory));

  capture([&] {
    EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, 64, stream_));
    EXPECT_EQ(cudaSuccess, cudaFreeAsync(memory, stream_));
  });
  capture([&] { EXPECT_EQ(cudaErrorInvalidValue, cudaFreeAsync(memory, stream_)); });
}

TEST_F(HostrtObjects, FreedMemoryOfAGraphStaysReserved) {
  void* memory = nullptr;
  const cudaGraph_t graph = capture([&] { EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, 64, stream_)); });
  OK(cudaGraphLaunch(instantiate(graph), stream_));
  OK(cudaFree(memory));
  std::uint64_t reserved = 0;
  OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
  EXPECT_GE(reserved, 64u);
}

TEST_F(HostrtObjects, MemoryOfAStreamIsFreedInItsOrder) {
  int* memory = nullptr;
  OK(cudaMallocAsync(reinterpret_cast<void**>(&memory), 64, stream_));
  EXPECT_EQ(1u, hostrt::ledger().allocations);
  EXPECT_EQ(cudaMemoryTypeDevice, memory_type(memory));
  hostrt::hold(stream_);
  OK(launch(append, 1, 1, stream_, memory, &count_, 5));
  OK(cudaMemcpyAsync(log_, memory, 4, cudaMemcpyDefault, stream_));
  OK(cudaFreeAsync(memory, stream_));
  EXPECT_EQ(0u, hostrt::ledger().allocations);
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory, stream_));
  expect_misuse("cudaFreeAsync: memory was freed");
  OK(hostrt::release(stream_));
  EXPECT_EQ(5, log_[0]);
  EXPECT_EQ(before_, hostrt::ledger());
}

TEST_F(HostrtObjects, EitherFreeTakesMemoryOfEitherAllocation) {
  void* memory = nullptr;
  OK(cudaMallocAsync(&memory, 64, stream_));
  OK(cudaFree(memory));
  OK(cudaMalloc(&memory, 64));
  OK(cudaFreeAsync(memory, stream_));
  EXPECT_EQ(before_, hostrt::ledger());
}

}  // namespace
}  // namespace graphcache::test
