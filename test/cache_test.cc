// The cache on either runtime: every result is computed by kernels and compared with what the host expects.
#include "graphcache/cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "graph.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr int kSize = 100;
constexpr dim3 kGrid(2), kBlock(64);

// For what is not about siblings: keys of one topology have an executable each.
Options unshared(int max_executables = Options().max_executables) {
  Options options;
  options.max_executables = max_executables;
  options.sharing = Sharing::kNever;
  return options;
}

// One level: what loses its executable is forgotten.
Options without_templates(int max_executables) {
  Options options = unshared(max_executables);
  options.max_templates = 0;
  return options;
}

class CacheTest : public StreamTest {
 protected:
  // What a run of a key by add_one() did: one more in every element.
  cudaError_t add_one(cudaStream_t on) { return launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f); }
  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& key) {
    return cache.run(key, stream, [&](cudaStream_t on) {
      ++calls;
      return add_one(on);
    });
  }
  void expect_sum(float sum) { EXPECT_EQ(data.read(), std::vector<float>(kSize, sum)); }

  // The labels of keys that have an executable, the one used last first.
  static std::vector<std::string> live(const Cache& cache) {
    std::vector<std::string> labels;
    for (const EntryInfo& entry : cache.entries()) {
      if (entry.live) labels.push_back(entry.label);
    }
    return labels;
  }

  DeviceBuffer<float> data{kSize};
  int calls = 0;
  Stats stats;
};

// ---- The forms of a run ---------------------------------------------------------------------------------------------

TEST_F(CacheTest, FirstRunInstantiatesLaterRunsReplay) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(1);
  for (int i = 2; i <= 5; ++i) {
    EXPECT_RUN(kReplayed, run_add(cache, key("k")));
    expect_sum(static_cast<float>(i));
  }
  EXPECT_EQ(calls, 1);
}

TEST_F(CacheTest, RunsInFlightAreAllDone) {
  Cache cache;
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(run_add(cache, key("k")).ok());
  expect_sum(300);
  EXPECT_EQ(calls, 1);
}

TEST_F(CacheTest, RunsAndDirectWorkKeepTheStreamsOrder) {
  Cache cache;
  DeviceBuffer<int> log(16), count(1);
  const auto enqueue = [&](int value) { CUDA_OK(launch(append, 1, 1, stream, log.get(), count.get(), value)); };
  for (int i = 0; i < 3; ++i) {
    enqueue(2 * i);
    EXPECT_TRUE(cache
                    .run(key("k"), stream, params(2 * i + 1),
                         [&](Recorder& rec, Slot<int> value) {
                           rec.launch(append, {1, 1}, log.get(), count.get(), value);
                         })
                    .ok());
  }
  enqueue(6);
  std::vector<int> all = log.read();
  all.resize(7);
  EXPECT_EQ(all, (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
}

TEST_F(CacheTest, WithoutAStreamTakesThePerThreadDefaultStream) {
  Cache cache;
  cudaStream_t seen = nullptr;
  const auto run = [&] {
    return cache.run(key("k"), [&](cudaStream_t on) {
      seen = on;
      return add_one(on);
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_EQ(seen, cudaStreamPerThread);
  EXPECT_RUN(kReplayed, run());
  expect_sum(2);
}

TEST_F(CacheTest, WithoutAStreamTakesTheStreamOfTheOptions) {
  Options options;
  options.stream = stream;
  Cache cache(options);
  cudaStream_t seen = nullptr;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), [&](Recorder& rec) {
    seen = rec.stream();
    return add_one(seen);
  }));
  EXPECT_EQ(seen, static_cast<cudaStream_t>(stream));
  expect_sum(1);
}

TEST_F(CacheTest, TakesFunctionsOfStreamAndOfRecorderThatReturnNothingAnErrorOrAStatus) {
  Cache cache(unshared());
  for (int i = 0; i < 2; ++i) {
    const Outcome wanted = i == 0 ? Outcome::kInstantiated : Outcome::kReplayed;
    EXPECT_TRUE(did(wanted, cache.run(key(1), stream, [&](cudaStream_t on) { add_one(on); })));
    EXPECT_TRUE(did(wanted, cache.run(key(2), stream, [&](cudaStream_t on) { return add_one(on); })));
    EXPECT_TRUE(did(wanted, cache.run(key(3), stream, [&](cudaStream_t on) {
      add_one(on);
      return absl::OkStatus();
    })));
    EXPECT_TRUE(did(wanted, cache.run(key(4), stream, [&](Recorder& rec) { add_one(rec.stream()); })));
    EXPECT_TRUE(did(wanted, cache.run(key(5), stream, [&](Recorder& rec) { return add_one(rec.stream()); })));
    EXPECT_TRUE(did(wanted, cache.run(key(6), stream, params(1.0f), [&](Recorder& rec, Slot<float> one) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, one);
      return absl::OkStatus();
    })));
  }
  expect_sum(12);
}

TEST_F(CacheTest, OutcomesInSequence) {
  Cache cache;
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      ++calls;
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    });
  };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_RUN(kReplayed, run(1));
  EXPECT_RUN(kPatched, run(10));
  EXPECT_RUN(kReplayed, run(10));
  EXPECT_RUN(kPatched, run(1));  // Back to the value of the capture: the executable holds the last one.
  expect_sum(23);
  EXPECT_EQ(calls, 1);
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.outcome(Outcome::kInstantiated), 1u);
  EXPECT_EQ(stats.outcome(Outcome::kReplayed), 2u);
  EXPECT_EQ(stats.outcome(Outcome::kPatched), 2u);
  EXPECT_EQ(stats.patched_nodes, 2u);
  EXPECT_EQ(stats.captures, 1u);
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(stats.runs(), 5u);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.8);
}

TEST_F(CacheTest, OneKeyServesSeveralStreams) {
  Cache cache;
  Stream second, third;
  for (int i = 0; i < 30; ++i) {
    const cudaStream_t streams[] = {stream, second, third};
    const auto outcome = cache.run(key("k"), streams[i % 3], [&](cudaStream_t on) { return add_one(on); });
    EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kReplayed, outcome));
  }
  expect_sum(30);
}

// ---- Which runs are the same ----------------------------------------------------------------------------------------

