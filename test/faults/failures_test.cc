// Consequences of single failures: back-off, the second try when memory runs out, what is dropped and what stays. The
// fault suites check that every failure is handled.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "faults.h"
#include "graph/host_memory_support.h"
#include "graph/setter.h"
#include "graphcache/status.h"

namespace graphcache::test {
namespace {

class FailuresTest : public FaultsTest {};

TEST_F(FailuresTest, CallsThatFindTheDeviceMayFail) {
  for (const char* function : {"cudaStreamIsCapturing", "cudaStreamGetDevice", "cudaGetDeviceCount"}) {
    hostrt::reset();
    World world;
    hostrt::fail_call(function, 1, cudaErrorNoDevice);
    EXPECT_TRUE(world.cache->status().ok());
    EXPECT_TRUE(typed(world.run(kKey, 1).status(), function, cudaErrorNoDevice));
    EXPECT_EQ(cuda_error(world.cache->status()), cudaErrorNoDevice) << world.cache->status();
    EXPECT_TRUE(mentions(world.cache->status(), function)) << world.cache->status();
    EXPECT_RUN(kInstantiated, world.run(kKey, 1));  // The next run tries again.
    EXPECT_TRUE(world.cache->status().ok());
    expect_usable(world);
  }
}

TEST_F(FailuresTest, BackoffDoublesAndStartsAgainAfterASuccess) {
  World world;
  hostrt::fail_call("cudaStreamEndCapture", 1, cudaErrorStreamCaptureInvalidated, -1);
  std::vector<int> tries;
  for (int i = 0; i < 1 + 2 + 3 + 5 + 9 + 17; ++i) {
    const std::uint64_t before = world.cache->stats().capture_failures;
    ASSERT_TRUE(world.run(kKey, 1).ok());
    if (world.cache->stats().capture_failures != before) tries.push_back(i);
  }
  EXPECT_EQ(tries, (std::vector<int>{0, 2, 5, 10, 19, 36}));
  hostrt::clear_failures();
  int runs = 0;
  while (!world.cache->contains(kKey) && ++runs < 100) ASSERT_TRUE(world.run(kKey, 1).ok());
  EXPECT_EQ(runs, 33);
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorUnknown);
  EXPECT_RUN(kEager, world.run(kKey, 1));
  EXPECT_RUN(kEager, world.run(kKey, 1));
  const int calls = world.calls;
  EXPECT_RUN(kRestored, world.run(kKey, 1));
  EXPECT_EQ(world.calls, calls);
}

// A working executable ends a series of failures.
TEST_F(FailuresTest, BackoffDoesNotGrowOverSuccesses) {
  World world(unshared(1));
  std::vector<int> values;
  const auto run = [&](const Key& which) {
    values.push_back(1);
    return world.run(which, 1);
  };
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorUnknown);
    EXPECT_RUN(kEager, run(kKey));
    EXPECT_RUN(kEager, run(kKey));
    EXPECT_EQ(world.cache->stats().eager(EagerReason::kBackoff), static_cast<std::uint64_t>(round + 1));
    EXPECT_RUN(kInstantiated, run(kKey));
    EXPECT_RUN(kReplayed, run(kKey));
    EXPECT_TRUE(run(key("other")).ok());  // Evicts it.
  }
  world.expect_done(values);
}

TEST_F(FailuresTest, BackoffIsBounded) {
  World world;
  hostrt::set_execution(false);
  hostrt::fail_call("cudaStreamEndCapture", 1, cudaErrorStreamCaptureInvalidated, -1);
  for (int i = 0; i < 8000; ++i) ASSERT_TRUE(world.run(kKey, 1).ok());
  // Waits of 1, 2, ... 512 runs, then of 1024 runs each.
  EXPECT_EQ(world.cache->stats().capture_failures, 1u + 10 + (8000 - 1023 - 11) / 1025 + 0);
}

TEST_F(FailuresTest, OutOfMemoryEvictsTrimsAndTriesOnceMore) {
  World world(unshared());
  EXPECT_RUN(kInstantiated, world.run(key("old"), 1));
  EXPECT_RUN(kInstantiated, world.run(key("young"), 2));
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
  hostrt::reset_calls();
  EXPECT_RUN(kInstantiated, world.run(kKey, 3));
  EXPECT_EQ(hostrt::calls("cudaGraphInstantiate"), 2u);
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 1u);
  EXPECT_EQ(hostrt::calls("cudaDeviceGraphMemTrim"), 1u);
  const std::vector<EntryInfo> entries = world.cache->entries();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_TRUE(entries[1].live);  // "young"
  EXPECT_FALSE(entries[2].live);
  EXPECT_TRUE(entries[2].recorded);
  EXPECT_EQ(world.cache->stats().evictions, 1u);
  EXPECT_EQ(world.cache->stats().instantiations, 3u);
  const int calls = world.calls;
  EXPECT_RUN(kRestored, world.run(key("old"), 4));
  EXPECT_EQ(world.calls, calls);
  world.expect_done({1, 2, 3, 4});
  expect_usable(world);
}

