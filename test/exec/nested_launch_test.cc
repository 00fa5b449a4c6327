// Kernels that launch kernels (dynamic parallelism). The device may write their arguments but not their grids, and no
// update leads to one from another kernel (docs/semantics.md). For GPUs only.
//
// Each sequence of runs is made directly and through a cache, without waiting in between. The steps between sums are
// products, so the result also shows the order of the runs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <random>
#include <vector>

#include "cuda/compat.h"
#include "nested_launch_image.h"
#include "sharing_support.h"

namespace graphcache::test {
namespace {

using Adds = void (*)(int* p, int n, int children, int value);
using AddsFrom = void (*)(int* p, int n, int children, const int* value);

struct Work {
  unsigned grid = 8;
  int children = 2, value = 1;
};

class NestedLaunchTest : public StreamTest {
 protected:
  static constexpr int kSize = 256;

  void SetUp() override {
    int major = 0;
    CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < 8 || nested_launch_image[0] == 0) GTEST_SKIP() << "no device code for this device";
    if (CUDART_VERSION < 12080) GTEST_SKIP() << "this runtime launches no kernels of libraries";
    CUDA_OK(cudaLibraryLoadData(&library, nested_launch_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    nested = kernel<Adds>("nested_add");
    forgotten = kernel<Adds>("nested_add_forgotten");
    nested_from = kernel<AddsFrom>("nested_add_from");
    plain = kernel<Adds>("plain_add");
    for (int i = 0; i < kSize; ++i) seed.push_back(1000 * i + 7);
  }
  void TearDown() override {
    StreamTest::TearDown();
    if (library == nullptr) return;
    CUDA_OK(cudaLibraryUnload(library));
  }

  template <class Function>
  Function kernel(const char* name) {
    cudaKernel_t found = nullptr;
    CUDA_OK(cudaLibraryGetKernel(&found, library, name));
    return reinterpret_cast<Function>(found);
  }

  // Grids below and above the captured one. Some runs have the values of the previous run.
  static std::vector<Work> sequence(int runs, unsigned seed_of_runs) {
    std::mt19937 random(seed_of_runs);
    std::vector<Work> all(static_cast<std::size_t>(runs));
    for (std::size_t i = 1; i < all.size(); ++i) {
      all[i] = {1 + static_cast<unsigned>(random() % 20), 1 + static_cast<int>(random() % 3),
                static_cast<int>(random() % 1000)};
      if (random() % 8 == 0) all[i] = all[i - 1];
    }
    return all;
  }

  // run_one(cache, i) for every i of `runs`.
  template <class Run>
  void expect_as_direct(Cache& cache, int runs, const Run& run_one) {
    memory.write(seed);
    for (int i = 0; i < runs; ++i) ASSERT_TRUE(did(Outcome::kEager, run_one(directly, i))) << "run " << i;
    const std::vector<int> wanted = memory.read();
    memory.write(seed);
    for (int i = 0; i < runs; ++i) {
      const absl::StatusOr<Outcome> outcome = run_one(cache, i);
      ASSERT_SUCCESS(outcome) << "run " << i << ": " << outcome.status();
    }
    EXPECT_EQ(memory.read(), wanted);
  }

  // Runs of one key, with one executable: run_one(cache, work).
  template <class Run>
  void expect_one_executable(Patching patching, unsigned seed_of_runs, std::uint64_t refusals, const Run& run_one) {
    constexpr int kRuns = 400;
    Cache cache(forced(patching));
    const std::vector<Work> work = sequence(kRuns, seed_of_runs);
    expect_as_direct(cache, kRuns, [&](Cache& by, int i) { return run_one(by, work[i]); });
    EXPECT_EQ(cache.stats().instantiations, 1u);
    EXPECT_EQ(cache.stats().refused_device_updates, refusals);
  }

  cudaLibrary_t library = nullptr;
  Adds nested = nullptr, forgotten = nullptr, plain = nullptr;
  AddsFrom nested_from = nullptr;
  Cache directly{direct()};
  std::vector<int> seed;
  DeviceBuffer<int> memory{kSize};
};

// ---- One key --------------------------------------------------------------------------------------------------------

TEST_F(NestedLaunchTest, EveryBlockLaunchesItsChildren) {
  Cache cache(renting());
  for (const Adds parent : {nested, forgotten}) {
    std::vector<int> wanted = seed;
    memory.write(seed);
    for (int run = 0; run < 4; ++run) {
      const Work work{.grid = 7, .children = 3, .value = 40};
      const auto launched = [&](cudaStream_t s) {
        return launch(parent, work.grid, 32, s, memory.get(), kSize, work.children, work.value);
      };
      if (run == 0) {
        CUDA_OK(launched(stream));
      } else {
        const Outcome first = parent == nested ? Outcome::kInstantiated : Outcome::kUpdated;
        EXPECT_TRUE(
            did(run == 1 ? first : Outcome::kReplayed, cache.run(key("k", parent == nested), stream, launched)));
      }
      const int blocks = static_cast<int>(work.grid);
      for (int block = 0; block < blocks; ++block) {
        for (int i = 0; i < 32 * work.children; ++i) {
          wanted[(i + 5 * block) % kSize] += work.value + (block + 1) * blocks;
        }
      }
      EXPECT_EQ(memory.read(), wanted) << "run " << run;
    }
  }
}

// Beside another kernel whose slots the device writes. Of the parents, the device writes only the slots of the second.
TEST_F(NestedLaunchTest, ArgumentsAndGridsFollowEachRun) {
  constexpr int kRuns = 400;
  for (const Patching patching : {Patching::kDeviceUpdated, Patching::kPerNode, Patching::kAuto}) {
    for (const Adds parent : {nested, forgotten}) {
      SCOPED_TRACE(testing::Message() << "patching " << static_cast<int>(patching) << (parent == nested));
      Cache cache(forced(patching));
      const std::vector<Work> work = sequence(kRuns, 1);
      expect_as_direct(cache, kRuns, [&](Cache& by, int i) {
        return by.run(key("k"), stream, params(work[i].grid, work[i].children, work[i].value),
                      [&](Recorder& rec, Slot<unsigned> g, Slot<int> c, Slot<int> v) {
                        rec.launch(parent, {g, 32}, memory.get(), kSize, c, v);
                        rec.launch(blend, {g, 32}, memory.get(), kSize, 3, v);
                        rec.launch(parent, {6, 32}, memory.get(), kSize, c, v);
                        rec.launch(blend, {8, 32}, memory.get(), kSize, 5, 1);
                      });
      });
      const Stats stats = cache.stats();
      EXPECT_EQ(stats.captures, 1u);
      EXPECT_EQ(stats.instantiations, 1u);
      EXPECT_GT(stats.outcome(Outcome::kPatched), kRuns / 2u);
      EXPECT_EQ(stats.refused_device_updates, 0u);
    }
  }
}

// No runtime query is made that fails for a library's kernels.
TEST_F(NestedLaunchTest, AnErrorThatStoodThereBeforeFailsNoRun) {
  Cache cache;
  cudaSetDevice(-1);
  const cudaError_t before = cudaPeekAtLastError();
  ASSERT_NE(before, cudaSuccess);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, params(3), [&](Recorder& rec, Slot<int> v) {
    rec.launch(nested, {4, 32}, memory.get(), kSize, 2, v);
    rec.launch(blend, {8, 32}, memory.get(), kSize, 3, 1);
  }));
  EXPECT_EQ(cudaGetLastError(), before);
}

TEST_F(NestedLaunchTest, ArgumentsAloneAreForTheDevice) {
  expect_one_executable(Patching::kDeviceUpdated, 2, /*refusals=*/0, [&](Cache& by, const Work& work) {
    return by.run(key("k"), stream, params(work.children, work.value), [&](Recorder& rec, Slot<int> c, Slot<int> v) {
      rec.launch(nested, {9, 32}, memory.get(), kSize, c, v);
      rec.launch(blend, {8, 32}, memory.get(), kSize, 3, 1);
    });
  });
}

// The device then has nothing to write.
TEST_F(NestedLaunchTest, GridOfTheOnlySlotNodeIsLeftToTheHost) {
  expect_one_executable(Patching::kDeviceUpdated, 3, /*refusals=*/1, [&](Cache& by, const Work& work) {
    return by.run(key("k"), stream, params(work.grid), [&](Recorder& rec, Slot<unsigned> g) {
      rec.launch(nested, {g, 32}, memory.get(), kSize, 2, 30);
      rec.launch(blend, {8, 32}, memory.get(), kSize, 3, 1);
    });
  });
}

TEST_F(NestedLaunchTest, ParentsReadValuesOnTheDevice) {
  for (const Patching patching : {Patching::kDeviceUpdated, Patching::kPerNode}) {
    DeviceBuffer<int> value(1);
    expect_one_executable(patching, 4, /*refusals=*/0, [&](Cache& by, const Work& work) {
      return by.run(key("k"), stream, params(work.grid, work.value), [&](Recorder& rec, Slot<unsigned> g, Slot<int> v) {
        rec.write(value.get(), v);
        rec.launch(nested_from, {g, 32}, memory.get(), kSize, 2, value.get());
        rec.launch(blend, {8, 32}, memory.get(), kSize, 3, v);
      });
    });
  }
}

// ---- Families -------------------------------------------------------------------------------------------------------

class NestedLaunchFamiliesTest : public NestedLaunchTest {
 protected:
  static constexpr int kMembers = 6, kRuns = 240;