TEST_F(CacheTest, KeyEqualityDecides) {
  Cache cache(unshared());
  const auto run = [&](const Key& which, float value) {
    return cache.run(which, stream,
                     [&, value](cudaStream_t on) { return launch(add, kGrid, kBlock, on, data.get(), kSize, value); });
  };
  EXPECT_RUN(kInstantiated, run(key("k", 1), 1));
  EXPECT_RUN(kInstantiated, run(key("k", true), 10));
  EXPECT_RUN(kInstantiated, run(key("k", "1"), 100));
  EXPECT_RUN(kInstantiated, run(Key(), 1000));
  EXPECT_RUN(kReplayed, run(key(std::string("k"), 1u), -1));  // The captured value of the equal key, not this one.
  expect_sum(1112);
}

TEST_F(CacheTest, OneKeyAtTwoLambdasIsTwoEntries) {
  Cache cache(unshared());
  for (int i = 0; i < 2; ++i) {
    const Outcome wanted = i == 0 ? Outcome::kInstantiated : Outcome::kReplayed;
    EXPECT_TRUE(did(wanted, cache.run(key("k"), stream, [&](cudaStream_t on) {
      return launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f);
    })));
    EXPECT_TRUE(did(wanted, cache.run(key("k"), stream, [&](cudaStream_t on) {
      return launch(add, kGrid, kBlock, on, data.get(), kSize, 10.0f);
    })));
  }
  expect_sum(22);
  EXPECT_EQ(cache.entries().size(), 2u);
}

// Functions have no captures: what they work on stands here.
float* target = nullptr;
cudaError_t add_1(cudaStream_t on) { return launch(add, kGrid, kBlock, on, target, kSize, 1.0f); }
cudaError_t add_10(cudaStream_t on) { return launch(add, kGrid, kBlock, on, target, kSize, 10.0f); }
void add_100_quietly(cudaStream_t on) noexcept { (void)launch(add, kGrid, kBlock, on, target, kSize, 100.0f); }
void add_1000_quietly(cudaStream_t on) noexcept { (void)launch(add, kGrid, kBlock, on, target, kSize, 1000.0f); }

TEST_F(CacheTest, OneKeyAtTwoFunctionsIsTwoEntries) {
  Cache cache(unshared());
  target = data.get();
  for (cudaError_t (*fn)(cudaStream_t) : {add_1, add_10}) EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  for (cudaError_t (*fn)(cudaStream_t) : {add_1, add_10}) EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, add_1));  // The function itself is the pointer to it.
  expect_sum(23);
}

TEST_F(CacheTest, OneKeyAtTwoNoexceptFunctionsIsTwoEntries) {
  Cache cache(unshared());
  target = data.get();
  for (void (*fn)(cudaStream_t) noexcept : {add_100_quietly, add_1000_quietly}) {
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  }
  expect_sum(1100);
}

TEST_F(CacheTest, OneKeyAtTwoStdFunctionsIsTwoEntries) {
  Cache cache(unshared());
  target = data.get();
  using Fn = std::function<cudaError_t(cudaStream_t)>;
  const Fn functions[] = {add_1, add_10,
                          [&](cudaStream_t on) { return launch(add, kGrid, kBlock, on, data.get(), kSize, 100.0f); },
                          [&](cudaStream_t on) { return launch(add, kGrid, kBlock, on, data.get(), kSize, 1000.0f); }};
  for (const Fn& fn : functions) EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  for (const Fn& fn : functions) EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
  expect_sum(2222);
}

TEST_F(CacheTest, StdFunctionsThatHoldFunctionsOfAnotherSignatureAreApart) {
  Cache cache(unshared());
  target = data.get();
  using Fn = std::function<void(cudaStream_t)>;  // Holds functions that return an error, and others that are noexcept.
  for (const Fn& fn : {Fn(add_1), Fn(add_10), Fn(add_100_quietly), Fn(add_1000_quietly)}) {
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  }
  expect_sum(1111);
}

TEST_F(CacheTest, ConstAndTemporaryFunctionsAreOnePlace) {
  Cache cache;
  const auto fn = [&](cudaStream_t on) { return add_one(on); };
  auto copy = fn;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, copy));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, std::move(copy)));
  expect_sum(3);
}

// ---- The budget -----------------------------------------------------------------------------------------------------

