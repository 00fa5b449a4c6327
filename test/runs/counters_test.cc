// One test for each event that changes counters of Stats. Each compares all changes that the event makes, so that a
// counter that changes at another event is noticed as well. On hostrt, which can make any call fail.
//
// Not here: refusals of updates that a graph's signature prevents, which signature_changes_test provokes below the
// cache.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cache_support.h"
#include "graph/template.h"
#include "graphcache/hostrt.h"
#include "stats_fields.h"

namespace graphcache::test {
namespace {

// The change of each counter that is not 0, by its name.
using Moved = std::map<std::string, std::int64_t>;
// The times that have grown.
using Times = std::set<std::string>;

// 14 counters, 4 counts of what is alive, and 4 times. A new counter must be added to stats_fields.h, and needs a test.
static_assert(sizeof(Stats) / sizeof(std::uint64_t) == kOutcomeCount + kEagerReasonCount + 14 + 4 + 4);

Moved moved(const Stats& later, const Stats& earlier) {
  const Stats change = later - earlier;
  const auto grown = [](std::uint64_t now, std::uint64_t before) { return static_cast<std::int64_t>(now - before); };
  Moved all;
  for (const auto& [name, field, is_of_now] : kNumbersOfStats) {
    all[name] = is_of_now ? grown(later.*field, earlier.*field) : grown(change.*field, 0);
  }
  for (int i = 0; i < kOutcomeCount; ++i) {
    all[to_string(static_cast<Outcome>(i))] = grown(change.outcome(static_cast<Outcome>(i)), 0);
  }
  for (int i = 0; i < kEagerReasonCount; ++i) {
    const auto reason = static_cast<EagerReason>(i);
    all[std::string("direct: ") + to_string(reason)] = grown(change.eager(reason), 0);
  }
  std::erase_if(all, [](const auto& counter) { return counter.second == 0; });
  return all;
}

Times grown_times(const Stats& change) {
  Times times;
  for (const auto& [name, field] : kTimesOfStats) {
    if ((change.*field).count() > 0) times.insert(name);
  }
  return times;
}

class CountersTest : public CacheTest {
 protected:
  ~CountersTest() override { hostrt::clear_failures(); }

  // A graph is read when another one might be its sibling, so most tests have no family. Expects exactly these changes
  // since the cache was made or since the last call.
  void expect_moved(const Cache& cache, const Moved& wanted, const Times& times) {
    const Stats now = cache.stats();
    EXPECT_EQ(moved(now, before), wanted);
    EXPECT_EQ(grown_times(now - before), times);
    before = now;
  }
  void skip(const Cache& cache) { before = cache.stats(); }

  // `nodes` launches that add 1 together, with `grid` blocks, of which the first ones have work.
  absl::StatusOr<Outcome> run_nodes(Cache& cache, const Key& key, int nodes, unsigned grid = 2) {
    return cache.run(key, stream, [&](Recorder& rec) {
      for (int i = 0; i < nodes; ++i) {
        rec.launch(add, {dim3(grid), kBlock}, data.get(), kSize, i == 0 ? 1.0f : 0.0f);
      }
    });
  }
  static std::int64_t bytes(std::size_t nodes) {
    return static_cast<std::int64_t>(graphcache::estimated_device_bytes(nodes));
  }
  // What changes when an executable of a graph with `nodes` nodes is made, and what else does.
  static Moved made(std::size_t nodes, Moved also = {}) {
    also.merge(Moved{{"captures", 1},
                     {"instantiations", 1},
                     {"live_executables", 1},
                     {"live_templates", 1},
                     {"estimated_device_bytes", bytes(nodes)}});
    return also;
  }

  const Times none{};
  const Times first_run{"capture", "instantiate", "first_launch"};
  Stats before;
};

// ---- Hits and misses ------------------------------------------------------------------------------------------------

TEST_F(CountersTest, AFirstRun) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_nodes(cache, key("k"), 3));
  expect_moved(cache, made(3, {{"instantiated", 1}}), first_run);
  expect_sum(1);
}

TEST_F(CountersTest, AReplayByAKeyOrByAStep) {
  Cache cache;
  auto step = cache.prepare(key("step"), [&](cudaStream_t on) { return add_one(on); });
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_RUN(kInstantiated, step.run(stream));
  skip(cache);
  for (int i = 0; i < 5; ++i) EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_moved(cache, {{"replayed", 5}}, none);
  for (int i = 0; i < 5; ++i) EXPECT_RUN(kReplayed, step.run(stream));
  expect_moved(cache, {{"replayed", 5}}, none);
  expect_sum(12);
}

