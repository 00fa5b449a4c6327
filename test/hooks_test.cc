// Options::hooks: when each hook is called, and the effect of their errors.
#include "graphcache/hooks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "graphcache/status.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

using Calls = std::vector<std::string>;

class HooksTest : public CacheTest {
 protected:
  // Options with hooks that record their calls.
  Options watched(Options options = unshared()) {
    Hooks& hooks = options.hooks;
    hooks.before_capture = [this](const Key& key, cudaStream_t on) {
      note("before_capture", key);
      captured_on = on;
      return before_capture;
    };
    hooks.after_capture = [this](const Key& key, cudaGraph_t graph) {
      std::size_t nodes = 0;
      if (graph != nullptr) {
        CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
      }
      note("after_capture of " + std::to_string(nodes), key);
    };
    hooks.before_launch = [this](const Key& key, cudaStream_t on) {
      note("before_launch", key);
      launched_on = on;
      return before_launch;
    };
    hooks.on_evict = [this](const Key& key) { note("on_evict", key); };
    hooks.on_forget = [this](const Key& key) { note("on_forget", key); };
    options.log = [this](std::string_view text) { log += std::string(text) + "\n"; };
    return options;
  }
  void note(const std::string& what, const Key& key) { noted.push_back(what + " " + std::string(key.label())); }
  void expect_noted(const Calls& wanted) {
    EXPECT_EQ(noted, wanted);
    noted.clear();
  }

  Calls noted;
  std::string log;
  cudaStream_t captured_on = nullptr, launched_on = nullptr;
  absl::Status before_capture, before_launch;
};

TEST_F(HooksTest, AMissHasAllAroundItAndAHitItsLaunch) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_noted({"before_capture k", "after_capture of 1 k", "before_launch k"});
  EXPECT_EQ(captured_on, stream);
  EXPECT_EQ(launched_on, stream);
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_noted({"before_launch k", "before_launch k"});
  auto step = cache.prepare(key("s"), [&](cudaStream_t on) { return add_one(on); });
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  expect_noted({"before_capture s", "after_capture of 1 s", "before_launch s", "before_launch s", "before_launch s"});
  expect_sum(6);
}

TEST_F(HooksTest, OnTheLegacyStreamTheCaptureIsOnAnother) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, cache.run(key("k"), cudaStreamLegacy, [&](cudaStream_t on) {
    EXPECT_EQ(on, captured_on);
    return add_one(on);
  }));
  EXPECT_NE(captured_on, cudaStreamLegacy);
  EXPECT_EQ(launched_on, cudaStreamLegacy);
  CUDA_OK(cudaDeviceSynchronize());
  expect_sum(1);
}

TEST_F(HooksTest, WarmCapturesAndLaunchesNothing) {
  Cache cache(watched());
  EXPECT_TRUE(cache.warm(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }).ok());
  expect_noted({"before_capture k", "after_capture of 1 k"});
}

TEST_F(HooksTest, EvictedExecutablesAndForgottenTemplatesAreReported) {
  Options options = unshared(1);
  options.max_templates = 1;
  Cache cache(watched(options));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  noted.clear();
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  expect_noted({"before_capture b", "after_capture of 1 b", "before_launch b", "on_evict a", "on_forget a"});
  EXPECT_TRUE(cache.erase(key("b")));
  expect_noted({"on_forget b"});
  EXPECT_RUN(kInstantiated, run_add(cache, key("c")));
  noted.clear();
  cache.clear();
  expect_noted({"on_forget c"});
  cache.clear();
  expect_noted({});
}

TEST_F(HooksTest, TheEndOfTheCacheForgets) {
  {
    Cache cache(watched());
    EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
    noted.clear();
  }
  expect_noted({"on_forget k"});
}

TEST_F(HooksTest, ADirectRunHasNone) {
  Options options = unshared();
  options.capture_after = 1;
  Cache cache(watched(options));
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_noted({});
  expect_sum(1);
}

