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

#include "forced_ways.h"
#include "graphcache/graphcache.h"
#include "hostrt_misuse.h"

namespace graphcache::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(HostrtMisuse, ADeviceResetEndsTheHandlesOfTheDevice) {
  hostrt::set_device_count(2);
  const cudaEvent_t event = new_event();
  unsigned char* const memory = device_memory(8);
  const cudaGraph_t graph = capture_adds();
  const cudaGraphNode_t node = nodes_of(graph)[0];
  const cudaGraphExec_t executable = instantiate(graph);

  OK(cudaSetDevice(1));
  const cudaStream_t other = new_stream(cudaStreamDefault);
  unsigned char* const others_memory = device_memory(8);
  OK(cudaSetDevice(0));
  OK(cudaDeviceReset());

  const hostrt::Ledger left{.streams = 1, .graphs = 1, .nodes = 1, .allocations = 1, .allocated_bytes = 8};
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
  const cudaGraph_t graph = capture([&] { OK(cudaMallocAsync(&memory, 100, stream_)); });
  OK(cudaGraphLaunch(instantiate(graph), stream_));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(1u, hostrt::ledger().graph_allocations);
  OK(cudaDeviceReset());
  EXPECT_EQ(0u, hostrt::ledger().graph_allocations);
  std::uint64_t used = 1;
  OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &used));
  EXPECT_EQ(0u, used);
}

TEST_F(HostrtMisuse, ADeviceResetForgetsRegisteredMemoryAndAttributesOfKernels) {
  hostrt::set_device_count(2);
  char of_first[64] = {}, of_second[64] = {};
  const auto* const kernel = reinterpret_cast<const void*>(add);
  const auto max_shared_bytes = [&] {
    cudaFuncAttributes attributes = {};
    GIVES(cudaSuccess, cudaFuncGetAttributes(&attributes, kernel));
    return attributes.maxDynamicSharedSizeBytes;
  };
  OK(cudaHostRegister(of_first, sizeof of_first, 0));
  OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1000));
  OK(cudaSetDevice(1));
  OK(cudaHostRegister(of_second, sizeof of_second, 0));
  OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 2000));
  OK(cudaSetDevice(0));
  OK(cudaDeviceReset());
  EXPECT_EQ(48 << 10, max_shared_bytes());
  GIVES(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(of_first));
  OK(cudaHostUnregister(of_second));
  OK(cudaSetDevice(1));
  EXPECT_EQ(2000, max_shared_bytes());
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
  struct Flags {
    std::atomic<bool> running{false}, done{false};
  } flags;
  // The lock is held while the process forks.
  const cudaHostFn_t wait = [](void* data) {
    auto& seen = *static_cast<Flags*>(data);
    seen.running = true;
    while (!seen.done) std::this_thread::yield();
  };
  std::thread thread([&] {
    GIVES(cudaSuccess, cudaLaunchHostFunc(stream_, wait, &flags));
    GIVES(cudaSuccess, cudaStreamSynchronize(stream_));
  });
  while (!flags.running) std::this_thread::yield();
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
  flags.done = true;
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

// ---- A cache and another context (fact 33) ----

// A cache of each kind, and work with everything that a cache has on its device: an executable that is updated on the
// device, a table, memory for copies of 0 bytes, streams of its own, kernels that write values.
class ContextTest : public HostrtMisuse {
 protected:
  struct Kind {
    const char* name;
    Sharing sharing;
    int max_executables;
    int verify_every;
  };
  static constexpr Kind kKinds[] = {
      {"plain", Sharing::kNever, 8, 0},   {"evicting", Sharing::kNever, 1, 0},    {"updates", Sharing::kUpdates, 1, 0},
      {"a table", Sharing::kTable, 1, 0}, {"verify mode", Sharing::kNever, 8, 1}, {"disabled", Sharing::kNever, 0, 0},
  };

  static Options options_of(const Kind& kind) {
    Options options{.max_executables = kind.max_executables, .verify_every = kind.verify_every};
    force(&options, kind.sharing);
    if (kind.sharing == Sharing::kNever && kind.max_executables > 1) force(Patching::kDeviceUpdated);
    return options;
  }