TEST_F(FailuresTest, OutOfMemoryThatStaysRunsEagerlyAndKeepsTheTemplate) {
  World world(unshared());
  EXPECT_RUN(kInstantiated, world.run(key("old"), 1));
  EXPECT_RUN(kInstantiated, world.run(key("young"), 2));
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation, -1);
  EXPECT_RUN(kEager, world.run(kKey, 3));
  EXPECT_EQ(world.cache->stats().eager(EagerReason::kOutOfMemory), 1u);
  EXPECT_EQ(world.cache->stats().live_executables, 1u);  // one was evicted, not all
  EXPECT_TRUE(world.cache->contains(kKey));
  expect_usable(world);
  EXPECT_RUN(kEager, world.run(kKey, 4));
  EXPECT_EQ(world.cache->stats().eager(EagerReason::kBackoff), 1u);
  hostrt::clear_failures();
  const int calls = world.calls;
  EXPECT_RUN(kRestored, world.run(kKey, 5));
  EXPECT_RUN(kPatched, world.run(key("young"), 6));
  EXPECT_RUN(kRestored, world.run(key("old"), 7));
  EXPECT_EQ(world.calls, calls);
  world.expect_done({1, 2, 3, 4, 5, 6, 7});
  expect_usable(world);
}

// cudaErrorNotSupported is tried once more, because an executable that waits for destruction may be the reason.
TEST_F(FailuresTest, RefusedInstantiationRunsEagerlyAndForgetsTheTemplate) {
  for (const cudaError_t error : {cudaErrorNotSupported, cudaErrorInvalidValue}) {
    hostrt::reset();
    World world;
    hostrt::fail_call("cudaGraphInstantiate", 1, error, 2);
    EXPECT_RUN(kEager, world.run(kKey, 1));
    EXPECT_EQ(world.cache->stats().eager(EagerReason::kRefused), 1u);
    EXPECT_EQ(world.cache->stats().live_templates, 0u);
    EXPECT_FALSE(world.cache->contains(kKey));
    expect_usable(world);
    hostrt::clear_failures();
    EXPECT_RUN(kEager, world.run(kKey, 2));
    EXPECT_RUN(kInstantiated, world.run(kKey, 3));
    world.expect_done({1, 2, 3});
  }
}

TEST_F(FailuresTest, RefusedPatchGivesTheRightResultAndDropsTheExecutable) {
  for (const char* function :
       {"cudaGraphExecKernelNodeSetParams", "cudaGraphExecMemcpyNodeSetParams1D", "cudaGraphExecMemsetNodeSetParams"}) {
    SCOPED_TRACE(function);
    hostrt::reset();
    World world;
    EXPECT_RUN(kInstantiated, world.run(kKey, 1));
    hostrt::fail_call(function, 1, cudaErrorInvalidValue);
    EXPECT_RUN(kEager, world.run(kKey, 2));
    EXPECT_EQ(world.cache->stats().eager(EagerReason::kRefused), 1u);
    EXPECT_TRUE(world.cache->contains(kKey));
    EXPECT_EQ(hostrt::ledger().executables, 0u);
    expect_usable(world);
    EXPECT_RUN(kEager, world.run(kKey, 1));  // a half-patched executable would show here
    const int calls = world.calls;
    EXPECT_RUN(kRestored, world.run(kKey, 3));  // a value kept from the failed run would show here
    EXPECT_EQ(world.calls, calls);
    EXPECT_RUN(kPatched, world.run(kKey, 2));
    world.expect_done({1, 2, 1, 3, 2});
  }
}