TEST_F(CacheTest, EvictsLeastRecentlyUsed) {
  Cache cache(unshared(2));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  EXPECT_RUN(kReplayed, run_add(cache, key("a")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("c")));
  EXPECT_EQ(live(cache), (std::vector<std::string>{"c", "a"}));
  for (const char* each : {"a", "b", "c"}) EXPECT_TRUE(cache.contains(key(each))) << each;
  EXPECT_EQ(cache.stats().evictions, 1u);
  EXPECT_EQ(cache.stats().live_executables, 2u);
  EXPECT_EQ(cache.stats().live_templates, 3u);

  EXPECT_RUN(kRestored, run_add(cache, key("b")));  // a leaves.
  EXPECT_EQ(live(cache), (std::vector<std::string>{"b", "c"}));
  EXPECT_RUN(kReplayed, run_add(cache, key("c")));
  EXPECT_RUN(kRestored, run_add(cache, key("a")));
  EXPECT_EQ(live(cache), (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(cache.stats().evictions, 3u);
  EXPECT_EQ(cache.stats().forgotten, 0u);
  expect_sum(7);
  EXPECT_EQ(calls, 3);
}

TEST_F(CacheTest, WithoutTemplatesEvictionForgets) {
  Cache cache(without_templates(2));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  EXPECT_RUN(kReplayed, run_add(cache, key("a")));
  EXPECT_EQ(cache.stats().forgotten, 0u);
  EXPECT_RUN(kInstantiated, run_add(cache, key("c")));
  EXPECT_TRUE(cache.contains(key("a")));
  EXPECT_FALSE(cache.contains(key("b")));
  EXPECT_TRUE(cache.contains(key("c")));
  EXPECT_EQ(cache.stats().evictions, 1u);
  EXPECT_EQ(cache.stats().live_executables, 2u);
  EXPECT_EQ(cache.stats().live_templates, 2u);

  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));  // a leaves.
  EXPECT_RUN(kReplayed, run_add(cache, key("c")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_EQ(cache.stats().evictions, 3u);
  EXPECT_EQ(cache.stats().forgotten, 3u);
  expect_sum(7);
  EXPECT_EQ(calls, 5);
}

TEST_F(CacheTest, ForgetsTheTemplateThatWasUsedLongestAgo) {
  Options options = unshared(1);
  options.max_templates = 2;
  Cache cache(options);
  for (const char* each : {"a", "b"}) EXPECT_RUN(kInstantiated, run_add(cache, key(each)));
  EXPECT_RUN(kRestored, run_add(cache, key("a")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("c")));
  EXPECT_TRUE(cache.contains(key("a")));
  EXPECT_FALSE(cache.contains(key("b")));
  EXPECT_TRUE(cache.contains(key("c")));
  EXPECT_EQ(cache.stats().forgotten, 1u);
  EXPECT_EQ(cache.stats().live_templates, 2u);
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  EXPECT_EQ(calls, 4);
  expect_sum(5);
}

TEST_F(CacheTest, OneExecutableServesAlternatingKeys) {
  const auto run_all = [&](const Options& options) {
    Cache cache(options);
    calls = 0;
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(run_add(cache, key(i % 2)).ok());
    stats = cache.stats();
    EXPECT_EQ(stats.live_executables, 1u);
  };
  run_all(without_templates(1));
  EXPECT_EQ(stats.evictions, 19u);
  EXPECT_EQ(stats.outcome(Outcome::kInstantiated), 20u);  // Evicted entries are still counted.
  EXPECT_EQ(calls, 20);
  expect_sum(20);

  run_all(unshared(1));
  EXPECT_EQ(stats.evictions, 19u);
  EXPECT_EQ(stats.outcome(Outcome::kInstantiated), 2u);
  EXPECT_EQ(stats.outcome(Outcome::kRestored), 18u);
  EXPECT_EQ(calls, 2);
  expect_sum(40);

  for (const Sharing sharing : {Sharing::kAuto, Sharing::kAlways}) {
    Options options;
    options.max_executables = 1;
    options.sharing = sharing;
    run_all(options);
    EXPECT_EQ(stats.evictions, 0u);
    EXPECT_EQ(stats.outcome(Outcome::kInstantiated), 1u);
    EXPECT_EQ(stats.outcome(Outcome::kUpdated), 1u);
    EXPECT_EQ(stats.outcome(Outcome::kSwitched), 18u);
    EXPECT_EQ(stats.instantiations, 1u);
    EXPECT_EQ(calls, 2);
  }
  expect_sum(80);
}

// Each key appends another number: a launch in flight must not see what the executable is brought over to.
TEST_F(CacheTest, WhatIsStillInFlightIsEvictedRestoredAndSwitchedUnharmed) {
  DeviceBuffer<int> log(200), count(1);
  for (const Options& options : {without_templates(1), unshared(1), Options{.max_executables = 1}, Options()}) {
    count.write({0});
    Cache cache(options);
    for (int i = 0; i < 200; ++i) {
      const int number = i * i % 13;
      ASSERT_TRUE(cache
                      .run(key(number), stream,
                           [&](cudaStream_t on) { return launch(append, 1, 1, on, log.get(), count.get(), number); })
                      .ok());
    }
    std::vector<int> wanted;
    for (int i = 0; i < 200; ++i) wanted.push_back(i * i % 13);
    EXPECT_EQ(log.read(), wanted);
  }
}

TEST_F(CacheTest, ZeroExecutablesRunsEagerly) {
  Options options;
  options.max_executables = 0;
  Cache cache(options);
  EXPECT_TRUE(cache.status().ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, params(2.0f), [&](Recorder& rec, Slot<float> two) {
      EXPECT_FALSE(is_capturing(rec.stream()));
      ++calls;
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, two);
    }));
  }
  EXPECT_EQ(calls, 3);
  expect_sum(6);
  EXPECT_EQ(cache.stats().eager(EagerReason::kDisabled), 3u);
  EXPECT_EQ(cache.stats().captures, 0u);
  EXPECT_FALSE(cache.contains(key("k")));
}

TEST_F(CacheTest, OptionsThatMakeNoSenseAreReported) {
  const auto expect_refused = [&](const Options& options, const char* word) {
    Cache cache(options);
    EXPECT_FAILURE(kInvalidArgument, cache.status());
    EXPECT_TRUE(mentions(cache.status(), word)) << cache.status();
    EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
    EXPECT_FALSE(cache.contains(key("k")));
    EXPECT_EQ(cache.stats().failed, 1u);
    cache.clear();
  };
  Options options;
  options.max_executables = -1;
  expect_refused(options, "max_executables");
  options = {};
  options.capture_after = -1;
  expect_refused(options, "capture_after");
  options = {};
  options.instantiate_flags = cudaGraphInstantiateFlagUpload;
  expect_refused(options, "instantiate_flags");
  options = {};
  options.instantiate_flags = 1ull << 40;
  expect_refused(options, "instantiate_flags");
  options = {};
  options.device = 1000;
  expect_refused(options, "device");
  options = {};
  options.device = -2;
  expect_refused(options, "device");
  options = {};
  options.capture_mode = static_cast<cudaStreamCaptureMode>(3);
  expect_refused(options, "capture_mode");
  options = {};
  options.max_templates = -1;
  expect_refused(options, "max_templates");
  options = {};
  options.sharing = static_cast<Sharing>(3);
  expect_refused(options, "sharing");
  EXPECT_EQ(calls, 0);
}

TEST_F(CacheTest, TakesTheInstantiateFlagsAndCaptureModesOfTheRuntime) {
  float sum = 0;
  for (const auto mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    for (const unsigned long long flags :
         {0, cudaGraphInstantiateFlagAutoFreeOnLaunch + 0, cudaGraphInstantiateFlagUseNodePriority + 0}) {
      Options options;
      options.instantiate_flags = flags;
      options.capture_mode = mode;
      Cache cache(options);
      EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
      EXPECT_RUN(kReplayed, run_add(cache, key("k")));
      expect_sum(sum += 2);
    }
  }
}

TEST_F(CacheTest, CapturesAfterTheGivenNumberOfRuns) {
  Options options;
  options.capture_after = 2;
  Cache cache(options);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_RUN(kEager, run_add(cache, key("other")));
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureAfter), 3u);
  EXPECT_EQ(calls, 4);
  expect_sum(5);
}

// ---- What the cache reports and forgets -----------------------------------------------------------------------------

TEST_F(CacheTest, EraseForgetsAKeyAtEveryPlace) {
  Cache cache(unshared());
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }); };
  EXPECT_FALSE(cache.erase(key("k")));
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_FALSE(cache.erase(key("k")));
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_TRUE(cache.contains(key("other")));
  EXPECT_EQ(cache.stats().live_executables, 1u);
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run_add(cache, key("other")));
  EXPECT_EQ(cache.stats().outcome(Outcome::kInstantiated), 4u);
  EXPECT_EQ(cache.stats().evictions, 0u);
  expect_sum(5);
}

