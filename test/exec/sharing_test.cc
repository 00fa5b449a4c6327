// Keys that share executables, on either runtime: whatever executable a run finds, it must do the work of its own `fn`.
//
// Most runs here are made twice from the same memory, directly and through the cache, and the results are compared. The
// counters show the way that the run took.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "sharing_support.h"

namespace graphcache::test {
namespace {

// ---- The ways from one key to another -------------------------------------------------------------------------------

struct Shape {
  const char* name;
  int value;
  unsigned grid, block;
  std::size_t shared_bytes;
  bool otherwise;
};

// Few of a long graph's nodes differ, or all of them.
TEST_F(SharingTest, SiblingsAreUpdatedWhateverDiffers) {
  const Shape base{"base", 1, 2, 32, 0, false};
  const Shape others[] = {{"value", 2, 2, 32, 0, false},
                          {"grid", 1, 3, 32, 0, false},
                          {"block", 1, 2, 64, 0, false},
                          {"shared bytes", 1, 2, 32, 512, false},
                          {"kernel", 1, 2, 32, 0, true}};
  constexpr int kNodes = 40, kFew = 3;
  for (const Shape& other : others) {
    SCOPED_TRACE(other.name);
    use(at_most(1));
    const auto run_with = [&](int changed) {
      return run(key("k", changed), [&, changed](Recorder& rec) {
        for (int i = 0; i < kNodes; ++i) {
          const Shape& shape = i % (kNodes / kFew) == 1 || changed > kFew ? (changed == 0 ? base : other) : base;
          const LaunchConfig config{shape.grid, shape.block, shape.shared_bytes};
          rec.launch(shape.otherwise ? blend_otherwise : blend, config, at(8 * i), 512, shape.value, i);
        }
      });
    };
    EXPECT_RUN(kInstantiated, run_with(0));
    EXPECT_RUN(kUpdated, run_with(kFew));
    expect({.calls = 2, .captures = 2, .instantiations = 1, .updates = 1});
    EXPECT_RUN(kSwitched, run_with(0));
    expect({.calls = 2, .captures = 2, .instantiations = 1, .updates = 2});
    EXPECT_RUN(kUpdated, run_with(kNodes));
    expect({.calls = 3, .captures = 3, .instantiations = 1, .updates = 3});
    EXPECT_RUN(kSwitched, run_with(kFew));  // from a sibling that differs in few nodes
    EXPECT_RUN(kReplayed, run_with(kFew));
    EXPECT_RUN(kSwitched, run_with(0));
    expect({.calls = 3, .captures = 3, .instantiations = 1, .updates = 5});
  }
}

TEST_F(SharingTest, SiblingsAreFoundAtEveryPlaceOfTheProgram) {
  use(at_most(1));
  const auto first = [&](Recorder& rec) { rec.launch(blend, {2, 32}, at(0), 64, 3, 4); };
  const auto second = [&](Recorder& rec, Slot<int> v) { rec.launch(blend, {2, 32}, at(5), 64, v, 6); };
  EXPECT_RUN(kInstantiated, run(key("k"), first));
  EXPECT_RUN(kUpdated, run(key("k"), params(8), second));
  EXPECT_RUN(kSwitched, run(key("k"), first));
  EXPECT_RUN(kSwitched, run(key("k"), params(9), second));
  EXPECT_RUN(kPatched, run(key("k"), params(8), second));
  EXPECT_EQ(calls, 2u);
}

// ---- Slots ----------------------------------------------------------------------------------------------------------

// The slots of a run. Sizes are in bytes.
struct Values {
  int factor = 3, grid = 2, copied = 64, byte = 1, set = 64, from = 0;
  friend bool operator==(const Values&, const Values&) = default;
};

class SharedSlotsTest : public SharingTest {
 protected:
  // The graphs of siblings differ in one of the 5 nodes that hold slots, and in most of the others.
  absl::StatusOr<Outcome> run_with(int sibling, const Values& v) {
    return run(key("k", sibling), params(v.factor, v.grid, v.copied, v.byte, v.set, at(v.from)),
               [&, sibling](Recorder& rec, Slot<int> factor, Slot<int> grid, Slot<int> copied, Slot<int> byte,
                            Slot<int> set, Slot<int*> from) {
                 rec.launch(blend, {2, 64}, at(0), 128, factor, sibling);
                 rec.launch(blend, {grid, 32}, at(128), 128, 3, factor);
                 rec.memcpy(at(256), from, copied);
                 rec.memset(at(384), byte, set);
                 rec.launch(blend, {2, 64}, at(320), 128, factor, 11);
                 pad(rec, 12, sibling);
               });
  }
  // All switches were updates, and fn was called so often.
  void expect_updates(std::uint64_t wanted_calls) {
    const Stats stats = cache->stats();
    EXPECT_EQ(calls, wanted_calls);
    EXPECT_EQ(stats.refused_updates, 0u);
    EXPECT_EQ(stats.families, 1u);
    EXPECT_EQ(stats.updates, stats.outcome(Outcome::kSwitched) + stats.outcome(Outcome::kUpdated));
  }
};

TEST_F(SharedSlotsTest, UnchangedValuesStayThroughSwitches) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_with(0, {}));
  EXPECT_RUN(kUpdated, run_with(1, {}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_RUN(kSwitched, run_with(0, {}));
    EXPECT_RUN(kReplayed, run_with(0, {}));
    EXPECT_RUN(kSwitched, run_with(1, {}));
    EXPECT_RUN(kReplayed, run_with(1, {}));
  }
  expect_updates(2);
  EXPECT_EQ(patched_nodes(), 0u);
}

TEST_F(SharedSlotsTest, ValuesAreTheRunsRightAfterEachSwitch) {
  const std::vector<Values> all = {
      {.factor = 5}, {.grid = 3},   {.copied = 128},           {.byte = 9},
      {.set = 12},   {.from = 600}, {.factor = -1, .grid = 4}, {.copied = 4, .byte = 200, .set = 256, .from = 512},
  };
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_with(0, {}));
  EXPECT_RUN(kUpdated, run_with(1, {}));
  int sibling = 0;
  for (const Values& one : all) {
    for (const Values& other : all) {
      EXPECT_RUN(kSwitched, run_with(sibling, one));  // other values than its previous ones
      EXPECT_RUN(kReplayed, run_with(sibling, one));
      sibling = 1 - sibling;
      EXPECT_RUN(kSwitched, run_with(sibling, one));  // the same values as the sibling's
      EXPECT_TRUE(did(one == other ? Outcome::kReplayed : Outcome::kPatched, run_with(sibling, other)));
      sibling = 1 - sibling;
      EXPECT_RUN(kSwitched, run_with(sibling, {}));  // the captured values
      sibling = 1 - sibling;
    }
  }
  expect_updates(2);
}

