// Misuse of memory: accesses after it was freed, and beyond the end of an allocation.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <vector>

#include "hostrt_misuse.h"

#if defined(__SANITIZE_ADDRESS__)
#define GRAPHCACHE_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRAPHCACHE_TEST_ASAN 1
#endif
#endif

namespace graphcache::test {
namespace {

void first_byte(const unsigned char* in, int* out) { *out = *in; }
GRAPHCACHE_HOST_KERNEL(first_byte)

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST_F(HostrtMisuse, ADoubleFreeNamesBoth) {
  void* const memory = device_memory(100);
  OK(cudaFree(memory));
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  expect_misuse(AllOf(StartsWith("cudaFree: memory was freed\n"), HasSubstr("\n  freed: cudaFree, call ")));
  void* const large = device_memory(std::size_t{64} << 20);
  OK(cudaFree(large));
  GIVES(cudaErrorInvalidValue, cudaFree(large));
  expect_misuse(HasSubstr("\n  freed: cudaFree, call "));
  void* pinned = nullptr;
  OK(cudaMallocHost(&pinned, 8));
  GIVES(cudaErrorInvalidValue, cudaFree(pinned));
  expect_misuse(AllOf(StartsWith("cudaFree: not the address of live memory of this kind\n"), Not(HasSubstr("freed:"))));
  OK(cudaFreeHost(pinned));
  GIVES(cudaErrorInvalidValue, cudaFreeHost(pinned));
  expect_misuse(HasSubstr("\n  freed: cudaFreeHost, call "));
}

#if defined(GRAPHCACHE_TEST_ASAN)
TEST_F(HostrtMisuse, AddressSanitizerSeesKernelsInFreedMemoryAndBeyondTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read_at = [&](bool freed, std::size_t offset) {
    hostrt::reset();
    unsigned char* const memory = device_memory(64);
    if (freed) cudaFree(memory);
    int byte = 0;
    launch(first_byte, 1, 1, nullptr, memory + offset, &byte);
    return byte;
  };
  EXPECT_EQ(0xcd, read_at(false, 63));
  EXPECT_DEATH(read_at(false, 64), "use-after-poison");
  EXPECT_DEATH(read_at(true, 0), "use-after-poison");
}
#else
TEST_F(HostrtMisuse, AKernelReadsAPatternInFreedMemory) {
  unsigned char* const memory = device_memory(64);
  OK(cudaMemset(memory, 1, 64));
  OK(cudaFree(memory));
  int byte = 0;
  OK(launch(first_byte, 1, 1, stream_, memory, &byte));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(0xdd, byte);
  EXPECT_NE(memory, device_memory(64));  // not reused for a while
}
#endif

TEST_F(HostrtMisuse, FreedMemoryIsReleasedInTheEnd) {
  std::vector<void*> freed;
  for (int i = 0; i < 257; ++i) freed.push_back(device_memory(1));
  for (void* memory : freed) OK(cudaFree(memory));
  GIVES(cudaErrorInvalidValue, cudaFree(freed[0]));  // the place where it was freed is known for longer
  expect_misuse(HasSubstr("\n  freed: cudaFree, call "));
  char byte = 7;
  GIVES(cudaErrorIllegalAddress, outcome(cudaMemcpyAsync(&byte, freed[1], 1, cudaMemcpyDefault, stream_)));
  expect_misuse(HasSubstr("memory that was freed"));
}

TEST_F(HostrtMisuse, ACopyFromFreedMemoryDoesNothing) {
  unsigned char* const memory = device_memory(64);
  unsigned char bytes[64] = {5};
  OK(cudaFree(memory));
  GIVES(cudaErrorIllegalAddress, outcome(cudaMemcpyAsync(bytes, memory + 8, 8, cudaMemcpyDeviceToHost, stream_)));
  expect_misuse("cudaMemcpyAsync: the copy reads memory that was freed", {"freed: cudaFree"});
  EXPECT_EQ(5, bytes[0]);
}

TEST_F(HostrtMisuse, LargeFreedMemoryIsKnownToo) {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  unsigned char* const memory = device_memory(kLarge);
  OK(cudaFree(memory));
  EXPECT_NE(memory, device_memory(kLarge));
  GIVES(cudaErrorIllegalAddress, outcome(cudaMemsetAsync(memory + kLarge / 2, 2, 16, stream_)));
  expect_misuse("cudaMemsetAsync: the fill writes memory that was freed", {"freed: cudaFree"});
}

TEST_F(HostrtMisuse, LargeFreedMemoryTakesUpAddressesOnly) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer keeps memory of its own beside each block";
#endif
  const auto resident_bytes = [] {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  };
  constexpr std::size_t kLarge = std::size_t{20} << 20;
  const std::size_t before = resident_bytes();
  for (int i = 0; i < 4; ++i) {
    unsigned char* const memory = device_memory(kLarge);
    OK(cudaMemset(memory, 1, kLarge));
    OK(cudaFree(memory));
  }
  EXPECT_LT(resident_bytes(), before + 2 * kLarge);
}

// The memory lives until the work that frees it has run.
TEST_F(HostrtMisuse, MemoryFreedInAStreamIsKnown) {
  unsigned char* const memory = device_memory(64);
  unsigned char* const result = device_memory(64);
  hostrt::hold(stream_);
  OK(cudaMemsetAsync(memory, 3, 64, stream_));
  OK(cudaMemcpyAsync(result, memory, 64, cudaMemcpyDeviceToDevice, stream_));
  OK(cudaFreeAsync(memory, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(3, result[63]);
  expect_no_misuse();
  GIVES(cudaErrorIllegalAddress, outcome(cudaMemcpyAsync(result, memory, 8, cudaMemcpyDeviceToDevice, stream_)));
  expect_misuse("cudaMemcpyAsync: the copy reads memory that was freed", {"freed: cudaFreeAsync"});
}

TEST_F(HostrtMisuse, AFillBeyondTheEndDoesNothing) {
  unsigned char* const memory = device_memory(64);
  OK(cudaMemset(memory, 1, 64));
  expect_no_misuse();
  GIVES(cudaErrorIllegalAddress, outcome(cudaMemsetAsync(memory + 60, 2, 5, stream_)));
  expect_misuse("cudaMemsetAsync: the fill writes memory beyond the end of its allocation", {"allocated: cudaMalloc"});
  EXPECT_EQ(1, memory[60]);
}

TEST_F(HostrtMisuse, NoNumberOfBytesIsTooLargeToBeRefused) {
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX / 2, std::size_t{1} << 62}) {
    unsigned char* const memory = device_memory(128);
    OK(cudaMemset(memory, 1, 128));
    GIVES(cudaErrorIllegalAddress, outcome(cudaMemcpyAsync(memory, memory + 64, bytes, cudaMemcpyDefault, stream_)));
    expect_misuse(StartsWith("cudaMemcpyAsync: the copy reads memory beyond the end of its allocation\n"));
    restart();
    unsigned char* const another = device_memory(128);
    GIVES(cudaErrorIllegalAddress, outcome(cudaMemsetAsync(another + 64, 2, bytes, stream_)));
    expect_misuse(StartsWith("cudaMemsetAsync: the fill writes memory beyond the end of its allocation\n"));
    restart();
  }
}

// The product of its sizes would overflow to a small number.
TEST_F(HostrtMisuse, AFillNodeLargerThanTheAddressSpaceIsRefused) {
  const cudaGraph_t graph = empty_graph();
  cudaGraphNode_t node = nullptr;
  cudaMemsetParams params = {};
  params.dst = device_memory(64);
  params.elementSize = 4;
  params.width = std::size_t{1} << 62;
  params.height = 1;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
  params.width = 1;
  params.height = (std::size_t{1} << 60) + 1;
  params.pitch = 16;
  GIVES(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
  expect_no_misuse();
}

TEST_F(HostrtMisuse, AFillOfRowsMayEndWithItsAllocation) {
  unsigned char* const memory = device_memory(2 * 32 + 16);
  cudaMemsetParams params = {.dst = memory, .pitch = 32, .value = 3, .elementSize = 4, .width = 4, .height = 3};
  const cudaGraph_t graph = empty_graph();
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
  OK(cudaGraphLaunch(instantiate(graph), stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(3, memory[2 * 32 + 12]);
  expect_no_misuse();
  params.dst = memory + 4;
  OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
  GIVES(cudaErrorIllegalAddress, outcome(cudaGraphLaunch(instantiate(graph), stream_)));
  expect_misuse("cudaGraphAddMemsetNode: the fill writes memory beyond the end of its allocation",
                {"launched: cudaGraphLaunch"});
}

// The memory was alive when the copy was captured.
TEST_F(HostrtMisuse, ANodeThatTouchesFreedMemoryNamesItsOrigin) {
  unsigned char* const memory = device_memory(8);
  unsigned char* const result = device_memory(8);
  OK(cudaMemset(result, 9, 8));
  const cudaGraph_t graph = capture([&] {
    OK(cudaMemcpyAsync(result, memory, 8, cudaMemcpyDeviceToDevice, stream_));
    OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  });
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphExec_t patched = instantiate(graph);
  OK(cudaFree(memory));
  OK(cudaGraphExecMemcpyNodeSetParams1D(patched, nodes_of(graph)[0], memory + 1, memory, 1, cudaMemcpyDeviceToDevice));
  GIVES(cudaErrorIllegalAddress, outcome(cudaGraphLaunch(executable, stream_)));
  expect_misuse("cudaMemcpyAsync: the copy reads memory that was freed",
                {"here: cudaMemcpyAsync", "launched: cudaGraphLaunch", "freed: cudaFree"});
  EXPECT_EQ(9, result[0]);
  EXPECT_EQ(0, sum_);  // later work does not run either
}

// Such a launch enqueues its nodes one by one.
TEST_F(HostrtMisuse, AFaultEndsALaunchThatRecordsEvents) {
  const cudaEvent_t event = new_event();
  unsigned char* const memory = device_memory(16);
  const cudaGraph_t graph = empty_graph();
  cudaGraphNode_t record = nullptr, copy = nullptr, last = nullptr;
  OK(cudaGraphAddEventRecordNode(&record, graph, nullptr, 0, event));
  OK(cudaGraphAddMemcpyNode1D(&copy, graph, &record, 1, memory, memory + 8, 64, cudaMemcpyDeviceToDevice));
  int runs = 0;
  const cudaHostNodeParams params = {count_call, &runs};
  OK(cudaGraphAddHostNode(&last, graph, &copy, 1, &params));
  GIVES(cudaErrorIllegalAddress, outcome(cudaGraphLaunch(instantiate(graph), stream_)));
  expect_misuse("cudaGraphAddMemcpyNode1D: the copy reads memory beyond the end of its allocation",
                {"launched: cudaGraphLaunch"});
  EXPECT_EQ(0, runs);
}

TEST_F(HostrtMisuse, HeldWorkFindsItsMemoryGone) {
  unsigned char* const memory = device_memory(8);
  hostrt::hold(stream_);
  OK(cudaMemsetAsync(memory, 1, 8, stream_));
  OK(cudaFree(memory));  // waits for the work
  expect_no_misuse();
  void* pinned = nullptr;
  OK(cudaMallocHost(&pinned, 8));
  OK(cudaFreeHost(pinned));
  hostrt::hold(stream_);
  OK(cudaMemsetAsync(pinned, 1, 8, stream_));
  GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(stream_));
  expect_misuse("cudaMemsetAsync: the fill writes memory that was freed",
                {"executed: cudaStreamSynchronize", "freed: cudaFreeHost"});
}

TEST_F(HostrtMisuse, MemoryOfTheProgramIsNotChecked) {
  unsigned char bytes[32] = {};
  unsigned char* const memory = device_memory(32);
  OK(cudaMemcpyAsync(memory, bytes + 16, 16, cudaMemcpyHostToDevice, stream_));
  OK(cudaMemsetAsync(memory, 2, 16, stream_));
  OK(cudaMemcpyAsync(bytes + 8, memory, 16, cudaMemcpyDeviceToHost, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(0, bytes[7]);
  EXPECT_EQ(2, bytes[23]);
  expect_no_misuse();
}

// ---- Rows ----

TEST_F(HostrtMisuse, EachRowOfACopyIsChecked) {
  unsigned char* const from = device_memory(3 * 16 + 8);  // the last row has no padding
  unsigned char* const to = device_memory(3 * 8 + 7);
  const auto copy = [&](std::size_t height) {
    return outcome(cudaMemcpy2DAsync(to, 8, from, 16, 8, height, cudaMemcpyDefault, stream_));
  };
  OK(copy(3));
  expect_no_misuse();
  GIVES(cudaErrorInvalidValue, cudaMemcpy2DAsync(to, 7, from, 16, 8, 1, cudaMemcpyDefault, stream_));  // one row
  GIVES(cudaErrorIllegalAddress, copy(4));
  expect_misuse(StartsWith("cudaMemcpy2DAsync: the copy writes memory beyond the end of its allocation\n"));
}

TEST_F(HostrtMisuse, RowsOfPageableMemoryAreReadBeforeTheCallReturns) {
  unsigned char rows[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  unsigned char* const to = device_memory(9);
  hostrt::hold(stream_);
  OK(cudaMemcpy2DAsync(to, 3, rows, 4, 2, 3, cudaMemcpyHostToDevice, stream_));
  rows[1][1] = 60;
  OK(hostrt::release(stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ((std::vector<unsigned char>{1, 2, 5, 6, 9, 10}),
            (std::vector<unsigned char>{to[0], to[1], to[3], to[4], to[6], to[7]}));
  expect_no_misuse();
}

TEST_F(HostrtMisuse, MemoryWithAPitchHoldsItsRows) {
  void* memory = nullptr;
  std::size_t pitch = 0;
  OK(cudaMallocPitch(&memory, &pitch, 100, 3));
  EXPECT_EQ(512u, pitch);
  EXPECT_EQ(3 * 512u, hostrt::ledger().allocated_bytes);
  OK(cudaMemset2D(memory, pitch, 1, 100, 3));
  OK(cudaFree(memory));
  cudaPitchedPtr box = {};
  OK(cudaMalloc3D(&box, {600, 2, 4}));
  EXPECT_EQ(1024u, box.pitch);
  EXPECT_EQ(600u, box.xsize);
  EXPECT_EQ(2u, box.ysize);
  EXPECT_EQ(8 * 1024u, hostrt::ledger().allocated_bytes);
  OK(cudaFree(box.ptr));
  GIVES(cudaErrorInvalidValue, cudaMallocPitch(&memory, nullptr, 100, 3));
  GIVES(cudaErrorMemoryAllocation, cudaMallocPitch(&memory, &pitch, 100, SIZE_MAX / 4));
  expect_no_misuse();
}

TEST_F(HostrtMisuse, ANodeOfABoxIsReadAddedAndChangedWhole) {
  unsigned char* const from = device_memory(64);
  unsigned char* const to = device_memory(64);
  OK(cudaMemset(to, 0, 64));
  for (int i = 0; i < 64; ++i) from[i] = static_cast<unsigned char>(i);
  cudaMemcpy3DParms box = {};
  box.srcPtr = {from, 4, 4, 4};
  box.dstPtr = {to, 8, 8, 2};
  box.srcPos = {1, 1, 1};
  box.extent = {2, 2, 2};
  box.kind = cudaMemcpyDeviceToDevice;
  const cudaGraph_t graph = empty_graph();
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &box));
  cudaMemcpy3DParms read = {};
  OK(cudaGraphMemcpyNodeGetParams(node, &read));
  EXPECT_EQ(from + 16 + 4 + 1, read.srcPtr.ptr);
  EXPECT_EQ(4u, read.srcPtr.pitch);
  EXPECT_EQ(4u, read.srcPtr.ysize);
  EXPECT_EQ(2u, read.extent.depth);
  OK(cudaGraphMemcpyNodeSetParams(node, &read));
  OK(cudaGraphLaunch(instantiate(graph), stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ((std::vector<unsigned char>{21, 22, 0, 25, 26, 37, 41, 42}),
            (std::vector<unsigned char>{to[0], to[1], to[2], to[8], to[9], to[16], to[24], to[25]}));
  const auto refused = [&](cudaError_t error, auto&& change) {
    cudaMemcpy3DParms changed = box;
    change(changed);
    GIVES(error, cudaGraphMemcpyNodeSetParams(node, &changed));
  };
  refused(cudaErrorInvalidPitchValue, [](auto& p) { p.srcPtr.pitch = 1; });
  refused(cudaErrorInvalidPitchValue, [](auto& p) { p.dstPtr.ysize = 1; });
  refused(cudaErrorInvalidValue, [](auto& p) { p.extent.height = 0; });
  refused(cudaErrorNotSupported, [&](auto& p) { p.srcArray = reinterpret_cast<cudaArray_t>(this); });
  expect_no_misuse();
}

}  // namespace
}  // namespace graphcache::test