TEST_F(CacheTest, ErasingTheKeyThatHasTheSharedExecutableLeavesItsSiblings) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_RUN(kUpdated, run_add(cache, key("b")));
  EXPECT_TRUE(cache.erase(key("b")));
  EXPECT_EQ(cache.stats().live_executables, 0u);
  EXPECT_EQ(cache.stats().live_templates, 1u);
  EXPECT_TRUE(cache.contains(key("a")));
  EXPECT_RUN(kRestored, run_add(cache, key("a")));
  EXPECT_RUN(kReplayed, run_add(cache, key("a")));
  EXPECT_EQ(calls, 2);
  expect_sum(4);
}

TEST_F(CacheTest, ErasedKeyThatLostItsExecutableIsForgottenToo) {
  Cache cache(unshared(1));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  EXPECT_TRUE(cache.erase(key("a")));
  EXPECT_FALSE(cache.contains(key("a")));
  EXPECT_EQ(cache.stats().live_templates, 1u);
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_EQ(calls, 3);
  expect_sum(3);
}

TEST_F(CacheTest, ClearForgetsEveryKeyAndKeepsTheCounters) {
  Cache cache(unshared());
  for (int i = 0; i < 5; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key(i)));
  cache.clear();
  EXPECT_TRUE(cache.entries().empty());
  EXPECT_EQ(cache.stats().live_executables, 0u);
  EXPECT_EQ(cache.stats().live_templates, 0u);
  EXPECT_EQ(cache.stats().families, 0u);
  EXPECT_EQ(cache.stats().estimated_device_bytes, 0u);
  EXPECT_EQ(cache.stats().outcome(Outcome::kInstantiated), 5u);
  EXPECT_EQ(cache.stats().evictions, 0u);
  for (int i = 0; i < 5; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key(i)));
  expect_sum(10);
}

TEST_F(CacheTest, EraseAndClearInsideFnLetTheRunEnd) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  const auto run = [&](bool all) {
    return cache.run(key("k", all), stream, [&, all](cudaStream_t on) {
      all ? cache.clear() : static_cast<void>(cache.erase(key("k", all)));
      return add_one(on);
    });
  };
  EXPECT_TRUE(run(false).ok());
  EXPECT_TRUE(run(true).ok());
  expect_sum(3);
  EXPECT_FALSE(cache.contains(key("other")));
  EXPECT_TRUE(run(false).ok());
  expect_sum(4);
}

TEST_F(CacheTest, EntriesTellWhatEachKeyDid) {
  Cache cache;
  const auto run_slots = [&](float value) {
    return cache.run(key("slots", 8), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      add_one(rec.stream());
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 5.0f);
    });
  };
  EXPECT_TRUE(run_slots(1).ok());
  EXPECT_TRUE(run_slots(2).ok());
  EXPECT_TRUE(run_add(cache, key("plain")).ok());
  const std::vector<EntryInfo> entries = cache.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].label, "plain");
  EXPECT_EQ(entries[0].nodes, 1u);
  EXPECT_EQ(entries[0].slot_nodes, 0u);
  EXPECT_EQ(entries[0].last_use_order, 0u);
  EXPECT_EQ(entries[1].label, "slots");
  EXPECT_EQ(entries[1].key, key("slots", 8).to_string());
  EXPECT_TRUE(entries[1].live);
  EXPECT_TRUE(entries[1].recorded);
  EXPECT_FALSE(entries[1].pinned);
  EXPECT_NE(entries[1].family, 0u);
  EXPECT_NE(entries[1].family, entries[0].family);  // Their topologies differ.
  EXPECT_EQ(entries[1].nodes, 3u);
  EXPECT_EQ(entries[1].slot_nodes, 1u);
  EXPECT_EQ(entries[1].estimated_device_bytes, estimated_device_bytes(3));
  EXPECT_EQ(entries[1].last_use_order, 1u);
  EXPECT_EQ(entries[1].outcomes[static_cast<int>(Outcome::kInstantiated)], 1u);
  EXPECT_EQ(entries[1].outcomes[static_cast<int>(Outcome::kPatched)], 1u);
  EXPECT_EQ(cache.stats().estimated_device_bytes, estimated_device_bytes(3) + estimated_device_bytes(1));
  EXPECT_EQ(cache.stats().families, 2u);

  EXPECT_TRUE(run_slots(2).ok());
  EXPECT_EQ(cache.entries()[0].label, "slots");
}

TEST_F(CacheTest, EntriesTellWhoHasAnExecutableOrATemplateAlone) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_RUN(kUpdated, run_add(cache, key("b")));
  EXPECT_TRUE(cache.pin(key("b")));
  const std::vector<EntryInfo> entries = cache.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].label, "b");
  EXPECT_TRUE(entries[0].live);
  EXPECT_TRUE(entries[0].pinned);
  EXPECT_EQ(entries[0].estimated_device_bytes, estimated_device_bytes(1));
  EXPECT_EQ(entries[1].label, "a");
  EXPECT_FALSE(entries[1].live);
  EXPECT_TRUE(entries[1].recorded);
  EXPECT_FALSE(entries[1].pinned);
  EXPECT_EQ(entries[1].nodes, 1u);
  EXPECT_EQ(entries[1].estimated_device_bytes, 0u);
  EXPECT_NE(entries[0].family, 0u);
  EXPECT_EQ(entries[0].family, entries[1].family);
  EXPECT_EQ(cache.stats().families, 1u);
}

TEST_F(CacheTest, StatsCountTimeOfCapturesAndInstantiations) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  const Stats first = cache.stats();
  EXPECT_GT(first.capture_time.count(), 0);
  EXPECT_GT(first.instantiate_time.count(), 0);
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_EQ(cache.stats().capture_time, first.capture_time);
  EXPECT_EQ(cache.stats().instantiate_time, first.instantiate_time);
}

TEST_F(CacheTest, OptionsTellTheDevice) {
  Cache cache;
  int device = -1;
  CUDA_OK(cudaGetDevice(&device));
  EXPECT_EQ(cache.options().device, device);
  EXPECT_EQ(cache.options().max_executables, Options().max_executables);
}

TEST_F(CacheTest, CacheForADeviceIsOneObject) {
  Cache& cache = cache_for(0);
  EXPECT_EQ(&cache, &cache_for(0));
  EXPECT_TRUE(cache.status().ok());
  EXPECT_EQ(cache.options().device, 0);
  EXPECT_TRUE(run_add(cache, key("CacheForADeviceIsOneObject")).ok());
  expect_sum(1);
  cache.clear();
}