TEST_F(CountersTest, APatch) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, stream, 1));
  skip(cache);
  EXPECT_RUN(kPatched, run_add(cache, stream, 2));
  EXPECT_RUN(kPatched, run_add(cache, stream, 4));
  EXPECT_RUN(kReplayed, run_add(cache, stream, 4));
  expect_moved(cache, {{"patched", 2}, {"patched_nodes", 2}, {"replayed", 1}}, none);
  expect_sum(1 + 2 + 4 + 4);
}

TEST_F(CountersTest, ACaptureForAChangedValue) {
  Cache cache;
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, values(value),
                     [&](cudaStream_t on, float v) { return launch(add, kGrid, kBlock, on, data.get(), kSize, v); });
  };
  EXPECT_RUN(kInstantiated, run(2));
  skip(cache);
  EXPECT_RUN(kUpdated, run(4));
  expect_moved(cache, {{"updated", 1}, {"captures", 1}, {"value_captures", 1}, {"updates", 1}, {"forgotten", 1}},
               {"capture", "update"});
  EXPECT_RUN(kInstantiated, run(8));  // It is found, so the policy chooses an executable for it.
  skip(cache);
  EXPECT_RUN(kPatched, run(16));
  expect_moved(cache, {{"patched", 1}, {"patched_nodes", 1}}, none);
  expect_sum(2 + 4 + 8 + 16);
}

TEST_F(CountersTest, AMissAndAHitThatTakeASiblingsExecutableOver) {
  Cache cache(renting(1));
  EXPECT_RUN(kInstantiated, run_nodes(cache, key("a"), 8, 2));
  skip(cache);
  EXPECT_RUN(kUpdated, run_nodes(cache, key("b"), 8, 3));
  expect_moved(cache, {{"updated", 1}, {"captures", 1}, {"updates", 1}, {"live_templates", 1}, {"families", 1}},
               {"capture", "update"});
  EXPECT_RUN(kSwitched, run_nodes(cache, key("a"), 8, 2));
  expect_moved(cache, {{"switched", 1}, {"updates", 1}}, {"update"});
  expect_sum(3);
}

TEST_F(CountersTest, AHitThatTakesOverByAParameterSet) {
  Cache cache(forced(Sharing::kTable));
  const auto run = [&](int number) {
    return cache.run(key("k", number), stream, params(1.0f), [&](Recorder& rec, Slot<float> v) {
      for (int i = 0; i < 4; ++i)
        rec.launch(add, {dim3(2 + static_cast<unsigned>(number)), kBlock}, data.get(), kSize, v);
    });
  };
  for (int i = 0; i < 2; ++i) {
    for (const int number : {0, 1}) EXPECT_SUCCESS(run(number));
  }
  skip(cache);
  EXPECT_RUN(kSwitched, run(0));
  expect_moved(cache, {{"switched", 1}, {"set_switches", 1}}, {"update"});
  expect_sum(5 * 4);
}

TEST_F(CountersTest, AnEvictionWhoseTemplateStaysOrHasNoRoomAndARestoredKey) {
  for (const bool stays : {true, false}) {
    SCOPED_TRACE(stays);
    Cache cache(forced(Sharing::kNever, {.max_executables = 1, .max_templates = stays ? 512 : 1}));
    EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
    skip(cache);
    EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
    const char* const of_template = stays ? "live_templates" : "forgotten";
    expect_moved(cache,
                 {{"instantiated", 1}, {"captures", 1}, {"instantiations", 1}, {"evictions", 1}, {of_template, 1}},
                 first_run);
    if (!stays) continue;
    EXPECT_RUN(kRestored, run_add(cache, key("a")));
    expect_moved(cache, {{"restored", 1}, {"instantiations", 1}, {"evictions", 1}}, {"instantiate", "first_launch"});
  }
  expect_sum(3 + 2);
}

TEST_F(CountersTest, AWarmedKey) {
  Cache cache;
  EXPECT_SUCCESS(cache.warm(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }));
  expect_moved(cache, made(1), first_run);
  expect_sum(0);
}

TEST_F(CountersTest, ARunInsideAnother) {
  Cache cache;
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_RUN(kInlined, cache.run(key("inner"), on, [&](cudaStream_t inner) { return add_one(inner); }));
    return add_one(on);
  }));
  expect_moved(cache, made(2, {{"instantiated", 1}, {"inlined", 1}}), first_run);
  expect_sum(2);
}

