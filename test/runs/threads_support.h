// Shared by the suites of threads: a lane of work for each thread.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "in_threads.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

// The stream of one thread, and the memory for its sum.
struct Lane {
  Stream stream;
  DeviceBuffer<float> sum{kSize};
};

class ThreadsTest : public testing::Test {
 protected:
  explicit ThreadsTest(int count = 16) {
    for (int i = 0; i < count; ++i) lanes.push_back(std::make_unique<Lane>());
  }
  void TearDown() override {
    for (const auto& lane : lanes) EXPECT_FALSE(is_capturing(lane->stream));
    CUDA_OK(cudaPeekAtLastError());
    if (!kOnGpu) {
      EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    }
  }
  int count() const { return static_cast<int>(lanes.size()); }
  Lane& lane(int i) { return *lanes[static_cast<std::size_t>(i)]; }

  // Adds `value` to the lane's sum through the slots of `key`'s graph.
  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& which, Lane& lane, float value) {
    return cache.run(which, lane.stream, params(lane.sum.get(), value),
                     [&](Recorder& rec, Slot<float*> p, Slot<float> v) {
                       ++calls;
                       rec.launch(add, {kGrid, kBlock}, p, kSize, v);
                     });
  }

  // Also adds `constant`, which belongs to the key.
  absl::StatusOr<Outcome> run_add_two(Cache& cache, const Key& which, Lane& lane, float value, float constant) {
    return cache.run(which, lane.stream, params(lane.sum.get(), value),
                     [&, constant](Recorder& rec, Slot<float*> p, Slot<float> v) {
                       ++calls;
                       rec.launch(add, {kGrid, kBlock}, p, kSize, v);
                       rec.launch(add, {kGrid, kBlock}, p, kSize, constant);
                     });
  }

  // The first `threads` lanes make `runs` runs each, in threads of their own. run(i, n) is the n-th of lane i, from 1
  // on, and adds wanted(i, n) to the lane's sum. None may fail.
  template <class Run, class Wanted>
  void run_in_threads(int threads, int runs, const Run& run, const Wanted& wanted) {
    for (int i = 0; i < threads; ++i) lane(i).sum.write(std::vector<float>(kSize));
    std::atomic<int> failed{0};
    in_threads(threads, [&](int i) {
      for (int n = 1; n <= runs; ++n) failed += run(i, n).ok() ? 0 : 1;
    });
    EXPECT_EQ(failed, 0);
    for (int i = 0; i < threads; ++i) {
      float sum = 0;
      for (int n = 1; n <= runs; ++n) sum += wanted(i, n);
      EXPECT_EQ(lane(i).sum.read(), std::vector<float>(kSize, sum)) << i;
    }
  }

  std::vector<std::unique_ptr<Lane>> lanes;
  std::atomic<int> calls{0};
};

}  // namespace graphcache::test