TEST_F(CacheTest, CacheForADeviceThatDoesNotExistFailsEveryRun) {
  for (const int device : {1000, -5, -1}) {
    Cache& cache = cache_for(device);
    EXPECT_FAILURE(kInvalidArgument, cache.status()) << device;
    EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k"))) << device;
  }
  EXPECT_EQ(calls, 0);
}

// ---- Streams that cannot be captured --------------------------------------------------------------------------------

TEST_F(CacheTest, RefusesNullAndLegacyStreams) {
  Cache cache;
  for (const cudaStream_t bad : {cudaStream_t{nullptr}, cudaStreamLegacy}) {
    const auto outcome = cache.run(key("my label", 1), bad, [&](cudaStream_t on) { return add_one(on); });
    EXPECT_FAILURE(kInvalidArgument, outcome);
    EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  }
  EXPECT_EQ(cache.stats().failed, 2u);
  EXPECT_FALSE(cache.contains(key("my label", 1)));
  Options options;
  options.stream = nullptr;
  Cache with_null(options);
  EXPECT_FAILURE(kInvalidArgument, with_null.run(key("k"), [&](cudaStream_t on) { return add_one(on); }));
  EXPECT_TRUE(run_add(with_null, key("k")).ok());
  expect_sum(1);
}

TEST_F(CacheTest, RefusesNullAndLegacyStreamsWhereTheKeyIsKnown) {
  Cache cache;
  const auto run = [&](cudaStream_t on) { return cache.run(key("k"), on, [&](cudaStream_t s) { return add_one(s); }); };
  EXPECT_RUN(kInstantiated, run(stream));
  EXPECT_FAILURE(kInvalidArgument, run(nullptr));
  EXPECT_FAILURE(kInvalidArgument, run(cudaStreamLegacy));
  EXPECT_RUN(kReplayed, run(stream));
  expect_sum(2);
}

TEST_F(CacheTest, ColdRunOnACapturingStreamFailsAndLeavesTheCaptureWhole) {
  for (const int max_executables : {64, 0}) {
    Options options;
    options.max_executables = max_executables;
    Cache cache(options);
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(add_one(stream));
    const auto outcome = run_add(cache, key("my label"));
    EXPECT_FAILURE(kFailedPrecondition, outcome);
    EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
    EXPECT_NE(cuda_error(outcome.status()), cudaSuccess);
    CUDA_OK(add_one(stream));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    std::size_t nodes = 0;
    CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 2u);
    CUDA_OK(cudaGraphDestroy(graph));
    EXPECT_EQ(calls, 0);
  }
  expect_sum(0);
}

TEST_F(CacheTest, HitOnACapturingStreamFailsAndTheCacheGoesOn) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const auto outcome = run_add(cache, key("k"));
  EXPECT_FAILURE(kFailedPrecondition, outcome);
  EXPECT_TRUE(mentions(outcome.status(), "cudaGraphLaunch")) << outcome.status();
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream, &graph), cudaSuccess);  // As cache.h says.
  cudaGetLastError();
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_sum(2);
  EXPECT_EQ(calls, 1);
}

TEST_F(CacheTest, RefusesAStreamOfAnotherDevice) {
  int devices = 0;
  CUDA_OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  Options options;
  options.device = 1;
  Cache cache(options);
  EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
  EXPECT_EQ(calls, 0);
}

TEST_F(CacheTest, RunsAreRightWhicheverDeviceIsCurrent) {
  int devices = 0;
  CUDA_OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  Cache cache(unshared());
  const auto run = [&](const char* which, float value) {
    return cache.run(key(which), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    });
  };
  EXPECT_RUN(kInstantiated, run("k", 1));
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaFree(nullptr));  // The other device's context is current from here on.
  EXPECT_RUN(kReplayed, run("k", 1));
  EXPECT_RUN(kPatched, run("k", 2));
  EXPECT_RUN(kInstantiated, run("cold", 3));
  EXPECT_RUN(kPatched, run("cold", 4));
  std::thread([&] {  // A thread whose first CUDA call is a patch, and one that has another device current.
    EXPECT_RUN(kPatched, run("k", 5));
    CUDA_OK(cudaSetDevice(1));
    EXPECT_RUN(kPatched, run("k", 6));
  })
      .join();
  int current = -1;
  CUDA_OK(cudaGetDevice(&current));
  EXPECT_EQ(current, 1);
  CUDA_OK(cudaSetDevice(0));
  expect_sum(22);
}

TEST_F(CacheTest, SwitchesAndRestoresAreRightWhicheverDeviceIsCurrent) {
  int devices = 0;
  CUDA_OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  Cache cache;
  const auto run = [&](const char* which, float constant, float value) {
    return cache.run(key(which), stream, params(value), [&, constant](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, constant);
    });
  };
  EXPECT_RUN(kInstantiated, run("a", 10, 1));
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaFree(nullptr));
  EXPECT_RUN(kUpdated, run("b", 100, 2));
  EXPECT_RUN(kSwitched, run("a", 0, 3));
  std::thread([&] {  // A thread whose first CUDA calls are those of a switch.
    CUDA_OK(cudaSetDevice(1));
    EXPECT_RUN(kSwitched, run("b", 0, 4));
  })
      .join();
  EXPECT_TRUE(cache.erase(key("b")));
  EXPECT_RUN(kRestored, run("a", 0, 5));
  int current = -1;
  CUDA_OK(cudaGetDevice(&current));
  EXPECT_EQ(current, 1);
  CUDA_OK(cudaSetDevice(0));
  expect_sum(15 + 3 * 10 + 2 * 100);
}

// ---- What fn may do wrong -------------------------------------------------------------------------------------------

TEST_F(CacheTest, RefusesAnEmptyFn) {
  Cache cache;
  cudaError_t (*null_function)(cudaStream_t) = nullptr;
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, null_function));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, std::function<void(cudaStream_t)>()));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, params(1), std::function<void(Recorder&, Slot<int>)>()));
  std::function<cudaError_t(cudaStream_t)> fn = [&](cudaStream_t on) { return add_one(on); };
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  fn = nullptr;
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, fn));
  EXPECT_FALSE(is_capturing(stream));
  expect_sum(1);
}

TEST_F(CacheTest, FnThatEnqueuesNothingIsAnEmptyGraph) {
  Cache cache;
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t) { ++calls; }); };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(cache.entries()[0].nodes, 0u);
}

// As the usual checking macros do with what a capture forbids.
TEST_F(CacheTest, ExceptionThatABrokenCaptureCausedIsNotRepeatedForEver) {
  Cache cache;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      if (cudaStreamSynchronize(on) != cudaSuccess) throw std::runtime_error("checked");
      add_one(on);
    });
  };
  EXPECT_THROW((void)run(), std::runtime_error);
  EXPECT_RUN(kEager, run());
  EXPECT_EQ(cache.stats().eager(EagerReason::kBackoff), 1u);
  expect_sum(1);
}

