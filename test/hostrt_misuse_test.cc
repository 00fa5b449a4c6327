// Misuse that the real runtime leaves undefined: hostrt reports it at once, with the place of the call and the place
// that made it one. Also what is left of a program's handles after cudaDeviceReset, in a forked child and at the end.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <device_launch_parameters.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "hostrt_support.h"

#if defined(__SANITIZE_ADDRESS__)
#define GRAPHCACHE_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRAPHCACHE_TEST_ASAN 1
#endif
#endif

namespace graphcache::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

void first_byte(const unsigned char* in, int* out) { *out = *in; }

void query_the_stream(cudaStream_t stream) { cudaStreamQuery(stream); }

}  // namespace
}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::first_byte)
GRAPHCACHE_HOST_KERNEL(graphcache::test::query_the_stream)

namespace graphcache::test {
namespace {

class HostrtMisuse : public HostrtSumTest {
 protected:
  // After an error that ended everything.
  void restart() {
    SetUp();
    expected_misuses_ = 0;
  }

  cudaError_t patch(cudaGraphExec_t executable, cudaGraphNode_t node) {
    const Params params(add, 1, 1, &sum_, 1, 10.0f);
    return cudaGraphExecKernelNodeSetParams(executable, node, params.get());
  }

  unsigned char* device_memory(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMalloc(&memory, bytes));
    return static_cast<unsigned char*>(memory);
  }

  // What became of work: the error of the call that enqueued it, or of the synchronization behind it.
  cudaError_t outcome(cudaError_t enqueued) {
    const cudaError_t finished = cudaStreamSynchronize(stream_);
    return enqueued != cudaSuccess ? enqueued : finished;
  }

  template <typename Matcher>
  void expect_misuse(Matcher&& matcher) {
    EXPECT_EQ(++expected_misuses_, hostrt::misuses());
    EXPECT_THAT(hostrt::last_misuse(), matcher);
  }
  void expect_no_misuse() { EXPECT_EQ(expected_misuses_, hostrt::misuses()) << hostrt::last_misuse(); }
};

// ---- Places ----

TEST_F(HostrtMisuse, AStaleHandleNamesBothPlaces) {
  const cudaGraphExec_t executable = instantiate(capture_adds());
  const std::uint64_t before = hostrt::calls();
  OK(cudaGraphExecDestroy(executable));
  std::thread([&] { GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream_)); }).join();
  const std::string program = ", at hostrt_misuse_test\\+0x[0-9a-f]+";
  expect_misuse(AllOf(
      StartsWith("cudaGraphLaunch: executable graph was destroyed\n"),
      ContainsRegex("\n  here: cudaGraphLaunch, call " + std::to_string(before + 2) + ", thread [0-9]+" + program),
      ContainsRegex("\n  destroyed: cudaGraphExecDestroy, call " + std::to_string(before + 1) + ", thread [0-9]+" +
                    program)));
}

// The place is that of the call, not of the function that hostrt shares between calls.
TEST_F(HostrtMisuse, PlacesTellCallsApart) {
  const auto place = [] {
    const std::string message = hostrt::last_misuse();
    return message.substr(message.find("at hostrt_misuse_test"));
  };
  int priority = 0;
  unsigned flags = 0;
  std::vector<std::string> places;
  OK(cudaStreamDestroy(stream_));
  for (int i = 0; i < 2; ++i) {
    GIVES(cudaErrorInvalidResourceHandle, cudaStreamGetPriority(stream_, &priority));
    places.push_back(place());
    GIVES(cudaErrorInvalidResourceHandle, cudaStreamGetFlags(stream_, &flags));
    places.push_back(place());
  }
  EXPECT_EQ(places[0], places[2]);
  EXPECT_EQ(places[1], places[3]);
  EXPECT_NE(places[0], places[1]);
}

