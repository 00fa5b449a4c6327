// Every runtime call that the cache makes is made to fail, once and for ever: the work is then done another way, or the
// run returns an error that says what happened; nothing is lost, and what comes after works (laws 3 and 4).
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

// A cache and work whose effects tell how often and with which values it was done.
struct World {
  explicit World(const Options& options = {}) : cache(options) {}

  // Appends `value` to the log, sets `set` to bytes of `value`, copies as many of them to `copy`.
  absl::StatusOr<Outcome> run(const Key& which, int value) {
    return cache.run(which, stream, params(value), [&](Recorder& rec, Slot<int> v) {
      ++calls;
      if (in_fn) in_fn();
      rec.memset(set.get(), v, set.bytes());
      rec.memcpy(copy.get(), set.get(), v);
      rec.launch(append, {1, 1}, log.get(), count.get(), v);
      rec.launch(append, {1, 1}, log.get(), count.get(), -1);
    });
  }

  // Whether exactly the work of these values was done, in this order.
  void expect_done(const std::vector<int>& values) {
    std::vector<int> wanted;
    std::vector<unsigned char> wanted_copy(16);
    for (const int value : values) {
      wanted.push_back(value);
      wanted.push_back(-1);
      std::fill_n(wanted_copy.begin(), value, static_cast<unsigned char>(value));
    }
    std::vector<int> done = log.read();
    done.resize(static_cast<std::size_t>(count.first()));
    EXPECT_EQ(done, wanted);
    EXPECT_EQ(copy.read(), wanted_copy);
  }
  void forget() {
    count.write({0});
    copy.write(std::vector<unsigned char>(16));
  }

  Stream stream;
  DeviceBuffer<int> log{256}, count{1};
  DeviceBuffer<unsigned char> set{16}, copy{16};
  Cache cache;
  int calls = 0;
  std::function<void()> in_fn;
};

const Key kKey = key("my label");

// A run that is about to be made, in a state that it is made in.
struct Scenario {
  const char* name;
  Options options;
  std::function<void(World&)> prepare;
  std::vector<int> prepared;  // The values of the runs of `prepare`.
  int value;                  // Of the run.
};

std::vector<Scenario> scenarios() {
  Options one;
  one.max_executables = 1;
  Options none;
  none.max_executables = 0;
  const auto nothing = [](World&) {};
  const auto once = [](World& world) { ASSERT_TRUE(world.run(kKey, 3).ok()); };
  const auto patched = [](World& world) {
    ASSERT_TRUE(world.run(kKey, 3).ok());
    ASSERT_TRUE(world.run(kKey, 4).ok());
  };
  const auto other = [](World& world) { ASSERT_TRUE(world.run(key("other"), 3).ok()); };
  return {
      {"cold", {}, nothing, {}, 7},
      {"hit", {}, once, {3}, 3},
      {"hit with new values", {}, patched, {3, 4}, 5},
      {"eviction", one, other, {3}, 7},
      {"disabled", none, nothing, {}, 7},
  };
}

// Failing these leaves an object behind, whatever the caller does.
bool destroys(const std::string& function) { return function.find("Destroy") != std::string::npos; }

bool reads_last_error(const std::string& function) {
  return function == "cudaGetLastError" || function == "cudaPeekAtLastError";
}

// The calls that the scenario's run makes when nothing fails.
std::map<std::string, std::uint64_t> calls_of(const Scenario& scenario) {
  hostrt::reset();
  World world(scenario.options);
  scenario.prepare(world);
  hostrt::reset_calls();
  EXPECT_TRUE(world.run(kKey, scenario.value).ok());
  return hostrt::call_counts();
}

void expect_usable(World& world, const std::string& failed_function) {
  EXPECT_FALSE(is_capturing(world.stream));
  CUDA_OK(cudaPeekAtLastError());
  if (failed_function != "cudaThreadExchangeStreamCaptureMode") {
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
  }
  const hostrt::Ledger ledger = hostrt::ledger();
  EXPECT_EQ(ledger.captures, 0u);
  EXPECT_EQ(ledger.events, 0u);
  if (!destroys(failed_function)) {
    EXPECT_EQ(ledger.executables, world.cache.stats().live_executables);
    EXPECT_EQ(ledger.graphs, world.cache.stats().live_templates);
  }
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
}

