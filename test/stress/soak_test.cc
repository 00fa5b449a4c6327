// Long runs on either runtime: a million runs with changing keys and values under eviction, each compared with the same
// work done eagerly; and endless captures that take no more memory than the first ones. Shorter on hostrt, except in
// full size.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include "in_threads.h"
#include "kernels.h"
#include "size.h"
#include "support.h"

namespace graphcache::test {
namespace {

int times(int brief, int ordinary, int full) { return kOnGpu ? full : by_size(brief, ordinary, full); }

constexpr int kSize = 64;
constexpr unsigned kBlock = 16;

// The work of a key: three shapes of work, whose keys differ by constants and grids.
struct Work {
  static constexpr int kCount = 48;

  explicit Work(int the_number) : number(the_number), steps(2 + 3 * (number % 3)), grid(1 + number % 4) {}

  // The arguments after `launch` are slots or their values.
  template <class Launch, class Pointer, class Input, class Value>
  void enqueue(Launch&& launch, Pointer p, Input input, Value value) const {
    for (int i = 0; i < steps; ++i) launch(blend, grid, p, kSize, 3 + 2 * number, i);
    launch(blend_otherwise, 4u, p, kSize, value, number);
    launch(blend_in, grid, p, input, kSize, 7);
  }

  int number;
  int steps;
  unsigned grid;
};

// One thread's stream and memory, for the cache and for the eager work.
struct Lane {
  static constexpr int kBuffers = 3;

  // Makes a run and compares the result.
  absl::StatusOr<Outcome> run(Cache& cache, const Work& work, int buffer, int value) {
    int* p = cached[buffer].get();
    const int* in = input.get();
    absl::StatusOr<Outcome> outcome =
        cache.run(key("work", work.number), stream, params(p, in, value),
                  [&](Recorder& rec, Slot<int*> slot, Slot<const int*> in_slot, Slot<int> value_slot) {
                    const auto record = [&](auto kernel, unsigned grid, auto... args) {
                      rec.launch(kernel, {dim3(grid), dim3(kBlock)}, args...);
                    };
                    work.enqueue(record, slot, in_slot, value_slot);
                  });
    const auto directly = [&](auto kernel, unsigned grid, auto... args) {
      CUDA_OK(launch(kernel, dim3(grid), dim3(kBlock), stream, args...));
    };
    work.enqueue(directly, eager[buffer].get(), in, value);
    directly(count_differences, 4, p, eager[buffer].get(), kSize, differences.get());
    return outcome;
  }

  Stream stream;
  DeviceBuffer<int> cached[kBuffers]{DeviceBuffer<int>(kSize), DeviceBuffer<int>(kSize), DeviceBuffer<int>(kSize)};
  DeviceBuffer<int> eager[kBuffers]{DeviceBuffer<int>(kSize), DeviceBuffer<int>(kSize), DeviceBuffer<int>(kSize)};
  DeviceBuffer<int> input{std::vector<int>(kSize, 11)};
  DeviceBuffer<int> differences{1};
};

TEST(SoakTest, RunsUnderEvictionEqualEagerOnes) {
  constexpr int kThreads = 4;
  const int runs = times(20'000, 100'000, 1'000'000) / kThreads;
  Cache cache({.max_executables = 8, .max_templates = 40});  // fewer than keys, so some are captured again and again
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < kThreads; ++i) lanes.push_back(std::make_unique<Lane>());
  in_threads(kThreads, [&](int i) {
    std::minstd_rand random(static_cast<unsigned>(i + 1));
    for (int k = 0; k < runs && !testing::Test::HasFailure(); ++k) {
      // Some keys are used more often than others, and these change over time.
      const int number = static_cast<int>((random() % (1 + random() % Work::kCount) + k / 5000) % Work::kCount);
      ASSERT_SUCCESS(lanes[i]->run(cache, Work(number), random() % Lane::kBuffers, static_cast<int>(random())));
    }
  });
  for (const auto& lane : lanes) EXPECT_EQ(lane->differences.first(), 0);
  const Stats stats = cache.stats();
  std::printf("%s\n", to_string(stats).c_str());
  for (const Outcome outcome : {Outcome::kPatched, Outcome::kSwitched, Outcome::kRestored}) {
    EXPECT_GT(stats.outcome(outcome), 0u) << to_string(outcome);
  }
  EXPECT_GT(stats.captures, static_cast<std::uint64_t>(Work::kCount));
  EXPECT_EQ(stats.outcome(Outcome::kEager) + stats.failed, stats.eager(EagerReason::kBudget));
}

// On hostrt, where the process is small, the memory that the heap has handed out, not the pages that it keeps.
std::size_t host_bytes() {
  if (!kOnGpu) {
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
  }
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// On hostrt graphs take no device memory; they are counted instead.
std::size_t used_device_bytes() {
  CUDA_OK(cudaDeviceSynchronize());
  if (!kOnGpu) {
    const hostrt::Ledger ledger = hostrt::ledger();
    return (ledger.graphs + ledger.executables) << 10;
  }
  std::size_t free = 0, all = 0;
  CUDA_OK(cudaMemGetInfo(&free, &all));
  return all - free;
}

// Every key is new: captured, instantiated, evicted, forgotten.
TEST(SoakTest, CapturesAndDestructionsTakeNoMoreMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kCountsHost = false;  // the sanitizer keeps freed memory
#else
  constexpr bool kCountsHost = true;
#endif
  // By then the index has dropped cold keys (Index::kMaxColdEntries), and the driver has its pools.
  const int warm_up = times(6000, 20'000, 20'000);
  const int captures = times(1000, 4000, 10'000);
  Cache cache({.max_executables = 4, .max_templates = 4});
  Stream stream;
  DeviceBuffer<int> sums(kSize);
  int next = 0;
  // Returns the peak of host memory meanwhile: a table that is made anew exists twice for a moment.
  const auto capture = [&](int count) {
    std::size_t host = 0;
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i, ++next) {
      const int nodes = 4 + next % 13;
      EXPECT_RUN(kInstantiated, cache.run(key(next), stream, params(sums.get()), [&](Recorder& rec, Slot<int*> p) {
        for (int n = 0; n < nodes; ++n) rec.launch(blend, {4, kBlock}, p, kSize, 1, next - n);
      }));
      if (i % 100 == 0) host = std::max(host, host_bytes());
    }
    return host;
  };
  const std::size_t host_before = capture(warm_up);
  const std::size_t device_before = used_device_bytes();
  const std::size_t host_after = capture(captures);
  const std::size_t device_after = used_device_bytes();
  std::printf("%d captures: host %zu to %zu KiB, device %zu to %zu KiB\n", captures, host_before >> 10,
              host_after >> 10, device_before >> 10, device_after >> 10);
  // On hostrt some may still wait for their launches.
  EXPECT_LE(static_cast<double>(device_after), 1.01 * static_cast<double>(device_before) + (16 << 10));
  if (kCountsHost) {
    EXPECT_LE(static_cast<double>(host_after), 1.01 * static_cast<double>(host_before));
  }
  EXPECT_EQ(cache.stats().captures, static_cast<std::uint64_t>(next));
  unsigned sum = 0;  // wraps around
  for (int i = 0; i < next; ++i) {
    for (int n = 0; n < 4 + i % 13; ++n) sum += static_cast<unsigned>(i - n);
  }
  EXPECT_EQ(static_cast<unsigned>(sums.first()), sum);
}

}  // namespace
}  // namespace graphcache::test
