// Keys that share an executable with a table (Sharing::kTable), on either runtime. Whatever row it holds, a run
// must do the work of its own `fn`.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "in_threads.h"
#include "sharing_support.h"

namespace graphcache::test {
namespace {

class SharedTableTest : public SharingTest {
 protected:
  static Options one_table(int max_executables = 2) { return at_most(max_executables, Sharing::kTable); }

  // Nodes that differ in grids, in arguments, in both or in nothing.
  absl::StatusOr<Outcome> run_member(int which, int nodes = 12) {
    return run(key("member", which), [&, which, nodes](Recorder& rec) {
      for (int i = 0; i < nodes; ++i) {
        const auto grid = static_cast<unsigned>(i % 4 < 2 ? 1 + which % 5 : 2);
        const int factor = i % 2 == 0 ? 2 * which + 3 : 5;
        CUDA_OK(launch(blend, dim3(grid), 32, rec.stream(), at(i), 800, factor, i % 3 == 0 ? which : 7));
      }
    });
  }
  // A member all of whose nodes have other grids than its siblings'.
  absl::StatusOr<Outcome> run_wide(int which, int nodes) {
    return run(key("k", which), [&, which, nodes](Recorder& rec) {
      for (int i = 0; i < nodes; ++i) {
        rec.launch(blend, {static_cast<unsigned>(1 + (which + i) % 7), 32}, at(0), 900, which, i);
      }
    });
  }
};

TEST_F(SharedTableTest, MembersTakeTurnsByTheirRows) {
  use(one_table());
  EXPECT_RUN(kInstantiated, run_member(0));
  for (int which = 1; which < 9; ++which) EXPECT_RUN(kUpdated, run_member(which));
  for (int round = 0; round < 3; ++round) {
    for (int which = 0; which < 9; ++which) {
      EXPECT_RUN(kSwitched, run_member(which));
      EXPECT_RUN(kReplayed, run_member(which));
    }
  }
  const Stats stats = cache->stats();
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(stats.updates, 0u);
  EXPECT_EQ(stats.set_switches, 8u + 3 * 9);
  EXPECT_EQ(stats.captures, 9u);
  EXPECT_EQ(stats.refused_device_updates, 0u);
  EXPECT_EQ(stats.families, 1u);
}

// More nodes than one block of the updater serves, and rows that exceed the first piece of memory.
TEST_F(SharedTableTest, ManyMembersOfManyNodes) {
  constexpr int kMembers = 40, kNodes = 150;
  use(one_table());
  take_turns(2, kMembers, [&](int which) { return run_member(which, kNodes); });
  const Stats stats = cache->stats();
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(stats.set_switches, 2u * kMembers - 1);
  EXPECT_EQ(stats.refused_device_updates, 0u);
}

// Arguments of all sizes and alignments.
TEST_F(SharedTableTest, DifferencesAnywhereAmongTheArguments) {
  use(one_table());
  DeviceBuffer<double> out(10);
  for (int round = 0; round < 2; ++round) {
    for (int which = 0; which < 12; ++which) {
      std::vector<double> v(10);
      for (int i = 0; i < 10; ++i) v[i] = i + (which == 11 || which == i ? 50 + which : 0);
      const auto record = [&](Recorder& rec) {
        rec.launch(many, {1, 1}, out.get(), static_cast<char>(v[0]), v[1], static_cast<short>(v[2]),
                   static_cast<float>(v[3]), static_cast<long long>(v[4]), static_cast<unsigned char>(v[5]),
                   static_cast<int>(v[6]), static_cast<float>(v[7]), static_cast<unsigned short>(v[8]), v[9]);
      };
      ASSERT_SUCCESS(cache->run(key("many", which), stream, record));
      EXPECT_EQ(out.read(), v) << "member " << which << ", round " << round;
    }
  }
  EXPECT_EQ(cache->stats().set_switches, 23u);
}

// Slots over rows: arguments and grids that the device writes, and values that only the host can set.
TEST_F(SharedTableTest, SlotsOfEveryMemberFollowEachRun) {
  use(one_table());
  DeviceBuffer<int> copied(64);
  std::mt19937 random(3);
  int last = -1, last_value = 0;
  for (int i = 0; i < 300; ++i) {
    const int which = static_cast<int>(random() % 6);
    const int value = i % 3 == 0 ? 1 : static_cast<int>(random() % 4);
    const auto grid = static_cast<unsigned>(1 + value);
    const auto block = static_cast<unsigned>(32 + 32 * (value % 2));
    const auto outcome = run(key("k", which), params(value, grid, block, at(100 * (value % 3))),
                             [&, which](Recorder& rec, Slot<int> v, Slot<unsigned> g, Slot<unsigned> b, Slot<int*> p) {
                               rec.launch(blend, {static_cast<unsigned>(1 + which), 32}, at(0), 900, v, which);
                               rec.launch(blend, {g, 32}, at(3), 900, 3 + which, v);
                               rec.launch(blend, {2, b}, at(5), 900, 2 * which + 1, 4);
                               rec.launch(blend_in, {1, 64}, p, at(400 + which), 64, v);
                               rec.memcpy(copied.get(), p, copied.bytes());
                               rec.launch(blend_in, {1, 64}, at(600), copied.get(), 64, 3);
                               rec.launch(blend, {3, 32}, at(7), 900, 5, which);
                             });
    const bool same = which == last && value == last_value;
    if (i > 60) {
      EXPECT_TRUE(did(same            ? Outcome::kReplayed
                      : which == last ? Outcome::kPatched
                                      : Outcome::kSwitched,
                      outcome))
          << "run " << i;
    } else {
      ASSERT_SUCCESS(outcome);
    }
    last = which;
    last_value = value;
  }
  EXPECT_EQ(cache->stats().instantiations, 1u);
  EXPECT_EQ(cache->stats().updates, 0u);
}

// Rows cannot change kernels, blocks, shared memory and copies. A key that differs in these is of another family.
TEST_F(SharedTableTest, OnlyArgumentsAndGridsAreForRows) {
  use(one_table(6));
  const auto run_variant = [&](int variant, int which) {
    return run(key("k", variant, which), [&, variant, which](Recorder& rec) {
      const LaunchConfig config{static_cast<unsigned>(1 + which), variant == 1 ? 64u : 32u,
                                variant == 2 ? std::size_t{256} : std::size_t{0}};
      rec.launch(variant == 3 ? blend_otherwise : blend, config, at(0), 900, 3 + which, 2);
      rec.memcpy(at(950), at(variant == 4 ? 10 + which : 0), 64);
      pad(rec, 4);
    });
  };
  take_turns(3, 4 * 5, [&](int number) { return run_variant(number % 5, number / 5); });
  EXPECT_GT(cache->stats().set_switches, 10u);
  EXPECT_EQ(cache->stats().refused_device_updates, 0u);
  EXPECT_EQ(cache->stats().refused_updates, 0u);
}

TEST_F(SharedTableTest, ThreadsShareAndEachHasItsOwnResults) {
  constexpr int kThreads = 4, kMembers = 12, kRuns = 400, kShare = 128;
  for (const int executables : {1, 3}) {
    use(one_table(executables));
    std::vector<int> wanted(kSize, 1);
    memory.write(wanted);
    in_threads(kThreads, [&](int t) {
      Stream mine;
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kRuns; ++i) {
        const int which = static_cast<int>(random() % kMembers);
        int* const p = at(kShare * t);
        const auto reach = static_cast<unsigned>(1 + which % 4);
        // A slot holds each thread's memory, because all threads use the same keys.
        ASSERT_SUCCESS(cache->run(key("k", which), mine, params(p), [&](Recorder& rec, Slot<int*> to) {
          rec.launch(blend, {reach, 32}, to, kShare, which, 5);
          rec.launch(blend, {2, 32}, to, kShare, 3, which);
        }));
        blend_here(&wanted[kShare * t], static_cast<int>(32 * reach), which, 5);
        blend_here(&wanted[kShare * t], 64, 3, which);
      }
      CUDA_OK(cudaStreamSynchronize(mine));
    });
    EXPECT_EQ(memory.read(), wanted) << executables << " executables";
  }
}

// Keys that other families evict are restored, and so are those that have lost their template.
TEST_F(SharedTableTest, MembersAreEvictedAndRestored) {
  use(forced(Sharing::kTable, {.max_executables = 1, .max_templates = 3}));
  std::mt19937 random(9);
  for (int i = 0; i < 150; ++i) {
    const int which = static_cast<int>(random() % 5);
    if (i % 7 == 6) {
      ASSERT_SUCCESS(run(key("other", which), [&](Recorder& rec) { rec.launch(blend, {1, 64}, at(9), 64, which, 1); }));
    } else {
      ASSERT_SUCCESS(run_member(which));
    }
  }
  EXPECT_GT(cache->stats().forgotten, 20u);
  EXPECT_GT(cache->stats().set_switches, 20u);
}

// A table is made anew before the sets of keys that are gone pile up.
TEST_F(SharedTableTest, RowsOfKeysThatRunOnceTakeNoMoreThanTheExecutablesMay) {
  constexpr unsigned kNodes = 60, kKeys = 1500;
  use(Options{.max_executables = 4, .max_templates = 40, .share = Share::kAlways});
  std::size_t most = 0;
  for (unsigned which = 0; which < kKeys; ++which) {
    ASSERT_SUCCESS(cache->run(key("k", which), stream, [&](Recorder& rec) {
      for (unsigned i = 0; i < kNodes; ++i) {
        rec.launch(blend, {1 + which % 2, 32}, at(0), 32, 3, which + i);
      }
    }));
    most = std::max(most, static_cast<std::size_t>(cache->stats().estimated_device_bytes));
  }
  memory.write(seed);
  EXPECT_GT(cache->stats().set_switches, kKeys / 2);
  const std::size_t bytes = 114'000 + kNodes * 2'600;
  EXPECT_GT(most, 4 * bytes);
  EXPECT_LE(most, 6 * bytes);
  EXPECT_EQ(cache->stats().refused_device_updates, 0u);
}

// A few of their rows take more memory than an executable does. A table for all of them would be made again and again.
TEST_F(SharedTableTest, LargeRowsTakeNoMoreThanTheExecutablesMay) {
  constexpr int kNodes = 60, kKeys = 40, kRuns = 1000;
  use(Options{.max_executables = 3});
  memory.write(seed);
  int wanted = seed[0];
  for (int run = 0; run < kRuns; ++run) {
    const int which = run % kKeys;
    ASSERT_SUCCESS(cache->run(key("k", which), stream, [&](Recorder& rec) {
      for (int i = 0; i < kNodes; ++i) {
        LargeArgument large{};
        large.values[i] = which;
        rec.launch(sum_large, {1, 1}, at(0), large);
      }
    }));
    wanted += kNodes * which;
  }
  EXPECT_EQ(memory.read()[0], wanted);
  const Stats stats = cache->stats();
  EXPECT_LT(stats.instantiations, 20u);
  EXPECT_GT(stats.updates, 900u);
  EXPECT_LE(stats.estimated_device_bytes, 2 * 3 * (114'000u + kNodes * 2'600u));
}

// The updater node is set by the driver, which must not use the current device instead of the node's.
TEST_F(SharedTableTest, AnotherDeviceIsCurrentAtHits) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  use(one_table());
  const auto run_member = [&](int which, int value) {
    return cache->run(key("k", which), stream, params(value), [&, which](Recorder& rec, Slot<int> v) {
      rec.launch(blend, {static_cast<unsigned>(1 + which), 32}, at(0), 900, v, which);
      rec.launch(blend, {2, 32}, at(5), 900, 3, v);
    });
  };
  for (int i = 0; i < 12; ++i) {
    const int which = i / 2 % 3, value = 5 * i + 2;
    memory.write(seed);
    CUDA_OK(cudaSetDevice(i < 6 ? 0 : 1));
    const auto outcome = run_member(which, value);
    CUDA_OK(cudaSetDevice(0));
    EXPECT_TRUE(did(i % 2 == 1 ? Outcome::kPatched
                    : i == 0   ? Outcome::kInstantiated
                    : i < 6    ? Outcome::kUpdated
                               : Outcome::kSwitched,
                    outcome))
        << "run " << i;
    std::vector<int> wanted = seed;
    blend_here(wanted.data(), 32 * (1 + which), value, which);
    blend_here(&wanted[5], 64, 3, value);
    EXPECT_EQ(memory.read(), wanted) << "run " << i;
  }
}