  absl::StatusOr<Outcome> run(Cache& cache, int key, cudaStream_t on, float value, std::size_t bytes = 4) {
    return cache.run(graphcache::key("context", key), on, params(value, bytes),
                     [&, key](Recorder& rec, Slot<float> v, Slot<std::size_t> n) {
                       rec.write(&written_, v);
                       rec.memset(&set_, 1, n);
                       rec.launch(add, {1, 1}, &sum_, 1, v);
                       rec.launch(add, {1, 1}, &others_, 1, static_cast<float>(key));
                     });
  }
  // Does nothing if this context knows the memory.
  void know_memory() {
    for (float* const memory : {&written_, &set_, &sum_})
      (void)cudaHostRegister(memory, sizeof *memory, cudaHostRegisterDefault);
  }
  // Runs, switches, evicts, writes values and empty sets. Adds 31 to sum_.
  void use(Cache& cache, cudaStream_t on) {
    know_memory();
    for (const int key : {1, 2, 1}) EXPECT_TRUE(run(cache, key, on, 2).ok());
    EXPECT_TRUE(run(cache, 1, on, 3, 0).ok());
    EXPECT_TRUE(run(cache, 2, cudaStreamLegacy, 4).ok());
    EXPECT_TRUE(run(cache, 2, cudaStreamPerThread, 5).ok());
    EXPECT_TRUE(run(cache, 4, on, 6).ok());
    EXPECT_TRUE(run(cache, 3, on, 7).ok());
    OK(cudaDeviceSynchronize());
    EXPECT_EQ(31, sum_);
    EXPECT_EQ(7, written_);
    sum_ = 0;
  }
  // Resets the device. The program's next call makes another context.
  void reset_device() {
    OK(cudaDeviceSynchronize());
    OK(cudaDeviceReset());
    OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  static bool says_context(const absl::Status& status) {
    return status.code() == absl::StatusCode::kFailedPrecondition &&
           status.ToString().find("the CUDA context that the cache began in is not the current one") !=
               std::string::npos &&
           status.ToString().find("Cache::clear()") != std::string::npos;
  }
  // Each way of the cache but a hit, whose one call cannot know.
  void expect_refusals(Cache& cache) {
    const int calls = fn_calls_;
    const auto count = [&](cudaStream_t) { ++fn_calls_; };
    EXPECT_TRUE(says_context(run(cache, 9, stream_, 1).status()));
    EXPECT_TRUE(says_context(run(cache, 9, cudaStreamLegacy, 1).status()));
    EXPECT_TRUE(says_context(cache.run(graphcache::key("new"), stream_, count).status()));
    EXPECT_TRUE(says_context(cache.warm(graphcache::key("new"), stream_, count)) ||
                cache.options().max_executables == 0);
    const absl::StatusOr<GraphInfo> graph = cache.graph(graphcache::key("context", 3));
    EXPECT_TRUE(says_context(graph.status()) || graph.status().code() == absl::StatusCode::kNotFound);
    EXPECT_EQ(cache.erase(graphcache::key("context", 4)), cache.options().max_executables != 0);
    EXPECT_EQ(cache.stats().failed, cache.options().max_executables == 0 ? 3u : 4u);
    EXPECT_EQ(fn_calls_, calls);
    EXPECT_TRUE(cache.status().ok());
    EXPECT_EQ(0, sum_);
    expect_no_misuse();
  }

  // A run inside the fn of another cache's run.
  void expect_refused_inside(Cache& cache) {
    Cache outer;
    const auto count = [&](cudaStream_t) { ++fn_calls_; };
    const auto around = [&](cudaStream_t on) {
      EXPECT_TRUE(says_context(cache.run(graphcache::key("inner"), on, count).status()));
      return launch(add, 1, 1, on, &others_, 1, 1.0f);
    };
    EXPECT_TRUE(outer.run(graphcache::key("outer"), stream_, around).ok());
    EXPECT_EQ(fn_calls_, 0);
    expect_no_misuse();
  }

  float written_ = 0, others_ = 0, set_ = 0;
  int fn_calls_ = 0;
};

TEST_F(ContextTest, ACacheThatWasClearedBeforeADeviceResetBeginsAnew) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    hostrt::reset();
    OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    {
      Cache cache(options_of(kind));
      for (int i = 0; i < 3; ++i) {
        use(cache, stream_);
        cache.clear();
        reset_device();
      }
      use(cache, stream_);
    }
    OK(cudaStreamDestroy(stream_));
    EXPECT_EQ(hostrt::Ledger{}, hostrt::ledger());
    expect_no_misuse();
  }
}

