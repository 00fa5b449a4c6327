// What a capture keeps alive by user objects exists as long as its launches, however these were made (fact 28). For
// GPUs only, because hostrt has no user objects.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cuda/compat.h"
#include "support.h"
#include "user_objects_kernels.h"

namespace graphcache::test {
namespace {

class UserObjectsTest : public StreamTest {
 protected:
  // Some milliseconds of work whose capture holds an object that counts its release.
  absl::StatusOr<Outcome> run(Cache& cache, int number) {
    return cache.run(key(number), stream, [&, number](cudaStream_t on) {
      CUDA_OK(launch(put_late, 1, 1, on, out.get(), number));
      for (int i = 0; i < 20; ++i) CUDA_OK(launch(put_late, 1, 1, on, out.get() + 1, 5));
      CaptureInfo info;
      CUDA_OK(capture_info(on, &info));
      if (info.status != cudaStreamCaptureStatusActive) return;
      cudaUserObject_t object = nullptr;
      CUDA_OK(cudaUserObjectCreate(
          &object, &released[number], [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, 1,
          cudaUserObjectNoDestructorSync));
      CUDA_OK(cudaGraphRetainUserObject(info.graph, object, 1, cudaGraphUserObjectMove));
    });
  }

  // Number of objects released before the launch was complete; a kernel takes longer than everything done here.
  int released_early(int number) {
    const int count = released[number];
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << "the launch is over too soon to tell";
    return count;
  }
  // Released at the latest by another operation of the cache.
  void expect_released(Cache& cache, int number) {
    CUDA_OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < 1000 && released[number] == 0; ++i) {
      (void)cache.erase(key("another"));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(released[number], 1);
  }

  DeviceBuffer<int> out{2};
  std::atomic<int> released[3] = {};
};

TEST_F(UserObjectsTest, StayForLaunchesInFlightOfErasedKeys) {
  Cache cache(forced(Sharing::kUpdatesAcross));
  EXPECT_RUN(kInstantiated, run(cache, 0));
  EXPECT_RUN(kUpdated, run(cache, 1));
  EXPECT_RUN(kSwitched, run(cache, 0));
  EXPECT_EQ(cache.stats().updates, 2u);
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_RUN(kSwitched, run(cache, 1));
  EXPECT_TRUE(cache.erase(key(1)));
  EXPECT_EQ(released_early(1), 0);
  expect_released(cache, 1);
  EXPECT_EQ(out.first(), 1);
  EXPECT_EQ(released[0], 0);
  cache.clear();
  expect_released(cache, 0);
}

TEST_F(UserObjectsTest, StayForLaunchesInFlightOfForgottenKeys) {
  Cache cache(forced(Sharing::kUpdatesAcross, {.max_templates = 1}));
  EXPECT_RUN(kInstantiated, run(cache, 0));
  EXPECT_RUN(kUpdated, run(cache, 1));  // 0 loses its executable and its template with its launch in flight
  EXPECT_EQ(cache.stats().forgotten, 1u);
  EXPECT_EQ(released_early(0), 0);
  EXPECT_RUN(kUpdated, run(cache, 2));
  EXPECT_EQ(cache.stats().updates, 2u);
  EXPECT_EQ(released_early(1), 0);
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_RUN(kReplayed, run(cache, 2));
  cache.clear();
  expect_released(cache, 0);
  expect_released(cache, 1);
  expect_released(cache, 2);
}

}  // namespace
}  // namespace graphcache::test
