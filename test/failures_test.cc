// Every runtime call that the cache makes is made to fail, once and for ever: the work is then done another way, or the
// run returns an error that says what happened; nothing is lost, and what comes after works (laws 3 and 4).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

void append_in_each(int* log, int* count, int value) { log[(*count)++] = value; }
GRAPHCACHE_HOST_KERNEL(append_in_each)
void record_cluster(int* out) { *out = static_cast<int>(hostrt::cluster_dim().x); }
GRAPHCACHE_HOST_KERNEL(record_cluster)

// What a key stands for: launches of append_in_each() behind those that follow the run's value.
struct Work {
  struct Launch {
    int number;
    unsigned grid;  // It is appended so many times.
  };
  Key key;
  std::vector<Launch> launches = {{-1, 1}};
};

// For what is not about siblings: keys of one topology have an executable each.
Options unshared(int max_executables = Options().max_executables) {
  Options options;
  options.max_executables = max_executables;
  options.sharing = Sharing::kNever;
  return options;
}

// A cache and work whose effects tell how often and with which values it was done.
struct World {
  explicit World(const Options& options = {}) : cache(options) {}

  struct Run {
    const Work& work;
    int value;
  };

  // Sets `set` to bytes of `value`, copies as many of them to `copy`, appends `value` to the log, then what the work
  // appends.
  absl::StatusOr<Outcome> run(const Work& work, int value) {
    return cache.run(work.key, stream, params(value), [&](Recorder& rec, Slot<int> v) {
      ++calls;
      if (in_fn) in_fn();
      rec.memset(set.get(), v, set.bytes());
      rec.memcpy(copy.get(), set.get(), v);
      rec.launch(append, {1, 1}, log.get(), count.get(), v);
      for (const Work::Launch& one : work.launches) {
        rec.launch(append_in_each, {one.grid, 1}, log.get(), count.get(), one.number);
      }
    });
  }
  absl::StatusOr<Outcome> run(const Key& which, int value) { return run(Work{which}, value); }

  static std::vector<int> appended(const Run& run) {
    std::vector<int> all{run.value};
    for (const Work::Launch& one : run.work.launches) all.insert(all.end(), one.grid, one.number);
    return all;
  }

  // Whether exactly the work of these runs was done, in this order.
  void expect_runs(const std::vector<Run>& runs) {
    std::vector<int> wanted;
    std::vector<unsigned char> wanted_copy(16);
    for (const Run& run : runs) {
      const std::vector<int> all = appended(run);
      wanted.insert(wanted.end(), all.begin(), all.end());
      std::fill_n(wanted_copy.begin(), run.value, static_cast<unsigned char>(run.value));
    }
    std::vector<int> done = log.read();
    done.resize(static_cast<std::size_t>(count.first()));
    EXPECT_EQ(done, wanted);
    EXPECT_EQ(copy.read(), wanted_copy);
  }
  void expect_done(const std::vector<int>& values) {
    static const Work plain;
    std::vector<Run> runs;
    for (const int value : values) runs.push_back({plain, value});
    expect_runs(runs);
  }
  void forget() {
    count.write({0});
    copy.write(std::vector<unsigned char>(16));
  }

  Stream stream;
  DeviceBuffer<int> log{512}, count{1};
  DeviceBuffer<unsigned char> set{16}, copy{16};
  Cache cache;
  int calls = 0;
  std::function<void()> in_fn;
};

const Key kKey = key("my label");
const Key kOther = key("other");

// Siblings: two grids differ, which takes an update,
const Work kSmall{kKey, {{-1, 1}, {-2, 2}}}, kLarge{kOther, {{-1, 2}, {-2, 3}}};
// and one argument of many nodes does, which takes a patch (costs.h).
const Work kFirst{kKey, {{-1, 1}, {-2, 1}, {-4, 1}, {-5, 2}, {-6, 1}}};
const Work kSecond{kOther, {{-1, 1}, {-3, 1}, {-4, 1}, {-5, 2}, {-6, 1}}};

// A run that is about to be made, in a state that it is made in.
struct Scenario {
  const char* name;
  Options options;
  Work mine, other;
  std::vector<const Work*> prepared;  // The runs before it: of the i-th with value 3 + i % 4.
  Outcome outcome;                    // What it does if nothing fails,
  int value = 7;                      // with this value.
  bool may_destroy = true;            // Whether something may be destroyed in its course.