// The memory of a copy that such a run has moved is asked for.
TEST_F(FailuresTest, ALaunchThatFailsBehindAPatchIsNoHitAfterwards) {
  Stream stream;
  DeviceBuffer<int> to(4), from(4, 1);
  std::vector<int> host(4, 2);
  CUDA_OK(cudaHostRegister(host.data(), 16, cudaHostRegisterDefault));
  Cache cache;
  const auto run = [&](const int* source) {
    return cache.run(key("k"), stream, params(source),
                     [&](Recorder& rec, Slot<const int*> slot) { rec.memcpy(to.get(), slot, 16, cudaMemcpyDefault); });
  };
  for (int i = 0; i < 3; ++i) EXPECT_SUCCESS(run(from.get()));
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorStreamCaptureUnsupported);
  EXPECT_FALSE(run(host.data()).ok());
  hostrt::clear_failures();
  CUDA_OK(cudaHostUnregister(host.data()));
  EXPECT_RUN(kRestored, run(host.data()));
  EXPECT_EQ(to.read(), std::vector<int>(4, 2));
}

TEST_F(FailuresTest, NoMemoryForASetOfNoBytesGivesTheRightResult) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
  hostrt::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  EXPECT_RUN(kEager, world.run(kKey, 0));
  expect_usable(world);
  world.expect_done({1, 0});
}

TEST_F(FailuresTest, EagerRunAfterAFailureBeginsWithACleanLastError) {
  for (const char* function : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphGetNodes",
                               "cudaStreamGetCaptureInfo", "cudaGraphInstantiate", "cudaGraphLaunch"}) {
    SCOPED_TRACE(function);
    hostrt::reset();
    World world;
    std::vector<cudaError_t> seen;
    world.in_fn = [&] { seen.push_back(cudaPeekAtLastError()); };
    hostrt::fail_call(function, 1, cudaErrorMemoryAllocation, 2);
    EXPECT_RUN(kEager, world.run(kKey, 1));
    for (const cudaError_t error : seen) CUDA_OK(error);
    world.expect_done({1});
  }
}

// No runtime query is made that fails for a library's kernels, because it would hide an earlier error.
TEST_F(FailuresTest, KernelsOfLibrariesLeaveTheLastErrorAlone) {
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  CUDA_OK(cudaLibraryLoadData(&library, "any image", nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUDA_OK(cudaLibraryGetKernel(&kernel, library, setter::kSmallName));
  using Value = setter::Value<setter::kSmall>;
  const auto set = reinterpret_cast<void (*)(unsigned char*, Value)>(kernel);
  {
    Stream stream;
    DeviceBuffer<unsigned char> data(2);
    Cache cache;
    for (const unsigned char byte : {5, 6}) {
      cudaSetDevice(-1);
      const cudaError_t before = cudaPeekAtLastError();
      EXPECT_NE(before, cudaSuccess);
      EXPECT_TRUE(did(byte == 5 ? Outcome::kInstantiated : Outcome::kPatched,
                      cache.run(key("k"), stream, params(Value{{byte, 7}}), [&](Recorder& rec, Slot<Value> v) {
                        rec.launch(set, {1, 2}, data.get(), v);
                      })));
      EXPECT_EQ(cudaGetLastError(), before);
      EXPECT_EQ(data.read(), (std::vector<unsigned char>{byte, 7}));
    }
  }
  CUDA_OK(cudaLibraryUnload(library));
}

TEST_F(FailuresTest, FatalErrorReachesTheEntriesOfOtherKeys) {
  World world(unshared());
  EXPECT_RUN(kInstantiated, world.run(key("other"), 1));
  EXPECT_RUN(kInstantiated, world.run(kKey, 2));
  hostrt::reset_calls();
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress);
  EXPECT_TRUE(typed(world.run(kKey, 2).status(), "cudaGraphLaunch", cudaErrorIllegalAddress));
  EXPECT_FALSE(world.cache->contains(key("other")));
  const auto other = world.run(key("other"), 1);
  EXPECT_EQ(cuda_error(other.status()), cudaErrorIllegalAddress) << other.status();
  EXPECT_EQ(other.status().message().substr(0, 81),
            "graphcache: key (\"other\"): since an earlier error: graphcache: key (\"my label\"): ");
  EXPECT_TRUE(mentions(other.status(), "the CUDA context is lost")) << other.status();
  EXPECT_EQ(cuda_error(world.cache->graph(key("other")).status()), cudaErrorIllegalAddress);
  EXPECT_EQ(hostrt::calls("cudaGraphLaunch"), 1u);
  EXPECT_TRUE(world.cache->entries().empty());
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 0u);
  EXPECT_EQ(hostrt::calls("cudaGraphDestroy"), 0u);
}