TEST_F(ContextTest, ACacheMayEndAfterADeviceResetWhetherOrNotItWasCleared) {
  for (const bool is_cleared : {false, true}) {
    for (const bool is_exit : {false, true}) {
      for (const Kind& kind : kKinds) {
        SCOPED_TRACE(testing::Message() << kind.name << ", cleared " << is_cleared << ", at exit " << is_exit);
        {
          Cache cache(options_of(kind));
          use(cache, stream_);
          if (is_cleared) cache.clear();
          reset_device();
          if (is_exit) hostrt::unload();
        }
        expect_no_misuse();
        hostrt::reset();
        OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      }
    }
  }
}

TEST_F(ContextTest, AfterADeviceResetRunsSayThatTheContextIsGoneUntilTheCacheIsCleared) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Cache cache(options_of(kind));
    use(cache, stream_);
    reset_device();
    expect_refusals(cache);
    expect_refused_inside(cache);
    cache.clear();
    use(cache, stream_);
    cache.clear();
    reset_device();
    use(cache, stream_);
    expect_no_misuse();
  }
}

// No call has made another context by then.
TEST_F(ContextTest, TheFirstCallAfterADeviceResetMayBeARun) {
  Cache cache;
  use(cache, stream_);
  OK(cudaDeviceSynchronize());
  cache.clear();
  OK(cudaDeviceReset());
  use(cache, cudaStreamLegacy);
  OK(cudaDeviceSynchronize());
  OK(cudaDeviceReset());
  const absl::Status gone = run(cache, 9, cudaStreamLegacy, 1).status();
  EXPECT_EQ(cudaErrorContextIsDestroyed, cuda_error(gone)) << gone;
  EXPECT_THAT(gone.ToString(), HasSubstr("Cache::clear()"));
  cache.clear();
  use(cache, cudaStreamLegacy);
  for (const char* const fails : {"cudaCtxGetId", "cudaFree"}) {
    cache.clear();
    OK(cudaDeviceReset());
    hostrt::fail_call(fails, 1, cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaErrorMemoryAllocation, cuda_error(run(cache, 9, cudaStreamLegacy, 1).status())) << fails;
    hostrt::clear_failures();
    use(cache, cudaStreamLegacy);
  }
  expect_no_misuse();
}

// The program's objects are released, although nothing is destroyed.
TEST_F(ContextTest, WhatGraphsKeepIsReleasedByTheClearAfterADeviceReset) {
  Cache cache;
  auto kept = std::make_shared<int>(1);
  const auto keeps = [&](Recorder& rec) {
    rec.keep(kept);
    rec.launch(add, {1, 1}, &sum_, 1, 1.0f);
  };
  EXPECT_TRUE(cache.run(graphcache::key("keeps"), stream_, keeps).ok());
  reset_device();
  EXPECT_EQ(2, kept.use_count());
  cache.clear();
  EXPECT_EQ(1, kept.use_count());
  expect_no_misuse();
}

// Copies of nothing to memory of a device write to memory that the cache has there.
TEST_F(ContextTest, AnotherDevicesResetTakesWhatTheCacheHasThere) {
  hostrt::set_device_count(2);
  {
    Cache cache;
    for (int reset = 0; reset < 2; ++reset) {
      void *there = nullptr, *later = nullptr;
      OK(cudaSetDevice(1));
      OK(cudaMalloc(&there, sizeof sum_));
      OK(cudaSetDevice(0));
      for (const std::size_t bytes : {sizeof sum_, std::size_t{0}, sizeof sum_, std::size_t{0}}) {
        const auto copy = [&](Recorder& rec, Slot<std::size_t> n) { rec.memcpy(there, &sum_, n); };
        know_memory();
        EXPECT_TRUE(cache.run(graphcache::key("copy", reset), stream_, params(bytes), copy).ok());
        OK(cudaStreamSynchronize(stream_));
      }
      cache.clear();
      OK(cudaSetDevice(1));
      OK(cudaDeviceReset());
      OK(cudaMalloc(&later, 1));
      OK(cudaSetDevice(0));
    }
  }
  expect_no_misuse();
}