  std::vector<World::Run> runs_before() const {
    std::vector<World::Run> runs;
    for (const Work* work : prepared) runs.push_back({*work, 3 + static_cast<int>(runs.size()) % 4});
    return runs;
  }
  void prepare(World& world) const {
    for (const World::Run& run : runs_before()) ASSERT_TRUE(world.run(run.work, run.value).ok());
  }
  bool has_other() const { return std::find(prepared.begin(), prepared.end(), &other) != prepared.end(); }
};

// By which names `prepared` is written.
enum Which { kMine, kTheOther };

std::vector<std::unique_ptr<Scenario>> scenarios() {
  Options one;  // For all siblings.
  one.max_executables = 1;
  Options none;
  none.max_executables = 0;
  Options forgets = unshared(1);
  forgets.max_templates = 0;
  const Work plain{kKey}, plain_other{kOther};
  std::vector<std::unique_ptr<Scenario>> all;
  const auto add = [&](const char* name, const Options& options, const Work& mine, const Work& other,
                       const std::vector<Which>& prepared, Outcome outcome) -> Scenario& {
    all.push_back(std::make_unique<Scenario>(Scenario{name, options, mine, other, {}, outcome}));
    Scenario& added = *all.back();
    for (const Which which : prepared) added.prepared.push_back(which == kMine ? &added.mine : &added.other);
    return added;
  };
  // Three rents paid: a fourth would pass the price (costs.h), so that the next executable is to keep.
  const std::vector<Which> rented{kTheOther, kMine, kTheOther, kMine, kTheOther, kMine, kTheOther};

  add("cold", {}, plain, plain_other, {}, Outcome::kInstantiated).may_destroy = false;
  Scenario& hit = add("hit", {}, plain, plain_other, {kMine}, Outcome::kReplayed);
  hit.value = 3;
  hit.may_destroy = false;
  add("hit with new values", {}, plain, plain_other, {kMine, kMine}, Outcome::kPatched).may_destroy = false;
  add("disabled", none, plain, plain_other, {}, Outcome::kEager).may_destroy = false;
  add("eviction", unshared(1), plain, plain_other, {kTheOther}, Outcome::kInstantiated);
  add("eviction that forgets", forgets, plain, plain_other, {kTheOther}, Outcome::kInstantiated);
  add("restore", unshared(1), plain, plain_other, {kMine, kTheOther}, Outcome::kRestored);
  add("miss by update", one, kSmall, kLarge, {kTheOther}, Outcome::kUpdated).may_destroy = false;
  add("miss by patches", one, kFirst, kSecond, {kTheOther}, Outcome::kUpdated).may_destroy = false;
  add("switch by update", one, kSmall, kLarge, {kMine, kTheOther}, Outcome::kSwitched).may_destroy = false;
  add("switch by patches", one, kFirst, kSecond, {kMine, kTheOther}, Outcome::kSwitched).may_destroy = false;
  add("switch back by patches", one, kFirst, kSecond, {kTheOther, kMine, kTheOther}, Outcome::kSwitched).may_destroy =
      false;
  add("switch to keep", one, kSmall, kLarge, rented, Outcome::kSwitched).may_destroy = false;
  add("restore beside a sibling", {}, kSmall, kLarge, rented, Outcome::kRestored).may_destroy = false;
  return all;
}

// Failing these leaves an object behind, whatever the caller does.
bool destroys(const std::string& function) { return function.find("Destroy") != std::string::npos; }

bool reads_last_error(const std::string& function) {
  return function == "cudaGetLastError" || function == "cudaPeekAtLastError";
}