// A node of 0 bytes is disabled, and stays disabled after an update.
TEST_F(SharedSlotsTest, SizesBecomeZeroAndAreSetAgainAcrossSwitches) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_with(0, {}));
  EXPECT_RUN(kUpdated, run_with(1, {}));
  const Values none{.copied = 0, .set = 0}, no_copy{.copied = 0, .byte = 8}, no_set{.copied = 128, .set = 0};
  const Values all[] = {none, {}, no_copy, no_set};
  for (const Values& before : all) {
    for (const Values& after : all) {
      for (const Values& last : all) {
        ASSERT_SUCCESS(run_with(0, before));
        EXPECT_RUN(kSwitched, run_with(1, after));
        EXPECT_RUN(kReplayed, run_with(1, after));
        EXPECT_TRUE(did(after == last ? Outcome::kReplayed : Outcome::kPatched, run_with(1, last)));
      }
    }
  }
  expect_updates(2);
  ASSERT_FALSE(HasFailure());
}

TEST_F(SharedSlotsTest, FirstRunOfASiblingWithoutBytesIsDoneDirectly) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_with(0, {}));
  EXPECT_RUN(kEager, run_with(1, {.copied = 0}));
  EXPECT_EQ(cache->stats().eager(EagerReason::kCaptureFailed), 1u);
  EXPECT_RUN(kReplayed, run_with(0, {}));
  EXPECT_RUN(kUpdated, run_with(1, {}));
}

