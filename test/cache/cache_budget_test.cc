// The budgets and other options of a cache, on either runtime.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {
namespace {

TEST_F(CacheTest, EvictsLeastRecentlyUsedAndForgetsItWithoutTemplates) {
  for (const bool keeps_templates : {true, false}) {
    SCOPED_TRACE(keeps_templates);
    Cache cache(keeps_templates ? unshared(2) : without_templates(2));
    const Outcome again = keeps_templates ? Outcome::kRestored : Outcome::kInstantiated;
    reset_sum();
    calls = 0;
    EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
    EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
    EXPECT_RUN(kReplayed, run_add(cache, key("a")));
    EXPECT_EQ(cache.stats().forgotten, 0u);
    EXPECT_RUN(kInstantiated, run_add(cache, key("c")));
    EXPECT_EQ(live(cache), (std::vector<std::string>{"c", "a"}));
    for (const char* each : {"a", "c"}) EXPECT_TRUE(cache.contains(key(each))) << each;
    EXPECT_EQ(cache.contains(key("b")), keeps_templates);
    EXPECT_EQ(cache.stats().evictions, 1u);
    EXPECT_EQ(cache.stats().live_executables, 2u);
    EXPECT_EQ(cache.stats().live_templates, keeps_templates ? 3u : 2u);

    EXPECT_TRUE(did(again, run_add(cache, key("b"))));  // evicts a
    EXPECT_EQ(live(cache), (std::vector<std::string>{"b", "c"}));
    EXPECT_RUN(kReplayed, run_add(cache, key("c")));
    EXPECT_TRUE(did(again, run_add(cache, key("a"))));
    EXPECT_EQ(live(cache), (std::vector<std::string>{"a", "c"}));
    EXPECT_EQ(cache.stats().evictions, 3u);
    EXPECT_EQ(cache.stats().forgotten, keeps_templates ? 0u : 3u);
    expect_sum(7);
    EXPECT_EQ(calls, keeps_templates ? 3 : 5);
  }
}

// Destroying a device-updated executable waits, for each node, for other threads' work in flight.
TEST_F(CacheTest, DeviceUpdatedExecutablesAreEvictedLast) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    const bool by_device = patching == Patching::kDeviceUpdated;
    force(patching);
    Cache cache(unshared(2));
    EXPECT_RUN(kInstantiated, run_add(cache, stream, 1));  // The key "k" has a slot.
    EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
    EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
    EXPECT_EQ(live(cache), (std::vector<std::string>{"b", by_device ? "k" : "a"}));
    if (!by_device) continue;
    EXPECT_RUN(kRestored, run_add(cache, key("a")));
    EXPECT_EQ(live(cache), (std::vector<std::string>{"a", "k"}));
  }
}

TEST_F(CacheTest, ForgetsTheTemplateThatWasUsedLongestAgo) {
  Cache cache(unshared({.max_executables = 1, .max_templates = 2}));
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
  const struct {
    ForcedOptions options;
    Outcome outcome;  // Of most of the runs.
    unsigned runs, evictions;
    int calls;
  } cases[] = {{without_templates(1), Outcome::kInstantiated, 20, 19, 20},
               {unshared(1), Outcome::kRestored, 18, 19, 2},
               {forced(Sharing::kAuto, 1), Outcome::kSwitched, 18, 0, 2},
               {forced(Sharing::kUpdatesAcross, 1), Outcome::kSwitched, 18, 0, 2}};
  for (const auto& one : cases) {
    SCOPED_TRACE(&one - cases);
    Cache cache(one.options.again());
    reset_sum();
    calls = 0;
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(run_add(cache, key(i % 2)).ok());
    stats = cache.stats();
    EXPECT_EQ(stats.live_executables, 1u);
    EXPECT_EQ(stats.evictions, one.evictions);
    EXPECT_EQ(stats.outcome(one.outcome), one.runs);  // Evicted entries are still counted.
    EXPECT_EQ(stats.instantiations == 1, one.evictions == 0);
    EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
    EXPECT_EQ(calls, one.calls);
    expect_sum(20);
  }
}