TEST_F(CacheTest, ExceptionOfFnPassesAndTheNextRunWorks) {
  Cache cache;
  const auto run = [&](bool fail) {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      add_one(on);
      if (fail) throw std::runtime_error("mine");
    });
  };
  for (int i = 0; i < 2; ++i) {
    try {
      (void)run(true);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "mine");
    }
    EXPECT_FALSE(is_capturing(stream));
    CUDA_OK(cudaPeekAtLastError());
  }
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.failed, 2u);
  EXPECT_EQ(stats.capture_failures, 2u);
  EXPECT_EQ(stats.captures, 0u);
  CUDA_OK(add_one(stream));
  expect_sum(1);
  EXPECT_RUN(kInstantiated, run(false));
  EXPECT_RUN(kReplayed, run(true));  // A hit does not call fn.
  expect_sum(3);
}

TEST_F(CacheTest, ExceptionOfAnEagerFnPasses) {
  Options options;
  options.max_executables = 0;
  Cache cache(options);
  EXPECT_THROW((void)cache.run(key("k"), stream, [](cudaStream_t) { throw std::runtime_error("mine"); }),
               std::runtime_error);
  EXPECT_EQ(cache.stats().failed, 1u);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_sum(1);
}

TEST_F(CacheTest, ErrorsThatFnReturnsAreReturned) {
  Cache cache(unshared());
  const auto with_error = [&](cudaError_t error) {
    return cache.run(key("my label"), stream, [&](cudaStream_t on) {
      add_one(on);
      return error;
    });
  };
  const auto with_status = [&](absl::Status status) {
    return cache.run(key("my label"), stream, [&](cudaStream_t on) {
      add_one(on);
      return status;
    });
  };
  auto outcome = with_error(cudaErrorNotSupported);
  EXPECT_FALSE(outcome.ok());
  EXPECT_EQ(cuda_error(outcome.status()), cudaErrorNotSupported);
  EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  EXPECT_TRUE(mentions(outcome.status(), "cudaErrorNotSupported")) << outcome.status();
  outcome = with_status(absl::OutOfRangeError("a reason of mine"));
  EXPECT_FAILURE(kOutOfRange, outcome);
  EXPECT_EQ(cuda_error(outcome.status()), cudaSuccess);
  EXPECT_TRUE(mentions(outcome.status(), "a reason of mine")) << outcome.status();
  EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  expect_sum(0);  // What was captured is not launched.
  EXPECT_EQ(cache.stats().failed, 2u);
  EXPECT_EQ(cache.stats().live_executables, 0u);
  EXPECT_RUN(kInstantiated, with_error(cudaSuccess));
  EXPECT_RUN(kInstantiated, with_status(absl::OkStatus()));
  expect_sum(2);
}

TEST_F(CacheTest, PayloadsOfTheStatusOfFnAreKept) {
  Cache cache;
  const auto outcome = cache.run(key("k"), stream, [&](cudaStream_t) {
    absl::Status status = absl::AbortedError("mine");
    status.SetPayload("my/payload", absl::Cord("content"));
    return status;
  });
  EXPECT_FAILURE(kAborted, outcome);
  EXPECT_EQ(outcome.status().GetPayload("my/payload"), absl::Cord("content"));
}

void not_a_kernel(float*) {}

TEST_F(CacheTest, ErrorLeftBehindByACallOfFnIsReturned) {
  Cache cache;
  const auto run = [&](bool bad) {
    return cache.run(key("my label"), stream, [&](cudaStream_t on) {
      add_one(on);
      if (bad) (void)launch(not_a_kernel, 1, 1, on, data.get());  // As <<<>>> would, whose error nobody sees.
      add_one(on);
    });
  };
  const auto outcome = run(true);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(cuda_error(outcome.status()), cudaSuccess);
  EXPECT_TRUE(mentions(outcome.status(), "my label")) << outcome.status();
  CUDA_OK(cudaPeekAtLastError());
  expect_sum(0);
  EXPECT_RUN(kInstantiated, run(false));
  expect_sum(2);
}

TEST_F(CacheTest, LaunchThatBreaksTheCaptureAndFailsDirectlyIsReturned) {
  Cache cache;
  const auto outcome = cache.run(
      key("k"), stream, [&](cudaStream_t on) { return launch(add, dim3(0), kBlock, on, data.get(), kSize, 1.0f); });
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(cuda_error(outcome.status()), cudaErrorInvalidValue) << outcome.status();
  EXPECT_FALSE(is_capturing(stream));
  CUDA_OK(cudaPeekAtLastError());
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(1);
}

TEST_F(CacheTest, WhatACaptureForbidsRunsEagerlyAndIsTriedEverMoreRarely) {
  Cache cache;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) -> cudaError_t {
      ++calls;
      void* memory = nullptr;
      if (const cudaError_t error = cudaMalloc(&memory, 256); error != cudaSuccess) return error;
      CUDA_OK(cudaFree(memory));
      return add_one(on);
    });
  };
  for (int i = 0; i < 12; ++i) EXPECT_RUN(kEager, run()) << i;
  expect_sum(12);
  const Stats stats = cache.stats();
  // Tries at runs 0, 2, 5 and 10: after 1, 2 and 4 runs.
  EXPECT_EQ(stats.eager(EagerReason::kCaptureFailed), 4u);
  EXPECT_EQ(stats.eager(EagerReason::kBackoff), 8u);
  EXPECT_EQ(stats.capture_failures, 4u);
  EXPECT_EQ(stats.captures, 0u);
  EXPECT_EQ(calls, 16);
}

TEST_F(CacheTest, SynchronizingInsideFnRunsEagerly) {
  Cache cache;
  const auto by_stream = [&] {
    return cache.run(key("stream"), stream, [&](cudaStream_t on) {
      add_one(on);
      return cudaStreamSynchronize(on);
    });
  };
  const auto by_device = [&] {
    return cache.run(key("device"), stream, [&](cudaStream_t on) {
      add_one(on);
      return cudaDeviceSynchronize();
    });
  };
  const auto ignored = [&] {
    return cache.run(key("ignored"), stream, [&](cudaStream_t on) {
      (void)cudaStreamSynchronize(on);
      (void)add_one(on);
    });
  };
  for (int i = 0; i < 4; ++i) {
    EXPECT_RUN(kEager, by_stream());
    EXPECT_RUN(kEager, by_device());
    EXPECT_RUN(kEager, ignored());
  }
  expect_sum(12);
}

