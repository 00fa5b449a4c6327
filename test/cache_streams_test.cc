// Options::executables_per_key on either runtime.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

Options with_executables(int per_key) {
  Options options = unshared();
  options.executables_per_key = per_key;
  return options;
}

class CacheStreamsTest : public CacheTest {
 protected:
  CacheStreamsTest() {
    for (cudaStream_t& each : streams) CUDA_OK(cudaStreamCreate(&each));
  }
  ~CacheStreamsTest() override {
    for (cudaStream_t each : streams) CUDA_OK(cudaStreamDestroy(each));
  }
  absl::StatusOr<Outcome> run_on(Cache& cache, std::size_t which) {
    auto result = run_add(cache, streams[which], 1.0f);
    CUDA_OK(cudaStreamSynchronize(streams[which]));
    return result;
  }
  static std::size_t live_entries(const Cache& cache) { return live(cache).size(); }

  std::vector<cudaStream_t> streams = std::vector<cudaStream_t>(3);
};

TEST_F(CacheStreamsTest, ByDefaultStreamsShareTheExecutableOfAKey) {
  Cache cache(unshared());
  EXPECT_RUN(kInstantiated, run_on(cache, 0));
  EXPECT_RUN(kReplayed, run_on(cache, 1));
  EXPECT_RUN(kReplayed, run_on(cache, 2));
  EXPECT_EQ(live_entries(cache), 1u);
  expect_sum(3);
}

TEST_F(CacheStreamsTest, EachStreamGetsAnExecutableUpToTheLimit) {
  Cache cache(with_executables(2));
  EXPECT_RUN(kInstantiated, run_on(cache, 0));
  EXPECT_RUN(kInstantiated, run_on(cache, 1));
  EXPECT_RUN(kReplayed, run_on(cache, 2));
  for (int i = 0; i < 3; ++i) {
    for (std::size_t which : {0, 1, 2}) EXPECT_RUN(kReplayed, run_on(cache, which));
  }
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(live_entries(cache), 2u);
  EXPECT_EQ(cache.stats().live_executables, 2u);
  expect_sum(12);
}

TEST_F(CacheStreamsTest, ValuesAreOfEachExecutable) {
  Cache cache(with_executables(2));
  EXPECT_RUN(kInstantiated, run_add(cache, streams[0], 1.0f));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_RUN(kInstantiated, run_add(cache, streams[1], 10.0f));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_RUN(kReplayed, run_add(cache, streams[0], 1.0f));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_RUN(kReplayed, run_add(cache, streams[1], 10.0f));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_RUN(kPatched, run_add(cache, streams[1], 100.0f));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_RUN(kReplayed, run_add(cache, streams[0], 1.0f));
  CUDA_OK(cudaDeviceSynchronize());
  expect_sum(123);
}

TEST_F(CacheStreamsTest, CallsForAKeyApplyToAllItsEntries) {
  Cache cache(with_executables(3));
  for (std::size_t which : {0, 1, 2}) EXPECT_RUN(kInstantiated, run_on(cache, which));
  EXPECT_TRUE(cache.pin(key("k")));
  for (const EntryInfo& entry : cache.entries()) EXPECT_TRUE(entry.pinned);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_EQ(cache.entries().size(), 0u);
  EXPECT_RUN(kInstantiated, run_on(cache, 1));
  expect_sum(4);
}

TEST_F(CacheStreamsTest, TheyCountAgainstTheBudget) {
  Options options = with_executables(3);
  options.max_executables = 2;
  Cache cache(options);
  for (int i = 0; i < 3; ++i) {
    for (std::size_t which : {0, 1, 2}) EXPECT_TRUE(run_on(cache, which).ok());
    EXPECT_LE(cache.stats().live_executables, 2u);
  }
  expect_sum(9);
}

// The memory that `fn` hands out is that of the last capture.
TEST_F(CacheStreamsTest, AKeyThatHandsOutMemoryHasOne) {
  Cache cache(with_executables(2));
  float* handed_out = nullptr;
  const auto run = [&](cudaStream_t on, float value) {
    return cache.run(key("memory"), on, params(value), [&](Recorder& rec, Slot<float> slot) {
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&handed_out), kSize * sizeof(float), rec.stream()));
      CUDA_OK(cudaMemsetAsync(handed_out, 0, kSize * sizeof(float), rec.stream()));
      rec.launch(add, {kGrid, kBlock}, handed_out, kSize, slot);
    });
  };
  for (std::size_t which : {0, 1, 0, 1}) {
    const float value = static_cast<float>(which) + 1;
    ASSERT_TRUE(run(streams[which], value).ok());
    std::vector<float> bytes(kSize);
    CUDA_OK(cudaMemcpyAsync(bytes.data(), handed_out, kSize * sizeof(float), cudaMemcpyDeviceToHost, streams[which]));
    CUDA_OK(cudaFreeAsync(handed_out, streams[which]));
    CUDA_OK(cudaStreamSynchronize(streams[which]));
    EXPECT_EQ(bytes, std::vector<float>(kSize, value));
  }
  EXPECT_EQ(live_entries(cache), 1u);
}

TEST_F(CacheStreamsTest, ThreadsWithStreamsOfTheirOwn) {
  constexpr int kThreads = 4, kRuns = 100;
  Cache cache(with_executables(3));
  std::vector<std::unique_ptr<DeviceBuffer<float>>> sums;
  for (int i = 0; i < kThreads; ++i) sums.push_back(std::make_unique<DeviceBuffer<float>>(kSize));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      cudaStream_t mine = nullptr;
      CUDA_OK(cudaStreamCreate(&mine));
      for (int run = 0; run < kRuns; ++run) {
        float* const sum = sums[i]->get();
        EXPECT_TRUE(cache
                        .run(key("k"), mine, params(sum),
                             [&](Recorder& rec, Slot<float*> to) {
                               rec.launch(add, {kGrid, kBlock}, to, kSize, 1.0f);
                             })
                        .ok());
      }
      CUDA_OK(cudaStreamSynchronize(mine));
      CUDA_OK(cudaStreamDestroy(mine));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& sum : sums) EXPECT_EQ(sum->read(), std::vector<float>(kSize, kRuns));
  EXPECT_LE(cache.stats().captures, 3u);
}

TEST_F(CacheStreamsTest, LessThanOneIsAnError) {
  Cache cache(with_executables(0));
  EXPECT_EQ(run_on(cache, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace graphcache::test
