// Observing a cache: counts by label, times, events, ranges for profilers. On either runtime.
#include "graphcache/observe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

class ObserveTest : public CacheTest {
 protected:
  static std::vector<EventKind> kinds(const std::vector<KeptEvent>& events) {
    std::vector<EventKind> kinds;
    for (const KeptEvent& event : events) kinds.push_back(event.kind);
    return kinds;
  }
  static std::uint64_t timed(const HitLatency& latency) {
    const HitLatency::Counts counts = latency.counts();
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
};

TEST_F(ObserveTest, TimesGrowWithTheMeasuredWork) {
  Cache cache(renting(1));
  const auto run = [&](float value) {
    return cache.run(key("k", value > 1), stream, [&](cudaStream_t on) { return add_value(on, value); });
  };
  EXPECT_RUN(kInstantiated, run(1));
  const Stats first = cache.stats();
  EXPECT_GT(first.capture_time.count(), 0);
  EXPECT_GT(first.instantiate_time.count(), 0);
  EXPECT_GT(first.first_launch_time.count(), 0);
  EXPECT_EQ(first.update_time.count(), 0);
  EXPECT_RUN(kReplayed, run(1));
  const Stats hit = cache.stats() - first;
  EXPECT_EQ((hit.capture_time + hit.instantiate_time + hit.first_launch_time + hit.update_time).count(), 0);
  EXPECT_RUN(kUpdated, run(2));
  const Stats updated = cache.stats() - first;
  EXPECT_GT(updated.capture_time.count(), 0);
  EXPECT_GT(updated.update_time.count(), 0);
  EXPECT_EQ((updated.instantiate_time + updated.first_launch_time).count(), 0);
}

TEST_F(ObserveTest, UploadsAheadCountAsFirstLaunches) {
  Cache cache;
  const auto fn = [&](cudaStream_t on) { return add_one(on); };
  EXPECT_TRUE(cache.warm(key("k"), stream, fn).ok());
  const Stats warmed = cache.stats();
  EXPECT_GT(warmed.first_launch_time.count(), 0);
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
  EXPECT_EQ(cache.stats().first_launch_time, warmed.first_launch_time);
}

TEST_F(ObserveTest, OneHitOf1024IsTimedOrMoreIfAnotherListenerWantsMore) {
  for (const bool is_alone : {true, false}) {
    const auto latency = std::make_shared<HitLatency>();
    const auto often = std::make_shared<HitLatency>(16);
    Cache cache({.listeners = is_alone ? Listeners{latency} : Listeners{latency, often}});
    auto step = cache.prepare(key("k"), [&](cudaStream_t on) { return add_one(on); });
    for (int i = 0; i < 4 * 1024; ++i) {
      EXPECT_TRUE((i % 2 == 0 ? step.run(stream) : run_add(cache, key("another"))).ok());
    }
    EXPECT_EQ(timed(*latency), is_alone ? 4u : 4u * 64);
    EXPECT_EQ(timed(*often), is_alone ? 0u : 4u * 64);
    EXPECT_NE(to_string(*latency).find(" us"), std::string::npos);
  }
  expect_sum(2 * 4 * 1024);
}

TEST_F(ObserveTest, OnlyHitsAreTimed) {
  const auto latency = std::make_shared<HitLatency>();
  Cache cache({.max_executables = 0, .listeners = {latency}});
  for (int i = 0; i < 2 * 1024; ++i) EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_EQ(timed(*latency), 0u);
  EXPECT_EQ(to_string(*latency), "");
}

TEST_F(ObserveTest, EventsReportWhatWasDone) {
  const auto ring = std::make_shared<EventRing>(100);
  Cache cache(unshared({.max_executables = 1, .max_templates = 1, .listeners = {ring}}));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_RUN(kInstantiated, run_add(cache, key("first", 1)));
  EXPECT_RUN(kReplayed, run_add(cache, key("first", 1)));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a label that is longer than what is kept of it")));
  settle(cache);
  const auto end = std::chrono::steady_clock::now();
  using enum EventKind;
  std::vector<KeptEvent> events = ring->events();
  // Where launches are in flight, these come later.
  const auto is_destruction = [](const KeptEvent& event) {
    return event.kind == kDestroyExecutable || event.kind == kDestroyGraph;
  };
  const auto others = std::stable_partition(events.begin(), events.end(), std::not_fn(is_destruction));
  std::sort(others, events.end(), [](const KeptEvent& a, const KeptEvent& b) { return a.kind < b.kind; });
  ASSERT_EQ(kinds(events), (std::vector<EventKind>{kCapture, kInstantiate, kUpload, kRun, kRun, kCapture, kEvict,
                                                   kInstantiate, kUpload, kRun, kDestroyExecutable, kDestroyGraph}));
  EXPECT_EQ(others->loss, Loss::kEvicted);
  EXPECT_EQ(others->label, "first");
  EXPECT_EQ(events[3].outcome, Outcome::kInstantiated);
  EXPECT_EQ(events[4].outcome, Outcome::kReplayed);
  EXPECT_EQ(events[0].outcome, std::nullopt);
  EXPECT_EQ(events[6].label, "first");
  EXPECT_EQ(events[6].loss, Loss::kEvicted);
  EXPECT_EQ(events[9].label, "a label that is longer than what");
  EXPECT_EQ(events[11].label, "first");
  EXPECT_EQ(events[11].loss, Loss::kTemplates);
  EXPECT_EQ(events[6].duration.count(), 0);
  for (const KeptEvent& event : events) {
    EXPECT_GE(event.begin, begin);
    EXPECT_LE(event.begin + event.duration, end);
    EXPECT_EQ(event.thread, events[0].thread);
  }
  // A run contains what was done in it.
  EXPECT_LE(events[3].begin, events[0].begin);
  EXPECT_GE(events[3].begin + events[3].duration, events[1].begin + events[1].duration);
}

TEST_F(ObserveTest, AFailedRunHasNoOutcome) {
  const auto ring = std::make_shared<EventRing>(10);
  Cache cache({.listeners = {ring}});
  EXPECT_FALSE(cache.run(key("k"), stream, [](cudaStream_t) { return absl::DataLossError("lost"); }).ok());
  ASSERT_EQ(kinds(ring->events()), (std::vector<EventKind>{EventKind::kCapture, EventKind::kRun}));
  EXPECT_EQ(ring->events()[1].outcome, std::nullopt);
}

TEST_F(ObserveTest, MoreEventsThanThereIsMemoryForAreRefused) {
  EXPECT_THROW((void)EventRing(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
}

TEST_F(ObserveTest, TheLastEventsAreKept) {
  const auto ring = std::make_shared<EventRing>(3);
  Cache cache({.listeners = {ring}});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(run_add(cache, key("k" + std::to_string(i))).ok());
  const std::vector<KeptEvent> events = ring->events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].label, "k9");
  EXPECT_EQ(kinds(events), (std::vector<EventKind>{EventKind::kInstantiate, EventKind::kUpload, EventKind::kRun}));
}

TEST_F(ObserveTest, EventsOfThreadsHaveTheirNumbers) {
  const auto ring = std::make_shared<EventRing>(1000);
  Cache cache({.listeners = {ring}});
  const auto fn = [&](cudaStream_t on) { return add_one(on); };
  std::thread other([&] { EXPECT_TRUE(cache.warm(key("of another"), stream, fn).ok()); });
  other.join();
  EXPECT_RUN(kReplayed, cache.run(key("of another"), stream, fn));
  std::map<EventKind, unsigned> threads;
  for (const KeptEvent& event : ring->events()) threads[event.kind] = event.thread;  // the last one of each kind
  EXPECT_NE(threads.at(EventKind::kUpload), threads.at(EventKind::kRun));
  EXPECT_EQ(threads.at(EventKind::kUpload), threads.at(EventKind::kInstantiate));
}

// Two caches may share a listener, which then adds them up.
TEST_F(ObserveTest, OneListenerServesTwoCaches) {
  const auto ring = std::make_shared<EventRing>(1000);
  Cache first({.listeners = {ring}}), second({.listeners = {ring}});
  EXPECT_RUN(kInstantiated, run_add(first, key("k")));
  EXPECT_RUN(kInstantiated, run_add(second, key("k")));
  const auto all = kinds(ring->events());
  EXPECT_EQ(std::count(all.begin(), all.end(), EventKind::kRun), 2);
}

using ObserveTestOnHostrt = ObserveTest;

TEST_F(ObserveTestOnHostrt, ADeviceWhoseMemoryCannotBeAskedForDoesNotBecomeTheCurrentOne) {
  hostrt::set_device_count(2);
  const Key none;
  for (const char* const fails : {"cudaSetDevice", "cudaThreadExchangeStreamCaptureMode", "cudaMemGetInfo"}) {
    hostrt::fail_call(fails, 1, cudaErrorUnknown);
    EXPECT_TRUE(MemoryMeter(1).begin({.kind = EventKind::kUpload, .key = none}).ok());
    int device = 1;
    CUDA_OK(cudaGetDevice(&device));
    EXPECT_EQ(device, 0) << fails;
    cudaGetLastError();
  }
  hostrt::clear_failures();
}

// Only there no other process takes memory of the device.
TEST_F(ObserveTestOnHostrt, DeviceMemoryOfEventsThatOverlapIsMeasuredOnce) {
  MemoryMeter meter(0);
  constexpr std::int64_t kBytes = 1 << 21;
  std::vector<void*> taken;
  const auto take = [&] { CUDA_OK(cudaMalloc(&taken.emplace_back(), kBytes)); };
  const Key none;
  const CacheEvent event{.kind = EventKind::kInstantiate, .key = none}, run{.kind = EventKind::kRun, .key = none};
  EXPECT_TRUE(meter.begin(event).ok());
  take();
  EXPECT_TRUE(meter.begin(event).ok());
  take();
  meter.end(event);
  EXPECT_EQ(meter.bytes(), 0);
  meter.end(event);
  EXPECT_TRUE(meter.begin(run).ok());
  take();  // not by an executable
  meter.end(run);
  EXPECT_EQ(meter.bytes(), 2 * kBytes);
  EXPECT_TRUE(meter.begin(event).ok());
  CUDA_OK(cudaFree(taken.front()));
  meter.end(event);
  EXPECT_EQ(meter.bytes(), kBytes);
  for (std::size_t i = 1; i < taken.size(); ++i) CUDA_OK(cudaFree(taken[i]));
}

TEST_F(ObserveTest, WorkOutsideOfCapturesIsCounted) {
  StrayCounter counter;
  const Key of = key("k");
  CacheEvent event{.kind = EventKind::kStray, .key = of};
  for (const char* text : {"kernel a", "kernel b", "kernel a"}) {
    event.text = text;
    counter.end(event);
  }
  counter.end({.kind = EventKind::kErase, .key = of});
  EXPECT_EQ(counter.counts(), (std::map<std::string, std::uint64_t>{{"kernel a", 2}, {"kernel b", 1}}));
}

TEST_F(ObserveTest, ADifferenceOfSnapshotsCoversTheTimeBetween) {
  Cache cache(unshared(1));
  EXPECT_TRUE(run_add(cache, key("a")).ok());
  const Stats before = cache.stats();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_add(cache, key("b")).ok());
  const Stats between = cache.stats() - before;
  EXPECT_EQ(between.runs(), 3u);
  EXPECT_EQ(between.captures, 1u);
  EXPECT_EQ(between.evictions, 1u);
  EXPECT_DOUBLE_EQ(between.hit_rate(), 2.0 / 3);
  EXPECT_EQ(between.live_executables, 1u);  // numbers of what is alive are those of the later snapshot
  EXPECT_EQ(between.live_templates, 2u);
}