// The calls that the scenario's run makes when nothing fails.
std::map<std::string, std::uint64_t> calls_of(const Scenario& scenario) {
  SCOPED_TRACE(scenario.name);
  hostrt::reset();
  World world(scenario.options);
  scenario.prepare(world);
  world.expect_runs(scenario.runs_before());
  world.forget();
  hostrt::reset_calls();
  EXPECT_TRUE(did(scenario.outcome, world.run(scenario.mine, scenario.value)));
  const std::map<std::string, std::uint64_t> calls = hostrt::call_counts();
  EXPECT_EQ(calls.count("cudaStreamBeginCapture"),
            scenario.outcome == Outcome::kInstantiated || scenario.outcome == Outcome::kUpdated ? 1u : 0u);
  if (!scenario.may_destroy) {
    EXPECT_EQ(calls.count("cudaGraphExecDestroy"), 0u);
    EXPECT_EQ(calls.count("cudaGraphDestroy"), 0u);
  }
  if (std::string(scenario.name).find("by ") != std::string::npos) {
    const bool by_update = std::string(scenario.name).find("by update") != std::string::npos;
    EXPECT_EQ(calls.count("cudaGraphExecUpdate"), by_update ? 1u : 0u);
  }
  world.expect_runs({{scenario.mine, scenario.value}});
  return calls;
}

// What is alive is what the statistics say. Where keys share, an executable's base may be nobody's template
// (program.h).
void expect_ledger(const Cache& cache) {
  const hostrt::Ledger ledger = hostrt::ledger();
  const Stats stats = cache.stats();
  EXPECT_EQ(ledger.executables, stats.live_executables);
  EXPECT_GE(ledger.graphs, stats.live_templates);
  EXPECT_LE(ledger.graphs, stats.live_templates + (stats.families == 0 ? 0 : stats.live_executables));
}

void expect_usable(World& world, const std::string& failed_function) {
  EXPECT_FALSE(is_capturing(world.stream));
  CUDA_OK(cudaPeekAtLastError());
  if (failed_function != "cudaThreadExchangeStreamCaptureMode") {
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
  }
  EXPECT_EQ(hostrt::ledger().captures, 0u);
  if (failed_function != "cudaEventDestroy") {
    EXPECT_EQ(hostrt::ledger().events, 0u);
  }
  if (!destroys(failed_function)) expect_ledger(world.cache);
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
    world.expect_runs(scenario.runs_before());
    world.forget();
    hostrt::fail_call(function.c_str(), nth, error, times);
    const absl::StatusOr<Outcome> outcome = world.run(scenario.mine, scenario.value);
    hostrt::clear_failures();

    expect_usable(world, function);
    if (outcome.ok()) {
      world.expect_runs({{scenario.mine, scenario.value}});
    } else {
      expect_typed(outcome.status(), function, error);
      EXPECT_LE(world.count.first(), static_cast<int>(World::appended({scenario.mine, 0}).size()));
    }
    const bool keeps_templates = scenario.options.max_templates != 0;
    if (scenario.has_other() && keeps_templates) {
      EXPECT_TRUE(world.cache.contains(scenario.other.key)) << "the other key did nothing wrong";
    }

    world.forget();
    std::vector<World::Run> runs;
    for (const Work* work : {&scenario.mine, &scenario.other, &scenario.mine, &scenario.mine, &scenario.other,
                             &scenario.mine, &scenario.mine, &scenario.other, &scenario.mine}) {
      runs.push_back({*work, 1 + static_cast<int>(runs.size()) % 3});
      const auto later = world.run(*work, runs.back().value);
      ASSERT_TRUE(later.ok()) << later.status();
    }
    world.expect_runs(runs);
    if (scenario.options.max_executables != 0) {
      EXPECT_TRUE(world.cache.contains(kKey)) << "a single failure must not keep a key from being captured for long";
    }
    expect_usable(world, function);

    world.cache.clear();
    EXPECT_EQ(world.cache.stats().live_executables, 0u);
    EXPECT_EQ(world.cache.stats().live_templates, 0u);
    EXPECT_EQ(world.cache.stats().families, 0u);
    EXPECT_EQ(world.cache.stats().estimated_device_bytes, 0u);
    if (!destroys(function)) expect_ledger(world.cache);
    EXPECT_EQ(world.cache.stats().runs(), scenario.prepared.size() + 1 + runs.size());
  }
  if (!destroys(function)) {
    EXPECT_EQ(hostrt::ledger(), hostrt::Ledger());
  }
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
}

