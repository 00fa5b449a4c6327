#include "faults.h"

#include <algorithm>
#include <iterator>

#include "faults_scenarios.h"
#include "graphcache/status.h"
#include "size.h"

namespace graphcache::test {
namespace {

void hold(World& world) { world.hold(); }

void add_runs(ScenarioList& list) {
  Options one;  // for all siblings
  one.max_executables = 1;
  Options none;
  none.max_executables = 0;
  ForcedOptions forgets = unshared(1);
  forgets.max_templates = 0;
  Options later;
  later.capture_after = 1;
  Options sharing;
  force(&sharing, Sharing::kUpdatesAcross);
  const ForcedOptions always = sharing;
  const Work plain{kKey}, plain_other{kOther};
  Work many = plain, long_key = plain;
  many.many = true;
  long_key.key = key("my label", std::string(60, 'x'));
  const std::vector<Prepared> shared{kTheOther, kMine, kTheOther};

  list.add("cold", {}, plain, plain_other, {}, Outcome::kInstantiated).may_destroy = false;
  list.add("cold with a long key", {}, long_key, plain_other, {}, Outcome::kInstantiated).may_destroy = false;
  list.add("cold with many arguments", {}, many, plain_other, {}, Outcome::kInstantiated).may_destroy = false;
  list.add("cold with nothing to copy", {}, plain, plain_other, {}, Outcome::kEager).value = 0;
  list.add("second graph of a kind", unshared(), plain, plain_other, {kTheOther}, Outcome::kInstantiated);
  Scenario& hit = list.add("hit", {}, plain, plain_other, {kMine}, Outcome::kReplayed);
  hit.value = 3;
  hit.may_destroy = false;
  Scenario& moved = list.add("hit on another stream", {}, plain, plain_other, {kMine}, Outcome::kReplayed);
  moved.value = 3;
  moved.before = [](World& world) { world.second = true; };
  list.add("hit with new values", {}, plain, plain_other, {kMine, kMine}, Outcome::kPatched).may_destroy = false;
  list.add("hit with many arguments", {}, many, plain_other, {kMine}, Outcome::kPatched).may_destroy = false;
  Scenario& nothing = list.add("hit with nothing to copy", {}, plain, plain_other, {kMine}, Outcome::kPatched);
  nothing.value = 0;
  nothing.may_destroy = false;
  list.add("stream of the thread", {}, plain, plain_other, {}, Outcome::kInstantiated).before = [](World& world) {
    world.per_thread = true;
  };
  list.add("second device", renting(), plain, plain_other, {kTheOther}, Outcome::kUpdated).devices = 2;
  list.add("disabled", none, plain, plain_other, {}, Outcome::kEager).may_destroy = false;
  list.add("captured later", later, plain, plain_other, {}, Outcome::kEager).may_destroy = false;
  list.add("eviction", unshared(1), plain, plain_other, {kTheOther}, Outcome::kInstantiated);
  list.add("eviction that forgets", forgets, plain, plain_other, {kTheOther}, Outcome::kInstantiated);
  list.add("restore", unshared(1), plain, plain_other, {kMine, kTheOther}, Outcome::kRestored);
  list.add("out of memory", unshared(), plain, plain_other, {kTheOther}, Outcome::kInstantiated).before = [](World&) {
    hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
  };
  list.add("miss by update", one, kSmall, kLarge, {kTheOther}, Outcome::kUpdated).may_destroy = false;
  list.add("switch by update", one, kSmall, kLarge, {kMine, kTheOther}, Outcome::kSwitched).may_destroy = false;
  list.add("switch back by update", one, kFirst, kSecond, {kTheOther, kMine, kTheOther}, Outcome::kSwitched)
      .may_destroy = false;
  Work many_first = kFirst, many_second = kSecond;
  many_first.many = many_second.many = true;
  list.add("update of many arguments", one, many_first, many_second, {kMine, kTheOther}, Outcome::kSwitched)
      .may_destroy = false;
  list.add("switch to keep", one, kSmall, kLarge, shared, Outcome::kSwitched).may_destroy = false;
  list.add("switch of those that always share", always, kSmall, kLarge, shared, Outcome::kSwitched).may_destroy = false;
  list.add("refused update", renting(), kSmall, kLarge, {kTheOther}, Outcome::kInstantiated).before = [](World&) {
    hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  };
}

void add_runs_of_fn(ScenarioList& list) {
  const Work plain{kKey}, plain_other{kOther};
  Work nested = plain, nested_with_values = plain;
  nested.inner = Work::Inner::kPlain;
  nested_with_values.inner = Work::Inner::kWithValues;

  list.add("nested", {}, nested, plain_other, {kTheOther}, Outcome::kInstantiated);
  list.add("nested with values", {}, nested_with_values, plain_other, {kTheOther}, Outcome::kEager);
  Scenario& fails = list.add("fn fails", {}, plain, plain_other, {kTheOther}, {});
  fails.before = [](World& world) { world.fn_status = absl::DataLossError("mine"); };
  fails.after = [](World& world) { world.fn_status = absl::OkStatus(); };
  const auto resume = [](World& world) { world.in_fn = nullptr; };
  Scenario& throws = list.add("fn throws", {}, plain, plain_other, {kTheOther}, {});
  throws.before = [](World& world) { world.in_fn = [] { throw ThrownByFn(); }; };
  throws.after = resume;
  Scenario& has_none = list.add("fn runs out of memory", {}, plain, plain_other, {kTheOther}, {});
  has_none.before = [](World& world) { world.in_fn = [] { throw OutOfMemoryInFn(); }; };
  has_none.after = resume;
  Scenario& breaks = list.add("fn breaks its capture", {}, plain, plain_other, {kTheOther}, Outcome::kEager);
  breaks.before = [](World& world) { world.in_fn = [] { cudaDeviceSynchronize(); }; };
  breaks.after = resume;
  breaks.of_fn = "cudaDeviceSynchronize";
  Scenario& erases = list.add("fn erases", {}, plain, plain_other, {kMine, kTheOther}, Outcome::kInstantiated);
  erases.options = unshared();
  erases.before = [](World& world) {
    world.cache->erase(kKey);
    world.in_fn = [&world] { world.cache->erase(kOther); };
  };
  erases.after = resume;
  erases.forgets_other = true;

  Scenario& captured = list.add("inside the caller's capture", {}, plain, plain_other, {kTheOther}, {});
  captured.before = [](World& world) {
    CUDA_OK(cudaStreamBeginCapture(world.stream, cudaStreamCaptureModeThreadLocal));
  };
  captured.after = [](World& world) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(world.stream, &graph)) << "the caller's capture was broken";
    CUDA_OK(cudaGraphDestroy(graph));
  };
}

