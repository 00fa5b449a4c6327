// Long runs on either runtime of a family that shares a table: a million runs with random keys and values, in flight,
// each compared with the same work done eagerly. Fewer on hostrt, by the size.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "in_threads.h"
#include "kernels.h"
#include "size.h"
#include "support.h"

namespace graphcache::test {
namespace {

int runs_in_all() { return kOnGpu ? 1'000'000 : by_size(15'000, 60'000, 250'000); }

constexpr int kMembers = 64;
constexpr int kSize = 64;
constexpr unsigned kBlock = 16;

// The memory of one stream's runs, and as much for the eager work. The members' grids and arguments differ in some
// places; the values are an argument, a pointer and a grid.
struct Lane {
  absl::StatusOr<Outcome> run(Cache& cache, int which, int value) {
    const auto grid = static_cast<unsigned>(1 + value % 4);
    absl::StatusOr<Outcome> outcome =
        cache.run(key("member", which), stream, params(cached.get(), value, grid),
                  [&](Recorder& rec, Slot<int*> slot, Slot<int> value_slot, Slot<unsigned> grid_slot) {
                    const auto record = [&](auto kernel, auto grid_of_node, auto... args) {
                      rec.launch(kernel, {grid_of_node, dim3(kBlock)}, args...);
                    };
                    enqueue(record, which, slot, value_slot, grid_slot);
                  });
    const auto directly = [&](auto kernel, unsigned grid_of_node, auto... args) {
      CUDA_OK(launch(kernel, dim3(grid_of_node), dim3(kBlock), stream, args...));
    };
    enqueue(directly, which, eager.get(), value, grid);
    directly(count_differences, 4u, cached.get(), eager.get(), kSize, differences.get());
    return outcome;
  }

  template <class Launch, class Pointer, class Value, class Grid>
  void enqueue(const Launch& launch, int which, Pointer p, Value value, Grid grid) const {
    const auto own_grid = static_cast<unsigned>(1 + which % 4);
    launch(blend, own_grid, p, kSize, 3 + 2 * which, value);
    launch(blend, grid, p, kSize, which % 5 == 0 ? which : 7, 2);
    launch(blend_otherwise, 4u, p, kSize, value, which);
    launch(blend_in, 2u, p, input.get(), kSize, 3 + which % 8);
    launch(blend, which % 2 == 0 ? own_grid : 3u, p, which % 3 == 0 ? kSize / 2 : kSize, 5, 1);
  }

  Stream stream;
  DeviceBuffer<int> cached{kSize}, eager{kSize};
  DeviceBuffer<int> input{std::vector<int>(kSize, 11)};
  DeviceBuffer<int> differences{1};
};

std::vector<std::unique_ptr<Lane>> lanes(int count) {
  std::vector<std::unique_ptr<Lane>> all;
  while (count-- > 0) all.push_back(std::make_unique<Lane>());
  return all;
}

void expect_switches(const Cache& cache, int runs) {
  const Stats stats = cache.stats();
  std::printf("%s\n", to_string(stats).c_str());
  EXPECT_GT(stats.set_switches, static_cast<std::uint64_t>(runs) * 8 / 10);
  EXPECT_EQ(stats.captures, static_cast<std::uint64_t>(kMembers));
  EXPECT_EQ(stats.refused_device_updates + stats.failed + stats.outcome(Outcome::kEager), 0u);
}

TEST(SoakTablesTest, RunsInFlightOnStreamsThatTakeTurnsEqualEagerOnes) {
  const int runs = runs_in_all();
  Cache cache(forced(Sharing::kTable, 2));
  const auto all = lanes(3);
  std::minstd_rand random(7);
  for (int i = 0; i < runs && !testing::Test::HasFailure(); ++i) {
    const auto which = static_cast<int>(random() % kMembers);
    const auto value = static_cast<int>(random() % 1000);
    ASSERT_SUCCESS(all[random() % all.size()]->run(cache, which, value));
  }
  for (const auto& lane : all) EXPECT_EQ(lane->differences.first(), 0);
  expect_switches(cache, runs);
  EXPECT_EQ(cache.stats().instantiations, 1u);
  EXPECT_EQ(cache.stats().updates, 0u);
}

// A thread that finds a table in use by another's run uses another table, of which there are as many as threads, or
// runs eagerly if the budget does not allow so many. No table is evicted for another.
void expect_equal_runs_of_threads(const Options& options, std::uint64_t most_instantiations) {
  constexpr int kThreads = 4;
  const int runs = runs_in_all() / kThreads;
  Cache cache(options);
  const auto all = lanes(kThreads);
  in_threads(kThreads, [&](int t) {
    std::minstd_rand random(static_cast<unsigned>(t + 1));
    for (int i = 0; i < runs && !testing::Test::HasFailure(); ++i) {
      const auto which = static_cast<int>(random() % kMembers);
      const auto value = static_cast<int>(random() % 1000);
      ASSERT_SUCCESS(all[t]->run(cache, which, value));
    }
  });
  for (const auto& lane : all) EXPECT_EQ(lane->differences.first(), 0);
  const Stats stats = cache.stats();
  std::printf("%s\n", to_string(stats).c_str());
  EXPECT_GT(stats.set_switches, static_cast<std::uint64_t>(runs));
  EXPECT_EQ(stats.failed, 0u);
  EXPECT_LE(stats.instantiations, most_instantiations);
  if (options.max_executables >= kThreads) {
    EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
  }
}

TEST(SoakTablesTest, RunsOfThreadsEqualEagerOnes) { expect_equal_runs_of_threads(forced(Sharing::kTable, 4), 4); }

TEST(SoakTablesTest, RunsOfMoreThreadsThanExecutablesEqualEagerOnes) {
  expect_equal_runs_of_threads(forced(Sharing::kTable, 3), 3);
}

TEST(SoakTablesTest, RunsOfThreadsEqualEagerOnesWhereMemoryIsPreferred) {
  // Until there is a table, a thread that finds none idle makes its own: usually 5 to 8, once 18 on busy cores.
  expect_equal_runs_of_threads({.share = Share::kAlways}, 64);
}

}  // namespace
}  // namespace graphcache::test