TEST_F(ObserveTest, AnEvictionIsExplained) {
  Cache cache(unshared({.max_executables = 1, .max_templates = 2}));
  EXPECT_TRUE(says(explain(cache, key("first")), "it was never run, or only inside other captures"));
  EXPECT_RUN(kInstantiated, run_add(cache, key("first")));
  EXPECT_RUN(kReplayed, run_add(cache, key("first")));
  const std::string live = explain(cache, key("first"));
  EXPECT_TRUE(says(live, "Runs: replayed 1, instantiated 1."));
  EXPECT_TRUE(says(live, "It has an executable, of its own because there was room (rule 1)."));
  EXPECT_TRUE(says(live, "Options::share is kNever"));
  EXPECT_EQ(live.find("lost"), std::string::npos);
  EXPECT_RUN(kInstantiated, run_add(cache, key("second")));
  const std::string evicted = explain(cache, key("first"));
  EXPECT_TRUE(says(evicted, "It has a template and no executable"));
  EXPECT_TRUE(says(evicted, "It lost an executable the last time because other keys were used more recently"));
  EXPECT_TRUE(says(evicted, "Options::max_executables is 1"));
  EXPECT_RUN(kInstantiated, run_add(cache, key("third")));
  const std::string forgotten = explain(cache, key("first"));
  EXPECT_TRUE(says(forgotten, "neither an executable nor a template"));
  EXPECT_TRUE(says(forgotten, "more templates than Options::max_templates (2)"));
}

TEST_F(ObserveTest, EachPlaceOfTheProgramIsExplained) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_TRUE(cache.run(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }).ok());
  cache.pin(key("k"));
  EXPECT_TRUE(says(explain(cache, key("k")), "Of 1 entry at other places of the program:\nRuns: instantiated 1."));
  EXPECT_TRUE(says(explain(cache, key("k")), "and is pinned"));
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_TRUE(says(explain(cache, key("k")), "Of 1 entry at other places of the program:\nRuns: instantiated 1."));
}

TEST_F(ObserveTest, DirectRunsAreExplained) {
  Cache cache({.capture_after = 3}), eager_cache;
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_TRUE(says(explain(cache, key("k")), "one of its first 3 runs"));
  EXPECT_RUN(kEager, eager_cache.run(key("empty"), stream, [](cudaStream_t) {}));
  EXPECT_TRUE(says(explain(eager_cache, key("empty")), "fn enqueued nothing on the stream"));
}

}  // namespace
}  // namespace graphcache::test