void expect_typed(const absl::Status& status, const std::string& function, cudaError_t error) {
  EXPECT_EQ(cuda_error(status), error) << status;
  EXPECT_TRUE(mentions(status, "my label")) << status;
  EXPECT_TRUE(mentions(status, cudaGetErrorName(error))) << status;
  EXPECT_TRUE(mentions(status, function)) << status;
}

class FailuresTest : public testing::Test {
 protected:
  FailuresTest() { hostrt::reset(); }
  ~FailuresTest() override { hostrt::reset(); }
};

void fail_and_recover(const Scenario& scenario, const std::string& function, int nth, cudaError_t error, int times) {
  hostrt::reset();
  {
    World world(scenario.options);
    scenario.prepare(world);
    world.expect_done(scenario.prepared);
    world.forget();
    hostrt::fail_call(function.c_str(), nth, error, times);
    const absl::StatusOr<Outcome> outcome = world.run(kKey, scenario.value);
    hostrt::clear_failures();

    expect_usable(world, function);
    if (outcome.ok()) {
      world.expect_done({scenario.value});
    } else {
      expect_typed(outcome.status(), function, error);
      EXPECT_LE(world.count.first(), 2);
    }

    world.forget();
    std::vector<int> values;
    for (int i = 0; i < 5; ++i) {
      values.push_back(1 + i % 3);
      const auto later = world.run(kKey, values.back());
      ASSERT_TRUE(later.ok()) << later.status();
    }
    world.expect_done(values);
    if (scenario.options.max_executables != 0) {
      EXPECT_TRUE(world.cache.contains(kKey)) << "a single failure must not keep a key from being captured for long";
    }
    expect_usable(world, function);
  }
  if (!destroys(function)) {
    EXPECT_EQ(hostrt::ledger(), hostrt::Ledger());
  }
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
}

TEST_F(FailuresTest, EveryCallMayFailOnceOrForEver) {
  for (const Scenario& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(scenario)) {
      if (reads_last_error(function)) continue;
      for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorUnknown}) {
        for (const int times : {1, -1}) {
          // Once more than counted: a failure may lead to calls that were not made before.
          for (int nth = 1; nth <= static_cast<int>(count) + 1; ++nth) {
            SCOPED_TRACE(std::string(scenario.name) + ": call " + std::to_string(nth) + (times == 1 ? "" : " and on") +
                         " of " + function + " fails with " + cudaGetErrorName(error));
            fail_and_recover(scenario, function, nth, error, times);
          }
        }
      }
    }
  }
}

TEST_F(FailuresTest, FatalErrorsOfEveryCallAreToldForEverAndNothingIsDestroyed) {
  for (const Scenario& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(scenario)) {
      if (reads_last_error(function)) continue;
      for (int nth = 1; nth <= static_cast<int>(count); ++nth) {
        SCOPED_TRACE(std::string(scenario.name) + ": call " + std::to_string(nth) + " and on of " + function);
        hostrt::reset();
        {
          World world(scenario.options);
          scenario.prepare(world);
          hostrt::fail_call(function.c_str(), nth, cudaErrorIllegalAddress, -1);
          hostrt::reset_calls();
          const auto outcome = world.run(kKey, scenario.value);
          if (outcome.ok()) continue;  // Of a call whose failure does no harm.
          expect_typed(outcome.status(), function, cudaErrorIllegalAddress);
          EXPECT_EQ(cuda_error(world.cache.status()), cudaErrorIllegalAddress);
          hostrt::clear_failures();
          const int calls = world.calls;
          const auto later = world.run(key("my label", 2), 1);
          EXPECT_EQ(cuda_error(later.status()), cudaErrorIllegalAddress) << later.status();
          EXPECT_TRUE(mentions(later.status(), "my label")) << later.status();
          EXPECT_EQ(cuda_error(world.run(kKey, 1).status()), cudaErrorIllegalAddress);
          EXPECT_EQ(world.calls, calls);
          world.cache.clear();
          EXPECT_EQ(world.cache.stats().live_executables, 0u);
          if (function != "cudaGraphExecDestroy" && function != "cudaGraphDestroy" && scenario.prepared.empty()) {
            EXPECT_EQ(hostrt::calls("cudaGraphDestroy"), 0u);
          }
        }
        if (std::string(scenario.name) == "hit" || std::string(scenario.name) == "hit with new values") {
          EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 0u);
          EXPECT_EQ(hostrt::calls("cudaGraphDestroy"), 0u);
        }
      }
    }
  }
}