TEST_F(HostrtMisuse, CallsByTheDriverHaveTheProgramsPlace) {
  void* found = nullptr;
  OK(cudaGetDriverEntryPointByVersion("cuGraphKernelNodeGetParams", &found, 12000, 0, nullptr));
  const auto get = reinterpret_cast<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>(found);
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  OK(cudaGraphDestroy(graph));
  CUDA_KERNEL_NODE_PARAMS params = {};
  cudaKernelNodeParams same = {};
  const auto offset = [] {
    const std::string message = hostrt::last_misuse();
    return std::stoull(message.substr(message.find("test+0x") + 7), nullptr, 16);
  };
  GIVES(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(node, &same));
  const auto before = offset();
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, get(node, &params));
  const auto by_driver = offset();
  GIVES(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(node, &same));
  EXPECT_LT(before, by_driver);
  EXPECT_LT(by_driver, offset());
}

TEST_F(HostrtMisuse, NodesEndWithTheirGraph) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  OK(cudaGraphDestroy(graph));
  cudaGraphNodeType type;
  GIVES(cudaErrorInvalidValue, cudaGraphNodeGetType(node, &type));
  expect_misuse(
      AllOf(StartsWith("cudaGraphNodeGetType: node was destroyed\n"), HasSubstr("destroyed: cudaGraphDestroy")));
}

TEST_F(HostrtMisuse, AnExecutableOutlivesItsTemplateButNotItsNodes) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, sum_);
  expect_no_misuse();
  GIVES(cudaErrorInvalidValue, patch(executable, node));
  expect_misuse(AllOf(StartsWith("cudaGraphExecKernelNodeSetParams: node was destroyed\n"),
                      HasSubstr("\n  here: cudaGraphExecKernelNodeSetParams, call "),
                      HasSubstr("\n  destroyed: cudaGraphDestroy, call ")));
  OK(cudaGraphLaunch(executable, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(2, sum_);  // as it was
}

// Facts 3: the graph of a capture that breaks is gone.
TEST_F(HostrtMisuse, AGraphEndsWithTheCallThatBreaksItsCapture) {
  cudaStreamCaptureStatus status;
  cudaGraph_t graph = nullptr;
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
#if CUDART_VERSION >= 13000
  OK(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr, nullptr));
#else
  OK(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr));
#endif
  const cudaGraphNode_t node = nodes_of(graph)[0];
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream_));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  expect_misuse(HasSubstr("\n  destroyed: cudaStreamSynchronize, call "));
  cudaGraphNodeType type;
  GIVES(cudaErrorInvalidValue, cudaGraphNodeGetType(node, &type));
  expect_misuse(HasSubstr("\n  destroyed: cudaStreamSynchronize, call "));
  cudaGraph_t none = nullptr;
  GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream_, &none));
}

TEST_F(HostrtMisuse, AResetEndsEverything) {
  const cudaGraph_t graph = capture_adds();
  hostrt::reset();
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  expect_misuse(ContainsRegex("\n  destroyed: hostrt::reset, thread [0-9]+, at hostrt_misuse_test"));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream_));
  expect_misuse(HasSubstr("\n  destroyed: hostrt::reset, "));
}

TEST_F(HostrtMisuse, ACallFromAKernelNamesWhatRunsIt) {
  OK(launch(query_the_stream, 1, 1, stream_, stream_));
  OK(cudaStreamSynchronize(stream_));
  expect_misuse(AllOf(StartsWith("cudaStreamQuery: called from inside a kernel or a host function\n"),
                      HasSubstr("\n  here: cudaStreamQuery, call "), HasSubstr("\n  executed: cuda")));
}