TEST_F(CacheTest, PassingCauseOfABrokenCaptureHeals) {
  Cache cache;
  bool initialised = false;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) -> cudaError_t {
      if (!initialised) {
        if (const cudaError_t error = cudaStreamSynchronize(on); error != cudaSuccess) return error;
        initialised = true;
      }
      return add_one(on);
    });
  };
  EXPECT_RUN(kEager, run());  // Captures, breaks, initialises.
  EXPECT_RUN(kEager, run());  // Waits one run.
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  expect_sum(4);
}

// After <<<>>> programs ask cudaGetLastError. What the cache's own failed attempt latched is not fn's.
TEST_F(CacheTest, EagerRunAfterABrokenCaptureBeginsWithACleanLastError) {
  Cache cache;
  const auto outcome = cache.run(key("k"), stream, [&](cudaStream_t on) -> cudaError_t {
    if (const cudaError_t error = cudaStreamSynchronize(on); error != cudaSuccess) {
      cudaGetLastError();
      return error;
    }
    (void)add_one(on);
    return cudaGetLastError();
  });
  EXPECT_RUN(kEager, outcome);
  expect_sum(1);
}

TEST_F(CacheTest, UnjoinedForkRunsEagerly) {
  Cache cache;
  Stream other;
  Event forked;
  DeviceBuffer<float> second(kSize);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
      add_one(on);
      CUDA_OK(cudaEventRecord(forked, on));
      CUDA_OK(cudaStreamWaitEvent(other, forked, 0));
      return launch(add, kGrid, kBlock, other, second.get(), kSize, 1.0f);
    }));
    EXPECT_FALSE(is_capturing(other));
    expect_sum(static_cast<float>(i));
    EXPECT_EQ(second.read(), std::vector<float>(kSize, static_cast<float>(i)));
  }
}

TEST_F(CacheTest, ErrorOfTheCallerStaysInTheLastErrorSlot) {
  Cache cache;
  EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  cache.clear();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_RUN(kEager, cache.run(key("eager"), stream, [&](cudaStream_t on) {
    (void)cudaStreamSynchronize(on);
    (void)add_one(on);
  }));
  EXPECT_NE(cudaGetLastError(), cudaSuccess);  // Perhaps a later one, but not taken away.
  expect_sum(3);
}

TEST_F(CacheTest, DestructionWithRunsInFlightLosesNone) {
  for (int i = 0; i < 10; ++i) {
    Cache cache;
    for (int j = 0; j < 20; ++j) ASSERT_TRUE(run_add(cache, key(j % 3)).ok());
  }
  expect_sum(200);
}

// ---- Runs inside runs -----------------------------------------------------------------------------------------------

TEST_F(CacheTest, NestedRunOnTheSameStreamIsInlined) {
  Cache cache;
  std::vector<Outcome> inner;
  const auto run = [&] {
    return cache.run(key("outer"), stream, [&](cudaStream_t on) {
      add_one(on);
      const auto outcome = cache.run(key("inner"), on, [&](cudaStream_t s) {
        ++calls;
        return launch(add, kGrid, kBlock, s, data.get(), kSize, 10.0f);
      });
      inner.push_back(outcome.value_or(Outcome::kSwitched));
      return outcome.status();
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(inner, std::vector<Outcome>{Outcome::kInlined});
  EXPECT_EQ(calls, 1);
  expect_sum(33);
  EXPECT_EQ(cache.stats().outcome(Outcome::kInlined), 1u);
  EXPECT_FALSE(cache.contains(key("inner")));
}

// Such graphs have no siblings, and one executable each (fact 25): an evicted key gets its own again.
TEST_F(CacheTest, GraphsThatAllocateAreReplayedAndComeBack) {
  Options options;
  options.max_executables = 1;
  Cache cache(options);
  const auto run = [&](int number) {
    return cache.run(key("allocates", number), stream, [&](cudaStream_t on) {
      ++calls;
      float* memory = nullptr;
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&memory), kSize * sizeof(float), on));
      CUDA_OK(launch(fill, kGrid, kBlock, on, memory, kSize, static_cast<float>(number)));
      CUDA_OK(launch(axpy, kGrid, kBlock, on, data.get(), memory, kSize, 1.0f));
      return cudaFreeAsync(memory, on);
    });
  };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_RUN(kReplayed, run(1));
  EXPECT_RUN(kInstantiated, run(10));
  EXPECT_RUN(kRestored, run(1));
  EXPECT_RUN(kRestored, run(10));
  EXPECT_RUN(kReplayed, run(10));
  EXPECT_EQ(calls, 2);
  expect_sum(33);
  EXPECT_EQ(cache.stats().families, 0u);
  EXPECT_EQ(cache.stats().updates, 0u);
}

TEST_F(CacheTest, NestedRunOfAKnownKeyIsInlined) {
  Cache cache;
  const auto inner = [&](cudaStream_t on) {
    return cache.run(key("inner"), on,
                     [&](cudaStream_t s) { return launch(add, kGrid, kBlock, s, data.get(), kSize, 10.0f); });
  };
  EXPECT_RUN(kInstantiated, inner(stream));
  const auto outer = [&] {
    return cache.run(key("outer"), stream, [&](cudaStream_t on) {
      add_one(on);
      EXPECT_RUN(kInlined, inner(on));
    });
  };
  EXPECT_RUN(kInstantiated, outer());
  EXPECT_RUN(kReplayed, outer());
  EXPECT_RUN(kReplayed, inner(stream));
  expect_sum(42);
}

TEST_F(CacheTest, NestedRunOfAnotherCacheIsInlined) {
  Cache outer, inner;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(outer
                    .run(key("k"), stream,
                         [&](cudaStream_t on) {
                           EXPECT_RUN(kInlined, run_add(inner, key("k")));
                           return add_one(on);
                         })
                    .ok());
  }
  expect_sum(6);
  EXPECT_EQ(inner.stats().outcome(Outcome::kInlined), 1u);
}

