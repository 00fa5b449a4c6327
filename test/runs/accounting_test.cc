// The runtime calls of hits and misses, counted by hostrt.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "accounting_support.h"
#include "graphcache/observe.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

// Not inlined, because GCC would warn about a pointer from new passed to free.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace graphcache::test {
namespace {

// ---- Hits -----------------------------------------------------------------------------------------------------------

TEST_F(AccountingTest, HitMakesOneMoreCallForEachNodeThatChanges) {
  Cache cache;
  std::vector<int> values{1, 2, 4, 8, 16, 32, 64};
  ASSERT_SUCCESS(run_mixed(cache, values));
  for (int& value : values) --value;
  ASSERT_SUCCESS(run_mixed(cache, values));  // the driver's functions are looked up at the first patch
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
  ASSERT_SUCCESS(run_add(cache, key("k")));
  EXPECT_RUN(kReplayed, run_add(cache, key("k"), second));
  for (const cudaStream_t on : {cudaStream_t(*stream), cudaStream_t(second), cudaStream_t(*stream)}) {
    EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run_add(cache, key("k"), on)); }), (Counts{{"cudaGraphLaunch", 1}}));
  }
  // A stream is known to the cache, not to a single entry.
  ASSERT_SUCCESS(run_add(cache, key("other")));
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run_add(cache, key("other"), second)); }),
            (Counts{{"cudaGraphLaunch", 1}}));
}

// Other memory may have its address.
TEST_F(AccountingTest, HitAsksForTheMemoryOfCopiesFromAndToTheHost) {
  Cache cache;
  const PinnedBuffer<float> pinned(kSize);
  DeviceBuffer<float> other(kSize);
  const auto run = [&](float* to, const float* from) {
    return cache.run(key(from != data->get()), *stream, params(to, from),
                     [&](Recorder& rec, Slot<float*> dst, Slot<const float*> src) { rec.memcpy(dst, src, 4); });
  };
  for (const float* const from : {data->get(), pinned.get()}) {
    ASSERT_SUCCESS(run(other.get(), from));
    Counts expected{{"cudaGraphLaunch", 1}};
    if (from == pinned.get()) expected["cudaPointerGetAttributes"] = 2;
    EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run(other.get(), from)); }), expected);
  }
  // A copy that moves in each run is set in each run, so it is asked for only once it stays.
  constexpr const char* kSets = "cudaGraphExecMemcpyNodeSetParams1D";
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(calls_of([&] { EXPECT_RUN(kPatched, run(other.get(), pinned.get() + i)); }),
              (Counts{{"cudaGraphLaunch", 1}, {kSets, 1}}));
  }
  Counts calls = calls_of([&] { EXPECT_RUN(kReplayed, run(other.get(), pinned.get() + 2)); });
  EXPECT_EQ(calls[kSets], 1u);
  calls = calls_of([&] { EXPECT_RUN(kReplayed, run(other.get(), pinned.get() + 2)); });
  EXPECT_EQ(calls, (Counts{{"cudaGraphLaunch", 1}, {"cudaPointerGetAttributes", 2}}));
}

// The first such run of a cache allocates room for it.
TEST_F(AccountingTest, SizeThatBecomesZeroCostsNoMoreThanAnyOther) {
  Cache cache;
  const auto run = [&](std::size_t bytes, int value) {
    return cache.run(key("k"), *stream, params(bytes, value),
                     [&](Recorder& rec, Slot<std::size_t> size, Slot<int> v) { rec.memset(data->get(), v, size); });
  };
  const Counts patched{{"cudaGraphExecMemsetNodeSetParams", 1}, {"cudaGraphLaunch", 1}};
  ASSERT_SUCCESS(run(16, 1));
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kPatched, run(0, 1)); })["cudaMalloc"], 1u);
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run(0, 1)); }), (Counts{{"cudaGraphLaunch", 1}}));
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kPatched, run(8, 2)); }), patched);
  EXPECT_EQ(calls_of([&] { EXPECT_RUN(kPatched, run(0, 2)); }), patched);
}

