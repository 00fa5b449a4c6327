// What the cache asks of the runtime, call by call, and what it leaves behind: on hostrt, which counts both.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "graph.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

// Not inlined: GCC would see a pointer from new passed to free.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace graphcache::test {
namespace {

constexpr int kSize = 64;
constexpr dim3 kGrid(1), kBlock(64);

// For what is not about siblings: keys of one topology have an executable each.
Options unshared(int max_executables = Options().max_executables) {
  Options options;
  options.max_executables = max_executables;
  options.sharing = Sharing::kNever;
  return options;
}

using Counts = std::map<std::string, std::uint64_t>;

// The runtime calls that `work` makes.
template <class F>
Counts calls_of(F&& work) {
  hostrt::reset_calls();
  work();
  return hostrt::call_counts();
}

class AccountingTest : public testing::Test {
 protected:
  AccountingTest() {
    hostrt::reset();
    stream = std::make_unique<Stream>();
    data = std::make_unique<DeviceBuffer<float>>(kSize);
    empty = hostrt::ledger();
  }
  ~AccountingTest() override {
    EXPECT_FALSE(is_capturing(*stream));
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
    CUDA_OK(cudaPeekAtLastError());
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
  }

  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& which) { return run_add(cache, which, *stream); }
  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& which, cudaStream_t on) {
    return cache.run(which, on, [&](cudaStream_t s) {
      if (in_fn) in_fn();
      return launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
    });
  }
  // Three kernel, two copy and two set nodes whose values are slots, one value each, between constant ones.
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const std::vector<int>& v) { return run_mixed(cache, v, *stream); }
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const std::vector<int>& v, cudaStream_t on) {
    return run_mixed(cache, key("mixed"), v, on);
  }
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const Key& which, const std::vector<int>& v) {
    return run_mixed(cache, which, v, *stream);
  }
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const Key& which, const std::vector<int>& v, cudaStream_t on) {
    float* const p = data->get();
    using I = Slot<int>;
    return cache.run(which, on, params(v[0], v[1], v[2], v[3], v[4], v[5], v[6]),
                     [p](Recorder& rec, I a, I b, I c, I d, I e, I f, I g) {
                       rec.launch(fill, {kGrid, kBlock}, p, kSize, 0);
                       rec.launch(add, {kGrid, kBlock}, p, kSize, a);
                       rec.memset(p, b, 4);
                       rec.memcpy(p + 8, p, c);
                       rec.launch(add, {kGrid, kBlock}, p, d, 1);
                       rec.memset(p + 16, 1, e);
                       rec.memcpy(p + 32, p, f);
                       rec.launch(add, {kGrid, g}, p, kSize, 1);
                       rec.memset(p + 48, 0, 4);
                     });
  }
  static constexpr int kMixedSlotNodes = 7;
  static constexpr std::size_t kMixedNodes = 9;

  void expect_no_graphs() {
    const hostrt::Ledger now = hostrt::ledger();
    EXPECT_EQ(now.graphs, 0u);
    EXPECT_EQ(now.executables, 0u);
    EXPECT_EQ(now.captures, 0u);
    EXPECT_EQ(now.events, empty.events);
    EXPECT_EQ(now.streams, empty.streams);
    EXPECT_EQ(now.allocations, empty.allocations);
  }

  std::unique_ptr<Stream> stream;
  std::unique_ptr<DeviceBuffer<float>> data;
  std::function<void()> in_fn;
  hostrt::Ledger empty;
};

// ---- Hits -----------------------------------------------------------------------------------------------------------

TEST_F(AccountingTest, HitWithNothingToChangeMakesOneCall) {
  Cache cache;
  ASSERT_TRUE(run_add(cache, key("k")).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run_add(cache, key("k"))); }), (Counts{{"cudaGraphLaunch", 1}}));
  }
}

TEST_F(AccountingTest, HitWithUnchangedValuesMakesOneCall) {
  Cache cache;
  const std::vector<int> values{1, 2, 4, 8, 16, 32, 64};
  ASSERT_TRUE(run_mixed(cache, values).ok());
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run_mixed(cache, values)); }), (Counts{{"cudaGraphLaunch", 1}}));
}

