// Failures of values that kernels read through pointers, and the lifetime of their memory. On hostrt.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "graphcache/status.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

class OnDeviceFailuresTest : public testing::Test {
 protected:
  void SetUp() override { hostrt::reset(); }
  void TearDown() override {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    CUDA_OK(cudaPeekAtLastError());
    hostrt::reset();
  }

  // data = 3 * data + value
  static absl::StatusOr<Outcome> run(Cache& cache, const Key& key, cudaStream_t stream, int* data, int value) {
    return cache.run(key, stream, params(data, value), [](Recorder& rec, Slot<int*> p, Slot<int> v) {
      const int* const in = rec.on_device(v);
      if (in == nullptr) return;
      rec.launch(blend_in, {1, 1}, p, in, 1, 3);
    });
  }
};

// A key whose executable was evicted with a launch in flight gets another executable with other memory. Otherwise the
// run on the second stream, which does not wait, would write its value before the first launch has read its own.
TEST_F(OnDeviceFailuresTest, TwoExecutablesOfAKeyInFlightHaveTheirOwnMemory) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdatesAcross, Sharing::kTable}) {
    Options options;
    options.max_executables = 1;
    force(&options, sharing);
    Cache cache(options);
    Stream first, second;
    DeviceBuffer<int> a(1, 1), b(1, 1), c(1, 1);
    EXPECT_RUN(kInstantiated, run(cache, key("k"), first, a.get(), 5));
    hostrt::hold(first);
    EXPECT_RUN(kPatched, run(cache, key("k"), first, a.get(), 7));
    EXPECT_RUN(kInstantiated, cache.run(key("other"), second, [&](Recorder& rec) {
      rec.launch(blend, {1, 1}, c.get(), 1, 1, 1);  // another topology, so no sibling returns the executable
    }));
    EXPECT_RUN(kInstantiated, run(cache, key("k"), second, b.get(), 11));
    EXPECT_EQ(cache.stats().captures, 3u);
    hostrt::release(first);
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(a.first(), 3 * (3 * 1 + 5) + 7);
    EXPECT_EQ(b.first(), 3 * 1 + 11);
    // With one executable this is not necessary.
    EXPECT_RUN(kPatched, run(cache, key("k"), second, b.get(), 12));
    EXPECT_EQ(cache.stats().captures, 3u);
  }
}

TEST_F(OnDeviceFailuresTest, AFailedCallIsReportedAndTriedAgain) {
  struct Case {
    const char* function;
    int max_executables;
  };
  for (const Case& one : {Case{"cudaLibraryLoadData", 8}, Case{"cudaLibraryGetKernel", 0}, Case{"cudaMalloc", 8},
                          Case{"cudaMallocAsync", 0}}) {
    Options options;
    options.max_executables = one.max_executables;
    options.on_capture_failure = OnCaptureFailure::kReturnError;
    Cache cache(options);
    Stream stream;
    DeviceBuffer<int> data(1, 1);
    hostrt::fail_call(one.function, 1, cudaErrorMemoryAllocation);
    const auto outcome = run(cache, key("k"), stream, data.get(), 5);
    ASSERT_FALSE(outcome.ok()) << one.function;
    EXPECT_EQ(cuda_error(outcome.status()), cudaErrorMemoryAllocation);
    EXPECT_TRUE(mentions(outcome.status(), "on_device")) << outcome.status();
    EXPECT_TRUE(mentions(outcome.status(), one.function)) << outcome.status();
    EXPECT_EQ(data.first(), 1);
    EXPECT_TRUE(run(cache, key("k"), stream, data.get(), 6).ok());
    EXPECT_EQ(data.first(), 3 + 6);
  }
}