TEST_F(HooksTest, ACaptureThatFailsIsClosed) {
  Cache cache(watched());
  EXPECT_FAILURE(kAborted, cache.run(key("k"), stream, [](cudaStream_t) { return absl::AbortedError("no"); }));
  expect_noted({"before_capture k", "after_capture of 0 k"});
  EXPECT_THROW(cache.run(key("k"), stream, [](cudaStream_t) { throw std::runtime_error("no"); }).IgnoreError(),
               std::runtime_error);
  expect_noted({"before_capture k", "after_capture of 0 k"});
  // A capture that breaks is closed before `fn` is called directly.
  Calls at_call;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
    at_call = noted;
    cudaStreamSynchronize(on);
    cudaGetLastError();
    return add_one(on);
  }));
  EXPECT_EQ(at_call, (Calls{"before_capture k", "after_capture of 0 k"}));
  expect_sum(1);
}

TEST_F(HooksTest, AnErrorBeforeACaptureIsTheRuns) {
  Cache cache(watched());
  before_capture = absl::UnavailableError("no pool");
  const auto failed = run_add(cache, key("k"));
  EXPECT_TRUE(absl::IsUnavailable(failed.status())) << failed.status();
  EXPECT_TRUE(mentions(failed.status(), "no pool")) << failed.status();
  EXPECT_TRUE(mentions(failed.status(), "(\"k\")")) << failed.status();
  EXPECT_EQ(calls, 0);
  expect_noted({"before_capture k"});
  EXPECT_TRUE(absl::IsUnavailable(cache.warm(key("k"), stream, [&](cudaStream_t on) { return add_one(on); })));
  before_capture = absl::OkStatus();
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(1);
}

// If it were an error of `fn`, an error of captures would cause a direct call.
TEST_F(HooksTest, AnErrorOfCapturesBeforeACaptureIsTheRuns) {
  Cache inner;
  const Stream other;
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
  before_capture = inner.run(key("inner"), other, [&](cudaStream_t on) { return add_one(on); }).status();
  CUDA_OK(cudaStreamEndCapture(other, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  EXPECT_EQ(cuda_error(before_capture), cudaErrorStreamCaptureUnsupported) << before_capture;
  Cache cache(watched());
  const auto failed = run_add(cache, key("k"));
  EXPECT_EQ(cuda_error(failed.status()), cudaErrorStreamCaptureUnsupported) << failed.status();
  EXPECT_EQ(calls, 0);
  expect_noted({"before_capture k"});
  before_capture = absl::OkStatus();
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(1);
}

TEST_F(HooksTest, AnErrorBeforeALaunchIsTheRuns) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_add(cache, stream, 1));
  before_launch = absl::AbortedError("no offset");
  for (int i = 0; i < 3; ++i) {
    const auto failed = run_add(cache, stream, 10);
    EXPECT_TRUE(absl::IsAborted(failed.status())) << failed.status();
  }
  expect_sum(1);
  EXPECT_EQ(cache.stats().failed, 3u);
  before_launch = absl::OkStatus();
  EXPECT_TRUE(run_add(cache, stream, 10).ok());
  EXPECT_RUN(kPatched, run_add(cache, stream, 100));
  expect_sum(111);
}

TEST_F(HooksTest, ExceptionsBeforeSomethingPassAndOthersAreLogged) {
  Options options = watched(unshared(1));
  bool throws = true;
  const auto may_throw = [&] {
    if (throws) throw std::runtime_error("of the hook");
  };
  options.hooks.before_capture = [&](const Key&, cudaStream_t) {
    may_throw();
    return absl::OkStatus();
  };
  options.hooks.after_capture = [](const Key&, cudaGraph_t) { throw 1; };
  options.hooks.before_launch = options.hooks.before_capture;
  options.hooks.on_evict = [](const Key&) { throw 2; };
  options.hooks.on_forget = [](const Key&) { throw 3; };
  Cache cache(options);
  EXPECT_THROW(run_add(cache, key("a")).IgnoreError(), std::runtime_error);
  EXPECT_EQ(calls, 0);
  throws = false;
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  throws = true;
  EXPECT_THROW(run_add(cache, key("a")).IgnoreError(), std::runtime_error);
  throws = false;
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  EXPECT_TRUE(cache.erase(key("b")));
  expect_sum(2);
  for (const char* name : {"after_capture", "on_evict", "on_forget"}) {
    EXPECT_TRUE(says(log, std::string("the hook ") + name + " threw"));
  }
}