TEST_F(AccountingTest, HitMakesOneMoreCallForEachNodeThatChanges) {
  Cache cache;
  std::vector<int> values{1, 2, 4, 8, 16, 32, 64};
  ASSERT_TRUE(run_mixed(cache, values).ok());
  for (int& value : values) --value;
  ASSERT_TRUE(run_mixed(cache, values).ok());  // The driver's functions are looked up at the first patch.
  for (int set = 0; set < (1 << kMixedSlotNodes); ++set) {
    std::uint64_t changed = 0;
    for (int i = 0; i < kMixedSlotNodes; ++i) {
      if ((set >> i & 1) == 0) continue;
      int& value = values[static_cast<std::size_t>(i)];
      value = value % 2 == 0 ? value - 1 : value + 1;
      ++changed;
    }
    const Counts calls = calls_of([&] {
      const auto outcome = run_mixed(cache, values);
      EXPECT_TRUE(did(set == 0 ? Outcome::kReplayed : Outcome::kPatched, outcome)) << set;
    });
    std::uint64_t all = 0;
    for (const auto& [function, count] : calls) all += count;
    EXPECT_EQ(all, changed + 1) << set;
    EXPECT_EQ(calls.at("cudaGraphLaunch"), 1u);
  }
}

TEST_F(AccountingTest, HitOnASecondStreamMakesOneCallOnceTheStreamIsKnown) {
  Cache cache;
  Stream second;
  ASSERT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_RUN(kReplayed, run_add(cache, key("k"), second));
  for (const cudaStream_t on : {cudaStream_t(*stream), cudaStream_t(second), cudaStream_t(*stream)}) {
    EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run_add(cache, key("k"), on)); }), (Counts{{"cudaGraphLaunch", 1}}));
  }
  // A stream is known to the cache, not to one entry.
  ASSERT_TRUE(run_add(cache, key("other")).ok());
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run_add(cache, key("other"), second)); }),
            (Counts{{"cudaGraphLaunch", 1}}));
}

// The first such run of a cache makes room for it.
TEST_F(AccountingTest, SizeThatBecomesZeroCostsWhatAnyOtherDoes) {
  Cache cache;
  const auto run = [&](std::size_t bytes, int value) {
    return cache.run(key("k"), *stream, params(bytes, value),
                     [&](Recorder& rec, Slot<std::size_t> size, Slot<int> v) { rec.memset(data->get(), v, size); });
  };
  const Counts patched{{"cudaGraphExecMemsetNodeSetParams", 1}, {"cudaGraphLaunch", 1}};
  ASSERT_TRUE(run(16, 1).ok());
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kPatched, run(0, 1)); })["cudaMalloc"], 1u);
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run(0, 1)); }), (Counts{{"cudaGraphLaunch", 1}}));
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kPatched, run(8, 2)); }), patched);
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kPatched, run(0, 2)); }), patched);
}