TEST_F(FailuresTest, WarmOfADisabledCacheReportsALostContextAsARunDoes) {
  World world(unshared(0));
  const auto fn = [](cudaStream_t) {};
  EXPECT_SUCCESS(world.cache->warm(key("k"), world.stream, fn));
  hostrt::fail_call("cudaStreamIsCapturing", 1, cudaErrorIllegalAddress);
  EXPECT_FAILURE(kInternal, world.run(kKey, 1));
  EXPECT_ERROR(kInternal, world.cache->warm(key("warmed"), world.stream, fn), "(\"warmed\")",
               "cudaErrorIllegalAddress");
  EXPECT_EQ(world.cache->stats().failed, 2u);
}

TEST_F(FailuresTest, FatalErrorThatFnReturnsIsRemembered) {
  World world;
  const auto outcome = world.cache->run(kKey, world.stream, [](cudaStream_t) { return cudaErrorLaunchFailure; });
  EXPECT_TRUE(typed(outcome.status(), "fn", cudaErrorLaunchFailure));
  EXPECT_EQ(cuda_error(world.cache->status()), cudaErrorLaunchFailure);
  EXPECT_EQ(cuda_error(world.run(kKey, 1).status()), cudaErrorLaunchFailure);
}

// Some nodes then hold new values and some old ones.
TEST_F(FailuresTest, ExecutableWhosePatchFailedIsNeverLaunchedAgain) {
  for (const cudaError_t error : {cudaErrorStreamCaptureUnsupported, cudaErrorInvalidValue, cudaErrorUnknown}) {
    hostrt::reset();
    Cache cache;
    Stream stream;
    DeviceBuffer<int> log(16), count(1);
    const auto run = [&](int a, int b) {
      return cache.run(kKey, stream, params(a, b), [&](Recorder& rec, Slot<int> first, Slot<int> second) {
        rec.launch(append, {1, 1}, log.get(), count.get(), first);
        rec.launch(append, {1, 1}, log.get(), count.get(), second);
      });
    };
    ASSERT_TRUE(run(1, 1).ok());
    hostrt::fail_call("cudaGraphExecKernelNodeSetParams", 1, error);
    ASSERT_TRUE(run(2, 3).ok());
    ASSERT_TRUE(run(2, 3).ok());
    const std::vector<int> all = log.read();
    EXPECT_EQ(std::vector<int>(all.begin(), all.begin() + 6), (std::vector<int>{1, 1, 2, 3, 2, 3}));
  }
}

// Without an answer about a node or its memory, the graph may use memory that is gone.
TEST_F(FailuresTest, CopiesAndHostFunctionsThatCannotBeReadRunDirectly) {
  constexpr int kSize = 16;
  Stream stream;
  DeviceBuffer<float> data(kSize);
  const auto expect_direct = [&](const std::string& what, const char* getter, const auto& enqueue, const auto& result) {
    SCOPED_TRACE(what + ", " + getter);
    Cache cache;
    for (int i = 1; i <= 4; ++i) {
      hostrt::fail_call(getter, 1, cudaErrorInvalidValue, -1);
      const auto outcome = cache.run(key("k"), stream, [&](cudaStream_t on) { return enqueue(on, i); });
      hostrt::clear_failures();
      EXPECT_RUN(kEager, outcome);
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(result(), i);
    }
    const std::string text = explain(cache, key("k"));
    EXPECT_NE(text.find(name_of_getter(getter)), std::string::npos) << text;
  };
  const auto copy = [&](cudaStream_t on, int i) {
    const std::vector<float> temporary(kSize, static_cast<float>(i));
    return cudaMemcpyAsync(data.get(), temporary.data(), kSize * sizeof(float), cudaMemcpyHostToDevice, on);
  };
  for (const char* const getter :
       {"cudaGraphNodeGetType", "cudaGraphMemcpyNodeGetParams", "cudaPointerGetAttributes"}) {
    expect_direct("copies", getter, copy, [&] { return data.first(); });
  }
  for (const char* const getter : {"cudaGraphNodeGetType", "cudaGraphHostNodeGetParams", "cudaPointerGetAttributes"}) {
    const auto sum = std::make_unique<int>(0);
    const auto call = [&](cudaStream_t on, int) {
      const cudaHostFn_t count = [](void* at) { ++*static_cast<int*>(at); };
      return cudaLaunchHostFunc(on, count, sum.get());
    };
    expect_direct("host functions", getter, call, [&] { return *sum; });
  }
}

