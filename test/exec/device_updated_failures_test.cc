// Failures of device-updated executables, on hostrt, which can make any call fail.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr int kFew = 8;
constexpr dim3 kFewThreads(8);

Options device_updated() { return forced(Patching::kDeviceUpdated); }

class DeviceUpdatedFailuresTest : public testing::Test {
 protected:
  void SetUp() override { hostrt::reset(); }
  void TearDown() override {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    hostrt::reset();
  }

  static absl::StatusOr<Outcome> run(Cache& cache, cudaStream_t stream, float* data, float value) {
    return cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(fill, {1, kFewThreads}, data, kFew, v);
      rec.launch(add, {1, kFewThreads}, data, kFew, v);
    });
  }
};

TEST_F(DeviceUpdatedFailuresTest, ABinaryThatIsRefusedIsOfferedOnceAndKeysArePatchedByTheHost) {
  Stream stream;
  Cache cache(device_updated());
  DeviceBuffer<float> data(kFew);
  hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorInvalidKernelImage);
  EXPECT_RUN(kInstantiated, run(cache, stream, data.get(), 1));
  EXPECT_RUN(kPatched, run(cache, stream, data.get(), 4));
  EXPECT_EQ(data.read(), std::vector<float>(kFew, 8));
  EXPECT_EQ(cache.stats().refused_device_updates, 1u);
  cache.clear();
  EXPECT_RUN(kInstantiated, run(cache, stream, data.get(), 2));
  EXPECT_EQ(hostrt::calls("cudaLibraryLoadData"), 1u);
  EXPECT_EQ(cache.stats().refused_device_updates, 2u);
}

TEST_F(DeviceUpdatedFailuresTest, AHitMakesOneCallAndOneMoreForAllThatChanged) {
  Stream stream;
  Cache cache(device_updated());
  DeviceBuffer<float> data(kFew);
  ASSERT_SUCCESS(run(cache, stream, data.get(), 1));
  hostrt::reset_calls();
  EXPECT_RUN(kReplayed, run(cache, stream, data.get(), 1));
  EXPECT_EQ(hostrt::calls(), 1u);
  EXPECT_RUN(kPatched, run(cache, stream, data.get(), 2));
  EXPECT_EQ(hostrt::calls(), 3u);
}

// Their launches write to their nodes, so they wait, however many are evicted.
TEST_F(DeviceUpdatedFailuresTest, NoneIsDestroyedInFlight) {
  constexpr int kKeys = 80;  // more than the number of others that may wait
  Stream stream;
  DeviceBuffer<float> data(kFew);
  Cache cache(forced(Patching::kDeviceUpdated, unshared(1)));
  hostrt::hold(stream);
  for (int i = 0; i < kKeys; ++i) {
    EXPECT_RUN(kInstantiated, cache.run(key("k", i), stream, params(1.0f), [&](Recorder& rec, Slot<float> v) {
      rec.launch(i == 0 ? fill : add, {1, kFewThreads}, data.get(), kFew, v);
    }));
  }
  EXPECT_EQ(hostrt::ledger().executables, static_cast<std::size_t>(kKeys));
  EXPECT_EQ(cache.stats().evictions, static_cast<std::uint64_t>(kKeys - 1));
  hostrt::release(stream);
  EXPECT_EQ(data.read(), std::vector<float>(kFew, kKeys));
  EXPECT_TRUE(cache.erase(key("k", 0)));
  EXPECT_EQ(hostrt::ledger().executables, 1u);
}

// They are evicted last, and for the sake of memory they are evicted.
TEST_F(DeviceUpdatedFailuresTest, OneIsEvictedWhenMemoryRunsOut) {
  Stream stream;
  DeviceBuffer<float> data(kFew);
  Cache cache(device_updated());
  for (int i = 0; i < 2; ++i) {
    EXPECT_RUN(kInstantiated, cache.run(key("k", i), stream, params(1.0f), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {1, kFewThreads}, data.get(), kFew, v);
    }));
  }
  hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
  EXPECT_RUN(kInstantiated, cache.run(key("plain"), stream, [&](cudaStream_t s) {
    return launch(add, 1, kFewThreads, s, data.get(), kFew, 1.0f);
  }));
  hostrt::clear_failures();
  EXPECT_EQ(cache.stats().evictions, 1u);
  EXPECT_EQ(data.read(), std::vector<float>(kFew, 3));
}

}  // namespace
}  // namespace graphcache::test