void add_other_operations(ScenarioList& list) {
  const Work plain{kKey}, plain_other{kOther};
  const auto warm = [](World& world, const Scenario& the) { world.warm(the.mine, the.value); };
  list.add("warm", {}, plain, plain_other, {kTheOther}, {}).operate = warm;
  list.add("warm a template", unshared(1), plain, plain_other, {kMine, kTheOther}, {}).operate = warm;
  list.add("warm and run", unshared(), plain, plain_other, {}, Outcome::kReplayed).operate = [](World& world,
                                                                                                const Scenario& the) {
    world.warm(the.mine, the.value);
    world.attempt(the.mine, the.value);
  };
  list.add("pinned beside", unshared(1), plain, plain_other, {kTheOther}, Outcome::kEager).operate =
      [](World& world, const Scenario& the) {
        world.cache->pin(the.other.key);
        world.attempt(the.mine, the.value);
        world.cache->unpin(the.other.key);
      };
  Scenario& erase = list.add("erase", {}, kSmall, kLarge, {kTheOther, kMine}, {});
  erase.operate = [](World& world, const Scenario& the) {
    EXPECT_TRUE(world.cache->erase(the.mine.key));
    EXPECT_FALSE(world.cache->contains(the.mine.key));
  };
  Scenario& clear = list.add("clear", {}, kSmall, kLarge, {kTheOther, kMine}, {});
  clear.operate = [](World& world, const Scenario& the) {
    world.cache->clear();
    EXPECT_FALSE(world.cache->contains(the.mine.key));
  };
  clear.forgets_other = true;
  for (const bool in_flight : {false, true}) {
    Scenario& destroy =
        list.add(in_flight ? "destruction in flight" : "destruction", {}, kFirst, kSecond, {kTheOther, kMine}, {});
    destroy.options.max_executables = 1;
    if (in_flight) destroy.before = hold;
    destroy.operate = [in_flight](World& world, const Scenario& the) {
      if (in_flight) world.attempt(the.mine, the.value);
      world.cache.reset();
    };
    destroy.after = make_another_cache;
    destroy.ends = true;
    destroy.forgets_other = true;
  }
  list.add("reports", {}, kSmall, kLarge, {kTheOther, kMine}, {}).operate = [](World& world, const Scenario& the) {
    EXPECT_EQ(world.cache->stats().runs(), 2u);
    EXPECT_LE(world.cache->entries().size(), 2u);
    EXPECT_TRUE(world.cache->status().ok());
    EXPECT_TRUE(world.cache->contains(the.mine.key));
  };
  // Executables evicted with a launch in flight wait, and later runs check them.
  Scenario& evictions = list.add("evictions in flight", unshared(1), plain, plain_other, {}, Outcome::kRestored);
  evictions.before = [](World& world) {
    hold(world);
    static const Work in_flight{kOther};
    world.attempt(in_flight, 2);
  };
  evictions.operate = [](World& world, const Scenario& the) {
    world.attempt(the.mine, 1);
    world.attempt(the.other, 3);
    world.attempt(the.mine, the.value);
  };
  Scenario& erase_in_flight = list.add("erase in flight", renting(), kFirst, kSecond, {kMine}, Outcome::kRestored);
  erase_in_flight.before = hold;
  erase_in_flight.operate = [](World& world, const Scenario& the) {
    world.attempt(the.other, 2);
    world.cache->erase(the.other.key);
    EXPECT_FALSE(world.cache->contains(the.other.key));
    world.attempt(the.mine, the.value);
  };
}