TEST_F(FailuresTest, CallsOfTheConstructorMayFail) {
  for (const char* function : {"cudaGetDevice", "cudaGetDeviceCount"}) {
    hostrt::reset();
    hostrt::fail_call(function, 1, cudaErrorNoDevice);
    World world;
    EXPECT_EQ(cuda_error(world.cache.status()), cudaErrorNoDevice) << world.cache.status();
    EXPECT_TRUE(mentions(world.cache.status(), function)) << world.cache.status();
    expect_typed(world.run(kKey, 1).status(), function, cudaErrorNoDevice);
    expect_usable(world, function);
  }
}

TEST_F(FailuresTest, CaptureThatBreaksOnceIsTriedAgainAfterOneRun) {
  World world;
  hostrt::fail_call("cudaStreamEndCapture", 1, cudaErrorStreamCaptureInvalidated);
  EXPECT_RUN(kEager, world.run(kKey, 1));
  EXPECT_RUN(kEager, world.run(kKey, 2));
  EXPECT_RUN(kInstantiated, world.run(kKey, 3));
  world.expect_done({1, 2, 3});
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kCaptureFailed), 1u);
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kBackoff), 1u);
}

TEST_F(FailuresTest, BackoffDoublesAndStartsAgainAfterASuccess) {
  World world;
  hostrt::fail_call("cudaStreamEndCapture", 1, cudaErrorStreamCaptureInvalidated, -1);
  std::vector<int> tries;
  for (int i = 0; i < 1 + 2 + 3 + 5 + 9 + 17; ++i) {
    const std::uint64_t before = world.cache.stats().capture_failures;
    ASSERT_TRUE(world.run(kKey, 1).ok());
    if (world.cache.stats().capture_failures != before) tries.push_back(i);
  }
  EXPECT_EQ(tries, (std::vector<int>{0, 2, 5, 10, 19, 36}));
  hostrt::clear_failures();
  int runs = 0;
  while (!world.cache.contains(kKey) && ++runs < 100) ASSERT_TRUE(world.run(kKey, 1).ok());
  EXPECT_EQ(runs, 33);
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorUnknown);
  EXPECT_RUN(kEager, world.run(kKey, 1));
  EXPECT_RUN(kEager, world.run(kKey, 1));
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
}

TEST_F(FailuresTest, BackoffIsBounded) {
  World world;
  hostrt::set_execution(false);
  hostrt::fail_call("cudaStreamEndCapture", 1, cudaErrorStreamCaptureInvalidated, -1);
  for (int i = 0; i < 8000; ++i) ASSERT_TRUE(world.run(kKey, 1).ok());
  // Waits of 1, 2, ... 512 runs, then 1024 each.
  EXPECT_EQ(world.cache.stats().capture_failures, 1u + 10 + (8000 - 1023 - 11) / 1025 + 0);
}

TEST_F(FailuresTest, OutOfMemoryEvictsTrimsAndTriesOnceMore) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(key("old"), 1));
  EXPECT_RUN(kInstantiated, world.run(key("young"), 2));
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
  hostrt::reset_calls();
  EXPECT_RUN(kInstantiated, world.run(kKey, 3));
  EXPECT_EQ(hostrt::calls("cudaGraphInstantiate"), 2u);
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 1u);
  EXPECT_EQ(hostrt::calls("cudaDeviceGraphMemTrim"), 1u);
  EXPECT_FALSE(world.cache.contains(key("old")));
  EXPECT_TRUE(world.cache.contains(key("young")));
  EXPECT_EQ(world.cache.stats().evictions, 1u);
  EXPECT_EQ(world.cache.stats().instantiations, 3u);
  world.expect_done({1, 2, 3});
  expect_usable(world, "");
}

TEST_F(FailuresTest, OutOfMemoryThatStaysRunsEagerly) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(key("old"), 1));
  EXPECT_RUN(kInstantiated, world.run(key("young"), 2));
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation, -1);
  EXPECT_RUN(kEager, world.run(kKey, 3));
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kOutOfMemory), 1u);
  EXPECT_TRUE(world.cache.contains(key("young")));  // One left, not all.
  expect_usable(world, "");
  EXPECT_RUN(kEager, world.run(kKey, 4));
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kBackoff), 1u);
  hostrt::clear_failures();
  EXPECT_RUN(kInstantiated, world.run(kKey, 5));
  EXPECT_RUN(kPatched, world.run(key("young"), 6));
  world.expect_done({1, 2, 3, 4, 5, 6});
}