TEST_F(FailuresTest, EveryCallMayFailOnceOrForEver) {
  for (const auto& each : scenarios()) {
    const Scenario& scenario = *each;
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
  for (const auto& each : scenarios()) {
    const Scenario& scenario = *each;
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
          const auto outcome = world.run(scenario.mine, scenario.value);
          if (outcome.ok()) continue;  // Of a call whose failure does no harm.
          expect_typed(outcome.status(), function, cudaErrorIllegalAddress);
          EXPECT_EQ(cuda_error(world.cache.status()), cudaErrorIllegalAddress);
          hostrt::clear_failures();
          const int calls = world.calls;
          const auto later = world.run(key("my label", 2), 1);
          EXPECT_EQ(cuda_error(later.status()), cudaErrorIllegalAddress) << later.status();
          EXPECT_TRUE(mentions(later.status(), "my label")) << later.status();
          for (const Work* work : {&scenario.mine, &scenario.other}) {
            EXPECT_EQ(cuda_error(world.run(*work, 1).status()), cudaErrorIllegalAddress);
          }
          EXPECT_EQ(world.calls, calls);
          world.cache.clear();
          EXPECT_EQ(world.cache.stats().live_executables, 0u);
          EXPECT_EQ(world.cache.stats().live_templates, 0u);
        }
        if (!scenario.may_destroy) {
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
  const int calls = world.calls;
  EXPECT_RUN(kRestored, world.run(kKey, 1));
  EXPECT_EQ(world.calls, calls);
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
  World world(unshared());
  EXPECT_RUN(kInstantiated, world.run(key("old"), 1));
  EXPECT_RUN(kInstantiated, world.run(key("young"), 2));
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
  hostrt::reset_calls();
  EXPECT_RUN(kInstantiated, world.run(kKey, 3));
  EXPECT_EQ(hostrt::calls("cudaGraphInstantiate"), 2u);
  EXPECT_EQ(hostrt::calls("cudaGraphExecDestroy"), 1u);
  EXPECT_EQ(hostrt::calls("cudaDeviceGraphMemTrim"), 1u);
  const std::vector<EntryInfo> entries = world.cache.entries();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_TRUE(entries[1].live);  // "young"
  EXPECT_FALSE(entries[2].live);
  EXPECT_TRUE(entries[2].recorded);
  EXPECT_EQ(world.cache.stats().evictions, 1u);
  EXPECT_EQ(world.cache.stats().instantiations, 3u);
  const int calls = world.calls;
  EXPECT_RUN(kRestored, world.run(key("old"), 4));
  EXPECT_EQ(world.calls, calls);
  world.expect_done({1, 2, 3, 4});
  expect_usable(world, "");
}

TEST_F(FailuresTest, OutOfMemoryThatStaysRunsEagerlyAndKeepsTheTemplate) {
  World world(unshared());
  EXPECT_RUN(kInstantiated, world.run(key("old"), 1));
  EXPECT_RUN(kInstantiated, world.run(key("young"), 2));
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation, -1);
  EXPECT_RUN(kEager, world.run(kKey, 3));
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kOutOfMemory), 1u);
  EXPECT_EQ(world.cache.stats().live_executables, 1u);  // One left, not all.
  EXPECT_TRUE(world.cache.contains(kKey));
  expect_usable(world, "");
  EXPECT_RUN(kEager, world.run(kKey, 4));
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kBackoff), 1u);
  hostrt::clear_failures();
  const int calls = world.calls;
  EXPECT_RUN(kRestored, world.run(kKey, 5));
  EXPECT_RUN(kPatched, world.run(key("young"), 6));
  EXPECT_RUN(kRestored, world.run(key("old"), 7));
  EXPECT_EQ(world.calls, calls);
  world.expect_done({1, 2, 3, 4, 5, 6, 7});
  expect_usable(world, "");
}

// cudaErrorNotSupported is tried once more, as other reasons to wait for a destruction are.
TEST_F(FailuresTest, RefusedInstantiationRunsEagerlyAndForgetsTheTemplate) {
  for (const cudaError_t error : {cudaErrorNotSupported, cudaErrorInvalidValue}) {
    hostrt::reset();
    World world;
    hostrt::fail_call("cudaGraphInstantiate", 1, error, 2);
    EXPECT_RUN(kEager, world.run(kKey, 1));
    EXPECT_EQ(world.cache.stats().eager(EagerReason::kRefused), 1u);
    EXPECT_EQ(world.cache.stats().live_templates, 0u);
    EXPECT_FALSE(world.cache.contains(kKey));
    expect_usable(world, "");
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
    EXPECT_EQ(world.cache.stats().eager(EagerReason::kRefused), 1u);
    EXPECT_TRUE(world.cache.contains(kKey));
    EXPECT_EQ(hostrt::ledger().executables, 0u);
    expect_usable(world, "");
    EXPECT_RUN(kEager, world.run(kKey, 1));  // The half-patched executable would show here,
    const int calls = world.calls;
    EXPECT_RUN(kRestored, world.run(kKey, 3));  // and here what the template should not have followed.
    EXPECT_EQ(world.calls, calls);
    EXPECT_RUN(kPatched, world.run(kKey, 2));
    world.expect_done({1, 2, 1, 3, 2});
  }
}