  enum Differs { kInArgument, kInGrid, kInBoth };

  void expect_members_as_direct(Cache& cache, Differs differs, bool has_slots) {
    const std::vector<Work> work = sequence(kRuns, 5);
    std::mt19937 random(6);
    std::vector<int> turns(kRuns);
    for (int& which : turns) which = static_cast<int>(random() % kMembers);
    expect_as_direct(cache, kRuns, [&](Cache& by, int i) {
      const int which = turns[i];
      const unsigned grid = differs == kInArgument ? 8 : 3 + 4 * static_cast<unsigned>(which);
      const int value = differs == kInGrid ? 20 : 10 * which;
      if (!has_slots) {
        return by.run(key("member", which), stream, [&, grid, value](Recorder& rec) {
          rec.launch(nested, {grid, 32}, memory.get(), kSize, 2, value);
          rec.launch(blend, {8, 32}, memory.get(), kSize, 3, value);
          rec.launch(blend, {8, 32}, memory.get(), kSize, 5, 1);
        });
      }
      // The host sets the second parent's grid in any case.
      return by.run(key("member", which), stream, params(work[i].grid, work[i].value),
                    [&, grid, value](Recorder& rec, Slot<unsigned> g, Slot<int> v) {
                      rec.launch(nested, {grid, 32}, memory.get(), kSize, 2, value);
                      rec.launch(blend, {8, 32}, memory.get(), kSize, 3, v);
                      rec.launch(nested, {g, 32}, memory.get(), kSize, 2, value);
                      rec.launch(forgotten, {grid, 32}, memory.get(), kSize, 1, v);
                      rec.launch(blend, {g, 32}, memory.get(), kSize, 5, v);
                    });
    });
  }
};

TEST_F(NestedLaunchFamiliesTest, MembersThatTakeTurns) {
  struct Way {
    Sharing sharing;
    int executables;
  };
  for (const auto& [sharing, executables] :
       {Way{Sharing::kTable, 1}, Way{Sharing::kTable, 3}, Way{Sharing::kUpdatesAcross, 1}, Way{Sharing::kUpdates, 1}}) {
    for (const bool has_slots : {false, true}) {
      for (const Differs differs : {kInArgument, kInGrid, kInBoth}) {
        SCOPED_TRACE(testing::Message() << "differs " << differs << ", slots " << has_slots << ", sharing "
                                        << static_cast<int>(sharing) << ", " << executables);
        Cache cache(at_most(executables, sharing));
        expect_members_as_direct(cache, differs, has_slots);
        const Stats stats = cache.stats();
        if (sharing == Sharing::kTable && differs == kInArgument) {
          EXPECT_EQ(stats.instantiations, 1u);
          EXPECT_GT(stats.set_switches, kRuns / 2u);
        }
        if (sharing == Sharing::kTable && differs != kInArgument) {
          EXPECT_EQ(stats.set_switches, 0u);  // each member has its own grid
          EXPECT_GE(stats.instantiations, executables == 1 ? static_cast<unsigned>(kMembers) : 2u);  // or by updates
        }
        if (sharing == Sharing::kUpdatesAcross) {
          EXPECT_EQ(stats.instantiations, 1u);
          EXPECT_GT(stats.outcome(Outcome::kSwitched), kRuns / 2u);
        }
        if (sharing != Sharing::kTable) {
          EXPECT_EQ(stats.captures, static_cast<unsigned>(kMembers));
        }
        EXPECT_EQ(stats.refused_updates, 0u);
        EXPECT_EQ(stats.refused_device_updates, 0u);
      }
    }
  }
}

// The graphs differ only in one kernel: a plain kernel for even numbers, a parent for odd ones. A node follows a
// parent, because otherwise CUDA hangs (docs/semantics.md, "Kernels that launch kernels").
struct Turns {
  Sharing sharing;
  int executables;