TEST_F(HooksTest, AnAdoptedKeyHasLaunchesAndNoCaptures) {
  Cache cache(watched(unshared(0)));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(add_one(stream));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  EXPECT_TRUE(cache.adopt(key("k"), graph).ok());
  EXPECT_RUN(kEager, cache.run(key("k"), stream));
  expect_noted({"before_launch k"});
  before_launch = absl::AbortedError("no offset");
  EXPECT_TRUE(absl::IsAborted(cache.run(key("k"), stream).status()));
  expect_sum(1);
  noted.clear();
  EXPECT_TRUE(cache.erase(key("k")));
  expect_noted({"on_forget k"});
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(HooksTest, ARunOfNoGraphIsNoCapture) {
  Cache cache(watched());
  EXPECT_TRUE(absl::IsNotFound(cache.run(key("k"), stream).status()));
  EXPECT_TRUE(absl::IsNotFound(cache.warm(key("k"), stream, adopted)));
  expect_noted({});
  EXPECT_EQ(cache.stats().capture_failures, 0u);
  EXPECT_RUN(kEager, cache.run(key("empty"), stream, [](cudaStream_t) {}));
  expect_noted({"before_capture empty", "after_capture of 0 empty"});
}

TEST_F(HooksTest, AnInlinedRunCallsNoneAndNoneIsCalledInsideACapture) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_add(cache, key("gone")));
  noted.clear();
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_TRUE(cache.erase(key("gone")));
    EXPECT_RUN(kInlined, cache.run(key("inner"), on, [&](cudaStream_t inner) { return add_one(inner); }));
  }));
  expect_noted({"before_capture outer", "after_capture of 1 outer", "before_launch outer", "on_forget gone"});
  expect_sum(2);
}

// Every opened capture is closed without a graph, or has a graph that is forgotten once.
TEST_F(HooksTest, WhatWasOpenedIsClosedOrForgotten) {
  std::mutex mutex;
  std::map<std::string, int> open;
  int most_open = 0, kept = 0;
  const auto add = [&](const Key& of, int by) {
    const std::lock_guard lock(mutex);
    int& count = open[of.to_string()];
    count += by;
    most_open = std::max(most_open, count);
  };
  Options options = renting(2);
  options.max_templates = 3;
  options.verify_every = 2;
  options.on_stale = OnStale::kForget;
  options.hooks.before_capture = [&](const Key& of, cudaStream_t) {
    add(of, 1);
    return absl::OkStatus();
  };
  options.hooks.after_capture = [&](const Key& of, cudaGraph_t graph) {
    if (graph == nullptr) return add(of, -1);
    const std::lock_guard lock(mutex);
    ++kept;
  };
  options.hooks.on_forget = [&](const Key& of) { add(of, -1); };
  constexpr int kThreads = 4, kRuns = 150, kKeys = 6;
  std::vector<std::unique_ptr<DeviceBuffer<float>>> sums;
  for (int i = 0; i < kThreads; ++i) sums.push_back(std::make_unique<DeviceBuffer<float>>(kSize));
  {
    Cache cache(options);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        Stream own;
        float* const sum = sums[static_cast<std::size_t>(i)]->get();
        for (int run = 0; run < kRuns; ++run) {
          // Two places of the program, values that become stale, and captures that break, fail or are empty.
          const Key of = key("k", (run + i) % kKeys);
          const auto fn = [&](cudaStream_t on) -> absl::Status {
            if (run % 29 == 28) return absl::AbortedError("no");
            if (run % 31 == 30) cudaStreamSynchronize(on);
            cudaGetLastError();
            if (run % 37 != 36) (void)launch(test::add, kGrid, kBlock, on, sum, kSize, 1.0f);
            return absl::OkStatus();
          };
          if (run % 2 == 0) {
            cache.run(of, own, fn).IgnoreError();
          } else {
            cache.run(of, own, [&](cudaStream_t on) { return fn(on); }).IgnoreError();
          }
          if (run % 41 == 40) cache.erase(of);
        }
        CUDA_OK(cudaStreamSynchronize(own));
      });
    }
    for (std::thread& thread : threads) thread.join();
    stats = cache.stats();
    EXPECT_EQ(static_cast<std::uint64_t>(kept), stats.captures);
    EXPECT_GT(stats.forgotten, 10u);
  }
  for (const auto& [of, count] : open) EXPECT_EQ(count, 0) << of;
  EXPECT_GE(most_open, 2);
}