// What hostrt's own launch may allocate is not the cache's.
TEST_F(AccountingTest, HitAllocatesNothing) {
  Cache cache;
  const Key k = key("k");
  const Key mixed = key("mixed");
  std::vector<int> values{1, 2, 4, 8, 16, 32, 64};
  ASSERT_TRUE(run_add(cache, k).ok());
  ASSERT_TRUE(run_mixed(cache, values).ok());

  CUDA_OK(cudaStreamBeginCapture(*stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(launch(add, kGrid, kBlock, *stream, data->get(), kSize, 1.0f));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaStreamEndCapture(*stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  hostrt::set_execution(false);

  const auto allocations_of = [](auto&& work) {
    work();  // Once before: what is made at first use does not count.
    const std::uint64_t before = allocations;
    for (int i = 0; i < 100; ++i) work();
    return allocations - before;
  };
  bool ok = true;
  const std::uint64_t bare = allocations_of([&] { ok = ok && cudaGraphLaunch(exec, *stream) == cudaSuccess; });
  EXPECT_EQ(allocations_of([&] { ok = ok && run_add(cache, k).ok(); }), bare);
  EXPECT_EQ(allocations_of([&] { ok = ok && run_add(cache, key("k")).ok(); }), bare);
  EXPECT_EQ(allocations_of([&] { ok = ok && run_mixed(cache, values).ok(); }), bare);
  EXPECT_TRUE(ok);
  hostrt::set_execution(true);
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
}

// ---- Misses ---------------------------------------------------------------------------------------------------------

TEST_F(AccountingTest, FirstRunCapturesInstantiatesAndLaunchesOnce) {
  Cache cache;
  const Counts calls = calls_of([&] { EXPECT_RUN(kInstantiated, run_mixed(cache, {1, 2, 4, 8, 16, 32, 64})); });
  for (const char* once :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch"}) {
    EXPECT_EQ(calls.count(once) != 0 ? calls.at(once) : 0, 1u) << once;
  }
  for (const char* never : {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaGraphDestroy",
                            "cudaGraphExecDestroy", "cudaGraphClone", "cudaGraphExecUpdate", "cudaSetDevice",
                            "cudaEventCreateWithFlags", "cudaGraphUpload", "cudaGraphExecKernelNodeSetParams"}) {
    EXPECT_EQ(calls.count(never), 0u) << never;
  }
  EXPECT_EQ(calls.at("cudaLaunchKernel"), 4u);
  EXPECT_EQ(calls.at("cudaMemcpyAsync"), 2u);
  EXPECT_EQ(calls.at("cudaMemsetAsync"), 3u);
  const hostrt::Ledger now = hostrt::ledger();
  EXPECT_EQ(now.executables, 1u);
  EXPECT_EQ(now.graphs, 1u);
  EXPECT_EQ(now.nodes, kMixedNodes);
  EXPECT_EQ(cache.entries()[0].nodes, kMixedNodes);
  EXPECT_EQ(cache.entries()[0].slot_nodes, static_cast<std::size_t>(kMixedSlotNodes));
}

TEST_F(AccountingTest, KnownStreamIsNotAskedForItsDeviceAgain) {
  Cache cache(unshared());
  ASSERT_TRUE(run_add(cache, key(1)).ok());
  const Counts calls = calls_of([&] { EXPECT_RUN(kInstantiated, run_add(cache, key(2))); });
  EXPECT_EQ(calls.count("cudaStreamGetDevice"), 0u);
}

TEST_F(AccountingTest, EveryKernelRunsOncePerRun) {
  Cache cache;
  hostrt::reset_calls();
  for (int i = 1; i <= 4; ++i) {
    ASSERT_TRUE(run_add(cache, key("k")).ok());
    EXPECT_EQ(hostrt::kernels_run(), static_cast<std::uint64_t>(i));
  }
}

// ---- What is alive --------------------------------------------------------------------------------------------------

TEST_F(AccountingTest, EvictionDestroysBeforeAnythingIsInstantiated) {
  Options options = unshared(2);
  options.max_templates = 0;
  Cache cache(options);
  ASSERT_TRUE(run_add(cache, key("a")).ok());
  ASSERT_TRUE(run_add(cache, key("b")).ok());
  std::vector<std::size_t> alive;
  in_fn = [&] { alive.push_back(hostrt::ledger().executables); };
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorNotSupported, 2);  // So that fn sees what was alive just then.
  EXPECT_RUN(kEager, run_add(cache, key("c")));
  EXPECT_EQ(alive, (std::vector<std::size_t>{2, 1}));
  in_fn = nullptr;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(run_add(cache, key(i)).ok());
    EXPECT_LE(hostrt::ledger().executables, 2u);
    EXPECT_EQ(hostrt::ledger().graphs, hostrt::ledger().executables);
  }
}

TEST_F(AccountingTest, EvictionKeepsTheGraphAndRestoringMakesNoCapture) {
  Cache cache(unshared(2));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(run_add(cache, key(i)).ok());
    EXPECT_LE(hostrt::ledger().executables, 2u);
    EXPECT_EQ(hostrt::ledger().graphs, static_cast<std::size_t>(i + 1));
  }
  const Counts calls = calls_of([&] { EXPECT_RUN(kRestored, run_add(cache, key(0))); });
  for (const char* once : {"cudaGraphInstantiate", "cudaGraphLaunch", "cudaGraphExecDestroy"}) {
    EXPECT_EQ(calls.count(once) != 0 ? calls.at(once) : 0, 1u) << once;
  }
  for (const char* never : {"cudaStreamBeginCapture", "cudaGraphClone", "cudaGraphDestroy", "cudaGraphExecUpdate"}) {
    EXPECT_EQ(calls.count(never), 0u) << never;
  }
  EXPECT_EQ(hostrt::ledger().executables, 2u);
  EXPECT_EQ(hostrt::ledger().graphs, 5u);
}