// The queue that the work is in would be gone behind it.
TEST_F(HostrtMisuse, WorkMustNotReset) {
  const auto reset = [](void*) { hostrt::reset(); };
  hostrt::hold(stream_);
  for (int i = 0; i < 3; ++i) OK(cudaLaunchHostFunc(stream_, reset, nullptr));
  OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  OK(hostrt::release(stream_));
  EXPECT_EQ(1, sum_);
  expected_misuses_ = 2;
  expect_misuse(AllOf(StartsWith("hostrt::reset: called from inside a kernel or a host function\n"),
                      HasSubstr("\n  executed: release, ")));
}

TEST_F(HostrtMisuse, TheLogKeepsTheFirstMessages) {
  EXPECT_THAT(hostrt::misuse_log(), testing::IsEmpty());
  const cudaGraph_t graph = capture_adds();
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  for (int i = 0; i < 100; ++i) hostrt::fail_call("cudaNoSuchCall", 1, cudaErrorUnknown);
  EXPECT_EQ(101u, hostrt::misuses());
  const std::vector<std::string> log = hostrt::misuse_log();
  ASSERT_EQ(64u, log.size());
  EXPECT_THAT(log[0], StartsWith("cudaGraphDestroy: graph was destroyed\n"));
  EXPECT_THAT(log[63], StartsWith("fail_call: no function is called cudaNoSuchCall\n"));
  hostrt::reset();
  EXPECT_THAT(hostrt::misuse_log(), testing::IsEmpty());
}

TEST(HostrtMisuseDeathTest, AMisuseCanAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  hostrt::reset();
  const auto misuse = [](bool abort) {
    hostrt::abort_on_misuse(abort);
    hostrt::reset();
    cudaEvent_t event = nullptr;
    cudaEventCreate(&event);
    cudaEventDestroy(event);
    cudaEventDestroy(event);
  };
  EXPECT_DEATH(misuse(true),
               "cudaEventDestroy: event was destroyed\n  here: .*\n  destroyed: cudaEventDestroy, call 2");
  misuse(false);
  EXPECT_EQ(1u, hostrt::misuses());
  hostrt::reset();
}

// ---- Two threads on one graph object ----

// Runs two calls at once: both have begun before either can go on, because a host function is in the way.
class Overlap {
 public:
  Overlap(cudaStream_t stream, const std::function<void()>& a, const std::function<void()>& b) {
    std::thread first([&] { run(a); });
    std::thread second([&] { run(b); });
    EXPECT_EQ(cudaSuccess, cudaLaunchHostFunc(stream, &Overlap::wait, this));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
    first.join();
    second.join();
    EXPECT_TRUE(overlapped_);
  }

 private:
  void run(const std::function<void()>& call) {
    while (!go_) std::this_thread::yield();
    call();
  }