// ---- What leaves ----------------------------------------------------------------------------------------------------

TEST_F(CountersTest, ErasedKeys) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_nodes(cache, key("a"), 1));
  EXPECT_RUN(kInstantiated, run_nodes(cache, key("b"), 2));
  EXPECT_RUN(kInstantiated, run_nodes(cache, key("c"), 3));
  skip(cache);
  EXPECT_TRUE(cache.erase(key("a")));
  EXPECT_FALSE(cache.erase(key("a")));
  expect_moved(cache, {{"live_executables", -1}, {"live_templates", -1}, {"estimated_device_bytes", -bytes(1)}}, none);
  cache.clear();
  expect_moved(cache,
               {{"live_executables", -2}, {"live_templates", -2}, {"estimated_device_bytes", -bytes(2) - bytes(3)}},
               none);
}

// ---- Verify mode ----------------------------------------------------------------------------------------------------

TEST_F(CountersTest, HitsThatAreVerified) {
  Cache cache({.verify_every = 1, .on_stale = OnStale::kForget});
  float value = 1;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](Recorder& rec) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, value);
    });
  };
  EXPECT_RUN(kInstantiated, run());
  skip(cache);
  EXPECT_RUN(kReplayed, run());
  expect_moved(cache, {{"replayed", 1}, {"verified", 1}}, none);
  value = 10;  // the mistake: a value that is neither in the key nor a slot
  EXPECT_RUN(kInstantiated, run());
  expect_moved(
      cache,
      {{"instantiated", 1}, {"captures", 1}, {"instantiations", 1}, {"verified", 1}, {"stale", 1}, {"forgotten", 1}},
      first_run);
  expect_sum(1 + 1 + 10);
}

// ---- Direct runs ----------------------------------------------------------------------------------------------------

TEST_F(CountersTest, ADisabledCache) {
  Cache cache(unshared(0));
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_moved(cache, {{"eager", 1}, {"direct: disabled", 1}}, none);
  expect_sum(1);
}

TEST_F(CountersTest, RunsBeforeTheCapture) {
  Cache cache({.capture_after = 2});
  for (int i = 0; i < 2; ++i) EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_moved(cache, {{"eager", 2}, {"direct: capture_after", 2}}, none);
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(3);
}

TEST_F(CountersTest, ABrokenCaptureAndTheRunBehindIt) {
  Cache cache;
  hostrt::fail_call("cudaStreamEndCapture", 1, cudaErrorStreamCaptureInvalidated);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_moved(cache, {{"eager", 1}, {"direct: capture_failed", 1}, {"capture_failures", 1}}, {"capture"});
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_moved(cache, {{"eager", 1}, {"direct: backoff", 1}}, none);
  expect_sum(2);
}

TEST_F(CountersTest, AKeyForWhichThereIsNoRoom) {
  Cache cache(unshared(1));
  EXPECT_RUN(kInstantiated, run_add(cache, key("pinned")));
  EXPECT_TRUE(cache.pin(key("pinned")));
  skip(cache);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_moved(cache, {{"eager", 1}, {"direct: budget", 1}}, none);
  expect_sum(2);
}

TEST_F(CountersTest, AnExecutableThatCannotBeMade) {
  for (const auto& [reason, error, times, of_template] :
       {std::tuple("direct: out_of_memory", cudaErrorMemoryAllocation, -1, "live_templates"),
        std::tuple("direct: refused", cudaErrorInvalidValue, 2, "forgotten")}) {
    Cache cache;
    before = {};
    hostrt::fail_call("cudaGraphInstantiate", 1, error, times);
    EXPECT_RUN(kEager, run_add(cache, key("k"))) << reason;
    expect_moved(cache, {{"eager", 1}, {reason, 1}, {"captures", 1}, {of_template, 1}}, {"capture", "instantiate"});
    hostrt::clear_failures();
  }
  expect_sum(2);
}

TEST_F(CountersTest, AHitThatFails) {
  for (const auto& [call, error, value, reason] :
       {std::tuple("cudaGraphExecKernelNodeSetParams", cudaErrorInvalidValue, 2.0f, "direct: refused"),
        std::tuple("cudaGraphLaunch", cudaErrorLaunchOutOfResources, 1.0f, "direct: launch_failed")}) {
    SCOPED_TRACE(call);
    Cache cache;
    EXPECT_RUN(kInstantiated, run_add(cache, stream, 1));
    skip(cache);
    hostrt::fail_call(call, 1, error);
    EXPECT_RUN(kEager, run_add(cache, stream, value));
    expect_moved(cache, {{"eager", 1}, {reason, 1}, {"live_executables", -1}, {"estimated_device_bytes", -bytes(1)}},
                 none);
  }
  expect_sum(1 + 2 + 1 + 1);
}