TEST_F(AccountingTest, SwitchMakesNoExecutableAndNoCapture) {
  Cache cache;
  ASSERT_TRUE(run_mixed(cache, key("a"), {1, 2, 4, 8, 16, 32, 64}).ok());
  EXPECT_RUN(kUpdated, run_mixed(cache, key("b"), {1, 2, 4, 8, 16, 32, 64}));
  const hostrt::Ledger before = hostrt::ledger();
  EXPECT_EQ(before.executables, 1u);
  EXPECT_EQ(before.graphs, 3u);  // Two templates, and what the executable was made from.
  for (int i = 0; i < 10; ++i) {
    const Counts calls = calls_of([&] {
      EXPECT_RUN(kSwitched, run_mixed(cache, key(i % 2 == 0 ? "a" : "b"), {1, 2, 4, 8, 16, 32, 64}));
    });
    EXPECT_EQ(calls.at("cudaGraphLaunch"), 1u);
    for (const char* never : {"cudaStreamBeginCapture", "cudaGraphInstantiate", "cudaGraphClone", "cudaGraphDestroy",
                              "cudaGraphExecDestroy", "cudaEventCreateWithFlags", "cudaStreamSynchronize"}) {
      EXPECT_EQ(calls.count(never), 0u) << never;
    }
    EXPECT_EQ(hostrt::ledger(), before);
  }
  cache.clear();
  expect_no_graphs();
}

// Work in flight must not see what its executable is brought over to, nor that it leaves.
TEST_F(AccountingTest, WorkInFlightIsLeftAloneBySwitchesEvictionsAndRestores) {
  for (const Options& options : {Options(), unshared(1)}) {
    data->write(std::vector<float>(kSize, 0));
    {
      Cache cache(options);
      const auto run = [&](float factor) {  // data = factor * data + factor, so that order counts, too.
        return cache.run(key(static_cast<int>(factor)), *stream, [&, factor](cudaStream_t s) {
          (void)launch(scale, kGrid, kBlock, s, data->get(), data->get(), kSize, factor);
          return launch(add, kGrid, kBlock, s, data->get(), kSize, factor);
        });
      };
      for (const float factor : {1.0f, 2.0f, 3.0f}) ASSERT_TRUE(run(factor).ok());  // 1, 4, 15
      hostrt::hold(*stream);
      for (const float factor : {1.0f, 2.0f, 3.0f, 2.0f}) ASSERT_TRUE(run(factor).ok());
      EXPECT_EQ(cache.stats().captures, 3u);
      EXPECT_EQ(cache.stats().live_executables, 1u);
      CUDA_OK(hostrt::release(*stream));
      EXPECT_EQ(data->first(), 2 * (3 * (2 * (15 + 1) + 2) + 3) + 2.0f);
    }
    expect_no_graphs();
  }
}

TEST_F(AccountingTest, EraseClearAndDestructionLeaveNothing) {
  {
    Cache cache(unshared());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(run_add(cache, key(i)).ok());
    EXPECT_EQ(hostrt::ledger().executables, 3u);
    EXPECT_TRUE(cache.erase(key(1)));
    EXPECT_EQ(hostrt::ledger().executables, 2u);
    EXPECT_EQ(hostrt::ledger().graphs, 2u);
    cache.clear();
    expect_no_graphs();
    ASSERT_TRUE(run_mixed(cache, {1, 2, 4, 8, 16, 32, 64}).ok());
    EXPECT_EQ(hostrt::ledger().executables, 1u);
  }
  expect_no_graphs();
}

TEST_F(AccountingTest, EraseClearAndDestructionLeaveNothingOfSiblings) {
  for (const int end : {0, 1, 2}) {
    {
      Cache cache;
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(run_add(cache, key(i)).ok());
      EXPECT_EQ(hostrt::ledger().executables, 1u);
      if (end == 0) {
        EXPECT_TRUE(cache.erase(key(2)));  // The one that has the executable.
        EXPECT_EQ(hostrt::ledger().executables, 0u);
        EXPECT_EQ(hostrt::ledger().graphs, 2u);
        for (int i = 0; i < 2; ++i) EXPECT_TRUE(cache.erase(key(i)));
      }
      if (end == 1) cache.clear();
      if (end != 2) expect_no_graphs();
    }
    expect_no_graphs();
  }
}