  static void wait(void* self) {
    auto& overlap = *static_cast<Overlap*>(self);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    overlap.go_ = true;
    while (hostrt::threads_inside() < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    overlap.overlapped_ = hostrt::threads_inside() == 3;
  }

  std::atomic<bool> go_{false};
  bool overlapped_ = false;
};

TEST_F(HostrtMisuse, TwoThreadsMustNotUseOneGraphObject) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphExec_t second = instantiate(graph);
  cudaStream_t other = nullptr;
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  std::size_t count = 0;
  cudaGraphNodeType type;
  cudaKernelNodeParams params = {};
  cudaGraphExecUpdateResultInfo info = {};
  cudaGraphExec_t made[2] = {};
  const std::function<void()> launches = [&] { GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_)); };
  const std::function<void()> launches_elsewhere = [&] { GIVES(cudaSuccess, cudaGraphLaunch(executable, other)); };
  const std::function<void()> patches = [&] { GIVES(cudaSuccess, patch(executable, node)); };
  const std::function<void()> patches_second = [&] { GIVES(cudaSuccess, patch(second, node)); };
  const std::function<void()> updates = [&] { GIVES(cudaSuccess, cudaGraphExecUpdate(second, graph, &info)); };
  const std::function<void()> lists = [&] { GIVES(cudaSuccess, cudaGraphGetNodes(graph, nullptr, &count)); };
  const std::function<void()> reads = [&] { GIVES(cudaSuccess, cudaGraphKernelNodeGetParams(node, &params)); };
  const std::function<void()> asks = [&] { GIVES(cudaSuccess, cudaGraphNodeGetType(node, &type)); };
  const std::function<void()> makes = [&] { GIVES(cudaSuccess, cudaGraphInstantiate(&made[0], graph, 0)); };
  const std::function<void()> makes_too = [&] { GIVES(cudaSuccess, cudaGraphInstantiate(&made[1], graph, 0)); };
  const struct {
    const std::function<void()>& a;
    const std::function<void()>& b;
    const char* what;
  } cases[] = {
      {launches, launches_elsewhere, "executable graph"},
      {launches, patches, "executable graph"},
      {makes, makes_too, "graph"},
      {updates, lists, "graph"},
      {lists, reads, "graph"},
      {reads, asks, "graph"},
      {patches_second, patches, "graph"},
      {patches_second, reads, "graph"},
  };
  for (const auto& [a, b, what] : cases) {
    const Overlap overlap(stream_, a, b);
    expect_misuse(AllOf(HasSubstr(std::string(": ") + what + " used by two threads at once\n"),
                        ContainsRegex("\n  here: cuda[A-Za-z]+, call [0-9]+, thread [0-9]+, at hostrt_misuse_test"),
                        ContainsRegex("\n  meanwhile: cuda[A-Za-z]+, thread [0-9]+, at hostrt_misuse_test")));
  }
  EXPECT_THAT(sum_, testing::AnyOf(3, 12));  // the second case launched before or after it patched
}

TEST_F(HostrtMisuse, TwoThreadsMayUseDifferentObjects) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraph_t another = capture_adds();
  const cudaGraphNode_t node = nodes_of(another)[0];
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphExec_t second = instantiate(graph);
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  cudaGraphNodeType type;
  cudaGraphExec_t made[2] = {};
  const Overlap launches(
      stream_, [&] { GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_)); },
      [&] { GIVES(cudaSuccess, cudaGraphLaunch(second, stream_)); });
  const Overlap instantiations(
      stream_, [&] { GIVES(cudaSuccess, cudaGraphInstantiate(&made[0], graph, 0)); },
      [&] { GIVES(cudaSuccess, cudaGraphInstantiate(&made[1], another, 0)); });
  const Overlap mixed(
      stream_, [&] { GIVES(cudaSuccess, cudaGraphNodeGetType(node, &type)); },
      [&] { GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_)); });
  const Overlap streams(
      stream_, [&] { GIVES(cudaSuccess, cudaEventRecord(event, stream_)); },
      [&] { GIVES(cudaSuccess, cudaEventRecord(event, stream_)); });
  expect_no_misuse();
  EXPECT_EQ(3, sum_);
}

TEST_F(HostrtMisuse, ThreadsThatTakeTurnsMayUseOneObject) {
  const cudaGraphExec_t executable = instantiate(capture_adds());
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const std::lock_guard<std::mutex> lock(mutex);
        GIVES(cudaSuccess, cudaGraphLaunch(executable, stream_));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(2000, sum_);
  expect_no_misuse();
  EXPECT_EQ(0, hostrt::threads_inside());
}

// ---- Memory ----

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
  EXPECT_NE(memory, device_memory(64));  // not given out again for a while
}
#endif

TEST_F(HostrtMisuse, FreedMemoryGoesBackInTheEnd) {
  std::vector<void*> freed;
  for (int i = 0; i < 257; ++i) freed.push_back(device_memory(1));
  for (void* memory : freed) OK(cudaFree(memory));
  GIVES(cudaErrorInvalidValue, cudaFree(freed[0]));  // its end is known for longer
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
  expect_misuse(AllOf(StartsWith("cudaMemcpyAsync: the copy reads memory that was freed\n"),
                      HasSubstr("\n  freed: cudaFree, call ")));
  EXPECT_EQ(5, bytes[0]);
}