// The values of a run are written into the nodes of both recordings.
TEST_F(FailuresTest, VerifiedHitWhoseNodesCannotBeReadIsRight) {
  Stream stream;
  DeviceBuffer<int> log(64), count(1);
  for (const char* const function : {"cudaFuncGetParamInfo", "cudaGraphKernelNodeGetParams", "cudaGraphNodeGetType"}) {
    for (int nth = 1; nth <= 6; ++nth) {
      SCOPED_TRACE(std::string(function) + " " + std::to_string(nth));
      Cache cache({.verify_every = 1});
      for (int i = 0; i < 8; ++i) {
        if (i == 6) hostrt::fail_call(function, nth, cudaErrorUnknown);
        int* const at = log.get() + 4 * i;
        EXPECT_SUCCESS(cache.run(key("k"), stream, values(at), [&](Recorder& rec, int* to) {
          rec.launch(append, {1, 1}, to, count.get(), 7);
        }));
        hostrt::clear_failures();
        CUDA_OK(cudaMemset(count.get(), 0, sizeof(int)));
        EXPECT_EQ(log.read()[static_cast<std::size_t>(4 * i)], 7);
      }
      log.write(std::vector<int>(64));
    }
  }
}

TEST_F(FailuresTest, NestedRunsSurviveFailures) {
  for (const char* function : {"cudaStreamIsCapturing", "cudaStreamGetDevice", "cudaGetDevice"}) {
    for (int nth = 1; nth <= 4; ++nth) {
      SCOPED_TRACE(std::string(function) + " " + std::to_string(nth));
      hostrt::reset();
      World world;
      Stream other;
      DeviceBuffer<int> other_log(16), other_count(1);
      hostrt::fail_call(function, nth, cudaErrorUnknown);
      int inner_done = 0;
      const auto outcome = world.cache->run(kKey, world.stream, [&](Recorder& rec) {
        const auto inner = world.cache->run(key("inner"), other, [&](Recorder& on_other) {
          on_other.launch(append, {1, 1}, other_log.get(), other_count.get(), 5);
        });
        inner_done = inner.ok() ? 1 : 0;  // of the last call: an outer capture begins it, a direct run ends it
        rec.launch(append, {1, 1}, world.log.get(), world.count.get(), 6);
      });
      hostrt::clear_failures();
      EXPECT_EQ(other_count.first(), outcome.ok() ? inner_done : 0);
      EXPECT_EQ(world.count.first(), outcome.ok() ? 1 : 0);
      if (!outcome.ok()) {
        EXPECT_TRUE(typed(outcome.status(), function, cudaErrorUnknown));
      }
      expect_usable(world);
    }
  }
}

// If cuFuncGetParamInfo answers for a parameter as if it were past the last one, the list seems to end there.
TEST_F(FailuresTest, KernelWhoseParametersAreCountedShortIsNotPatchedWithTooFew) {
  for (int nth = 1; nth <= 10; ++nth) {
    SCOPED_TRACE(nth);
    hostrt::reset();
    Cache cache;
    Stream stream;
    DeviceBuffer<int> log(64), count(1);
    DeviceBuffer<float> data(1);
    const auto run = [&](int number) {
      return cache.run(key(number), stream, [&, number](cudaStream_t on) {
        (void)launch(append_in_each, 1, 1, on, log.get(), count.get(), number);
        for (int i = 0; i < 8; ++i) (void)launch(add, 1, 1, on, data.get(), 1, 1.0f);
      });
    };
    ASSERT_TRUE(run(5).ok());
    hostrt::fail_call("cudaFuncGetParamInfo", nth, cudaErrorInvalidValue);
    for (const int number : {6, 5, 6, 7, 5}) ASSERT_TRUE(run(number).ok());
    hostrt::clear_failures();
    std::vector<int> done = log.read();
    done.resize(6);
    EXPECT_EQ(done, (std::vector<int>{5, 6, 5, 6, 7, 5}));
    EXPECT_EQ(data.first(), 48.0f);
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
  }
}

// A direct run does not hold its entry, which can be erased meanwhile.
TEST_F(FailuresTest, AnEntryErasedDuringADirectRunIsGone) {
  for (const bool by_fatal_error : {false, true}) {
    World world;
    hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation, -1);
    world.in_fn = [&] {
      if (world.calls != 2) return;  // the first call is that of the capture
      EXPECT_EQ(world.cache->stats().live_templates, 1u);
      if (by_fatal_error) {
        hostrt::fail_call("cudaLaunchKernel", 1, cudaErrorIllegalAddress);
      } else {
        EXPECT_TRUE(world.cache->erase(kKey));
      }
    };
    EXPECT_EQ(world.run(kKey, 1).ok(), !by_fatal_error);
    EXPECT_EQ(world.calls, 2);
    EXPECT_EQ(world.cache->stats().live_templates, 0u);
    EXPECT_TRUE(world.cache->entries().empty());
    EXPECT_EQ(hostrt::ledger().graphs, by_fatal_error ? 1u : 0u);  // handles are dropped in that case
  }
}