TEST_F(FailuresTest, NoMemoryForASetOfNoBytesGivesTheRightResult) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
  hostrt::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
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
  EXPECT_TRUE(world.cache.contains(kKey));
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
  World world(unshared());
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

// ---- Siblings -------------------------------------------------------------------------------------------------------

TEST_F(FailuresTest, RefusedUpdateLeavesTheSiblingAloneAndIsNotTriedAgain) {
  for (const int max_executables : {64, 1}) {
    hostrt::reset();
    Options options;
    options.max_executables = max_executables;
    World world(options);
    EXPECT_RUN(kInstantiated, world.run(kLarge, 1));
    hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
    EXPECT_RUN(kInstantiated, world.run(kSmall, 2));
    EXPECT_EQ(world.cache.stats().refused(UpdateRefusal::kNotSupported), 1u);
    EXPECT_EQ(world.cache.stats().updates, 0u);
    EXPECT_EQ(world.cache.stats().families, 2u);
    expect_usable(world, "");
    hostrt::reset_calls();
    EXPECT_TRUE(did(max_executables == 1 ? Outcome::kRestored : Outcome::kPatched, world.run(kLarge, 3)));
    EXPECT_TRUE(did(max_executables == 1 ? Outcome::kRestored : Outcome::kPatched, world.run(kSmall, 4)));
    EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 0u);
    EXPECT_EQ(world.calls, 2);
    world.expect_runs({{kLarge, 1}, {kSmall, 2}, {kLarge, 3}, {kSmall, 4}});
    expect_usable(world, "");
  }
}

// Left half patched by one failure, the executable is made whole by an update: as the sibling's graph, or as what it
// was, or not at all.
TEST_F(FailuresTest, SwitchByPatchesThatBreaksOffIsMadeWholeByAnUpdate) {
  for (const int refused : {0, 1, 2}) {  // Of the updates.
    for (int nth = 1; nth <= 2; ++nth) {
      SCOPED_TRACE(std::to_string(refused) + " updates are refused after patch " + std::to_string(nth));
      hostrt::reset();
      World world;
      EXPECT_RUN(kInstantiated, world.run(kFirst, 1));
      EXPECT_RUN(kUpdated, world.run(kSecond, 2));
      EXPECT_EQ(world.cache.stats().updates, 0u);
      hostrt::fail_call("cudaGraphExecKernelNodeSetParams", nth, cudaErrorUnknown);
      if (refused != 0) hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure, refused);
      const auto outcome = world.run(kFirst, 3);
      hostrt::clear_failures();
      EXPECT_TRUE(did(refused == 0   ? Outcome::kSwitched
                      : refused == 1 ? Outcome::kRestored
                                     : Outcome::kEager,
                      outcome));
      EXPECT_EQ(world.cache.stats().updates, refused == 2 ? 0u : 1u);  // To the sibling's graph, or back.
      EXPECT_TRUE(world.cache.contains(kKey));
      EXPECT_TRUE(world.cache.contains(kOther));
      EXPECT_EQ(world.cache.stats().live_executables, refused == 0 ? 1u : refused == 1 ? 2u : 0u);
      expect_usable(world, "");
      // With the value that it held before, so that nothing is patched that should have been made whole.
      EXPECT_TRUE(world.run(kSecond, 2).ok());
      EXPECT_TRUE(world.run(kFirst, 3).ok());
      EXPECT_TRUE(world.run(kSecond, 4).ok());
      EXPECT_TRUE(world.run(kFirst, 5).ok());
      EXPECT_EQ(world.calls, refused == 2 ? 4 : 2);  // Once more eagerly, and once for the back-off.
      world.expect_runs({{kFirst, 1}, {kSecond, 2}, {kFirst, 3}, {kSecond, 2}, {kFirst, 3}, {kSecond, 4}, {kFirst, 5}});
      expect_usable(world, "");
    }
  }
}