// A cache that ends inside a capture leaves what it has to other caches of its context, not to those of another one.
TEST_F(ContextTest, WhatACacheHasLeftBehindIsNotDestroyedInAnotherContext) {
  hostrt::set_device_count(2);
  auto ended = std::make_unique<Cache>(options_of(kKinds[0]));
  know_memory();
  EXPECT_TRUE(run(*ended, 1, stream_, 1).ok());
  OK(cudaStreamSynchronize(stream_));
  OK(cudaSetDevice(1));
  const cudaStream_t of_second = new_stream();
  auto around = std::make_unique<Cache>();
  const auto end_the_other = [&](cudaStream_t on) {
    ended.reset();
    return launch(add, 1, 1, on, &sum_, 1, 1.0f);
  };
  EXPECT_TRUE(around->run(graphcache::key("ends the other"), of_second, end_the_other).ok());
  OK(cudaStreamSynchronize(of_second));
  EXPECT_EQ(1u, hostrt::ledger().executables);
  OK(cudaSetDevice(0));
  sum_ = 0;
  reset_device();
  Cache later;
  use(later, stream_);
  later.clear();
  around = nullptr;
  expect_no_misuse();
}

// Keys beyond the number that is remembered are forgotten by later runs, which destroy what they had.
TEST_F(ContextTest, KeysThatAreForgottenInAnotherContextAreNotDestroyed) {
  Cache cache;
  use(cache, stream_);
  reset_device();
  EXPECT_TRUE(cache.erase(graphcache::key("context", 1)));
  for (int i = 0; i < 5000; ++i) EXPECT_TRUE(says_context(run(cache, 100 + i, stream_, 1).status()));
  EXPECT_LT(cache.entries().size(), 4200u);
  expect_no_misuse();
}

// Contexts of the driver, two on one device.
TEST_F(ContextTest, ARunInAnotherContextTouchesNothingOfTheCache) {
  const auto create = driver_function<CUresult (*)(CUcontext*, unsigned, CUdevice)>("cuCtxCreate", 12000);
  const auto set_current = driver_function<CUresult (*)(CUcontext)>("cuCtxSetCurrent", 12000);
  const auto get_current = driver_function<CUresult (*)(CUcontext*)>("cuCtxGetCurrent", 12000);
  const auto destroy = driver_function<CUresult (*)(CUcontext)>("cuCtxDestroy", 12000);
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Cache cache(options_of(kind));
    use(cache, stream_);
    CUcontext first = nullptr, second = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, get_current(&first));
    EXPECT_EQ(CUDA_SUCCESS, create(&second, 0, 0));
    const cudaStream_t of_first = stream_;
    OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    const hostrt::Ledger before = hostrt::ledger();
    hostrt::reset_calls();
    expect_refusals(cache);
    EXPECT_EQ(before, hostrt::ledger());
    for (const char* call : {"cudaGraphExecDestroy", "cudaGraphDestroy", "cudaEventQuery", "cudaEventRecord",
                             "cudaStreamQuery", "cudaGraphLaunch", "cudaGraphUpload", "cudaFree"}) {
      EXPECT_EQ(0u, hostrt::calls(call)) << call;
    }
    OK(cudaStreamDestroy(stream_));
    stream_ = of_first;
    EXPECT_EQ(CUDA_SUCCESS, set_current(first));
    EXPECT_EQ(CUDA_SUCCESS, destroy(second));
    if (kind.max_executables != 0) {
      EXPECT_TRUE(run(cache, 4, stream_, 0).ok());  // was erased
    }
    use(cache, stream_);
  }
  EXPECT_EQ(1u, hostrt::ledger().streams);
  expect_no_misuse();
}

}  // namespace
}  // namespace graphcache::test