TEST_F(AccountingTest, EraseClearAndDestructionLeaveNothingThatIsInFlight) {
  {
    Cache cache(unshared());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(run_add(cache, key(i)).ok());
    hostrt::hold(*stream);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(run_add(cache, key(i)).ok());
    EXPECT_TRUE(cache.erase(key(1)));
    EXPECT_EQ(hostrt::ledger().executables, 2u);
    cache.clear();
    expect_no_graphs();
    ASSERT_TRUE(run_add(cache, key(3)).ok());
  }
  expect_no_graphs();
  CUDA_OK(hostrt::release(*stream));
  EXPECT_EQ(data->first(), 7.0f);
}

TEST_F(AccountingTest, StatsAgreeWithTheLedger) {
  for (const int max_templates : {512, 4, 0}) {
    Options options = unshared(3);
    options.max_templates = max_templates;
    Cache cache(options);
    for (int i = 0; i < 12; ++i) {
      ASSERT_TRUE(run_add(cache, key(i * i % 7)).ok());
      const Stats stats = cache.stats();
      const hostrt::Ledger now = hostrt::ledger();
      EXPECT_EQ(stats.live_executables, now.executables);
      EXPECT_EQ(stats.live_templates, now.graphs);
      EXPECT_EQ(stats.live_templates, stats.captures - stats.forgotten);
      EXPECT_LE(stats.live_templates, static_cast<std::size_t>(std::max(3, max_templates)));
      EXPECT_EQ(stats.estimated_device_bytes, now.executables * estimated_device_bytes(1));
      EXPECT_EQ(now.executable_nodes, now.executables);
      EXPECT_EQ(stats.instantiations, stats.evictions + stats.live_executables);
      EXPECT_EQ(stats.families, 0u);
    }
  }
}

TEST_F(AccountingTest, StatsAgreeWithTheLedgerWhereKeysShare) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kAlways}) {
    Options options;
    options.max_executables = 2;
    options.max_templates = 5;
    options.sharing = sharing;
    Cache cache(options);
    for (int i = 0; i < 40; ++i) {
      const int which = i * i % 11;
      const auto fn = [&](cudaStream_t s) {  // Three families, of 1 to 3 nodes.
        for (int n = 0; n <= which % 3; ++n) {
          (void)launch(add, dim3(1u + static_cast<unsigned>(which)), kBlock, s, data->get(), kSize, 1.0f);
        }
      };
      ASSERT_TRUE(cache.run(key(which), *stream, fn).ok());
      const Stats stats = cache.stats();
      const hostrt::Ledger now = hostrt::ledger();
      EXPECT_EQ(stats.live_executables, now.executables);
      EXPECT_LE(stats.live_executables, 2u);
      EXPECT_LE(stats.live_templates, 5u);
      EXPECT_EQ(stats.live_templates, stats.captures - stats.forgotten);
      EXPECT_GE(now.graphs, stats.live_templates);
      EXPECT_LE(now.graphs, stats.live_templates + stats.live_executables);
      EXPECT_EQ(stats.instantiations, stats.evictions + stats.live_executables);
      std::size_t bytes = 0, live = 0;
      for (const EntryInfo& entry : cache.entries()) {
        bytes += entry.estimated_device_bytes;
        live += entry.live ? 1 : 0;
      }
      EXPECT_EQ(stats.estimated_device_bytes, bytes);
      EXPECT_EQ(stats.live_executables, live);
      EXPECT_EQ(now.executables * estimated_device_bytes(0) + now.executable_nodes * 2600, bytes);
    }
    cache.clear();
    expect_no_graphs();
  }
}

// By the end of the run it counts no more, and waits as what is evicted does: until the next slow run.
TEST_F(AccountingTest, EntryErasedInsideItsOwnRunIsDestroyedByTheNextSlowRun) {
  Cache cache;
  in_fn = [&] { cache.erase(key("k")); };
  for (int i = 1; i <= 5; ++i) {
    EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
    EXPECT_EQ(cache.stats().live_executables, 0u);
    EXPECT_EQ(cache.stats().live_templates, 0u);
    EXPECT_LE(hostrt::ledger().executables, 1u) << i;
    EXPECT_LE(hostrt::ledger().graphs, 1u) << i;
    EXPECT_EQ(data->first(), static_cast<float>(i));
  }
  in_fn = nullptr;
  EXPECT_TRUE(run_add(cache, key("other")).ok());
  EXPECT_EQ(hostrt::ledger().executables, 1u);
  EXPECT_EQ(hostrt::ledger().graphs, 1u);
  cache.clear();
  expect_no_graphs();
}