TEST_F(FailuresTest, RefusedValueAfterAnUpdateLeavesTheExecutableToItsKey) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(kSmall, 1));
  EXPECT_RUN(kUpdated, world.run(kLarge, 2));
  hostrt::fail_call("cudaGraphExecMemsetNodeSetParams", 1, cudaErrorInvalidValue);
  EXPECT_RUN(kEager, world.run(kSmall, 3));
  EXPECT_EQ(world.cache.stats().eager(EagerReason::kRefused), 1u);
  EXPECT_EQ(world.cache.stats().live_executables, 1u);
  EXPECT_EQ(world.cache.stats().live_templates, 2u);
  expect_usable(world, "");
  EXPECT_RUN(kPatched, world.run(kLarge, 4));
  EXPECT_RUN(kEager, world.run(kSmall, 5));
  EXPECT_RUN(kSwitched, world.run(kSmall, 6));
  EXPECT_EQ(world.calls, 4);
  world.expect_runs({{kSmall, 1}, {kLarge, 2}, {kSmall, 3}, {kLarge, 4}, {kSmall, 5}, {kSmall, 6}});
}

// What was read of a graph in part must not pass for the whole: an update ignores some differences without a word.
TEST_F(FailuresTest, GraphThatCouldNotBeReadIsNotUpdatedIntoAWrongOne) {
  const auto cluster_of = [](unsigned size, Cache& cache, cudaStream_t stream, int* out) {
    return cache.run(key("cluster", size), stream, [size, out](cudaStream_t on) {
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {size, 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(4);
      config.blockDim = dim3(1);
      config.stream = on;
      config.attrs = &attribute;
      config.numAttrs = size == 0 ? 0 : 1;
      int* target = out;
      void* arguments[] = {&target};
      return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(record_cluster), arguments);
    });
  };
  for (const char* function : {"cudaGraphKernelNodeGetAttribute", "cudaGraphKernelNodeGetParams",
                               "cudaFuncGetParamInfo", "cudaGraphNodeGetType", "cudaGraphNodeGetDependencies"}) {
    for (const cudaError_t error : {cudaErrorMemoryAllocation, cudaErrorUnknown}) {
      for (const int times : {1, -1}) {
        for (int nth = 1; nth <= 12; ++nth) {
          SCOPED_TRACE(std::string(function) + " " + std::to_string(nth) + (times == 1 ? "" : " and on"));
          hostrt::reset();
          Cache cache;
          Stream stream;
          DeviceBuffer<int> out(1);
          ASSERT_TRUE(cluster_of(0, cache, stream, out.get()).ok());
          EXPECT_EQ(out.first(), 1);
          hostrt::fail_call(function, nth, error, times);
          ASSERT_TRUE(cluster_of(2, cache, stream, out.get()).ok());
          hostrt::clear_failures();
          EXPECT_EQ(out.first(), 2);
          ASSERT_TRUE(cluster_of(0, cache, stream, out.get()).ok());
          EXPECT_EQ(out.first(), 1);
        }
      }
    }
  }
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

// A parameter that is asked for by cuFuncGetParamInfo and answered as one past the last looks like the last.
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

// A thread without a context patches by the runtime's calls, for which the cache's device is made current.
TEST_F(FailuresTest, HitThatCannotAskForTheDeviceLeavesNoErrorBehind) {
  hostrt::reset();
  Cache cache;
  Stream stream;
  DeviceBuffer<int> log(8), count(1);
  const auto run = [&](int value) {
    return cache.run(kKey, stream, params(value), [&](Recorder& rec, Slot<int> v) {
      rec.launch(append, {1, 1}, log.get(), count.get(), v);
    });
  };
  EXPECT_RUN(kInstantiated, run(1));
  std::thread([&] {
    hostrt::fail_call("cudaGetDevice", 1, cudaErrorInvalidValue);
    EXPECT_TRUE(run(2).ok());
    EXPECT_EQ(hostrt::failures_injected(), 1u);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }).join();
  EXPECT_EQ(count.first(), 2);
  EXPECT_EQ(log.read()[1], 2);
}

}  // namespace
}  // namespace graphcache::test