  friend std::ostream& operator<<(std::ostream& out, const Turns& turns) {
    const char* const names[] = {"Auto", "Never", "Updates", "UpdatesAcross", "Table"};
    return out << names[static_cast<int>(turns.sharing)] << turns.executables;
  }
};

class NestedAndPlainTest : public NestedLaunchTest, public testing::WithParamInterface<Turns> {
 protected:
  absl::StatusOr<Outcome> run_one(Cache& cache, int which) {
    return cache.run(key("k", which), stream, [this, which](Recorder& rec) {
      rec.launch(blend, {static_cast<unsigned>(4 + which), 32}, memory.get(), kSize, 3, which);
      rec.launch(which % 2 == 0 ? plain : nested, {5, 32}, memory.get(), kSize, 2, 10 + which);
      rec.launch(blend, {8, 32}, memory.get(), kSize, 5, 0);
    });
  }
};

void expect_refused_for_kernels(const Cache& cache) {
  std::uint64_t refused = 0;
  for (const EntryInfo& entry : cache.entries()) {
    if (entry.refusal.empty()) continue;
    ++refused;
    EXPECT_NE(entry.refusal.find("the kernel cannot take the other one's place"), std::string::npos) << entry.refusal;
  }
  EXPECT_EQ(refused, cache.stats().refused_updates);
}

TEST_P(NestedAndPlainTest, ARefusedUpdateIsNotTriedAgain) {
  const auto [sharing, executables] = GetParam();
  Cache cache(at_most(executables, sharing));
  const std::uint64_t once = sharing == Sharing::kTable ? 0 : 1;  // sets cannot change kernels
  for (const int runs : {2, 40}) {
    expect_as_direct(cache, runs, [&](Cache& by, int i) { return run_one(by, i % 2); });
    EXPECT_EQ(cache.stats().refused_updates, once) << "after " << runs;
  }
  expect_refused_for_kernels(cache);
  EXPECT_EQ(cache.stats().captures, 2u);
  EXPECT_EQ(cache.stats().failed, 0u);
  EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
}

// In any order, because an update from a parent to a plain kernel succeeds.
TEST_P(NestedAndPlainTest, KeysOfBothKindsInAnyOrder) {
  constexpr int kKeys = 6, kRuns = 300;
  for (unsigned order = 0; order < 4; ++order) {
    SCOPED_TRACE(order);
    std::mt19937 random(order);
    std::vector<int> turns(kRuns);
    for (int& which : turns) which = static_cast<int>(random() % kKeys);
    turns[0] = static_cast<int>(order % 2);
    Cache cache(at_most(GetParam().executables, GetParam().sharing));
    expect_as_direct(cache, kRuns, [&](Cache& by, int i) { return run_one(by, turns[i]); });
    const Stats stats = cache.stats();
    EXPECT_LE(stats.refused_updates, kKeys / 2u);  // each parent's key once
    expect_refused_for_kernels(cache);
    EXPECT_EQ(stats.captures, static_cast<unsigned>(kKeys));
    EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Turns, NestedAndPlainTest, testing::ValuesIn([] {
                           std::vector<Turns> all;
                           for (const Sharing sharing : {Sharing::kUpdatesAcross, Sharing::kUpdates, Sharing::kTable}) {
                             for (const int executables : {1, 2, 3}) all.push_back({sharing, executables});
                           }
                           return all;
                         }()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace graphcache::test