TEST_F(AccountingTest, EntryErasedDuringARunOfAnotherThreadIsDestroyedByTheNextSlowRun) {
  Cache cache;
  const auto run = [&](bool erased) {
    return cache.run(key("k"), *stream, [&, erased](cudaStream_t s) {
      if (erased) std::thread([&] { cache.erase(key("k")); }).join();
      return launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
    });
  };
  EXPECT_TRUE(run(true).ok());
  EXPECT_EQ(cache.stats().live_executables, 0u);
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_EQ(data->first(), 1.0f);
  EXPECT_TRUE(run_add(cache, key("other")).ok());
  EXPECT_EQ(hostrt::ledger().executables, 1u);
  EXPECT_EQ(hostrt::ledger().graphs, 1u);
}

TEST_F(AccountingTest, CapturesThatFailLeaveNothing) {
  Cache cache;
  EXPECT_THROW((void)cache.run(key("throws"), *stream,
                               [&](cudaStream_t s) {
                                 (void)launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
                                 throw 7;
                               }),
               int);
  expect_no_graphs();
  EXPECT_FALSE(cache
                   .run(key("fails"), *stream,
                        [&](cudaStream_t s) {
                          (void)launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
                          return cudaErrorUnknown;
                        })
                   .ok());
  expect_no_graphs();
  EXPECT_RUN(kEager, cache.run(key("synchronizes"), *stream, [&](cudaStream_t s) {
    (void)launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
    return cudaStreamSynchronize(s);
  }));
  expect_no_graphs();
}

// ---- The thread, the device, the slot of the last error -------------------------------------------------------------

TEST_F(AccountingTest, DestructionsAreMadeWithTheCaptureModeRelaxed) {
  Cache cache;
  ASSERT_TRUE(run_add(cache, key("k")).ok());
  const Counts calls = calls_of([&] { cache.clear(); });
  EXPECT_EQ(calls.at("cudaGraphExecDestroy"), 1u);
  EXPECT_EQ(calls.at("cudaGraphDestroy"), 1u);
  EXPECT_EQ(calls.at("cudaThreadExchangeStreamCaptureMode"), 4u);
}

// A capture in global mode forbids unsafe calls to every thread.
TEST_F(AccountingTest, DestructionsDoNotBreakAnotherThreadsCaptureInGlobalMode) {
  Cache cache;
  ASSERT_TRUE(run_add(cache, key("k")).ok());
  Stream other;
  CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
  std::thread([&] { cache.clear(); }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaSuccess);
  CUDA_OK(cudaGraphDestroy(graph));
  EXPECT_EQ(hostrt::ledger().executables, 0u);
  EXPECT_EQ(hostrt::ledger().graphs, 0u);
}

TEST_F(AccountingTest, MissesDoNotBreakAnotherThreadsCaptureInGlobalMode) {
  Cache cache(unshared(1));
  ASSERT_TRUE(run_add(cache, key("k")).ok());
  Stream other;
  CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
  std::thread([&] { EXPECT_RUN(kInstantiated, run_add(cache, key("next"))); }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaSuccess);
  if (graph != nullptr) {
    CUDA_OK(cudaGraphDestroy(graph));
  }
  cudaGetLastError();
}

TEST_F(AccountingTest, SwitchesAndRestoresDoNotBreakAnotherThreadsCaptureInGlobalMode) {
  for (const bool shared : {false, true}) {
    Cache cache(shared ? Options() : unshared(1));
    ASSERT_TRUE(run_add(cache, key("a")).ok());
    ASSERT_TRUE(run_add(cache, key("b")).ok());
    Stream other;
    CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
    std::thread([&] {
      EXPECT_TRUE(did(shared ? Outcome::kSwitched : Outcome::kRestored, run_add(cache, key("a"))));
      EXPECT_TRUE(did(shared ? Outcome::kUpdated : Outcome::kInstantiated, run_add(cache, key("c"))));
    }).join();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaSuccess);
    if (graph != nullptr) {
      CUDA_OK(cudaGraphDestroy(graph));
    }
    cudaGetLastError();
  }
}