// Keys 0 and 1 differ on this device, 2 and 3 on the other as well. The host sets the slots of nodes there.
TEST_F(SharedTableTest, NodesOnAnotherDeviceAreNotForRows) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  use(one_table(4));
  OtherDevice<int> other(100);
  const auto run_member = [&](int which, int value) {
    other.memory().write(std::vector<int>(100, 1));
    const auto outcome = run(key("k", which), params(value), [&, which](Recorder& rec, Slot<int> v) {
      for (int i = 0; i < 12; ++i) rec.launch(blend, {2, 32}, at(i), 900, which, v);
      other.fork(rec.stream(), [&](cudaStream_t forked) {
        rec.on(forked).launch(blend, {2, 32}, other.memory().get(), 100, 3, which / 2);
        rec.on(forked).launch(blend, {1, 32}, other.memory().get(), 100, 2, v);
      });
    });
    std::vector<int> wanted(100, 1);
    for (int times = 0; times < 2; ++times) {  // includes a direct run
      blend_here(wanted.data(), 64, 3, which / 2);
      blend_here(wanted.data(), 32, 2, value);
    }
    EXPECT_EQ(other.memory().read(), wanted) << which;
    return outcome;
  };
  for (const int which : {0, 2}) {
    EXPECT_RUN(kInstantiated, run_member(which, 5));
    EXPECT_RUN(kUpdated, run_member(which + 1, 6));
  }
  for (int round = 0; round < 2; ++round) {
    for (int which = 0; which < 4; ++which) {
      EXPECT_RUN(kSwitched, run_member(which, 7 + round));
      EXPECT_RUN(kPatched, run_member(which, 9 + which));
    }
  }
  EXPECT_EQ(cache->stats().set_switches, 2u + 2 * 4);
  EXPECT_EQ(cache->stats().refused_device_updates, 0u);
}