// Memory that a launch in flight uses is neither freed nor reused, even if the executable has been evicted and the
// member forgotten.
TEST_F(OnDeviceFailuresTest, MemberEvictedInFlightKeepsItsMemory) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdatesAcross, Sharing::kTable}) {
    Options options;
    options.max_executables = 1;
    options.max_templates = 0;
    force(&options, sharing);
    Cache cache(options), others;
    Stream first, second;
    DeviceBuffer<int> a(1, 1), b(1, 1);
    std::vector<const int*> given;
    const auto run_member = [&](int which, int value) {
      return cache.run(key("member", which), first, params(value), [&](Recorder& rec, Slot<int> v) {
        given.push_back(rec.on_device(v));
        for (int i = 0; i < 40; ++i) rec.launch(do_nothing, {1, 1});  // so that patches are cheaper than an update
        rec.launch(blend_in, {1, 1}, a.get(), given.back(), 1, 3 + which);
      });
    };
    EXPECT_TRUE(run_member(0, 0).ok());
    a.write({1});
    hostrt::hold(first);
    EXPECT_TRUE(run_member(1, 7).ok());
    EXPECT_TRUE(run_member(2, 9).ok());
    EXPECT_EQ(cache.stats().evictions, 2u);
    const std::size_t allocations = hostrt::ledger().allocations;
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(others
                      .run(key("another", i), second, params(i),
                           [&](Recorder& rec, Slot<int> v) {
                             given.push_back(rec.on_device(v));
                             rec.launch(blend_in, {1, 1}, b.get(), given.back(), 1, 3);
                           })
                      .ok());
    }
    EXPECT_EQ(hostrt::ledger().allocations, allocations + 4);
    ASSERT_EQ(given.size(), 7u);
    EXPECT_EQ(std::set<const int*>(given.begin(), given.end()).size(), 7u);
    hostrt::release(first);
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(a.first(), 5 * (4 * 1 + 7) + 9);
  }
}

// A copy may still write to the memory of an updater node that could not be used. The memory is not reused, although no
// launch uses it.
TEST_F(OnDeviceFailuresTest, MemoryThatACopyWillFillIsNotUsedAgain) {
  Options options;
  options.max_executables = 1;
  force(&options, Sharing::kTable);
  Cache cache(options), other(options);
  Stream first, second;
  DeviceBuffer<int> a(64, 1), b(64, 1);
  const auto run_member = [&](Cache& of, cudaStream_t on, int* data, int which) {
    return of.run(key("member", which), on, [&, data, which](Recorder& rec) {
      rec.launch(blend, {static_cast<unsigned>(1 + which), 8}, data, 64, 3 + which, which);
    });
  };
  hostrt::hold(first);
  hostrt::fail_call("cudaGraphInstantiate", 2, cudaErrorUnknown);  // after the instantiation that probes grids
  EXPECT_RUN(kInstantiated, run_member(cache, first, a.get(), 1));
  EXPECT_EQ(cache.stats().refused_device_updates, 1u);
  for (const int which : {0, 1}) EXPECT_TRUE(run_member(other, second, b.get(), which).ok());
  hostrt::release(first);
  CUDA_OK(cudaDeviceSynchronize());
  std::vector<int> wanted(64, 1);
  const auto blended = [&](int which) {
    for (int i = 0; i < 8 * (1 + which); ++i) wanted[i] = (3 + which) * wanted[i] + which + i;
  };
  for (const int which : {0, 1}) blended(which);
  for (const int which : {0, 1, 0}) {
    EXPECT_RUN(kSwitched, run_member(other, second, b.get(), which));
    blended(which);
  }
  EXPECT_EQ(b.read(), wanted);
  EXPECT_EQ(other.stats().refused_device_updates, 0u);
}

// Freed memory waits for an erase, for the cache's end, or for 16 MiB.
TEST_F(OnDeviceFailuresTest, MemoryIsFreed) {
  const std::size_t before = hostrt::ledger().allocations;
  {
    Options options;
    options.max_executables = 1;
    options.max_templates = 0;
    force(&options, Sharing::kNever);
    std::optional<Cache> cache(options);
    Stream stream;
    DeviceBuffer<int> data(1, 1);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(run(*cache, key("k", i), stream, data.get(), i).ok());
    EXPECT_EQ(hostrt::ledger().allocations, before + 1 + 10);
    EXPECT_TRUE(cache->erase(key("k", 9)));
    EXPECT_EQ(hostrt::ledger().allocations, before + 1);
    constexpr int kMany = (16 << 20) / 4096 + 8;  // what each block counts
    for (int i = 0; i < kMany; ++i) ASSERT_TRUE(run(*cache, key("k", i), stream, data.get(), i).ok());
    EXPECT_LT(hostrt::ledger().allocations, before + 16);
    cache.reset();
    EXPECT_EQ(hostrt::ledger().allocations, before + 1);
  }
  EXPECT_EQ(hostrt::ledger().allocations, before);
}

}  // namespace
}  // namespace graphcache::test