TEST_F(HostrtMisuse, LargeFreedMemoryIsKnownToo) {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  unsigned char* const memory = device_memory(kLarge);
  OK(cudaFree(memory));
  EXPECT_NE(memory, device_memory(kLarge));
  GIVES(cudaErrorIllegalAddress, outcome(cudaMemsetAsync(memory + kLarge / 2, 2, 16, stream_)));
  expect_misuse(AllOf(StartsWith("cudaMemsetAsync: the fill writes memory that was freed\n"),
                      HasSubstr("\n  freed: cudaFree, call ")));
}

TEST_F(HostrtMisuse, LargeFreedMemoryTakesUpAddressesOnly) {
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

// The memory lives until the work that frees it runs.
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
  expect_misuse(AllOf(StartsWith("cudaMemcpyAsync: the copy reads memory that was freed\n"),
                      HasSubstr("\n  freed: cudaFreeAsync, call ")));
}

TEST_F(HostrtMisuse, AFillBeyondTheEndDoesNothing) {
  unsigned char* const memory = device_memory(64);
  OK(cudaMemset(memory, 1, 64));
  expect_no_misuse();
  GIVES(cudaErrorIllegalAddress, outcome(cudaMemsetAsync(memory + 60, 2, 5, stream_)));
  expect_misuse(AllOf(StartsWith("cudaMemsetAsync: the fill writes memory beyond the end of its allocation\n"),
                      HasSubstr("\n  allocated: cudaMalloc, call ")));
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

// What its sizes multiply to would wrap to nothing.
TEST_F(HostrtMisuse, AFillNodeLargerThanTheAddressSpaceIsRefused) {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphCreate(&graph, 0));
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
  cudaMemsetParams params = {};
  params.dst = memory;
  params.elementSize = 4;
  params.width = 4;
  params.height = 3;
  params.pitch = 32;
  params.value = 3;
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
  OK(cudaGraphLaunch(instantiate(graph), stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(3, memory[2 * 32 + 12]);
  expect_no_misuse();
  params.dst = memory + 4;
  OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
  GIVES(cudaErrorIllegalAddress, outcome(cudaGraphLaunch(instantiate(graph), stream_)));
  expect_misuse(AllOf(StartsWith("cudaGraphAddMemsetNode: the fill writes memory beyond the end of its allocation\n"),
                      HasSubstr("\n  launched: cudaGraphLaunch, call ")));
}

// The memory was alive when the copy was captured.
TEST_F(HostrtMisuse, ANodeThatTouchesFreedMemoryNamesItsOrigin) {
  unsigned char* const memory = device_memory(8);
  unsigned char* const result = device_memory(8);
  OK(cudaMemset(result, 9, 8));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  OK(cudaMemcpyAsync(result, memory, 8, cudaMemcpyDeviceToDevice, stream_));
  OK(launch(add, 1, 1, stream_, &sum_, 1, 1.0f));
  OK(cudaStreamEndCapture(stream_, &graph));
  const cudaGraphExec_t executable = instantiate(graph);
  const cudaGraphExec_t patched = instantiate(graph);
  OK(cudaFree(memory));
  OK(cudaGraphExecMemcpyNodeSetParams1D(patched, nodes_of(graph)[0], memory + 1, memory, 1, cudaMemcpyDeviceToDevice));
  GIVES(cudaErrorIllegalAddress, outcome(cudaGraphLaunch(executable, stream_)));
  expect_misuse(AllOf(StartsWith("cudaMemcpyAsync: the copy reads memory that was freed\n"),
                      HasSubstr("\n  here: cudaMemcpyAsync, call "), HasSubstr("\n  launched: cudaGraphLaunch, call "),
                      HasSubstr("\n  freed: cudaFree, call ")));
  EXPECT_EQ(9, result[0]);
  EXPECT_EQ(0, sum_);  // nor does what comes behind it run
}

// Such a launch enqueues its nodes one by one.
TEST_F(HostrtMisuse, AFaultEndsALaunchThatRecordsEvents) {
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  unsigned char* const memory = device_memory(16);
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t record = nullptr, copy = nullptr, last = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddEventRecordNode(&record, graph, nullptr, 0, event));
  OK(cudaGraphAddMemcpyNode1D(&copy, graph, &record, 1, memory, memory + 8, 64, cudaMemcpyDeviceToDevice));
  int runs = 0;
  const cudaHostNodeParams params = {[](void* data) { ++*static_cast<int*>(data); }, &runs};
  OK(cudaGraphAddHostNode(&last, graph, &copy, 1, &params));
  GIVES(cudaErrorIllegalAddress, outcome(cudaGraphLaunch(instantiate(graph), stream_)));
  expect_misuse(AllOf(StartsWith("cudaGraphAddMemcpyNode1D: the copy reads memory beyond the end of its allocation\n"),
                      HasSubstr("\n  launched: cudaGraphLaunch, call ")));
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
  expect_misuse(AllOf(StartsWith("cudaMemsetAsync: the fill writes memory that was freed\n"),
                      HasSubstr("\n  executed: cudaStreamSynchronize, call "),
                      HasSubstr("\n  freed: cudaFreeHost, call ")));
}

TEST_F(HostrtMisuse, MemoryOfTheProgramIsNotChecked) {
  std::vector<unsigned char> bytes(16, 1);
  unsigned char* const memory = device_memory(16);
  OK(cudaMemcpyAsync(memory, bytes.data(), 16, cudaMemcpyHostToDevice, stream_));
  OK(cudaMemsetAsync(bytes.data(), 2, 16, stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, memory[15]);
  EXPECT_EQ(2, bytes[15]);
  expect_no_misuse();
}

// ---- After the end ----

TEST_F(HostrtMisuse, ADeviceResetEndsTheHandlesOfTheDevice) {
  hostrt::set_device_count(2);
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  unsigned char* const memory = device_memory(8);
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);

  OK(cudaSetDevice(1));
  cudaStream_t other = nullptr;
  OK(cudaStreamCreate(&other));
  unsigned char* const others_memory = device_memory(8);
  OK(cudaSetDevice(0));
  OK(cudaDeviceReset());

  hostrt::Ledger left;
  left.streams = left.allocations = left.graphs = left.nodes = 1;
  left.allocated_bytes = 8;
  EXPECT_EQ(left, hostrt::ledger());
  const auto expect_reset = [&](const char* what) {
    expect_misuse(AllOf(HasSubstr(what), HasSubstr(": cudaDeviceReset, call ")));
  };
  cudaGraphNodeType type;
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream_));
  expect_reset("stream was destroyed");
  GIVES(cudaErrorInvalidResourceHandle, cudaEventQuery(event));
  expect_reset("event was destroyed");
  GIVES(cudaErrorInvalidValue, cudaGraphExecDestroy(executable));
  expect_reset("executable graph was destroyed");
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(executable, cudaStreamPerThread));
  expect_reset("executable graph was destroyed");
  OK(cudaGraphNodeGetType(node, &type));  // graphs are the host's
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  expect_reset("memory was freed");

  OK(launch(add, 1, 1, cudaStreamPerThread, &sum_, 1, 1.0f));
  OK(cudaStreamSynchronize(cudaStreamPerThread));
  EXPECT_EQ(1, sum_);
  OK(cudaStreamDestroy(other));
  OK(cudaFree(others_memory));
}