// ---- When a family gets a table without being forced ----------------------------------------------------------------

TEST_F(SharedTableTest, ShareDecides) {
  constexpr int kNodes = 40, kMembers = 20;
  const auto run_all = [&](Share share, int max_executables) {
    use(Options{.max_executables = max_executables, .share = share});
    take_turns(10, kMembers, [&](int which) { return run_wide(which, kNodes); });
    return cache->stats();
  };
  for (const Share share : {Share::kNever, Share::kWhenFull}) {
    const Stats with_room = run_all(share, kMembers);
    EXPECT_EQ(with_room.outcome(Outcome::kReplayed), 9u * kMembers);
    EXPECT_EQ(with_room.instantiations, static_cast<unsigned>(kMembers));
    EXPECT_EQ(with_room.families, 0u) << "nothing is read";
  }
  const Stats never = run_all(Share::kNever, 4);
  EXPECT_EQ(never.set_switches, 0u);
  EXPECT_EQ(never.instantiations, 4u) << "the others are brought over";
  EXPECT_GE(never.updates, 10u * kMembers - 4);
  const Stats when_full = run_all(Share::kWhenFull, 4);
  EXPECT_GT(when_full.set_switches, 9u * (kMembers - 4));
  EXPECT_LE(when_full.instantiations, 5u);
  EXPECT_LT(when_full.updates, 6u * kMembers);
  EXPECT_EQ(when_full.captures, static_cast<unsigned>(kMembers));
  const Stats always = run_all(Share::kAlways, kMembers);
  EXPECT_EQ(always.live_executables, 1u);
  EXPECT_GE(always.set_switches, 10u * kMembers - 2);
}

// Keys with slots that the device writes have their own executable or share one with a table.
TEST_F(SharedTableTest, KeysWithManySlotsShareOnlyTables) {
  use(at_most(8, Sharing::kAuto));
  constexpr int kNodes = 40, kMembers = 12;
  for (int round = 0; round < 4; ++round) {
    for (int which = 0; which < kMembers; ++which) {
      ASSERT_SUCCESS(run(key("k", which), params(round), [&, which](Recorder& rec, Slot<int> v) {
        for (int i = 0; i < kNodes; ++i) {
          rec.launch(blend, {static_cast<unsigned>(1 + (which + i) % 7), 32}, at(0), 900, v, which);
        }
      }));
    }
  }
  const Stats stats = cache->stats();
  EXPECT_LE(stats.updates, 1u) << "while one other key has been read";
  EXPECT_GT(stats.set_switches, 2u * (kMembers - 6));
  EXPECT_LT(stats.instantiations, static_cast<unsigned>(kMembers));
  EXPECT_EQ(stats.refused_device_updates, 0u);
}

}  // namespace
}  // namespace graphcache::test
