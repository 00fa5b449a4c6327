// Stream 0 in a program with both kinds of translation units: compiled with per-thread default streams and without
// them.
#include "per_thread.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "support.h"

namespace graphcache::test {
namespace {

class PerThreadTest : public testing::Test {
 protected:
  void SetUp() override { CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&result), kBytes)); }
  void TearDown() override {
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaFreeHost(result));
  }
  static constexpr std::size_t kBytes = 100 * sizeof(float);
  float* result = nullptr;
};

// The unit's own calls on stream 0 are in order with the runs.
TEST_F(PerThreadTest, StreamZeroIsThatOfTheUnit) {
  for (const Unit* unit : {&plain_unit, &per_thread_unit, &plain_unit}) {
    Cache cache;
    for (const Way way : kWaysToRun) {
      const std::string what =
          std::string(unit->is_per_thread ? "per thread" : "plain") + ", way " + std::to_string(static_cast<int>(way));
      DeviceBuffer<float> data(100);
      float sum = 0;
      for (int i = 0; i < 6; ++i) {
        cudaStream_t seen = nullptr;
        const float value = static_cast<float>(1 + i / 2);
        ASSERT_SUCCESS(unit->run(way, cache, data.get(), value, &seen)) << what;
        sum += value;
        CUDA_OK(unit->read(result, data.get(), kBytes));
        CUDA_OK(unit->wait());
        EXPECT_EQ(result[0], sum) << what;
        EXPECT_EQ(result[99], sum) << what;
        EXPECT_EQ(seen == cudaStreamPerThread, unit->is_per_thread) << what;
        // A direct call gets the name that the caller gave.
        if (way == Way::kDirect && !unit->is_per_thread) {
          EXPECT_EQ(seen, nullptr);
        }
      }
    }
  }
}

TEST_F(PerThreadTest, TheOptionsStreamIsThatOfTheUnitThatSetIt) {
  for (const Unit* of_options : {&plain_unit, &per_thread_unit}) {
    for (const Unit* unit : {&plain_unit, &per_thread_unit}) {
      Cache cache(of_options->options_of_stream_zero());
      DeviceBuffer<float> data(100);
      cudaStream_t seen = nullptr;
      for (int i = 1; i <= 3; ++i) {
        ASSERT_SUCCESS(unit->run_by_default(cache, data.get(), 1, &seen));
        CUDA_OK(of_options->read(result, data.get(), kBytes));
        CUDA_OK(of_options->wait());
        EXPECT_EQ(result[99], static_cast<float>(i));
      }
      EXPECT_EQ(seen == cudaStreamPerThread, of_options->is_per_thread) << unit->is_per_thread;
    }
  }
}

using PerThreadTestOnGpu = PerThreadTest;

TEST_F(PerThreadTestOnGpu, RunsDoNotWaitForAnotherThreadsStreamZero) {
  Cache cache;
  DeviceBuffer<float> data(100), other(100);
  cudaStream_t seen = nullptr;
  const auto work = [&] {
    for (const Way way : {Way::kLambda, Way::kFunction, Way::kSlot, Way::kStep, Way::kForked}) {
      EXPECT_TRUE(per_thread_unit.run(way, cache, data.get(), 1, &seen).ok());
    }
    CUDA_OK(per_thread_unit.read(result, data.get(), kBytes));
    CUDA_OK(per_thread_unit.wait());
  };
  std::thread(work).join();  // Captures.
  static std::atomic<bool> is_held, may_go;
  is_held = may_go = false;
  std::thread holder([&] {
    CUDA_OK(per_thread_unit.call(
        [](void*) {
          is_held = true;
          while (!may_go) std::this_thread::yield();
        },
        nullptr));
    EXPECT_TRUE(per_thread_unit.run(Way::kLambda, cache, other.get(), 1, &seen).ok());
  });
  while (!is_held) std::this_thread::yield();
  std::atomic<bool> is_done{false};
  std::thread runner([&] {
    work();
    is_done = true;
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!is_done && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(is_done) << "it waits for the other thread's stream";
  may_go = true;
  holder.join();
  runner.join();
  EXPECT_EQ(data.first(), 10);
}

}  // namespace
}  // namespace graphcache::test
