// Streams of different priorities, and new executables. In both cases a GPU may lose values that device code has
// written (docs/semantics.md). On either runtime.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <random>
#include <vector>

#include "sharing_support.h"

namespace graphcache::test {
namespace {

constexpr int kNodes = 30;  // from 25 slot nodes on, the default options let the device write the slots

// A stream for each of several priorities, a blocking one, and the thread's own.
class PrioritiesTest : public testing::Test {
 protected:
  PrioritiesTest() {
    const auto [least, greatest] = Priorities();
    for (const int priority : {least, greatest, (least + greatest) / 2}) {
      for (const unsigned flags : {cudaStreamNonBlocking, cudaStreamDefault}) {
        streams.push_back(own.emplace_back(flags, priority));
      }
    }
    streams.push_back(cudaStreamPerThread);
  }

  cudaStream_t any_stream() { return streams[random() % streams.size()]; }

  // Runs a key whose nodes count their threads. The key or a slot decides how many there are.
  void run_and_count(Cache& cache, cudaStream_t stream, int which, unsigned grid, bool as_slot) {
    CUDA_OK(cudaMemsetAsync(count.get(), 0, sizeof(int), stream));
    const auto outcome =
        cache.run(key("k", which), stream, params(as_slot ? grid : 1u), [&](Recorder& rec, Slot<unsigned> slot) {
          const Arg<dim3> blocks = as_slot ? Arg<dim3>(slot) : Arg<dim3>(dim3(grid));
          for (int i = 0; i < kNodes; ++i) rec.launch(count_threads, {blocks, 32}, count.get());
        });
    ASSERT_SUCCESS(outcome);
    CUDA_OK(cudaStreamSynchronize(stream));
    ASSERT_EQ(count.first(), static_cast<int>(32 * grid * kNodes)) << to_string(*outcome) << " on stream " << stream;
  }