TEST_F(CountersTest, WorkOnAnotherStream) {
  Cache cache;
  Stream other;
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t) { return add_one(other); }); };
  EXPECT_RUN(kEager, run());
  expect_moved(cache, {{"eager", 1}, {"direct: nothing_captured", 1}, {"capture_failures", 1}}, {"capture"});
  EXPECT_RUN(kEager, run());
  expect_moved(cache, {{"eager", 1}, {"direct: nothing_captured", 1}}, none);
  CUDA_OK(cudaStreamSynchronize(other));
  expect_sum(2);
}

TEST_F(CountersTest, MemoryThatFnHandsOut) {
  Cache cache;
  std::vector<void*> handed_out;
  const auto run = [&] {
    return cache.run(key("k"), stream,
                     [&](cudaStream_t on) { return cudaMallocAsync(&handed_out.emplace_back(), 64, on); });
  };
  EXPECT_RUN(kEager, run());
  expect_moved(cache, {{"eager", 1}, {"direct: hands_out_memory", 1}, {"capture_failures", 1}}, {"capture"});
  EXPECT_EQ(handed_out.size(), 2u);  // The first call was captured, and its memory never existed.
  EXPECT_RUN(kEager, run());
  expect_moved(cache, {{"eager", 1}, {"direct: hands_out_memory", 1}}, none);
  ASSERT_EQ(handed_out.size(), 3u);
  EXPECT_NE(handed_out[1], handed_out[2]);
  for (void* memory : {handed_out[1], handed_out[2]}) CUDA_OK(cudaFreeAsync(memory, stream));
}

// ---- Failed runs ----------------------------------------------------------------------------------------------------

TEST_F(CountersTest, AFnThatFailsUnderCapture) {
  Cache cache;
  const auto fails = [](cudaStream_t) { return absl::AbortedError("no"); };
  EXPECT_FAILURE(kAborted, cache.run(key("k"), stream, fails));
  expect_moved(cache, {{"failed", 1}, {"capture_failures", 1}}, {"capture"});
  EXPECT_FAILURE(kAborted, cache.warm(key("k"), stream, fails));
  expect_moved(cache, {{"failed", 1}, {"capture_failures", 1}}, {"capture"});
  EXPECT_THROW(cache.run(key("k"), stream, [](cudaStream_t) { throw std::runtime_error("no"); }).IgnoreError(),
               std::runtime_error);
  expect_moved(cache, {{"failed", 1}, {"capture_failures", 1}}, {"capture"});
}

TEST_F(CountersTest, AFnThatFailsInADirectRun) {
  Cache cache(unshared(0));
  EXPECT_FAILURE(kAborted, cache.run(key("k"), stream, [](cudaStream_t) { return absl::AbortedError("no"); }));
  expect_moved(cache, {{"failed", 1}}, none);
}

// ---- Refusals -------------------------------------------------------------------------------------------------------

TEST_F(CountersTest, AnUpdateThatIsRefused) {
  for (const cudaError_t error : {cudaErrorGraphExecUpdateFailure, cudaErrorNotSupported}) {
    Cache cache(renting());
    EXPECT_RUN(kInstantiated, run_nodes(cache, key("a"), 8, 2));
    skip(cache);
    hostrt::fail_call("cudaGraphExecUpdate", 1, error);
    EXPECT_RUN(kInstantiated, run_nodes(cache, key("b"), 8, 3));
    expect_moved(cache, made(8, {{"instantiated", 1}, {"refused_updates", 1}, {"families", 1}}),
                 {"capture", "instantiate", "update", "first_launch"});
  }
  expect_sum(4);
}

TEST_F(CountersTest, ADeviceThatCannotUpdate) {
  Cache cache(forced(Patching::kDeviceUpdated));
  hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorInvalidKernelImage);
  EXPECT_RUN(kInstantiated, run_add(cache, stream, 1));
  expect_moved(cache, made(1, {{"instantiated", 1}, {"refused_device_updates", 1}}), first_run);
  EXPECT_RUN(kPatched, run_add(cache, stream, 2));
  expect_moved(cache, {{"patched", 1}, {"patched_nodes", 1}}, none);
  expect_sum(3);
}

}  // namespace
}  // namespace graphcache::test