// Each key appends another number: a launch in flight must not see the state that its executable is switched to.
TEST_F(CacheTest, ExecutablesInFlightAreEvictedRestoredAndSwitchedUnharmed) {
  DeviceBuffer<int> log(200), count(1);
  for (const ForcedOptions& options : std::initializer_list<ForcedOptions>{without_templates(1), unshared(1),
                                                                           Options{.max_executables = 1}, Options()}) {
    count.write({0});
    Cache cache(options.again());
    for (int i = 0; i < 200; ++i) {
      const int number = i * i % 13;
      ASSERT_SUCCESS(cache.run(key(number), stream, [&](cudaStream_t on) {
        return launch(append, 1, 1, on, log.get(), count.get(), number);
      }));
    }
    std::vector<int> wanted;
    for (int i = 0; i < 200; ++i) wanted.push_back(i * i % 13);
    EXPECT_EQ(log.read(), wanted);
  }
}

TEST_F(CacheTest, ZeroExecutablesRunsEagerly) {
  Cache cache({.max_executables = 0});
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
    SCOPED_TRACE(word);
    Cache cache(options);
    // The first run looks for the device.
    EXPECT_EQ(cache.status().ok(), options.device > 0) << cache.status();
    EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
    EXPECT_FAILURE(kInvalidArgument, cache.status());
    EXPECT_TRUE(mentions(cache.status(), word)) << cache.status();
    EXPECT_FALSE(cache.contains(key("k")));
    EXPECT_EQ(cache.stats().failed, 1u);
    cache.clear();
  };
  expect_refused({.max_executables = -1}, "max_executables");
  expect_refused({.capture_after = -1}, "capture_after");
  for (const unsigned long long flags :
       {cudaGraphInstantiateFlagUpload + 0ull, cudaGraphInstantiateFlagAutoFreeOnLaunch + 0ull,
        cudaGraphInstantiateFlagAutoFreeOnLaunch | (cudaGraphInstantiateFlagUseNodePriority + 0ull), 1ull << 40}) {
    expect_refused({.instantiate_flags = flags}, "instantiate_flags");
  }
  for (const int device : {1000, -2}) expect_refused({.device = device}, "device");
  expect_refused({.max_templates = -1}, "max_templates");
  EXPECT_EQ(calls, 0);
}

TEST_F(CacheTest, TakesTheInstantiateFlagsAndCaptureModesOfTheRuntime) {
  float sum = 0;
  for (const auto mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    for (const unsigned long long flags : {0ull, cudaGraphInstantiateFlagUseNodePriority + 0ull}) {
      Cache cache({.capture_mode = mode, .instantiate_flags = flags});
      EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
      EXPECT_RUN(kReplayed, run_add(cache, key("k")));
      expect_sum(sum += 2);
    }
  }
}

// One long key leaves no room for the others to be remembered.
TEST_F(CacheTest, DropsFewOfTheSurplusKeysAtATime) {
  Cache cache({.capture_after = 1});
  for (int i = 0; i < 20; ++i) EXPECT_RUN(kEager, run_add(cache, key(i)));
  EXPECT_RUN(kEager, run_add(cache, key(std::string(17 << 20, 'x'))));
  EXPECT_EQ(cache.entries().size(), 21u);
  for (const std::size_t left : {14u, 7u, 3u}) {  // eight are dropped, and a new one is added
    EXPECT_RUN(kEager, run_add(cache, key("new", left)));
    EXPECT_EQ(cache.entries().size(), left);
  }
}

// It has lost its executable, and the run that fails is the last one to tidy up.
TEST_F(CacheTest, AKeyWhoseValueWasRefusedKeepsNoTemplateBeyondTheLimit) {
  Cache cache(without_templates(8));
  const auto run = [&](unsigned blocks) {
    return cache.run(key("k"), stream, params(blocks), [&](Recorder& rec, Slot<unsigned> grid) {
      rec.launch(add, {grid, kBlock}, data.get(), kSize, 1.0f);
    });
  };
  EXPECT_RUN(kInstantiated, run(2));
  EXPECT_FALSE(run(0).ok());
  const Stats after = cache.stats();
  EXPECT_EQ(after.live_executables, 0u);
  EXPECT_EQ(after.live_templates, 0u);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace graphcache::test