  std::deque<StreamOf> own;
  std::vector<cudaStream_t> streams;
  std::mt19937 random{5};
  DeviceBuffer<int> count{1};
};

TEST_F(PrioritiesTest, SlotGridsHoldOnStreamsOfAnyPriority) {
  for (const Patching patching : {Patching::kAuto, Patching::kDeviceUpdated, Patching::kPerNode}) {
    Cache cache(forced(patching));
    unsigned grid = 2;
    for (int i = 0; i < 200; ++i) {
      if (random() % 3 == 0) grid = 1 + random() % 9;
      run_and_count(cache, any_stream(), 0, grid, /*as_slot=*/true);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(cache.stats().refused_device_updates, 0u);
    EXPECT_EQ(cache.stats().instantiations, 1u);
  }
}

TEST_F(PrioritiesTest, GridsOfRowsHoldOnStreamsOfAnyPriority) {
  Cache cache(forced(Sharing::kTable));
  for (int i = 0; i < 300; ++i) {
    const int which = i < 3 ? i : static_cast<int>(random() % 3);
    // Graphs captured at different priorities belong to different families.
    run_and_count(cache, i < 3 ? streams[0] : any_stream(), which, 2 + 3 * static_cast<unsigned>(which),
                  /*as_slot=*/false);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(cache.stats().instantiations, 1u);
  EXPECT_GT(cache.stats().set_switches, 100u);
  EXPECT_EQ(cache.stats().refused_device_updates, 0u);
}

// Branches with copies and sets beside them. The driver moves the nodes of a new executable into place independently of
// the stream, so device writes in its first launch may be lost.
class NewExecutableTest : public StreamTest {
 protected:
  static constexpr int kSize = 64, kBranches = 3, kSteps = 8;

  // Each run of a key has other values than the previous one.
  absl::StatusOr<Outcome> run(Cache& cache, int which, int value) {
    return cache.run(key("new", which), stream, params(value), [&](Recorder& rec, Slot<int> slot) {
      for (const Stream& branch : branches) let_follow(branch, rec.stream());
      for (int branch = 0; branch < kBranches; ++branch) {
        int* const mine = data.get() + branch * kSize;
        for (int step = 0; step < kSteps; ++step) {
          rec.on(branches[branch]).launch(blend, {2, 32}, mine, kSize, which + 2, slot);
          if (step % 3 == branch) {
            CUDA_OK(cudaMemcpyAsync(copied.get() + branch * kSize, mine, kSize, cudaMemcpyDeviceToDevice,
                                    branches[branch]));
          }
          if (step == 5) {
            CUDA_OK(cudaMemsetAsync(mine, which, kSize, branches[branch]));
          }
        }
        let_follow(rec.stream(), branches[branch]);
      }
    });
  }

  // The result of a run for one branch.
  static void run_here(std::vector<int>* data, int which, int value) {
    for (int step = 0; step < kSteps; ++step) {
      blend_here(data->data(), kSize, which + 2, value);
      if (step == 5) std::fill(data->begin(), data->begin() + kSize / 4, which * 0x01010101);
    }
  }

  void check(const std::vector<int>& wanted) {
    const std::vector<int> got = data.read();
    for (int i = 0; i < kBranches * kSize; ++i) {
      ASSERT_EQ(got[static_cast<std::size_t>(i)], wanted[static_cast<std::size_t>(i % kSize)]) << "element " << i;
    }
  }

  std::array<Stream, kBranches> branches;
  DeviceBuffer<int> data{kBranches * kSize, 1}, copied{kBranches * kSize};
  std::vector<int> wanted = std::vector<int>(kSize, 1);
};

// Two keys alternate on one executable, so each has lost it before its next run.
TEST_F(NewExecutableTest, TheFirstLaunchHasTheValuesOfItsRun) {
  Cache cache(forced(Patching::kDeviceUpdated, forced(Sharing::kNever, {.max_executables = 1})));
  for (int i = 0; i < 60; ++i) {
    const int which = i / 3 % 2;  // the new executable is also launched with other values
    const auto outcome = run(cache, which, i);
    ASSERT_SUCCESS(outcome);
    run_here(&wanted, which, i);
    if (i % 5 == 4) check(wanted);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(cache.stats().instantiations, 20u);
  EXPECT_EQ(cache.stats().refused_device_updates, 0u);
}

TEST_F(NewExecutableTest, AWarmedOneHasTheValuesOfItsFirstRun) {
  const Options options = forced(Patching::kDeviceUpdated);
  for (int round = 0; round < 10; ++round) {
    Cache cache(options);
    const auto enqueue = [&](Recorder& rec, Slot<int> slot) {
      for (int i = 0; i < kBranches; ++i) rec.launch(blend, {2, 32}, data.get() + i * kSize, kSize, 3, slot);
    };
    ASSERT_SUCCESS(cache.warm(key("w"), stream, params(1), enqueue));
    for (const int value : {round + 2, 1, round + 3}) {  // includes the captured value
      EXPECT_RUN(kPatched, cache.run(key("w"), stream, params(value), enqueue));
      blend_here(wanted.data(), kSize, 3, value);
    }
    check(wanted);
    if (HasFatalFailure()) return;
  }
}

// The table that warm() has made was never launched when another member needs a set of it. warm() has waited for the
// upload, so the device may write.
TEST_F(NewExecutableTest, AWarmedTableServesAnotherMember) {
  Cache cache(forced(Sharing::kTable));
  const auto enqueue = [&](int which) {
    return [this, which](Recorder& rec) {
      for (int i = 0; i < kBranches; ++i) {
        CUDA_OK(launch(blend, dim3(2), 32, rec.stream(), data.get() + i * kSize, kSize, 3 + which, 7));
      }
    };
  };
  ASSERT_SUCCESS(cache.warm(key("t", 0), stream, enqueue(0)));
  ASSERT_SUCCESS(cache.warm(key("t", 1), stream, enqueue(1)));
  for (const int which : {1, 0, 1, 1, 0}) {
    ASSERT_SUCCESS(cache.run(key("t", which), stream, enqueue(which)));
    blend_here(wanted.data(), kSize, 3 + which, 7);
    check(wanted);
  }
  EXPECT_EQ(cache.stats().instantiations, 1u);
  EXPECT_EQ(cache.stats().set_switches, 4u);
  EXPECT_EQ(cache.stats().live_executables, 1u);
}

}  // namespace
}  // namespace graphcache::test