TEST_F(CacheTest, NestedRunOnAForkedStreamIsInlined) {
  Cache cache;
  Stream other;
  Event forked, joined;
  DeviceBuffer<float> second(kSize);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        did(i == 0 ? Outcome::kInstantiated : Outcome::kReplayed, cache.run(key("outer"), stream, [&](cudaStream_t on) {
          CUDA_OK(cudaEventRecord(forked, on));
          CUDA_OK(cudaStreamWaitEvent(other, forked, 0));
          EXPECT_RUN(kInlined, cache.run(key("inner"), other, [&](cudaStream_t s) {
            return launch(add, kGrid, kBlock, s, second.get(), kSize, 1.0f);
          }));
          CUDA_OK(cudaEventRecord(joined, other));
          CUDA_OK(cudaStreamWaitEvent(on, joined, 0));
          return add_one(on);
        })));
  }
  expect_sum(3);
  EXPECT_EQ(second.read(), std::vector<float>(kSize, 3));
}

TEST_F(CacheTest, NestedRunWithParamsMakesTheOuterRunEager) {
  Cache cache;
  float value = 0;
  float sum = 0;
  for (int i = 0; i < 8; ++i) {
    value = static_cast<float>(i + 1);
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      add_one(on);
      return cache
          .run(key("inner"), on, params(value),
               [&](Recorder& rec, Slot<float> v) {
                 rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
               })
          .status();
    }));
    expect_sum(sum += 1 + value);
  }
}

// A graph of the outer run would lack the inner one's work.
TEST_F(CacheTest, NestedRunOnAnIndependentStreamMakesTheOuterRunEager) {
  Cache cache;
  Stream other;
  DeviceBuffer<float> second(kSize);
  for (int i = 1; i <= 8; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      EXPECT_TRUE(cache
                      .run(key("inner"), other,
                           [&](cudaStream_t s) { return launch(add, kGrid, kBlock, s, second.get(), kSize, 1.0f); })
                      .ok());
      return add_one(on);
    }));
    expect_sum(static_cast<float>(i));
    EXPECT_EQ(second.read(), std::vector<float>(kSize, static_cast<float>(i)));
  }
  EXPECT_EQ(cache.stats().outcome(Outcome::kInstantiated), 1u);  // Of the inner key.
  EXPECT_EQ(cache.stats().outcome(Outcome::kReplayed), 7u);
}

TEST_F(CacheTest, RecursionWithTheSameKeyOnAnotherStreamRunsThere) {
  Cache cache;
  Stream other;
  DeviceBuffer<float> second(kSize);
  std::function<cudaError_t(cudaStream_t)> fn = [&](cudaStream_t on) {
    if (on != other) {
      EXPECT_TRUE(cache.run(key("k"), other, fn).ok());
    }
    return launch(add, kGrid, kBlock, on, on == other ? second.get() : data.get(), kSize, 1.0f);
  };
  EXPECT_RUN(kEager, cache.run(key("k"), stream, fn));
  expect_sum(1);
  EXPECT_EQ(second.read(), std::vector<float>(kSize, 1));
}

TEST_F(CacheTest, EvictedKeyIsNotNewAgain) {
  for (const bool keeps_templates : {false, true}) {
    Options options = keeps_templates ? unshared(1) : without_templates(1);
    options.capture_after = 1;
    Cache cache(options);
    calls = 0;
    EXPECT_RUN(kEager, run_add(cache, key("a")));
    EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
    EXPECT_RUN(kEager, run_add(cache, key("b")));
    EXPECT_RUN(kInstantiated, run_add(cache, key("b")));  // Evicts "a".
    EXPECT_EQ(cache.contains(key("a")), keeps_templates);
    ASSERT_EQ(cache.entries().size(), 2u);
    EXPECT_EQ(cache.entries()[1].label, "a");
    EXPECT_FALSE(cache.entries()[1].live);
    EXPECT_EQ(cache.entries()[1].recorded, keeps_templates);
    EXPECT_EQ(cache.entries()[1].outcomes[static_cast<int>(Outcome::kInstantiated)], 1u);
    EXPECT_TRUE(did(keeps_templates ? Outcome::kRestored : Outcome::kInstantiated, run_add(cache, key("a"))));
    EXPECT_EQ(calls, keeps_templates ? 4 : 5);
  }
  expect_sum(10);
}

TEST_F(CacheTest, RecursionWithTheSameKeyOnTheSameStreamIsInlined) {
  Cache cache;
  int depth = 0;
  std::function<cudaError_t(cudaStream_t)> fn = [&](cudaStream_t on) {
    if (depth++ == 0) {
      EXPECT_RUN(kInlined, cache.run(key("k"), on, fn));
    }
    return add_one(on);
  };
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
  expect_sum(4);
}

TEST_F(CacheTest, NestedRunsOnBadStreamsAreRefusedAndTheOuterRunGoesOn) {
  Cache cache;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        did(i == 0 ? Outcome::kInstantiated : Outcome::kReplayed, cache.run(key("outer"), stream, [&](cudaStream_t on) {
          EXPECT_FAILURE(kInvalidArgument, cache.run(key("inner"), nullptr, [](cudaStream_t) {}));
          EXPECT_FAILURE(kInvalidArgument, cache.run(key("inner"), cudaStreamLegacy, [](cudaStream_t) {}));
          EXPECT_FAILURE(kInvalidArgument, cache.run(key("inner"), on, std::function<void(cudaStream_t)>()));
          return add_one(on);
        })));
  }
  expect_sum(2);
}

// The work would become part of a graph that the cache knows nothing of.
TEST_F(CacheTest, NestedRunOnAStreamThatFnItselfCapturesIsRefused) {
  Cache cache;
  Stream other;
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    EXPECT_FAILURE(kFailedPrecondition, cache.run(key("inner"), other, [&](cudaStream_t s) { return add_one(s); }));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(other, &graph));
    std::size_t nodes = 7;
    CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 0u);
    CUDA_OK(cudaGraphDestroy(graph));
    return add_one(on);
  }));
  expect_sum(1);
}

TEST_F(CacheTest, ExceptionOfANestedRunPasses) {
  Cache cache;
  EXPECT_THROW((void)cache.run(key("outer"), stream,
                               [&](cudaStream_t on) {
                                 return cache.run(key("inner"), on, [](cudaStream_t) { throw 7; }).status();
                               }),
               int);
  EXPECT_FALSE(is_capturing(stream));
  EXPECT_EQ(cache.stats().failed, 2u);
  EXPECT_RUN(kInstantiated, run_add(cache, key("outer")));
  expect_sum(1);
}

TEST_F(CacheTest, ErrorOfANestedRunThatFnIgnoresDoesNotSpoilTheOuter) {
  Cache cache;
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_FAILURE(kDataLoss, cache.run(key("inner"), on, [](cudaStream_t) { return absl::DataLossError("mine"); }));
    return add_one(on);
  }));
  expect_sum(1);
}

}  // namespace
}  // namespace graphcache::test