// With background threads, the capture, the direct call and the later launches each have the right hooks.
TEST_F(HooksTest, BackgroundThreadsCaptureNothingThemselves) {
  Options options = watched();
  options.background_threads = 1;
  Cache cache(options);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_TRUE(cache.wait_until_ready().ok());
  expect_noted({"before_capture k", "after_capture of 1 k"});
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_noted({"before_launch k"});
  before_launch = absl::AbortedError("no offset");
  EXPECT_TRUE(absl::IsAborted(run_add(cache, key("k")).status()));
  before_launch = absl::OkStatus();
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_sum(3);
  noted.clear();
}

// The outer graph could not contain the inner run. So both runs are direct, and only the inner one has a graph.
TEST_F(HooksTest, ARunInsideAnotherStreamsCaptureHasItsOwn) {
  Cache cache(watched());
  const Stream other;
  EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_TRUE(cache.run(key("inner"), other, [&](cudaStream_t inner) { return add_one(inner); }).ok());
    CUDA_OK(cudaGetLastError());
    return launch(do_nothing, 1, 1, on);
  }));
  CUDA_OK(cudaStreamSynchronize(other));
  expect_noted({"before_capture outer", "after_capture of 0 outer", "before_capture inner", "after_capture of 1 inner",
                "before_launch inner"});
  expect_sum(1);
}

TEST_F(HooksTest, MemoryThatRunsOutInAHookIsAnErrorOfTheRun) {
  Options options = unshared();
  bool throws = true;
  options.hooks.before_capture = [&](const Key&, cudaStream_t) {
    if (throws) throw std::bad_alloc();
    return absl::OkStatus();
  };
  options.hooks.before_launch = options.hooks.before_capture;
  Cache cache(options);
  EXPECT_TRUE(absl::IsResourceExhausted(run_add(cache, key("k")).status()));
  throws = false;
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  throws = true;
  EXPECT_TRUE(absl::IsResourceExhausted(run_add(cache, key("k")).status()));
  throws = false;
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_sum(2);
}

// A generator whose offset each launch reads from memory: the hook advances it.
TEST_F(HooksTest, AGeneratorsOffsetIsSetBeforeEachLaunch) {
  DeviceBuffer<float> offset(1);
  Options options = renting(2);
  float next = 1;
  options.hooks.before_launch = [&](const Key&, cudaStream_t on) {
    EXPECT_EQ(launch(fill, 1, 1, on, offset.get(), 1, next), cudaSuccess);
    next *= 2;
    return absl::OkStatus();
  };
  Cache cache(options);
  float sum = 0, value = 1;
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(cache
                    .run(key("k", i % 4), stream,
                         [&](cudaStream_t on) { return launch(axpy, 1, 1, on, data.get(), offset.get(), 1, 1.0f); })
                    .ok());
    sum += value;
    value *= 2;
  }
  EXPECT_EQ(data.first(), sum);
}

TEST_F(HooksTest, HooksReportTheEvictionsOfAllThreads) {
  constexpr int kThreads = 4, kRuns = 100;
  std::mutex mutex;
  std::map<std::string, int> evicted;
  std::uint64_t all = 0;
  Options options = unshared(2);
  options.hooks.on_evict = [&](const Key& key) {
    const std::lock_guard lock(mutex);
    ++evicted[std::string(key.label())];
    ++all;
  };
  Cache cache(options);
  // Allocated here, because a call that waits for the device breaks captures of other threads.
  std::vector<std::unique_ptr<DeviceBuffer<float>>> sums;
  for (int i = 0; i < kThreads; ++i) sums.push_back(std::make_unique<DeviceBuffer<float>>(kSize));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Stream own;
      const DeviceBuffer<float>& sum = *sums[static_cast<std::size_t>(i)];
      for (int run = 0; run < kRuns; ++run) {
        EXPECT_TRUE(cache
                        .run(key("thread " + std::to_string(i), run % 3), own,
                             [&](cudaStream_t on) { return launch(add, kGrid, kBlock, on, sum.get(), kSize, 1.0f); })
                        .ok());
      }
      CUDA_OK(cudaStreamSynchronize(own));
      for (int which = 0; which < 3; ++which) cache.erase(key("thread " + std::to_string(i), which));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& sum : sums) EXPECT_EQ(sum->first(), kRuns);
  EXPECT_EQ(all, cache.stats().evictions);
  EXPECT_FALSE(evicted.empty());  // a thread whose runs were all direct has lost nothing
}

}  // namespace
}  // namespace graphcache::test