TEST_F(SharedSlotsTest, RandomSequencesOfThreeSiblings) {
  for (unsigned number = 0; number < 10; ++number) {
    SCOPED_TRACE(number);
    std::mt19937 random(number);
    const auto pick = [&](std::initializer_list<int> from) { return from.begin()[random() % from.size()]; };
    use(at_most(1));
    for (int sibling = 0; sibling < 3; ++sibling) {
      EXPECT_TRUE(did(sibling == 0 ? Outcome::kInstantiated : Outcome::kUpdated, run_with(sibling, {})));
    }
    int last = 2;
    Values last_values;
    for (int i = 0; i < 60; ++i) {
      const int sibling = pick({0, 1, 2});
      Values values = last_values;
      if (random() % 2) values.factor = pick({3, 5});
      if (random() % 2) values.grid = pick({1, 2, 4});
      if (random() % 2) values.copied = pick({0, 64, 128});
      if (random() % 2) values.byte = pick({1, 77});
      if (random() % 2) values.set = pick({0, 4, 64});
      if (random() % 2) values.from = pick({0, 700});
      const Outcome wanted = sibling != last         ? Outcome::kSwitched
                             : values == last_values ? Outcome::kReplayed
                                                     : Outcome::kPatched;
      ASSERT_TRUE(did(wanted, run_with(sibling, values))) << "step " << i;
      last = sibling;
      last_values = values;
    }
    expect_updates(3);
    ASSERT_FALSE(HasFailure());
  }
}

// ---- When keys share ------------------------------------------------------------------------------------------------

// Nothing is shared: a key that has lost its executable gets a new one of its own.
TEST_F(SharingTest, EvictedKeyIsRestoredFromItsTemplate) {
  use(at_most(1, Sharing::kNever));
  const auto run_value = [&](int which, int value, int bytes) {
    return run(key("k", which), params(value, bytes), [&, which](Recorder& rec, Slot<int> v, Slot<int> size) {
      rec.launch(blend, {2, 64}, at(0), 128, v, which);
      rec.memset(at(200), v, size);
    });
  };
  EXPECT_RUN(kInstantiated, run_value(0, 3, 64));
  EXPECT_RUN(kInstantiated, run_value(1, 4, 64));
  EXPECT_RUN(kRestored, run_value(0, 3, 64));  // the captured values
  EXPECT_RUN(kRestored, run_value(1, 5, 64));  // other values
  EXPECT_RUN(kPatched, run_value(1, 6, 0));
  EXPECT_RUN(kRestored, run_value(0, 7, 0));  // other values, 0 bytes
  EXPECT_RUN(kReplayed, run_value(0, 7, 0));
  EXPECT_RUN(kRestored, run_value(1, 8, 32));
  EXPECT_EQ(families(*cache), std::set<std::uint64_t>{0});
  const Stats stats = cache->stats();
  EXPECT_EQ(stats.evictions, 5u);
  EXPECT_EQ(stats.updates, 0u);
  EXPECT_EQ(stats.instantiations, 6u);
  EXPECT_EQ(calls, 2u);
}

TEST_F(SharingTest, ForgottenTemplatesAreCapturedAgain) {
  for (const int max_templates : {0, 1, 2, 3}) {
    SCOPED_TRACE(max_templates);
    use(forced(Sharing::kUpdates, {.max_executables = 1, .max_templates = max_templates}));
    constexpr int kKeys = 3, kRounds = 4;
    for (int i = 0; i < kKeys * kRounds; ++i) {
      const int which = i % kKeys;
      const bool kept = i >= kKeys && max_templates >= kKeys;
      const Outcome wanted = i == 0 ? Outcome::kInstantiated : kept ? Outcome::kSwitched : Outcome::kUpdated;
      EXPECT_TRUE(did(wanted, run(key("k", which), params(i), [&, which](Recorder& rec, Slot<int> v) {
                        rec.launch(blend, {static_cast<unsigned>(1 + which), 32}, at(0), 128, v, which);
                        rec.launch(blend, {2, 64}, at(64), 128, which, v);
                      })));
    }
    const Stats stats = cache->stats();
    // A live key keeps its template.
    const std::uint64_t templates = static_cast<std::uint64_t>(std::max(1, max_templates));
    EXPECT_EQ(stats.live_templates, templates);
    EXPECT_EQ(stats.live_executables, 1u);
    EXPECT_EQ(stats.captures, calls);
    EXPECT_EQ(stats.forgotten, calls - templates);
    EXPECT_EQ(calls, max_templates >= kKeys ? kKeys : static_cast<std::uint64_t>(kKeys * kRounds));
  }
}

}  // namespace
}  // namespace graphcache::test