// Checks that what is alive agrees with the statistics. With sharing or device updates, an executable's base may be the
// template of no entry (exec/executable.h).
void expect_ledger(World& world) {
  Cache& cache = *world.cache;
  cache.erase(key("nobody"));  // destroys what waits for destruction
  const hostrt::Ledger ledger = hostrt::ledger();
  const Stats stats = cache.stats();
  EXPECT_EQ(ledger.executables, stats.live_executables);
  EXPECT_GE(ledger.graphs, stats.live_templates);
  const bool own_bases = stats.families != 0 || world.patches_by_device;
  EXPECT_LE(ledger.graphs, stats.live_templates + (own_bases ? stats.live_executables : 0));
}

bool reads_last_error(const std::string& function) {
  return function == "cudaGetLastError" || function == "cudaPeekAtLastError";
}

}  // namespace

std::string name_of_getter(const std::string& function) {
  return CUDART_VERSION >= 13020 && function == "cudaGraphHostNodeGetParams" ? "cudaGraphNodeGetParams" : function;
}

std::vector<std::unique_ptr<Scenario>> scenarios() {
  ScenarioList list;
  add_runs(list);
  add_runs_of_fn(list);
  add_other_operations(list);
  add_tables(list);
  add_conditionals(list);
  return std::move(list.all);
}

std::unique_ptr<World> Scenario::make_world() const {
  hostrt::set_device_count(devices);
  CUDA_OK(cudaSetDevice(devices - 1));
  auto world = std::make_unique<World>(options);
  world->other.emplace();
  CUDA_OK(cudaSetDevice(0));
  for (const World::Run& run : runs_before()) EXPECT_TRUE(world->run(run.work, run.value).ok());
  world->expect_runs(runs_before());
  world->forget();
  world->calls = 0;
  if (before) before(*world);
  return world;
}

std::map<std::string, std::uint64_t> calls_of(const Scenario& scenario) {
  SCOPED_TRACE(scenario.name);
  hostrt::reset();
  const std::unique_ptr<World> world = scenario.make_world();
  hostrt::reset_calls();
  scenario.operate_on(*world);
  std::map<std::string, std::uint64_t> calls = hostrt::call_counts();
  hostrt::clear_failures();
  if (scenario.after) scenario.after(*world);
  if (scenario.outcome) {
    EXPECT_FALSE(world->attempts.empty());
    EXPECT_TRUE(world->attempts.back().outcome == scenario.outcome)
        << world->attempts.back().status << " "
        << (world->attempts.back().outcome ? to_string(*world->attempts.back().outcome) : "none");
  }
  if (!scenario.may_destroy) {
    EXPECT_EQ(calls.count("cudaGraphExecDestroy"), 0u);
    EXPECT_EQ(calls.count("cudaGraphDestroy"), 0u);
  }
  const std::string name = scenario.name;
  if (name.find(" by ") != std::string::npos) {
    EXPECT_EQ(calls.count("cudaGraphExecUpdate"), name.find(" by update") != std::string::npos ? 1u : 0u);
  }
  world->expect_attempts();
  for (auto at = calls.begin(); at != calls.end();) at = reads_last_error(at->first) ? calls.erase(at) : std::next(at);
  return calls;
}

void FailedCall::arm() {
  before_ = hostrt::calls(function_.c_str());
  hostrt::fail_call(function_.c_str(), nth_, error_, times_);
}

bool FailedCall::disarm() {
  hostrt::clear_failures();
  return hostrt::calls(function_.c_str()) - before_ >= static_cast<std::uint64_t>(nth_);
}