// Each run appends its value to the log.
struct Appending {
  absl::StatusOr<Outcome> run(int value) {
    return cache.run(kKey, stream, params(value), [&](Recorder& rec, Slot<int> v) {
      rec.launch(append, {1, 1}, log.get(), count.get(), v);
    });
  }

  Cache cache;
  Stream stream;
  DeviceBuffer<int> log{8}, count{1};
};

// A thread without a context is given one before it patches.
TEST_F(FailuresTest, HitThatCannotQueryTheDeviceLeavesNoErrorBehind) {
  hostrt::reset();
  Appending work;
  EXPECT_RUN(kInstantiated, work.run(1));
  std::thread([&] {
    hostrt::fail_call("cudaGetDevice", 1, cudaErrorInvalidValue);
    EXPECT_TRUE(work.run(2).ok());
    EXPECT_EQ(hostrt::failures_injected(), 1u);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }).join();
  EXPECT_EQ(work.count.first(), 2);
  EXPECT_EQ(work.log.read()[1], 2);
}

// Runs set the arguments of a kernel by the handles that the driver reports.
TEST_F(FailuresTest, KernelWithSlotsThatTheDriverDoesNotReportRunsDirectly) {
  Appending work;
  hostrt::fail_call("cudaGraphKernelNodeGetParams", 1, cudaErrorInvalidValue);
  EXPECT_RUN(kEager, work.run(1));
  EXPECT_EQ(work.cache.stats().eager(EagerReason::kCaptureFailed), 1u);
  const std::string error = work.cache.entries().front().error;
  EXPECT_NE(error.find("a kernel with slots, cudaGraphKernelNodeGetParams"), error.npos) << error;
  EXPECT_RUN(kEager, work.run(2));
  EXPECT_RUN(kInstantiated, work.run(3));
  EXPECT_RUN(kPatched, work.run(4));
  EXPECT_EQ(work.log.read(), (std::vector<int>{1, 2, 3, 4, 0, 0, 0, 0}));
}

// The memory may be pageable, and then the launch would destroy the context.
TEST_F(FailuresTest, ACopyOfUnknownNewMemoryIsNotPatched) {
  Cache cache;
  Stream stream;
  DeviceBuffer<char> from(64, 5), to(64);
  std::vector<char> pageable(64, 7);
  const auto run = [&](char* memory) {
    return cache.run(key("k"), stream, params(memory),
                     [&](Recorder& rec, Slot<char*> slot) { rec.memcpy(to.get(), slot, 64); });
  };
  EXPECT_RUN(kInstantiated, run(from.get()));
  hostrt::fail_call("cudaPointerGetAttributes", 1, cudaErrorUnknown);
  EXPECT_RUN(kEager, run(pageable.data()));
  EXPECT_EQ(to.read(), pageable);
  EXPECT_TRUE(cache.status().ok()) << cache.status();
}

// A copy whose memory is not known may be one of the host, which must not be launched with other memory.
TEST_F(FailuresTest, QueriesOfTheMemoryOfCopiesMayFail) {
  using Kind = ReusedMemory::Kind;
  for (int nth = 1; nth <= 12; ++nth) {
    SCOPED_TRACE(nth);
    hostrt::reset();
    ReusedMemory memory(Kind::kManaged);
    const PinnedBuffer<float> pinned(1);
    const Stream stream;
    DeviceBuffer<float> data(1);
    Cache cache;
    const auto run = [&](float* from, float value) {
      *from = value;
      EXPECT_SUCCESS(cache.run(key("k"), stream, params(from),
                               [&](Recorder& rec, Slot<float*> slot) { rec.memcpy(data.get(), slot, sizeof(float)); }));
      EXPECT_EQ(data.first(), value);
    };
    hostrt::fail_call("cudaPointerGetAttributes", nth, cudaErrorUnknown);
    run(pinned.get(), 1);
    hostrt::clear_failures();
    run(memory.get(), 2);
    run(memory.get(), 3);
    if (!memory.give_out_again(Kind::kManaged)) continue;
    run(memory.get(), 4);
    run(memory.get(), 5);
  }
}

}  // namespace
}  // namespace graphcache::test