TEST_F(HostrtMisuse, ADeviceResetLeavesTheLastErrorAlone) {
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(7));
  OK(cudaDeviceReset());
  GIVES(cudaErrorInvalidDevice, cudaGetLastError());
}

TEST_F(HostrtMisuse, ADeviceResetBreaksOffCaptures) {
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  OK(cudaDeviceReset());
  EXPECT_EQ(hostrt::Ledger{}, hostrt::ledger());
  OK(cudaStreamCreate(&stream_));
  EXPECT_NE(nullptr, capture_adds());
}

TEST_F(HostrtMisuse, ADeviceResetEndsWhatLaunchesAllocated) {
  void* memory = nullptr;
  cudaGraph_t graph = nullptr;
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  OK(cudaMallocAsync(&memory, 100, stream_));
  OK(cudaStreamEndCapture(stream_, &graph));
  OK(cudaGraphLaunch(instantiate(graph), stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(1u, hostrt::ledger().graph_allocations);
  OK(cudaDeviceReset());
  EXPECT_EQ(0u, hostrt::ledger().graph_allocations);
  std::uint64_t used = 1;
  OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &used));
  EXPECT_EQ(0u, used);
}

TEST_F(HostrtMisuse, AContextHasAnotherIdAfterAReset) {
  hostrt::set_device_count(2);
  void* found = nullptr;
  OK(cudaGetDriverEntryPointByVersion("cuCtxGetId", &found, 12000, 0, nullptr));
  const auto get_id = reinterpret_cast<CUresult (*)(CUcontext, unsigned long long*)>(found);
  OK(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found, 12000, 0, nullptr));
  const auto get_current = reinterpret_cast<CUresult (*)(CUcontext*)>(found);
  CUcontext context = nullptr;
  unsigned long long first = 0, again = 0, other = 0, named = 0;
  EXPECT_EQ(CUDA_SUCCESS, get_current(&context));
  EXPECT_EQ(CUDA_SUCCESS, get_id(nullptr, &first));
  EXPECT_EQ(CUDA_SUCCESS, get_id(nullptr, &again));
  EXPECT_EQ(first, again);
  OK(cudaSetDevice(1));
  EXPECT_EQ(CUDA_SUCCESS, get_id(nullptr, &other));
  EXPECT_NE(first, other);
  EXPECT_EQ(CUDA_SUCCESS, get_id(context, &named));
  EXPECT_EQ(first, named);
  OK(cudaSetDevice(0));
  OK(cudaDeviceReset());
  OK(cudaGetLastError());
  EXPECT_EQ(CUDA_ERROR_CONTEXT_IS_DESTROYED, get_id(nullptr, &again));
  EXPECT_EQ(CUDA_ERROR_CONTEXT_IS_DESTROYED, get_id(nullptr, &again));
  OK(cudaFree(nullptr));
  EXPECT_EQ(CUDA_SUCCESS, get_id(nullptr, &again));
  EXPECT_NE(first, again);
  EXPECT_NE(other, again);
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, get_id(reinterpret_cast<CUcontext>(stream_), &again));
  expect_no_misuse();
}