TEST_F(FailuresTest, RefusedInstantiationRunsEagerly) {
  World world;
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorNotSupported);
  EXPECT_RUN(kEager, world.run(kKey, 1));
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kRefused), 1u);
  EXPECT_EQ(world.cache.stats().live_templates, 0u);
  expect_usable(world, "");
  EXPECT_RUN(kEager, world.run(kKey, 2));
  EXPECT_RUN(kInstantiated, world.run(kKey, 3));
  world.expect_done({1, 2, 3});
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
    EXPECT_EQ(world.cache.stats().eager(EagerReason::kRefused), 1u);
    EXPECT_FALSE(world.cache.contains(kKey));
    EXPECT_EQ(hostrt::ledger().executables, 0u);
    expect_usable(world, "");
    EXPECT_RUN(kEager, world.run(kKey, 1));  // The half-patched executable would show here.
    EXPECT_RUN(kInstantiated, world.run(kKey, 3));
    world.expect_done({1, 2, 1, 3});
  }
}

TEST_F(FailuresTest, RefusedSwitchingOffOfANodeGivesTheRightResult) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
  hostrt::fail_call("cudaGraphNodeSetEnabled", 1, cudaErrorInvalidValue);
  EXPECT_RUN(kEager, world.run(kKey, 0));
  expect_usable(world, "");
  world.expect_done({1, 0});
}

TEST_F(FailuresTest, FailedLaunchRunsEagerlyAndDropsTheExecutable) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorLaunchOutOfResources);
  EXPECT_RUN(kEager, world.run(kKey, 1));
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kLaunchFailed), 1u);
  EXPECT_EQ(hostrt::ledger().executables, 0u);
  world.expect_done({1, 1});
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

TEST_F(FailuresTest, FailureOfTheDriversFunctionsFallsBackToTheRuntime) {
  World world;
  hostrt::fail_call("cudaGetFuncBySymbol", 1, cudaErrorInvalidDeviceFunction, -1);
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
  EXPECT_RUN(kPatched, world.run(kKey, 2));
  world.expect_done({1, 2});
  expect_usable(world, "");
}

TEST_F(FailuresTest, FatalErrorReachesTheEntriesOfOtherKeys) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(key("other"), 1));
  EXPECT_RUN(kInstantiated, world.run(kKey, 2));
  hostrt::reset_calls();
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress);
  expect_typed(world.run(kKey, 2).status(), "cudaGraphLaunch", cudaErrorIllegalAddress);
  EXPECT_FALSE(world.cache.contains(key("other")));
  const auto other = world.run(key("other"), 1);
  EXPECT_EQ(cuda_error(other.status()), cudaErrorIllegalAddress) << other.status();
  EXPECT_EQ(hostrt::calls("cudaGraphLaunch"), 1u);
  EXPECT_TRUE(world.cache.entries().empty());
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 0u);
  EXPECT_EQ(hostrt::calls("cudaGraphDestroy"), 0u);
}

TEST_F(FailuresTest, FatalErrorThatFnReturnsIsRemembered) {
  World world;
  const auto outcome = world.cache.run(kKey, world.stream, [](cudaStream_t) { return cudaErrorLaunchFailure; });
  expect_typed(outcome.status(), "fn", cudaErrorLaunchFailure);
  EXPECT_EQ(cuda_error(world.cache.status()), cudaErrorLaunchFailure);
  EXPECT_EQ(cuda_error(world.run(kKey, 1).status()), cudaErrorLaunchFailure);
}

// Some nodes hold new values then, and some old ones.
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
      const auto outcome = world.cache.run(kKey, world.stream, [&](Recorder& rec) {
        const auto inner = world.cache.run(key("inner"), other, [&](Recorder& on_other) {
          on_other.launch(append, {1, 1}, other_log.get(), other_count.get(), 5);
        });
        inner_done = inner.ok() ? 1 : 0;  // Of the last call: what an outer capture begins, a direct run ends.
        rec.launch(append, {1, 1}, world.log.get(), world.count.get(), 6);
      });
      hostrt::clear_failures();
      EXPECT_EQ(other_count.first(), outcome.ok() ? inner_done : 0);
      EXPECT_EQ(world.count.first(), outcome.ok() ? 1 : 0);
      if (!outcome.ok()) expect_typed(outcome.status(), function, cudaErrorUnknown);
      expect_usable(world, function);
    }
  }
}

}  // namespace
}  // namespace graphcache::test
