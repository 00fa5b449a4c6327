// Every allocation of host memory by the library fails, once or from then on. The work is then done in another way, or
// the operation returns ResourceExhausted. Nothing is lost, and later operations work (laws 1 to 4). Allocations by
// hostrt do not fail.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "faults.h"
#include "graphcache/observe.h"
#include "graphcache/status.h"
#include "size.h"

namespace {

// Which of this thread's allocations fail.
struct Allocations {
  bool armed = false;
  int to_pass = 0;
  int to_fail = 0;
  int failed = 0;
  bool in_calls = false;  // Whether those inside calls of hostrt fail as well.
};
thread_local constinit Allocations allocations;

bool fails() {
  if (!allocations.armed || (!allocations.in_calls && graphcache::hostrt::in_call())) return false;
  if (allocations.to_pass > 0) {
    --allocations.to_pass;
    return false;
  }
  if (allocations.to_fail == 0) return false;
  if (allocations.to_fail > 0) --allocations.to_fail;
  ++allocations.failed;
  return true;
}

void* allocate(std::size_t size, std::size_t alignment = 0) {
  if (fails()) return nullptr;
  if (size == 0) size = 1;
  if (alignment == 0) return std::malloc(size);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment = 0) {
  void* const memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

[[gnu::noinline]] void give_back(void* memory) { std::free(memory); }  // if inlined alone, it looks like a mismatch

}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size); }
void* operator new[](std::size_t size) { return allocate_or_throw(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new(std::size_t size, std::align_val_t to) {
  return allocate_or_throw(size, static_cast<std::size_t>(to));
}
void* operator new[](std::size_t size, std::align_val_t to) {
  return allocate_or_throw(size, static_cast<std::size_t>(to));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

namespace graphcache::test {
namespace {

// Makes the n-th allocation after arm() fail, or all from there on.
class FailedAllocation : public Fault {
 public:
  FailedAllocation(int nth, int times) : nth_(nth), times_(times) {}
  ~FailedAllocation() override { allocations = {}; }
  void arm() override { allocations = {true, nth_ - 1, times_, 0}; }
  bool disarm() override {
    allocations.armed = false;
    hostrt::clear_failures();
    return allocations.failed != 0;
  }
  testing::AssertionResult reports(const absl::Status& status, const Scenario& scenario) const override {
    const std::string label(scenario.mine.key.label());
    const bool names_key = mentions(status, label) || mentions(status, "other");
    const bool has_message =
        times_ != 1 || (names_key && mentions(status, "memory"));  // if all fail, there may be no memory for the key
    if (absl::IsResourceExhausted(status) && cuda_error(status) == cudaSuccess && has_message) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << "status is " << status.ToString() << ", wanted one that memory is out";
  }

 private:
  const int nth_;
  const int times_;
};

// A process's first run makes what is made once, so there is one process for each of its allocations. This test is the
// first one, because the others make those things as well.
TEST(FirstAllocationsTest, AnyOfAProcesssFirstRunMayFail) {
  constexpr int kNoneFailed = 2, kBroken = 3;
  for (const auto& [times, executables] : {std::pair(1, 8), {-1, 8}, {1, 0}, {-1, 0}}) {
    int status = 0;
    for (int nth = 0; !WIFEXITED(status) || WEXITSTATUS(status) != kNoneFailed; ++nth) {
      ASSERT_LT(nth, 1000);
      const pid_t child = fork();
      if (child == 0) {
        Cache cache({.max_executables = executables});
        const Stream stream;
        const Key the_key = key("k");
        const std::function<void(cudaStream_t)> fn = [](cudaStream_t) {};
        allocations = {true, nth, times, 0};
        const bool ok = cache.run(the_key, stream, fn).ok();
        allocations.armed = false;
        if (allocations.failed != 0) _exit(ok ? 0 : 1);
        _exit(ok ? kNoneFailed : kBroken);
      }
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status)) << "allocation " << nth << ", signal " << WTERMSIG(status);
      ASSERT_NE(WEXITSTATUS(status), kBroken) << "allocation " << nth << ": no run works, though none failed";
    }
  }
}

class AllocationsTest : public FaultsTest {
 protected:
  // run() on a fresh runtime for each n, while its n-th allocation fails, until it has no n-th one: run(fail), where
  // fail(operation) lets one of the operation fail. The run is done or reports that memory is out.
  template <class Run>
  static void fail_each(const Run& run) {
    int nth = 0;
    bool struck = true;
    while (struck) {
      SCOPED_TRACE("allocation " + std::to_string(++nth));
      hostrt::reset();
      run([&](const auto& operation) {
        FailedAllocation fault(nth, 1);
        fault.arm();
        const absl::StatusOr<Outcome> done = operation();
        struck = fault.disarm();
        EXPECT_TRUE(done.ok() || (struck && absl::IsResourceExhausted(done.status()))) << done.status();
        return done.ok();
      });
    }
  }
};

TEST_F(AllocationsTest, EveryAllocationMayFailOnceOrForEver) {
  std::set<std::string> allocating;
  for (const auto& scenario : scenarios()) {
    for (const int times : {1, 2, -1}) {
      bool struck = true;
      const int step = times == 1 ? 1 : by_size(3, 1, 1);
      for (int nth = 1; struck; nth += step) {
        SCOPED_TRACE(std::string(scenario->name) + ": allocation " + std::to_string(nth) +
                     (times == 1   ? ""
                      : times == 2 ? " and the next"
                                   : " and on") +
                     " fails");
        FailedAllocation fault(nth, times);
        struck = fail_and_recover(*scenario, fault);
        if (struck) allocating.insert(scenario->name);
      }
    }
  }
  EXPECT_EQ(allocating.count("cold"), 1u);
  EXPECT_EQ(allocating.count("hit with many arguments"), 1u);
  EXPECT_EQ(allocating.count("hit with new values"), 0u);
}

struct CountCalls {
  int* calls;
  void operator()(cudaStream_t) const { ++*calls; }
};

// A call fails as well, sometimes while the first failure is being handled.
TEST_F(AllocationsTest, AnAllocationMayFailBesideACall) {
  const int one_of = pairs_to_one();
  int pair = 0;
  for (const auto& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(*scenario)) {
      // If there is no memory to keep what waits, it is destroyed at once, which a capture forbids without the relaxed
      // mode.
      if (function == "cudaThreadExchangeStreamCaptureMode") continue;
      for (int call = 1; call <= static_cast<int>(count); ++call) {
        bool struck = true;
        for (int nth = 1 + ++pair % one_of; struck; nth += one_of) {
          SCOPED_TRACE(std::string(scenario->name) + ": call " + std::to_string(call) + " of " + function +
                       " and allocation " + std::to_string(nth) + " fail");
          FailedCall failed_call(function, call, cudaErrorUnknown, 1, /*reported_in_part=*/true);
          FailedAllocation failed_allocation(nth, 1);
          TwoFaults both(failed_call, failed_allocation);
          fail_and_recover(*scenario, both);
          struck = both.second_struck();
        }
      }
    }
  }
}

// The graph still belongs to the caller, or it belongs to the cache. The owner is kept only with the graph.
TEST_F(AllocationsTest, AGraphOfTheProgramsOwnIsTakenOrLeftWhenMemoryRunsOut) {
  for (const bool gives_away : {false, true}) {
    fail_each([&](const auto& fail) {
      World world;
      auto owner = std::make_shared<int>(1);
      cudaGraph_t graph = nullptr;
      int graphs = 0;
      const auto fn = [&]() -> Graph {
        ++graphs;
        allocations.armed = false;  // what fn does on its own account
        CUDA_OK(cudaStreamBeginCapture(world.stream, cudaStreamCaptureModeThreadLocal));
        CUDA_OK(launch(append_in_each, 1, 1, world.stream, world.log.get(), world.count.get(), -5));
        CUDA_OK(cudaStreamEndCapture(world.stream, &graph));
        allocations.armed = true;
        return Graph{.graph = graph, .owner = owner, .give_away = gives_away};
      };
      const bool is_done = fail([&] { return world.cache->run(kKey, world.stream, fn); });
      EXPECT_EQ(world.count.first(), is_done ? 1 : 0);
      if (graphs != 0 && !gives_away) {
        CUDA_OK(cudaGraphDestroy(graph));
      }
      EXPECT_TRUE(world.run(kOther, 3).ok());
      world.cache->clear();
      EXPECT_EQ(hostrt::ledger().graphs, 0u);
      EXPECT_EQ(hostrt::ledger().executables, 0u);
      EXPECT_EQ(owner.use_count(), 1);
      EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    });
  }
}

// What a run keeps is released, whether or not its capture is kept.
TEST_F(AllocationsTest, KeptObjectsAreReleasedWhenMemoryRunsOut) {
  for (const int executables : {0, 8}) {
    fail_each([&](const auto& fail) {
      World world(Options{.max_executables = executables});
      const auto owner = std::make_shared<int>(1);
      const auto run = [&] {
        return world.cache->run(kKey, world.stream, [&](Recorder& rec) {
          for (int i = 0; i < 3; ++i) rec.keep(owner);
          rec.launch(append_in_each, {1, 1}, world.log.get(), world.count.get(), -5);
        });
      };
      const bool is_done = fail(run);
      EXPECT_EQ(world.count.first(), is_done ? 1 : 0);
      // A template may be left without an executable.
      EXPECT_EQ(owner.use_count(), world.cache->contains(kKey) ? 4 : 1);
      EXPECT_TRUE(run().ok());
      world.cache->clear();
      EXPECT_EQ(owner.use_count(), 1);
    });
  }
}

// A watcher's finding may get lost, and neither the run nor any other thread waits for it.
TEST_F(AllocationsTest, AWatchedCallThatBreaksTheCaptureMayFindNoMemory) {
  for (const int times : {1, -1}) {
    bool struck = true;
    for (int nth = 0; struck; ++nth) {
      SCOPED_TRACE("allocation " + std::to_string(nth));
      hostrt::reset();
      World world(Options{.diagnose = true});
      const auto run = [&](bool breaks) {
        struck = false;
        return world.cache->run(kKey, world.stream, [&](Recorder& rec) {
          rec.launch(append_in_each, {1, 1}, world.log.get(), world.count.get(), -5);
          if (!breaks) return;
          cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
          if (cudaStreamIsCapturing(rec.stream(), &capturing) != cudaSuccess ||
              capturing == cudaStreamCaptureStatusNone)
            return;
          allocations = {true, nth, times, 0, true};
          void* memory = nullptr;
          EXPECT_NE(cudaMalloc(&memory, 8), cudaSuccess);
          allocations.armed = false;
          struck = allocations.failed != 0;
          (void)cudaGetLastError();
        });
      };
      EXPECT_RUN(kEager, run(true));
      const bool was_struck = struck;
      EXPECT_EQ(world.count.first(), 1);
      EXPECT_TRUE(run(false).ok());
      EXPECT_EQ(world.count.first(), 2);
      struck = was_struck;
    }
  }
}

// The texts of findings need memory.
TEST_F(AllocationsTest, AFindingOfVerifyModeMayFindNoMemory) {
  fail_each([&](const auto& fail) {
    World world(Options{.verify_every = 1});
    int value = -5;
    const auto run = [&] {
      return world.cache->run(kKey, world.stream, [&](Recorder& rec) {
        rec.launch(append_in_each, {1, 1}, world.log.get(), world.count.get(), value);
      });
    };
    EXPECT_RUN(kInstantiated, run());
    value = 1 << 20;
    const bool is_done = fail(run);
    EXPECT_EQ(world.count.first(), is_done ? 2 : 1);
    EXPECT_TRUE(run().ok());
  });
}

// Texts are made completely, or std::bad_alloc is thrown.
TEST_F(AllocationsTest, TextsThatFindNoMemoryThrow) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
  EXPECT_RUN(kReplayed, world.run(kKey, 1));
  const Stats stats = world.cache->stats();
  const EntryInfo entry = world.cache->entries().at(0);
  const Counted counted{std::string(100, 'x'), 2};
  const std::function<std::string()> texts[] = {[&] { return to_string(stats); }, [&] { return to_string(entry); },
                                                [&] { return to_string(counted); }, [&] { return kKey.to_string(); }};
  for (const auto& text : texts) {
    const std::string whole = text();
    bool struck = true;
    for (int nth = 1; struck; ++nth) {
      FailedAllocation fault(nth, 1);
      fault.arm();
      std::string made;
      bool threw = false;
      try {
        made = text();
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      struck = fault.disarm();
      EXPECT_EQ(threw, struck);
      EXPECT_TRUE(threw || made == whole) << made;
    }
  }
}

// A table that cannot grow for a new key must not lose its present keys.
TEST_F(AllocationsTest, TableOfKeysThatCannotGrowStaysWhole) {
  Options options = unshared();
  options.capture_after = 1000;
  std::vector<Key> keys;
  for (int i = 0; i < 100; ++i) keys.push_back(key("my label", i));
  for (int nth = 1; nth <= 10000; ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    hostrt::reset();
    World world(options);
    int calls = 0;
    int failed = 0;
    FailedAllocation fault(nth, 1);
    fault.arm();
    for (const Key& each : keys) failed += world.cache->run(each, world.stream, CountCalls{&calls}).ok() ? 0 : 1;
    const bool struck = fault.disarm();
    EXPECT_LE(failed, struck ? 1 : 0);
    EXPECT_EQ(calls, 100 - failed);
    for (const Key& each : keys) EXPECT_TRUE(world.cache->run(each, world.stream, CountCalls{&calls}).ok());
    EXPECT_EQ(world.cache->entries().size(), keys.size());
    if (!struck) return;
  }
}

// A constructor can report this only by an exception.
TEST_F(AllocationsTest, ConstructorThatRunsOutOfMemoryThrowsAndLeavesNothing) {
  int nth = 0;
  for (bool threw = true; threw;) {
    threw = false;
    FailedAllocation fault(++nth, 1);
    fault.arm();
    try {
      const Cache cache;
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    fault.disarm();
    EXPECT_EQ(hostrt::ledger(), hostrt::Ledger());
  }
  EXPECT_GT(nth, 1);
}

TEST_F(AllocationsTest, ReportsWithoutMemoryAreEmptyAndStatsNeedNone) {
  World world;
  EXPECT_RUN(kInstantiated, world.run(kKey, 1));
  FailedAllocation fault(1, -1);
  fault.arm();
  const std::vector<EntryInfo> entries = world.cache->entries();
  const Stats stats = world.cache->stats();
  fault.disarm();
  EXPECT_TRUE(entries.empty());
  EXPECT_EQ(stats.runs(), 1u);
  EXPECT_EQ(world.cache->entries().size(), 1u);
}

// Any allocation fails, and after it either all others or none.
TEST_F(AllocationsTest, ReportsOfACacheThrowNothingAndHarmNothing) {
  Options options = renting(2);
  const auto ring = std::make_shared<EventRing>(100);
  options.listeners = {ring, std::make_shared<History>()};
  World world(options);
  // Its text is allocated.
  const auto key_of = [](int i) { return key("a key with a long label", i); };
  for (int i = 0; i < 40; ++i) {
    const auto fn = [&](cudaStream_t on) { return launch(do_nothing, dim3(static_cast<unsigned>(i + 1)), 1, on); };
    EXPECT_TRUE(world.cache->run(key_of(i), world.stream, fn).ok());
  }
  const auto run_twice = [&] {
    return world.cache->run(key("twice"), world.stream, [&](cudaStream_t on) { return launch(do_nothing, 1, 1, on); });
  };
  EXPECT_TRUE(run_twice().ok());
  EXPECT_RUN(kReplayed, run_twice());
  const Cache& cache = *world.cache;
  const std::function<bool()> looks[] = {
      [&] { return !cache.entries().empty(); },
      [&] { return !labels(cache).empty(); },
      [&] { return !explain(cache, key_of(0)).empty(); },
      [&] { return !advise(cache).empty(); },
      [&] { return !manifest(cache).empty(); },
      [&] {
        const absl::StatusOr<GraphInfo> graph = cache.graph(key_of(39));
        EXPECT_TRUE(graph.ok() || absl::IsResourceExhausted(graph.status())) << graph.status().ToString();
        return graph.ok();
      },
      [&] {
        const absl::Status absent = cache.graph(key("absent")).status();
        EXPECT_TRUE(absl::IsNotFound(absent) || absl::IsResourceExhausted(absent)) << absent.ToString();
        return absl::IsNotFound(absent);
      }};
  for (const auto& look : looks) {
    for (const int times : {1, -1}) {
      bool struck = true;
      for (int nth = 1; struck; ++nth) {
        FailedAllocation fault(nth, times);
        fault.arm();
        bool found = false;
        EXPECT_NO_THROW(found = look());
        struck = fault.disarm();
        EXPECT_TRUE(found || struck);
      }
    }
  }
  EXPECT_RUN(kReplayed, run_twice());
  expect_usable(world);
}

}  // namespace
}  // namespace graphcache::test