// What a function returns in a forked child, with another thread of the parent inside a call; -1 if it hangs.
int in_child(const std::function<int()>& function) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(function());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(HostrtMisuse, AForkedChildHasNoRuntime) {
  std::atomic<bool> running{false}, done{false};
  struct Flags {
    std::atomic<bool>& running;
    std::atomic<bool>& done;
  } flags{running, done};
  // The lock is taken while the process forks.
  std::thread thread([&] {
    GIVES(cudaSuccess, cudaLaunchHostFunc(
                           stream_,
                           [](void* data) {
                             const Flags& flags = *static_cast<Flags*>(data);
                             flags.running = true;
                             while (!flags.done) std::this_thread::yield();
                           },
                           &flags));
    GIVES(cudaSuccess, cudaStreamSynchronize(stream_));
  });
  while (!running) std::this_thread::yield();
  EXPECT_EQ(cudaErrorInitializationError, in_child([] {
              int device = 0;
              return cudaGetDevice(&device);
            }));
  EXPECT_EQ(cudaSuccess, in_child([] { return cudaGetLastError(); }));
  EXPECT_EQ(cudaErrorInitializationError, in_child([] {
              cudaFree(nullptr);
              return cudaGetLastError();
            }));
  EXPECT_EQ(1, in_child([] {
              int count = 0;
              return cudaGetDeviceCount(&count) == cudaSuccess ? count : -1;
            }));
  EXPECT_EQ(0, in_child([] { return static_cast<int>(hostrt::misuses()); }));
  EXPECT_EQ(cudaErrorInitializationError, in_child([] {
              hostrt::reset();
              return cudaFree(nullptr);
            }));
  done = true;
  thread.join();
  OK(cudaGetLastError());
}