TEST_F(AccountingTest, NothingIsDestroyedInsideACapture) {
  Options options;
  options.max_executables = 1;
  Cache cache(options);
  Cache second;
  ASSERT_TRUE(run_add(second, key("k")).ok());
  Counts inside;
  in_fn = [&] { inside = calls_of([&] { second.clear(); }); };
  ASSERT_TRUE(run_add(cache, key("outer")).ok());
  in_fn = nullptr;
  EXPECT_EQ(inside.count("cudaGraphExecDestroy"), 0u);
  EXPECT_EQ(inside.count("cudaGraphDestroy"), 0u);
  second.clear();
  EXPECT_EQ(hostrt::ledger().executables, 1u);
}

TEST_F(AccountingTest, CaptureModeOfTheThreadIsRestored) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  for (const Options& options : {unshared(1), Options()}) {
    Cache cache(options);
    for (const int i : {1, 2, 1, 2}) {  // Misses, then restores or switches.
      ASSERT_TRUE(run_add(cache, key(i)).ok());
      EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeThreadLocal);
    }
    cache.clear();
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeThreadLocal);
    ASSERT_TRUE(run_add(cache, key(3)).ok());
  }
  EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeThreadLocal);
  CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
}

TEST_F(AccountingTest, PerThreadStreamIsThatOfTheCurrentDevice) {
  hostrt::set_device_count(2);
  Options options;
  options.device = 0;
  Cache cache(options);
  int calls = 0;
  const auto run = [&] {
    return cache.run(key("k"), cudaStreamPerThread, [&](cudaStream_t s) {
      ++calls;
      return launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
    });
  };
  CUDA_OK(cudaSetDevice(1));
  EXPECT_FAILURE(kInvalidArgument, run());
  EXPECT_EQ(calls, 0);
  CUDA_OK(cudaSetDevice(0));
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
}

TEST_F(AccountingTest, CurrentDeviceIsRestored) {
  hostrt::set_device_count(2);
  CUDA_OK(cudaSetDevice(1));
  const auto expect_device_1 = [] {
    int device = -1;
    CUDA_OK(cudaGetDevice(&device));
    EXPECT_EQ(device, 1);
  };
  {
    Options options;
    options.device = 0;
    Cache cache(options);
    int inside = -1;
    in_fn = [&] { CUDA_OK(cudaGetDevice(&inside)); };
    EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
    EXPECT_EQ(inside, 0);
    expect_device_1();
    EXPECT_RUN(kReplayed, run_add(cache, key("k")));
    expect_device_1();
    EXPECT_RUN(kUpdated, run_add(cache, key("sibling")));
    expect_device_1();
    EXPECT_RUN(kSwitched, run_add(cache, key("k")));
    expect_device_1();
    EXPECT_TRUE(cache.erase(key("k")));
    EXPECT_RUN(kRestored, run_add(cache, key("sibling")));
    expect_device_1();
    in_fn = [] { throw 7; };
    EXPECT_THROW((void)run_add(cache, key("throws")), int);
    expect_device_1();
    in_fn = [&] { CUDA_OK(cudaStreamSynchronize(*stream)); };
    in_fn = nullptr;
    EXPECT_RUN(kEager, cache.run(key("eager"), *stream, [&](cudaStream_t s) {
      CUDA_OK(cudaGetDevice(&inside));
      return cudaStreamSynchronize(s);
    }));
    EXPECT_EQ(inside, 0);
    expect_device_1();
    cache.clear();
    expect_device_1();
  }
  expect_device_1();
  CUDA_OK(cudaSetDevice(0));
  EXPECT_EQ(data->first(), 5.0f);
}

TEST_F(AccountingTest, CacheTakesTheDeviceThatIsCurrentWhenItIsMade) {
  hostrt::set_device_count(2);
  CUDA_OK(cudaSetDevice(1));
  Cache cache;
  EXPECT_EQ(cache.options().device, 1);
  CUDA_OK(cudaSetDevice(0));
  EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));  // The stream belongs to device 0.
}