testing::AssertionResult FailedCall::reports(const absl::Status& status, const Scenario& scenario) const {
  // Functions of the driver count under the names of the runtime's. Kernels are launched by both.
  constexpr const char* kOfDriver[] = {"cudaCtxGetId", "cudaLibraryLoadData", "cudaLibraryGetKernel"};
  const bool by_driver = std::ranges::find(kOfDriver, function_) != std::end(kOfDriver) ||
                         (function_ == "cudaLaunchKernel" && mentions(status, "cuLaunchKernel"));
  const std::string name = by_driver ? "cu" + function_.substr(std::string("cuda").size()) : function_;
  if (reported_in_part_ && cuda_error(status) == error_ && (mentions(status, name) || mentions(status, "fn"))) {
    return testing::AssertionSuccess();
  }
  return typed(status, name == scenario.of_fn ? "fn" : name_of_getter(name), error_);
}

int pairs_to_one() { return by_size(151, 11, 1); }

testing::AssertionResult typed(const absl::Status& status, const std::string& function, cudaError_t error) {
  const bool names_key = mentions(status, "\"my label\"") || mentions(status, "\"other\"");
  if (cuda_error(status) == error && names_key && mentions(status, cudaGetErrorName(error)) &&
      mentions(status, function)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "status is " << status.ToString() << ", wanted " << cudaGetErrorName(error)
                                     << " of " << function;
}

void expect_usable(World& world, const Fault* fault) {
  const auto is_of = [&](const char* name) { return fault != nullptr && fault->is_of(name); };
  EXPECT_FALSE(is_capturing(world.on()));
  CUDA_OK(cudaPeekAtLastError());
  if (!is_of("cudaThreadExchangeStreamCaptureMode")) {
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
  }
  if (!is_of("cudaSetDevice")) {
    int device = -1;
    CUDA_OK(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
  }
  EXPECT_EQ(hostrt::ledger().captures, 0u);
  if (!is_of("cudaEventDestroy")) {
    // An executable with an updater node has an event until its first launch.
    const std::size_t events = hostrt::ledger().events;
    EXPECT_TRUE(events == 0 || events <= world.cache->stats().live_executables) << events << " events";
  }
  if (fault == nullptr || !fault->leaks()) expect_ledger(world);
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
}

bool fail_and_recover(const Scenario& scenario, Fault& fault) {
  hostrt::reset();
  bool struck = false;
  const bool leaks = fault.leaks();
  {
    const std::unique_ptr<World> made = scenario.make_world();
    World& world = *made;
    fault.arm();
    scenario.operate_on(world);
    struck = fault.disarm();
    if (scenario.after) scenario.after(world);

    for (const World::Attempt& each : world.attempts) {
      const bool own = each.status.code() == absl::StatusCode::kDataLoss ||
                       each.status.code() == absl::StatusCode::kAborted ||
                       cuda_error(each.status) == cudaErrorStreamCaptureUnsupported;
      if (!each.status.ok() && !(own && !scenario.outcome)) {
        EXPECT_TRUE(fault.reports(each.status, scenario));
      }
    }
    if (!struck && scenario.outcome) {
      EXPECT_TRUE(world.attempts.back().outcome == scenario.outcome);
    }
    world.expect_attempts();
    // Something evicted in flight may wait for the next run.
    world.cache->erase(key("nothing"));
    expect_usable(world, &fault);
    const bool keeps_templates = scenario.options.max_templates != 0;
    if (scenario.has_other() && keeps_templates && !scenario.forgets_other) {
      EXPECT_TRUE(world.cache->contains(scenario.other.key)) << "the other key did nothing wrong";
    }

    world.forget();
    std::vector<World::Run> runs;
    for (const Work* work : {&scenario.mine, &scenario.other, &scenario.mine, &scenario.mine, &scenario.other,
                             &scenario.mine, &scenario.mine, &scenario.other, &scenario.mine, &scenario.mine}) {
      // First with the value of the failed run, then with the one before it: these show a half-patched executable.
      const int n = static_cast<int>(runs.size());
      runs.push_back({*work, n == 0 ? scenario.value : n == 2 ? 3 : 1 + n % 3});
      const auto later = world.run(*work, runs.back().value);
      EXPECT_TRUE(later.ok()) << later.status();
    }
    world.expect_runs(runs);
    if (world.cache->options().max_executables != 0 && scenario.mine.inner != Work::Inner::kWithValues) {
      EXPECT_TRUE(world.cache->contains(scenario.mine.key))
          << "a single failure must not keep a key from being captured for long";
    }
    expect_usable(world, &fault);

    world.cache->clear();
    const Stats stats = world.cache->stats();
    EXPECT_EQ(stats.live_executables, 0u);
    EXPECT_EQ(stats.live_templates, 0u);
    EXPECT_EQ(stats.families, 0u);
    EXPECT_EQ(stats.estimated_device_bytes, 0u);
    if (!leaks) expect_ledger(world);
  }
  if (!leaks) {
    EXPECT_EQ(hostrt::ledger(), hostrt::Ledger());
  }
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
  return struck;
}

}  // namespace graphcache::test