TEST_F(HostrtMisuse, AtTheEndEveryCallSaysSo) {
  const cudaGraphExec_t executable = instantiate(capture_adds());
  const std::uint64_t calls = hostrt::calls();
  hostrt::unload();
  GIVES(cudaErrorCudartUnloading, cudaGraphLaunch(executable, stream_));
  GIVES(cudaErrorCudartUnloading, cudaGraphExecDestroy(executable));
  GIVES(cudaErrorCudartUnloading, cudaGraphExecDestroy(executable));
  GIVES(cudaErrorCudartUnloading, cudaGetLastError());
  EXPECT_EQ(0, sum_);
  EXPECT_EQ(calls, hostrt::calls());
  expect_no_misuse();
  hostrt::reset();
  OK(cudaGetLastError());
}

// ---- What the cache makes of it (facts 34, 33) ----

struct Caching {
  explicit Caching(cudaStream_t the_stream, Options options = {}) : stream(the_stream), cache(options) {}

  absl::StatusOr<Outcome> run(int key, float value) {
    return cache.run(graphcache::key("misuse", key), stream, graphcache::params(value),
                     [this](Recorder& rec, Slot<float> slot) {
                       rec.launch(add, {1, 1}, sum, 1, slot);
                     });
  }

  cudaStream_t stream;
  float* sum = nullptr;
  Cache cache;
};

TEST_F(HostrtMisuse, ACacheMayOutliveTheRuntime) {
  auto caching = std::make_unique<Caching>(stream_);
  caching->sum = &sum_;
  for (int key = 0; key < 3; ++key) ASSERT_TRUE(caching->run(key, 1).ok());
  ASSERT_TRUE(caching->run(0, 2).ok());
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(5, sum_);
  hostrt::unload();
  for (int key = 0; key < 4; ++key) {  // hits, patches and a miss
    for (float value : {1.0f, 2.0f, 3.0f}) {
      const absl::StatusOr<Outcome> outcome = caching->run(key, value);
      ASSERT_FALSE(outcome.ok());
      EXPECT_EQ(cudaErrorCudartUnloading, cuda_error(outcome.status())) << outcome.status();
      EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("key \"misuse\""));
    }
  }
  EXPECT_EQ(5, sum_);
  caching->cache.clear();
  caching.reset();
  expect_no_misuse();
}

TEST_F(HostrtMisuse, ACacheInAForkedChildFailsAndEnds) {
  auto caching = std::make_unique<Caching>(stream_);
  caching->sum = &sum_;
  for (int key = 0; key < 3; ++key) ASSERT_TRUE(caching->run(key, 1).ok());
  EXPECT_EQ(cudaErrorInitializationError, in_child([&] {
              const absl::StatusOr<Outcome> hit = caching->run(0, 1), miss = caching->run(5, 1);
              const bool failed = !hit.ok() && !miss.ok() && cuda_error(hit.status()) == cuda_error(miss.status());
              caching.reset();
              return failed ? cuda_error(hit.status()) : cudaSuccess;
            }));
  ASSERT_TRUE(caching->run(0, 1).ok());
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(4, sum_);
}

}  // namespace
}  // namespace graphcache::test