TEST_F(AccountingTest, StreamOfAnotherDeviceIsRefusedOnHitsToo) {
  hostrt::set_device_count(2);
  Options options;
  options.device = 0;
  Cache cache(options);
  ASSERT_TRUE(run_add(cache, key("k")).ok());
  CUDA_OK(cudaSetDevice(1));
  {
    Stream other;
    const auto outcome = run_add(cache, key("k"), other);
    EXPECT_FAILURE(kInvalidArgument, outcome);
    EXPECT_TRUE(mentions(outcome.status(), "device 1")) << outcome.status();
    EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("cold"), other));
  }
  CUDA_OK(cudaSetDevice(0));
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_EQ(data->first(), 2.0f);
}

TEST_F(AccountingTest, CachesOfTwoDevicesAreTwo) {
  hostrt::set_device_count(2);
  EXPECT_NE(&cache_for(0), &cache_for(1));
  EXPECT_EQ(cache_for(1).options().device, 1);
  CUDA_OK(cudaSetDevice(1));
  {
    Stream on_1;
    EXPECT_RUN(kInstantiated, run_add(cache_for(1), key("k"), on_1));
    EXPECT_RUN(kReplayed, run_add(cache_for(1), key("k"), on_1));
  }
  CUDA_OK(cudaSetDevice(0));
  cache_for(1).clear();
  expect_no_graphs();
}

// Driver calls do not latch, so the error that stands there is the caller's.
TEST_F(AccountingTest, ErrorInTheSlotStaysThroughARefusedPatch) {
  Cache cache;
  const auto run = [&](int grid) {
    return cache.run(key("k"), *stream, params(grid), [&](Recorder& rec, Slot<int> g) {
      rec.launch(add, {g, kBlock}, data->get(), kSize, 1);
    });
  };
  ASSERT_TRUE(run(1).ok());
  EXPECT_EQ(cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  EXPECT_FALSE(run(0).ok());
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
}

TEST_F(AccountingTest, CacheThatIsDestroyedInsideACaptureLeavesItsExecutablesToALaterRun) {
  Cache cache;
  auto second = std::make_unique<Cache>();
  ASSERT_TRUE(run_add(*second, key("k")).ok());
  Counts inside;
  in_fn = [&] { inside = calls_of([&] { second.reset(); }); };
  ASSERT_TRUE(run_add(cache, key("outer")).ok());
  in_fn = nullptr;
  EXPECT_EQ(inside.count("cudaGraphExecDestroy"), 0u);
  cache.clear();
  expect_no_graphs();
}

TEST_F(AccountingTest, KeysThatCameOnceAndWereNotCapturedDoNotPileUp) {
  Options options;
  options.capture_after = 1;
  Cache cache(options);
  constexpr int kKeys = 5000;
  for (int i = 0; i < kKeys; ++i) EXPECT_RUN(kEager, run_add(cache, key(i)));
  EXPECT_LE(cache.entries().size(), 4100u);
  EXPECT_EQ(cache.stats().outcome(Outcome::kEager), static_cast<std::uint64_t>(kKeys));
  EXPECT_RUN(kInstantiated, run_add(cache, key(kKeys - 1)));  // The newest are those that stay.
  EXPECT_EQ(data->first(), static_cast<float>(kKeys + 1));
}

TEST_F(AccountingTest, KeyErasedDuringItsHitIsGoneByTheEndOfTheRun) {
  Cache cache;
  const auto run = [&](float value) {
    return cache.run(key("k"), *stream, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data->get(), kSize, v);
    });
  };
  ASSERT_TRUE(run(1).ok());
  std::atomic<bool> stop{false};
  std::thread eraser([&] {
    while (!stop) cache.erase(key("k"));
  });
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(run(static_cast<float>(i)).ok());
  stop = true;
  eraser.join();
  cache.erase(key("k"));
  EXPECT_EQ(cache.stats().live_executables, 0u);
  expect_no_graphs();
}

TEST_F(AccountingTest, ErrorInTheSlotStaysThroughHitsMissesAndEvictions) {
  Options one_for_all;
  one_for_all.max_executables = 1;
  for (const Options& options : {unshared(1), one_for_all}) {
    Cache cache(options);
    EXPECT_EQ(cudaSetDevice(77), cudaErrorInvalidDevice);
    for (int i = 0; i < 12; ++i) {  // Hits, too, and once more around: restores or switches.
      ASSERT_TRUE(run_add(cache, key(i / 2 % 3)).ok());
      EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice) << i;
    }
    cache.clear();
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  }
}

}  // namespace
}  // namespace graphcache::test