// Allocations by hostrt's own launch do not count.
TEST_F(AccountingTest, HitAllocatesNothing) {
  Cache cache;
  const Key k = key("k");
  const Key mixed = key("mixed");
  std::vector<int> values{1, 2, 4, 8, 16, 32, 64};
  ASSERT_SUCCESS(run_add(cache, k));
  ASSERT_SUCCESS(run_mixed(cache, values));

  const cudaGraph_t graph = capture_graph(
      *stream, [&](cudaStream_t on) { CUDA_OK(launch(add, kGrid, kBlock, on, data->get(), kSize, 1.0f)); });
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  hostrt::set_execution(false);

  const auto allocations_of = [](auto&& work) {
    work();  // once before, to make everything that is made at first use
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
  expect_calls(calls, {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch"},
               {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaGraphDestroy",
                "cudaGraphExecDestroy", "cudaGraphClone", "cudaGraphExecUpdate", "cudaSetDevice", "cudaGraphUpload",
                "cudaGraphExecKernelNodeSetParams"});
  // Before 12.8, an event finds out the device of a stream.
  if (CUDART_VERSION >= 12080) expect_calls(calls, {}, {"cudaEventCreateWithFlags"});
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

TEST_F(AccountingTest, DeviceOfAKnownStreamIsNotQueriedAgain) {
  Cache cache(unshared());
  ASSERT_SUCCESS(run_add(cache, key(1)));
  const Counts calls = calls_of([&] { EXPECT_RUN(kInstantiated, run_add(cache, key(2))); });
  EXPECT_EQ(calls.count("cudaStreamGetDevice"), 0u);
}

// ---- Measured device memory -----------------------------------------------------------------------------------------

// hostrt takes device memory only for device-updated executables.
TEST_F(AccountingTest, DeviceMemoryIsMeasuredOnRequestAndNotByHits) {
  for (const bool is_on : {true, false}) {
    const auto meter = std::make_shared<MemoryMeter>(0);
    Cache cache(forced(Sharing::kTable, {.listeners = is_on ? Listeners{meter} : Listeners{}}));
    hostrt::reset_calls();
    const auto taken = [before = hostrt::ledger().allocated_bytes] {
      return static_cast<std::int64_t>(hostrt::ledger().allocated_bytes - before);
    };
    for (int which = 0; which < 3; ++which) {
      EXPECT_SUCCESS(cache.run(key("k", which), *stream, [&](cudaStream_t on) {
        for (int i = 0; i < 50; ++i) {
          CUDA_OK(launch(add, 1, 1, on, data->get(), 1, static_cast<float>(which)));
        }
      }));
    }
    CUDA_OK(cudaStreamSynchronize(*stream));
    EXPECT_GT(taken(), 0);
    EXPECT_EQ(meter->bytes(), is_on ? taken() : 0);
    EXPECT_EQ(hostrt::calls("cudaMemGetInfo") == 0, !is_on);
    ASSERT_SUCCESS(run_add(cache, key("hit")));
    EXPECT_EQ(calls_of([&] { EXPECT_RUN(kReplayed, run_add(cache, key("hit"))); }), (Counts{{"cudaGraphLaunch", 1}}));
    cache.clear();
    EXPECT_EQ(meter->bytes(), is_on ? taken() : 0);
  }
}

TEST_F(AccountingTest, DeviceMemoryThatTheDriverDoesNotReportCountsAsNone) {
  const auto meter = std::make_shared<MemoryMeter>(0);
  Cache cache(forced(Sharing::kNever, {.max_executables = 1, .listeners = {meter}}));
  // The query fails before, after, and both times.
  for (const auto& [nth, times] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, -1)}) {
    hostrt::fail_call("cudaMemGetInfo", nth, cudaErrorUnknown, times);
    EXPECT_RUN(kInstantiated, run_add(cache, key("k", nth, times)));
    EXPECT_GE(hostrt::failures_injected(), 1u);
    hostrt::clear_failures();
    CUDA_OK(cudaPeekAtLastError());
    EXPECT_EQ(meter->bytes(), 0);
  }
  EXPECT_EQ(cache.stats().evictions, 2u);
}

}  // namespace
}  // namespace graphcache::test
