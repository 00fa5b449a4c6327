// A program's handles, and a cache, after cudaDeviceReset, in a forked child, and when the runtime is unloading.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "hostrt_misuse.h"

namespace graphcache::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
  OK(cudaGraphNodeGetType(node, &type));  // graphs belong to the host
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  expect_reset("memory was freed");

  OK(launch(add, 1, 1, cudaStreamPerThread, &sum_, 1, 1.0f));
  OK(cudaStreamSynchronize(cudaStreamPerThread));
  EXPECT_EQ(1, sum_);
  OK(cudaStreamDestroy(other));
  OK(cudaFree(others_memory));
}

TEST_F(HostrtMisuse, ADeviceResetBreaksOffCaptures) {
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  OK(cudaDeviceReset());
  EXPECT_EQ(hostrt::Ledger{}, hostrt::ledger());
  OK(cudaStreamCreate(&stream_));
  EXPECT_NE(nullptr, capture_adds());
}

TEST_F(HostrtMisuse, ADeviceResetFreesMemoryOfLaunches) {
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
  const auto get_id = driver_function<CUresult (*)(CUcontext, unsigned long long*)>("cuCtxGetId");
  const auto get_current = driver_function<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
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

// The result of a function in a forked child while another thread of the parent is inside a call; -1 if it hangs.
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
  // The lock is held while the process forks.
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

// ---- Effects on a cache (facts 34, 33) ----

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
      EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("key (\"misuse\", "));
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
