// Keys that share executables, on either runtime: whatever executable a run finds, it must do what its own `fn` does.
//
// Most runs here are made twice from the same memory, directly and through the cache, and what they leave is compared;
// the counters say by which way the run got there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

Options at_most(int max_executables, Sharing sharing = Sharing::kAuto) {
  Options options;
  options.max_executables = max_executables;
  options.sharing = sharing;
  return options;
}

Options direct() { return at_most(0); }

struct Counts {
  std::uint64_t calls = 0, captures = 0, instantiations = 0, updates = 0, patched_nodes = 0;
};

std::uint64_t refused(const Stats& stats) {
  std::uint64_t all = 0;
  for (const std::uint64_t count : stats.refused_updates) all += count;
  return all;
}

std::set<std::uint64_t> families(const Cache& cache) {
  std::set<std::uint64_t> all;
  for (const EntryInfo& entry : cache.entries()) all.insert(entry.family);
  return all;
}

class SharingTest : public StreamTest {
 protected:
  static constexpr int kSize = 1024;

  SharingTest() {
    for (int i = 0; i < kSize; ++i) seed.push_back(1000 * i + 7);
  }
  void TearDown() override {
    cache.reset();
    StreamTest::TearDown();
  }

  // From now on this is the cache, new and empty.
  Cache& use(const Options& options) {
    calls = 0;
    return cache.emplace(options);
  }

  // Runs `fn` directly and then through the cache, each from the same memory, and compares what they leave there.
  template <class Fn, class... Ts>
  absl::StatusOr<Outcome> run_on(cudaStream_t on, const Key& which, const Params<Ts...>& values, const Fn& fn) {
    memory.write(seed);
    EXPECT_RUN(kEager, directly.run(which, on, values, fn));
    const std::vector<int> wanted = memory.read();
    memory.write(seed);
    const auto counted = [&](Recorder& rec, auto... slots) {
      ++calls;
      return fn(rec, slots...);
    };
    const absl::StatusOr<Outcome> outcome = cache->run(which, on, values, counted);
    const std::vector<int> found = memory.read();
    const auto differ = std::mismatch(found.begin(), found.end(), wanted.begin());
    EXPECT_TRUE(differ.first == found.end())
        << "by a run that " << (outcome.ok() ? to_string(*outcome) : "failed") << ": element "
        << differ.first - found.begin() << " is " << *differ.first << ", wanted " << *differ.second;
    return outcome;
  }
  template <class Fn, class... Ts>
  absl::StatusOr<Outcome> run(const Key& which, const Params<Ts...>& values, const Fn& fn) {
    return run_on(stream, which, values, fn);
  }
  template <class Fn>
  absl::StatusOr<Outcome> run(const Key& which, const Fn& fn) {
    return run_on(stream, which, Params<>(), fn);
  }

  void expect(const Counts& wanted) {
    const Stats stats = cache->stats();
    EXPECT_EQ(calls, wanted.calls);
    EXPECT_EQ(stats.captures, wanted.captures);
    EXPECT_EQ(stats.instantiations, wanted.instantiations);
    EXPECT_EQ(stats.updates, wanted.updates);
    EXPECT_EQ(stats.patched_nodes, wanted.patched_nodes);
    EXPECT_EQ(refused(stats), 0u);
  }
  std::uint64_t updates() const { return cache->stats().updates; }
  std::uint64_t patched_nodes() const { return cache->stats().patched_nodes; }

  int* at(int index) const { return memory.get() + index; }

  // Steps of equal graphs whatever the key, so that few of all nodes differ.
  void pad(Recorder& rec, int count, int salt = 0) {
    for (int i = 0; i < count; ++i) rec.launch(blend, {1, 32}, at(992), 32, 3 + 2 * salt, salt + i);
  }

  Cache directly{direct()};
  std::optional<Cache> cache;
  std::vector<int> seed;
  DeviceBuffer<int> memory{kSize};
  std::uint64_t calls = 0;  // Of `fn` through the cache.
};

// ---- The ways from one key to another -------------------------------------------------------------------------------

TEST_F(SharingTest, KeysOfDifferentGridsTakeTurnsWithOneExecutable) {
  use(at_most(1));
  const auto run_grid = [&](unsigned grid) {
    return run(key("k", grid), [&, grid](Recorder& rec) {
      CUDA_OK(launch(blend, dim3(grid), 32, rec.stream(), at(0), 512, 3, 5));  // The grid shows in how far it reaches.
      CUDA_OK(launch(record_launch, dim3(grid, 2), 32, rec.stream(), at(600)));
    });
  };
  EXPECT_RUN(kInstantiated, run_grid(2));
  expect({.calls = 1, .captures = 1, .instantiations = 1});
  EXPECT_RUN(kUpdated, run_grid(7));
  EXPECT_EQ(memory.read()[600], 7);
  expect({.calls = 2, .captures = 2, .instantiations = 1, .updates = 1});
  EXPECT_RUN(kSwitched, run_grid(2));
  EXPECT_EQ(memory.read()[600], 2);
  EXPECT_RUN(kReplayed, run_grid(2));
  EXPECT_RUN(kSwitched, run_grid(7));
  EXPECT_EQ(memory.read()[600], 7);
  EXPECT_RUN(kReplayed, run_grid(7));
  expect({.calls = 2, .captures = 2, .instantiations = 1, .updates = 3});
  const Stats stats = cache->stats();
  EXPECT_EQ(stats.live_executables, 1u);
  EXPECT_EQ(stats.live_templates, 2u);
  EXPECT_EQ(stats.families, 1u);
  EXPECT_EQ(stats.evictions, 0u);
}

struct Shape {
  const char* name;
  int value;
  unsigned grid, block;
  std::size_t shared_bytes;
  bool otherwise;
};

// Few of a long graph's nodes differ, or all of them do.
TEST_F(SharingTest, FewNodesThatDifferArePatchedAndManyAreUpdated) {
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
    expect({.calls = 2, .captures = 2, .instantiations = 1, .patched_nodes = kFew});
    EXPECT_RUN(kSwitched, run_with(0));
    expect({.calls = 2, .captures = 2, .instantiations = 1, .patched_nodes = 2 * kFew});
    EXPECT_RUN(kUpdated, run_with(kNodes));
    expect({.calls = 3, .captures = 3, .instantiations = 1, .updates = 1, .patched_nodes = 2 * kFew});
    EXPECT_RUN(kSwitched, run_with(kFew));  // From one that is the same in few.
    EXPECT_RUN(kReplayed, run_with(kFew));
    EXPECT_RUN(kSwitched, run_with(0));
    expect({.calls = 3, .captures = 3, .instantiations = 1, .updates = 2, .patched_nodes = 3 * kFew});
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

// What the slots of a run hold. Sizes in bytes.
struct Values {
  int factor = 3, grid = 2, copied = 64, byte = 1, set = 64, from = 0;
  friend bool operator==(const Values&, const Values&) = default;
};

enum class Way { kPatches, kUpdate };

class SharedSlotsTest : public SharingTest, public testing::WithParamInterface<Way> {
 protected:
  // The graphs of siblings differ in one node that holds a slot, and in most of the others, too, if they are to be
  // updated. 5 nodes hold slots.
  absl::StatusOr<Outcome> run_with(int sibling, const Values& v) {
    const bool apart = GetParam() == Way::kUpdate;
    return run(key("k", sibling), params(v.factor, v.grid, v.copied, v.byte, v.set, at(v.from)),
               [&, sibling, apart](Recorder& rec, Slot<int> factor, Slot<int> grid, Slot<int> copied, Slot<int> byte,
                                   Slot<int> set, Slot<int*> from) {
                 rec.launch(blend, {2, 64}, at(0), 128, factor, sibling);
                 rec.launch(blend, {grid, 32}, at(128), 128, 3, factor);
                 rec.memcpy(at(256), from, copied);
                 rec.memset(at(384), byte, set);
                 rec.launch(blend, {2, 64}, at(320), 128, factor, 11);
                 pad(rec, apart ? 12 : 40, apart ? sibling : 0);
               });
  }
  void expect_way() {
    const Stats stats = cache->stats();
    EXPECT_EQ(refused(stats), 0u);
    EXPECT_EQ(stats.families, 1u);
    const std::uint64_t switches = stats.outcome(Outcome::kSwitched) + stats.outcome(Outcome::kUpdated);
    EXPECT_EQ(stats.updates, GetParam() == Way::kUpdate ? switches : 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, SharedSlotsTest, testing::Values(Way::kPatches, Way::kUpdate),
                         [](const auto& info) { return info.param == Way::kPatches ? "ByPatches" : "ByUpdate"; });

TEST_P(SharedSlotsTest, UnchangedValuesStayThroughSwitches) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_with(0, {}));
  EXPECT_RUN(kUpdated, run_with(1, {}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_RUN(kSwitched, run_with(0, {}));
    EXPECT_RUN(kReplayed, run_with(0, {}));
    EXPECT_RUN(kSwitched, run_with(1, {}));
    EXPECT_RUN(kReplayed, run_with(1, {}));
  }
  expect_way();
  EXPECT_EQ(calls, 2u);
  EXPECT_EQ(patched_nodes(), GetParam() == Way::kPatches ? 7u : 0u);  // The one that differs.
}

TEST_P(SharedSlotsTest, ValuesAreTheRunsRightAfterEachSwitch) {
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
      EXPECT_RUN(kSwitched, run_with(sibling, one));  // Other values than its last ones,
      EXPECT_RUN(kReplayed, run_with(sibling, one));
      sibling = 1 - sibling;
      EXPECT_RUN(kSwitched, run_with(sibling, one));  // the same as the sibling's,
      EXPECT_TRUE(did(one == other ? Outcome::kReplayed : Outcome::kPatched, run_with(sibling, other)));
      sibling = 1 - sibling;
      EXPECT_RUN(kSwitched, run_with(sibling, {}));  // those of the capture.
      sibling = 1 - sibling;
    }
  }
  expect_way();
  EXPECT_EQ(calls, 2u);
}

// A node of no bytes is disabled, and an update leaves it so.
TEST_P(SharedSlotsTest, SizesBecomeZeroAndAreSetAgainAcrossSwitches) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_with(0, {}));
  EXPECT_RUN(kUpdated, run_with(1, {}));
  const Values none{.copied = 0, .set = 0}, no_copy{.copied = 0, .byte = 8}, no_set{.copied = 128, .set = 0};
  const Values all[] = {none, {}, no_copy, no_set};
  for (const Values& before : all) {
    for (const Values& after : all) {
      for (const Values& last : all) {
        ASSERT_TRUE(run_with(0, before).ok());
        EXPECT_RUN(kSwitched, run_with(1, after));
        EXPECT_RUN(kReplayed, run_with(1, after));
        EXPECT_TRUE(did(after == last ? Outcome::kReplayed : Outcome::kPatched, run_with(1, last)));
      }
    }
  }
  expect_way();
  EXPECT_EQ(calls, 2u);
  ASSERT_FALSE(HasFailure());
}

TEST_P(SharedSlotsTest, FirstRunOfASiblingWithoutBytesIsDoneDirectly) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_with(0, {}));
  EXPECT_RUN(kEager, run_with(1, {.copied = 0}));
  EXPECT_EQ(cache->stats().eager(EagerReason::kCaptureFailed), 1u);
  EXPECT_RUN(kReplayed, run_with(0, {}));
  EXPECT_RUN(kEager, run_with(1, {}));
  EXPECT_EQ(cache->stats().eager(EagerReason::kBackoff), 1u);
  EXPECT_RUN(kUpdated, run_with(1, {}));
}

TEST_P(SharedSlotsTest, RandomSequencesOfThreeSiblings) {
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
    expect_way();
    EXPECT_EQ(calls, 3u);
    ASSERT_FALSE(HasFailure());
  }
}

// ---- Nodes that are something else
// ------------------------------------------------------------------------------------

constexpr int kVariants = 8;

// One kernel node that is another for each variant, `v` in all but two.
template <class V>
void launch_variant(Recorder& rec, int variant, int* p, V v) {
  switch (variant) {
    case 0:
      return rec.launch(blend, {2, 32}, p, 128, v, 5);
    case 1:
      return rec.launch(blend_otherwise, {2, 32}, p, 128, v, 5);
    case 2:
      return rec.launch(blend, {2, 64}, p, 128, v, 5);
    case 3:
      return rec.launch(blend, {2, 32, 2048}, p, 128, v, 5);
    case 4:
      return rec.launch(record_shared_bytes, {1, 32, 768}, p);  // Fixed.
    case 5:
      return rec.launch(many, {1, 1}, reinterpret_cast<double*>(p), 'a', v, 3, 4.0f, 5, 6, 7, 8.0f, 9, 10.0);
    case 6:
      return rec.launch(blend_in, {1, 64}, p, p + 64, 64, v);
    default:
      return rec.launch(record_launch, {dim3(3, 2, 1), dim3(4, 2, 2)}, p);  // Fixed.
  }
}

TEST_F(SharingTest, OtherKernelsBlocksAndSharedBytesInOnePlace) {
  for (const bool follows_slot : {false, true}) {
    for (const int padding : {0, 30}) {  // By an update, by a patch.
      SCOPED_TRACE(testing::Message() << "slot " << follows_slot << ", padding " << padding);
      use(at_most(1));
      const auto run_variant = [&](int variant, int value) {
        return run(key("k", variant), params(value), [&, variant](Recorder& rec, Slot<int> v) {
          rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
          follows_slot ? launch_variant(rec, variant, at(0), v) : launch_variant(rec, variant, at(0), 9);
          rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
          pad(rec, padding);
        });
      };
      std::set<int> known;
      int last = -1, last_value = 9;
      for (int from = 0; from < kVariants; ++from) {
        for (int to = 0; to < kVariants; ++to) {
          for (const int variant : {from, to}) {
            const int value = follows_slot ? 1 + 10 * from + to : 9;
            const bool holds = !follows_slot || value == last_value || variant == 4 || variant == 7;
            const Outcome wanted = known.empty()           ? Outcome::kInstantiated
                                   : !known.count(variant) ? Outcome::kUpdated
                                   : variant != last       ? Outcome::kSwitched
                                   : holds                 ? Outcome::kReplayed
                                                           : Outcome::kPatched;
            EXPECT_TRUE(did(wanted, run_variant(variant, value))) << from << " to " << to;
            known.insert(variant);
            last = variant;
            last_value = value;
          }
        }
      }
      EXPECT_EQ(calls, static_cast<unsigned>(kVariants));
      EXPECT_EQ(refused(cache->stats()), 0u);
      EXPECT_EQ(updates() == 0, padding != 0);
      EXPECT_EQ(families(*cache).size(), 1u);
    }
  }
}

// One sibling's node follows a slot, the other's is as it was captured; both ways.
TEST_F(SharingTest, SlotNodesAndFixedNodesInOnePlace) {
  enum Which { kKernel, kCopy, kSet };
  for (const Which which : {kKernel, kCopy, kSet}) {
    for (const bool slot_is_first : {true, false}) {
      for (const int padding : {0, 30}) {
        SCOPED_TRACE(testing::Message() << "node " << which << ", slot first " << slot_is_first << ", padding "
                                        << padding);
        use(at_most(1));
        // The size in bytes follows, too, where there is one.
        const auto run_slot = [&](int value, int size) {
          return run(key("slot"), params(value, size), [&, which](Recorder& rec, Slot<int> v, Slot<int> bytes) {
            rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
            if (which == kKernel) rec.launch(blend, {2, 64}, at(0), 128, v, bytes);
            if (which == kCopy) rec.memcpy(at(0), at(512), bytes);
            if (which == kSet) rec.memset(at(0), v, bytes);
            rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
            pad(rec, padding);
          });
        };
        const auto run_fixed = [&](int other) {
          return run(key("fixed", other), [&, which, other](Recorder& rec) {
            rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
            if (which == kKernel) {
              CUDA_OK(launch(blend, 2, 32, rec.stream(), at(0), 128, 70 + other, 7));
            }
            if (which == kCopy) rec.memcpy(at(4 + 4 * other), at(640), 256);
            if (which == kSet) {
              CUDA_OK(cudaMemsetAsync(at(0), 70 + other, 200, rec.stream()));
            }
            rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
            pad(rec, padding);
          });
        };
        if (slot_is_first) {
          EXPECT_RUN(kInstantiated, run_slot(1, 64));
          EXPECT_RUN(kUpdated, run_fixed(0));
        } else {
          EXPECT_RUN(kInstantiated, run_fixed(0));
          EXPECT_RUN(kUpdated, run_slot(1, 64));
        }
        for (const int size : {64, 0, 128, 0, 64}) {
          SCOPED_TRACE(testing::Message() << "size " << size);
          ASSERT_TRUE(run_slot(1, size).ok());
          EXPECT_RUN(kPatched, run_slot(2, size + 4));
          ASSERT_TRUE(run_slot(1, size).ok());  // Without bytes it is disabled.
          ASSERT_TRUE(run_fixed(1).ok());
          EXPECT_RUN(kReplayed, run_fixed(1));
          EXPECT_RUN(kSwitched, run_fixed(0));
          EXPECT_RUN(kSwitched, run_slot(1, size));
          EXPECT_RUN(kReplayed, run_slot(1, size));
        }
        EXPECT_EQ(calls, 3u);
        EXPECT_EQ(refused(cache->stats()), 0u);
        EXPECT_EQ(families(*cache).size(), 1u);
        EXPECT_EQ(cache->stats().instantiations, 1u);
      }
    }
  }
}

void add_one(void* number) { ++*static_cast<int*>(number); }
void add_ten(void* number) { *static_cast<int*>(number) += 10; }

TEST_F(SharingTest, SetsCopiesAndHostFunctionsThatDiffer) {
  int numbers[2] = {};
  const std::function<void(cudaStream_t)> sets[] = {
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 64, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 2, 64, s)); },      // Value,
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(100), 1, 64, s)); },    // address,
      [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(100), 3, 256, s)); }};  // width.
  const std::function<void(cudaStream_t)> copies[] = {
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(512), 64, cudaMemcpyDeviceToDevice, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(64), at(512), 64, cudaMemcpyDeviceToDevice, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(600), 64, cudaMemcpyDeviceToDevice, s)); },
      [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(8), at(700), 256, cudaMemcpyDeviceToDevice, s)); }};
  const std::function<void(cudaStream_t)> calls_of_host[] = {
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_one, &numbers[0])); },
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_one, &numbers[1])); },
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_ten, &numbers[0])); },
      [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_ten, &numbers[1])); }};
  const std::function<void(cudaStream_t)>* const all[] = {sets, copies, calls_of_host};
  for (const int kind : {0, 1, 2}) {
    for (const int padding : {0, 30}) {
      SCOPED_TRACE(testing::Message() << "kind " << kind << ", padding " << padding);
      use(at_most(1));
      std::set<int> known;
      int last = -1;
      std::uint64_t switches = 0;
      for (const int which : {0, 1, 2, 3, 2, 1, 0, 2, 0, 3, 1, 3, 0, 0}) {
        const auto enqueue = [&, kind, which](Recorder& rec) {
          rec.launch(blend, {2, 64}, at(0), 128, 3, 4);
          all[kind][which](rec.stream());
          rec.launch(blend, {2, 64}, at(0), 128, 5, 6);
          pad(rec, padding);
        };
        std::memset(numbers, 0, sizeof numbers);
        const Outcome wanted = known.empty()         ? Outcome::kInstantiated
                               : !known.count(which) ? Outcome::kUpdated
                               : which == last       ? Outcome::kReplayed
                                                     : Outcome::kSwitched;
        EXPECT_TRUE(did(wanted, run(key("k", which), enqueue)));
        if (kind == 2) {
          EXPECT_EQ(numbers[which % 2], which < 2 ? 2 : 20);  // Directly, and through the cache.
          EXPECT_EQ(numbers[1 - which % 2], 0);
        }
        switches += wanted == Outcome::kUpdated || wanted == Outcome::kSwitched ? 1 : 0;
        known.insert(which);
        last = which;
      }
      expect({.calls = 4, .captures = 4, .instantiations = 1, .updates = switches});
    }
  }
}

// ---- Other families -------------------------------------------------------------------------------------------------

TEST_F(SharingTest, GraphsOfOtherTopologyTypesOrKindsAreNoSiblings) {
  Stream side;
  Event fork, join;
  Event fork_again;
  void* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 64));
  std::memset(pinned, 5, 64);
  const auto step = [&](cudaStream_t s, int index) { CUDA_OK(launch(blend, 1, 32, s, at(index), 32, 3, 4)); };
  // Three kernels, the second and third one behind the other, or side by side.
  const auto forked = [&](cudaStream_t s, bool parallel) {
    step(s, 0);
    CUDA_OK(cudaEventRecord(fork, s));
    CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
    step(side, 32);
    if (!parallel) {
      CUDA_OK(cudaEventRecord(fork_again, side));
      CUDA_OK(cudaStreamWaitEvent(s, fork_again, 0));
    }
    step(s, 64);
    CUDA_OK(cudaEventRecord(join, side));
    CUDA_OK(cudaStreamWaitEvent(s, join, 0));
    step(s, 0);
  };
  const std::vector<std::pair<const char*, std::function<void(cudaStream_t)>>> all = {
      {"nothing", [](cudaStream_t) {}},
      {"one kernel", [&](cudaStream_t s) { step(s, 0); }},
      {"two kernels", [&](cudaStream_t s) { step(s, 0), step(s, 0); }},
      {"set", [&](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 64, s)); }},
      {"copy inside the device",
       [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(100), 64, cudaMemcpyDeviceToDevice, s)); }},
      {"copy from the host",
       [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), pinned, 64, cudaMemcpyHostToDevice, s)); }},
      {"copy to the host",
       [&](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(pinned, at(0), 64, cudaMemcpyDeviceToHost, s)); }},
      {"host function", [&](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, add_one, pinned)); }},
      {"side by side", [&](cudaStream_t s) { forked(s, true); }},
      {"one behind the other", [&](cudaStream_t s) { forked(s, false); }},
  };
  use(at_most(static_cast<int>(all.size())));
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(all[i].first);
      EXPECT_TRUE(did(round == 0 ? Outcome::kInstantiated : Outcome::kReplayed,
                      run(key("k", i), [&, i](Recorder& rec) { all[i].second(rec.stream()); })));
    }
  }
  const std::set<std::uint64_t> found = families(*cache);
  EXPECT_EQ(found.size(), all.size());
  EXPECT_EQ(found.count(0), 0u);
  EXPECT_EQ(cache->stats().families, all.size());
  expect({.calls = all.size(), .captures = all.size(), .instantiations = all.size()});

  // One has to leave for the other, and comes back by itself.
  use(at_most(1));
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(all[i].first);
      EXPECT_TRUE(did(round == 0 ? Outcome::kInstantiated : Outcome::kRestored,
                      run(key("k", i), [&, i](Recorder& rec) { all[i].second(rec.stream()); })));
    }
  }
  EXPECT_EQ(cache->stats().evictions, 2 * all.size() - 1);
  expect({.calls = all.size(), .captures = all.size(), .instantiations = 2 * all.size()});
  CUDA_OK(cudaFreeHost(pinned));
}

TEST_F(SharingTest, KindsOfOneCopyAreNoSiblings) {
  use(at_most(1));
  const auto run_kind = [&](cudaMemcpyKind kind) {
    return run(key("k", static_cast<int>(kind)),
               [&, kind](Recorder& rec) { CUDA_OK(cudaMemcpyAsync(at(0), at(100), 64, kind, rec.stream())); });
  };
  EXPECT_RUN(kInstantiated, run_kind(cudaMemcpyDeviceToDevice));
  EXPECT_RUN(kInstantiated, run_kind(cudaMemcpyDefault));
  EXPECT_RUN(kRestored, run_kind(cudaMemcpyDeviceToDevice));
  EXPECT_EQ(families(*cache).size(), 2u);
  expect({.calls = 2, .captures = 2, .instantiations = 3});
}

TEST_F(SharingTest, PrioritiesMakeFamilies) {
  int least = 0, greatest = 0;
  CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  if (least == greatest) GTEST_SKIP() << "the device knows one priority";
  cudaStream_t urgent = nullptr;
  CUDA_OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  for (const unsigned long long flags :
       {0ull, static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)}) {
    Options options = at_most(1);
    options.instantiate_flags = flags;
    use(options);
    const auto run_at = [&](cudaStream_t on, int number) {
      return run_on(on, key("k", number), Params<>(), [&, number](Recorder& rec) {
        rec.launch(blend, {1, 32}, at(0), 32, 3, number);
      });
    };
    EXPECT_RUN(kInstantiated, run_at(stream, 0));
    EXPECT_RUN(kInstantiated, run_at(urgent, 1));
    EXPECT_RUN(kUpdated, run_at(urgent, 2));
    EXPECT_RUN(kRestored, run_at(stream, 0));
    EXPECT_RUN(kRestored, run_at(stream, 1));  // Whose graph it is, not where it runs, is what counts.
    EXPECT_EQ(families(*cache).size(), 2u);
    EXPECT_EQ(refused(cache->stats()), 0u);
  }
  cache.reset();
  CUDA_OK(cudaStreamDestroy(urgent));
}

// An update accepts another cluster size and keeps the old one (fact 19).
TEST_F(SharingTest, ClusterSizesMakeFamilies) {
  int major = 0;
  CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < 9) GTEST_SKIP() << "clusters need compute capability 9.0";
  const auto launch_in = [&](cudaStream_t s, unsigned size) {
    CUDA_OK(launch_in_clusters(record_cluster_size, 8, 32, size, s, at(0)));
  };

  // The lie.
  cudaGraph_t graphs[2] = {};
  for (const unsigned size : {2u, 4u}) {
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch_in(stream, size);
    CUDA_OK(cudaStreamEndCapture(stream, &graphs[size / 4]));
  }
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaGraphInstantiate(&executable, graphs[0], 0));
  CUDA_OK(cudaGraphLaunch(executable, stream));  // One that was never launched takes the new size (tried).
  cudaGraphExecUpdateResultInfo info = {};
  CUDA_OK(cudaGraphExecUpdate(executable, graphs[1], &info));
  CUDA_OK(cudaGraphLaunch(executable, stream));
  EXPECT_EQ(memory.first(), 2) << "updates carry cluster sizes now: docs/semantics.md is to be revised";
  CUDA_OK(cudaGraphExecDestroy(executable));
  for (cudaGraph_t graph : graphs) CUDA_OK(cudaGraphDestroy(graph));

  // What the signature does about it.
  use(at_most(1, Sharing::kAlways));
  const unsigned sizes[] = {2, 4, 0, 8, 2, 0, 4, 8};
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    const unsigned size = sizes[i];
    EXPECT_TRUE(did(i < 4 ? Outcome::kInstantiated : Outcome::kRestored,
                    run(key("k", size), [&, size](Recorder& rec) { launch_in(rec.stream(), size); })));
    EXPECT_EQ(memory.first(), size == 0 ? 1 : static_cast<int>(size));
  }
  EXPECT_EQ(cache->stats().families, 4u);
  expect({.calls = 4, .captures = 4, .instantiations = 8});
}

// ---- Branches -------------------------------------------------------------------------------------------------------

// Work on three streams that begin and end together, and exchange what they have through boxes.
class BranchesTest : public SharingTest {
 protected:
  static constexpr int kStreams = 3, kBoxes = 6, kRegion = 32;

  struct Step {
    enum Kind { kBlend, kSet, kSend, kReceive } kind;
    int role;    // The stream's.
    int number;  // A box's, or one of the step's own.
  };
  // How one sibling enqueues the steps.
  struct Order {
    std::vector<Step> steps;
    std::array<int, kStreams> stream_of = {0, 1, 2}, joined = {0, 1, 2};
    int salt = 0;
  };

  int* region(int role) const { return at(kRegion * role); }
  int* box(int number) const { return at(kRegion * (kStreams + number)); }

  void enqueue(Recorder& rec, const Order& order) {
    const cudaStream_t streams[kStreams] = {rec.stream(), sides[0], sides[1]};
    const auto follow = [](cudaStream_t first, cudaStream_t then, cudaEvent_t event) {
      CUDA_OK(cudaEventRecord(event, first));
      CUDA_OK(cudaStreamWaitEvent(then, event, 0));
    };
    rec.launch(blend, {kStreams, kRegion}, at(0), kRegion * kStreams, 3, order.salt);
    CUDA_OK(cudaEventRecord(fork, streams[0]));
    for (int i = 1; i < kStreams; ++i) CUDA_OK(cudaStreamWaitEvent(streams[i], fork, 0));
    for (const Step& step : order.steps) {
      const cudaStream_t s = streams[order.stream_of[static_cast<std::size_t>(step.role)]];
      int* const p = region(step.role);
      switch (step.kind) {
        case Step::kBlend:
          CUDA_OK(launch(blend, dim3(1 + static_cast<unsigned>(order.salt) % 3), 8, s, p, kRegion, 5 + 2 * step.number,
                         order.salt));
          break;
        case Step::kSet:
          CUDA_OK(cudaMemsetAsync(p + step.number, order.salt, 8, s));
          break;
        case Step::kSend:
          CUDA_OK(cudaMemcpyAsync(box(step.number), p, kRegion * sizeof(int), cudaMemcpyDeviceToDevice, s));
          CUDA_OK(cudaEventRecord(sent[static_cast<std::size_t>(step.number)], s));
          break;
        case Step::kReceive:
          CUDA_OK(cudaStreamWaitEvent(s, sent[static_cast<std::size_t>(step.number)], 0));
          CUDA_OK(launch(blend_in, 1, kRegion, s, p, box(step.number), kRegion, 7 + order.salt));
          break;
      }
    }
    for (const int i : order.joined) {
      if (i != 0) follow(streams[i], streams[0], joins[static_cast<std::size_t>(i)]);
    }
    rec.launch(blend, {kStreams, kRegion}, at(0), kRegion * kStreams, 9, order.salt);
  }

  absl::StatusOr<Outcome> run_order(const char* name, const Order& order) {
    return run(key(name), [&](Recorder& rec) { enqueue(rec, order); });
  }

  Stream sides[kStreams - 1];
  Event fork;
  std::array<Event, kBoxes> sent;
  std::array<Event, kStreams> joins;
};

TEST_F(BranchesTest, SymmetricBranchesInEitherOrder) {
  const std::vector<Step> there = {
      {Step::kBlend, 1, 1}, {Step::kBlend, 1, 2}, {Step::kBlend, 2, 3}, {Step::kBlend, 2, 4}};
  const std::vector<Step> back = {there[2], there[3], there[0], there[1]};
  const std::vector<Step> mixed = {there[2], there[0], there[1], there[3]};
  const Order orders[] = {{.steps = there, .salt = 1},
                          {.steps = there, .salt = 2},
                          {.steps = back, .salt = 3},
                          {.steps = back, .joined = {0, 2, 1}, .salt = 4},
                          {.steps = there, .joined = {0, 2, 1}, .salt = 5},
                          {.steps = mixed, .salt = 6},
                          {.steps = there, .stream_of = {0, 2, 1}, .salt = 7},
                          {.steps = back, .stream_of = {1, 0, 2}, .salt = 8}};
  for (const Order& a : orders) {
    for (const Order& b : orders) {
      use(at_most(1, Sharing::kAlways));
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(run_order("a", a).ok()) << a.salt << " to " << b.salt;
        EXPECT_TRUE(run_order("b", b).ok()) << a.salt << " to " << b.salt;
      }
      EXPECT_EQ(calls, 2u);
      EXPECT_EQ(cache->stats().capture_failures, 0u);
    }
  }
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_order("a", orders[0]));
  EXPECT_RUN(kUpdated, run_order("b", orders[1]));  // Other values alone.
  EXPECT_RUN(kSwitched, run_order("a", orders[0]));
}

TEST_F(BranchesTest, RandomGraphsAndTheirSiblings) {
  std::uint64_t shared = 0, refusals = 0;
  for (unsigned number = 0; number < 100; ++number) {
    SCOPED_TRACE(number);
    std::mt19937 random(number);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Order a;
    int boxes = 0;
    std::vector<std::pair<int, int>> open;  // Boxes that were sent, and by whom.
    for (int i = 3 + below(12); i > 0; --i) {
      const int role = below(kStreams);
      const int kind = below(6);
      if (kind == 0) {
        a.steps.push_back({Step::kSet, role, below(kRegion - 2)});
      } else if (kind == 1 && boxes < kBoxes) {
        a.steps.push_back({Step::kSend, role, boxes});
        open.emplace_back(boxes++, role);
      } else if (kind == 2 && !open.empty() && open.front().second != role) {
        a.steps.push_back({Step::kReceive, role, open.front().first});
        open.erase(open.begin());
      } else {
        a.steps.push_back({Step::kBlend, role, below(100)});
      }
    }
    a.salt = 1;
    Order b = a;
    b.salt = 2 + below(50);
    if (number % 4 >= 1) {  // In another order, by which each stream gets the same.
      std::array<std::vector<Step>, kStreams> left;
      for (const Step& step : a.steps) left[static_cast<std::size_t>(step.role)].push_back(step);
      std::set<int> sent_already;
      b.steps.clear();
      while (b.steps.size() < a.steps.size()) {
        std::vector<Step>& of_one = left[static_cast<std::size_t>(below(kStreams))];
        if (of_one.empty()) continue;
        const Step next = of_one.front();
        if (next.kind == Step::kReceive && sent_already.count(next.number) == 0) continue;
        if (next.kind == Step::kSend) sent_already.insert(next.number);
        b.steps.push_back(next);
        of_one.erase(of_one.begin());
      }
    }
    if (number % 4 >= 2) std::shuffle(b.joined.begin(), b.joined.end(), random);
    if (number % 4 >= 3) std::shuffle(b.stream_of.begin(), b.stream_of.end(), random);
    use(at_most(1, Sharing::kAlways));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(run_order("a", a).ok());
      EXPECT_TRUE(run_order("b", b).ok());
    }
    const Stats stats = cache->stats();
    EXPECT_EQ(stats.captures, 2u);
    if (number % 4 == 0) {
      EXPECT_EQ(stats.families, 1u);
      EXPECT_EQ(refused(stats), 0u);
    }
    shared += stats.families == 1 ? 1 : 0;
    refusals += refused(stats);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(shared, 25u);
  RecordProperty("shared", static_cast<int>(shared));
  RecordProperty("refused", static_cast<int>(refusals));
}

// ---- Rent or buy ----------------------------------------------------------------------------------------------------

TEST_F(SharingTest, RentOrBuyByTheWayOfSharing) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kAlways, Sharing::kNever}) {
    SCOPED_TRACE(static_cast<int>(sharing));
    use(at_most(64, sharing));
    const auto run_grid = [&](unsigned grid) {
      return run(key("k", grid), params(static_cast<int>(grid)), [&, grid](Recorder& rec, Slot<int> v) {
        for (int i = 0; i < 10; ++i) rec.launch(blend, {grid, 32}, at(16 * i), 512, v, i);
      });
    };
    for (int i = 0; i < 20; ++i) {
      for (const unsigned grid : {2u, 5u}) {
        const auto outcome = run_grid(grid);
        if (i < 10) {
          EXPECT_TRUE(outcome.ok());
        } else {  // Settled long since.
          EXPECT_TRUE(did(sharing == Sharing::kAlways ? Outcome::kSwitched : Outcome::kReplayed, outcome));
        }
      }
    }
    const Stats stats = cache->stats();
    EXPECT_EQ(calls, 2u);
    EXPECT_EQ(stats.captures, 2u);
    EXPECT_EQ(stats.instantiations, sharing == Sharing::kAlways ? 1u : 2u);
    EXPECT_EQ(stats.live_executables, sharing == Sharing::kAlways ? 1u : 2u);
    EXPECT_EQ(stats.live_templates, 2u);
    EXPECT_EQ(stats.families, sharing == Sharing::kNever ? 0u : 1u);
    EXPECT_EQ(stats.evictions, 0u);
    if (sharing == Sharing::kAlways) {
      EXPECT_EQ(stats.outcome(Outcome::kSwitched), 38u);
    }
    if (sharing == Sharing::kNever) {
      EXPECT_EQ(stats.updates, 0u);
    }
    if (sharing == Sharing::kAuto) {
      EXPECT_EQ(stats.outcome(Outcome::kRestored), 1u);
      EXPECT_EQ(stats.outcome(Outcome::kUpdated), 1u);
      EXPECT_GE(stats.outcome(Outcome::kSwitched), 1u);
      EXPECT_LE(stats.outcome(Outcome::kSwitched), 4u);
    }
  }
}

TEST_F(SharingTest, ManyKeysThatComeOnceRentOneExecutable) {
  use(at_most(64));
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kUpdated, run(key("k", i), [&, i](Recorder& rec) {
                      rec.launch(blend, {static_cast<unsigned>(1 + i % 5), 32}, at(i), 128, i, 3);
                    })));
  }
  EXPECT_EQ(cache->stats().live_executables, 1u);
  EXPECT_EQ(cache->stats().live_templates, 40u);
  EXPECT_EQ(cache->stats().instantiations, 1u);
}

// Nothing is shared: a key that lost its executable gets a new one of its own.
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
  EXPECT_RUN(kRestored, run_value(0, 3, 64));  // The values of the capture,
  EXPECT_RUN(kRestored, run_value(1, 5, 64));  // other ones,
  EXPECT_RUN(kPatched, run_value(1, 6, 0));
  EXPECT_RUN(kRestored, run_value(0, 7, 0));  // and none.
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
    Options options = at_most(1);
    options.max_templates = max_templates;
    use(options);
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
    const std::uint64_t templates = static_cast<std::uint64_t>(std::max(1, max_templates));  // A live key's stays.
    EXPECT_EQ(stats.live_templates, templates);
    EXPECT_EQ(stats.live_executables, 1u);
    EXPECT_EQ(stats.captures, calls);
    EXPECT_EQ(stats.forgotten, calls - templates);
    EXPECT_EQ(calls, max_templates >= kKeys ? kKeys : static_cast<std::uint64_t>(kKeys * kRounds));
  }
}

// ---- In flight ------------------------------------------------------------------------------------------------------

// Numbers that runs append, and those that should be there in the end.
struct Log {
  explicit Log(int size) : numbers(static_cast<std::size_t>(size)) {}
  void expect_right() const {
    std::vector<int> all = numbers.read();
    EXPECT_EQ(static_cast<std::size_t>(count.first()), wanted.size());
    all.resize(wanted.size());
    const auto differs = std::mismatch(all.begin(), all.end(), wanted.begin());
    EXPECT_TRUE(differs.first == all.end()) << "from " << differs.first - all.begin() << " of " << all.size();
  }

  Stream stream;
  DeviceBuffer<int> numbers, count{1};
  std::vector<int> wanted;
};

// Siblings 0, 1, ... append the value, then numbers of their own; a few of a longer graph's nodes, or all, differ.
absl::StatusOr<Outcome> run_logged(Cache& cache, Log& log, int which, int value, std::atomic<int>* calls) {
  auto outcome = cache.run(key("logged", which), log.stream, params(value, log.numbers.get(), log.count.get()),
                           [=](Recorder& rec, Slot<int> v, Slot<int*> numbers, Slot<int*> count) {
                             if (calls != nullptr) ++*calls;
                             rec.launch(append, {1, 32}, numbers, count, v);
                             rec.launch(append, {static_cast<unsigned>(1 + which), 32}, numbers, count, 100 + which);
                             for (int i = 0; i < 4; ++i)
                               rec.launch(append, {1, 1}, numbers, count, which < 3 ? i : 10 * which + i);
                             rec.launch(append, {1, 1}, numbers, count, v);
                           });
  if (!outcome.ok()) return outcome;
  log.wanted.push_back(value);
  log.wanted.push_back(100 + which);
  for (int i = 0; i < 4; ++i) log.wanted.push_back(which < 3 ? i : 10 * which + i);
  log.wanted.push_back(value);
  return outcome;
}

TEST_F(SharingTest, RunsInFlightAreNotChangedBySwitches) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kAlways}) {
    use(at_most(2, sharing));
    Log log(7 * 3000);
    std::mt19937 random(1);
    std::atomic<int> called{0};
    for (int i = 0; i < 3000; ++i) {
      ASSERT_TRUE(run_logged(*cache, log, static_cast<int>(random() % 6), i / 3, &called).ok());
    }
    log.expect_right();
    const Stats stats = cache->stats();
    EXPECT_EQ(called, 6);
    EXPECT_EQ(stats.captures, 6u);
    EXPECT_EQ(stats.instantiations, sharing == Sharing::kAuto ? 2u : 1u);
    EXPECT_EQ(stats.evictions, 0u);
    EXPECT_EQ(refused(stats), 0u);
    EXPECT_EQ(stats.hits() + stats.misses(), 3000u);
    EXPECT_GT(stats.outcome(Outcome::kSwitched), 1000u);
  }
}

TEST_F(SharingTest, RunsInFlightOfEightThreads) {
  constexpr int kThreads = 8, kRuns = 1000;
  for (const int max_executables : {2, 12}) {
    use(at_most(max_executables));
    std::vector<std::unique_ptr<Log>> logs;
    for (int i = 0; i < kThreads; ++i) logs.push_back(std::make_unique<Log>(7 * kRuns));
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(static_cast<unsigned>(t));
        for (int i = 0; i < kRuns; ++i) {
          Log& log = *logs[static_cast<std::size_t>(t)];
          if (!run_logged(*cache, log, static_cast<int>(random() % 6), 1000 * t + i, nullptr).ok()) ++failed;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failed, 0);
    for (const auto& log : logs) log->expect_right();
    const Stats stats = cache->stats();
    EXPECT_LE(stats.live_executables, static_cast<unsigned>(max_executables));
    EXPECT_EQ(stats.runs(), static_cast<unsigned>(kThreads * kRuns));
    EXPECT_EQ(stats.failed, 0u);
    EXPECT_EQ(refused(stats), 0u);
    EXPECT_EQ(stats.outcome(Outcome::kEager), stats.eager(EagerReason::kBudget));
    if (max_executables > 6) {
      EXPECT_EQ(stats.captures, 6u);
    }
  }
}

TEST_F(SharingTest, CacheEndsWithSwitchedWorkInFlight) {
  Log log(7 * 400);
  for (const bool clear : {true, false}) {
    use(at_most(1));
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(run_logged(*cache, log, i % 3, i, nullptr).ok());
    clear ? cache->clear() : cache.reset();
    if (clear) {
      EXPECT_EQ(cache->stats().live_executables, 0u);
      EXPECT_EQ(cache->stats().live_templates, 0u);
      EXPECT_EQ(cache->stats().families, 0u);
    }
  }
  log.expect_right();
}

// ---- Siblings that leave --------------------------------------------------------------------------------------------

class LeavingTest : public SharingTest {
 protected:
  absl::StatusOr<Outcome> run_which(int which, int value, const std::function<void()>& in_fn = nullptr) {
    return run(key("k", which), params(value), [&, which](Recorder& rec, Slot<int> v) {
      rec.launch(blend, {static_cast<unsigned>(1 + which), 32}, at(0), 128, v, which);
      if (in_fn && is_capturing(rec.stream())) in_fn();
      rec.launch(blend, {1, 64}, at(64), 64, which, v);
      pad(rec, 10);
    });
  }
};

TEST_F(LeavingTest, KeyOfTheBaseGraphIsErasedWhileASiblingHasItsExecutable) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  EXPECT_RUN(kUpdated, run_which(1, 3));
  EXPECT_RUN(kUpdated, run_which(2, 4));
  EXPECT_TRUE(cache->erase(key("k", 0)));
  EXPECT_RUN(kReplayed, run_which(2, 4));
  EXPECT_RUN(kPatched, run_which(2, 5));
  EXPECT_RUN(kSwitched, run_which(1, 6));
  EXPECT_RUN(kSwitched, run_which(2, 7));
  EXPECT_EQ(cache->stats().live_templates, 2u);
  EXPECT_RUN(kUpdated, run_which(0, 8));
  EXPECT_RUN(kSwitched, run_which(1, 9));
  EXPECT_EQ(calls, 4u);
  EXPECT_EQ(cache->stats().instantiations, 1u);
  EXPECT_EQ(cache->stats().live_templates, 3u);
}

TEST_F(LeavingTest, KeyThatHasTheExecutableIsErased) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  EXPECT_RUN(kUpdated, run_which(1, 3));
  EXPECT_TRUE(cache->erase(key("k", 1)));
  EXPECT_EQ(cache->stats().live_executables, 0u);
  EXPECT_RUN(kRestored, run_which(0, 4));
  EXPECT_RUN(kUpdated, run_which(1, 5));
  EXPECT_RUN(kSwitched, run_which(0, 6));
  EXPECT_EQ(calls, 3u);
}

TEST_F(LeavingTest, ClearedCacheBeginsAnew) {
  use(at_most(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_RUN(kInstantiated, run_which(0, 3));
    EXPECT_RUN(kUpdated, run_which(1, 4));
    EXPECT_RUN(kSwitched, run_which(0, 5));
    cache->clear();
    EXPECT_TRUE(cache->entries().empty());
  }
  EXPECT_EQ(calls, 4u);
}

TEST_F(LeavingTest, SiblingErasesItselfInItsFn) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  EXPECT_RUN(kInstantiated, run_which(1, 4, [&] { EXPECT_TRUE(cache->erase(key("k", 1))); }));
  EXPECT_FALSE(cache->contains(key("k", 1)));
  EXPECT_RUN(kRestored, run_which(0, 5));
  EXPECT_RUN(kUpdated, run_which(1, 6));
  EXPECT_RUN(kSwitched, run_which(0, 7));
  EXPECT_EQ(calls, 3u);
}

TEST_F(LeavingTest, SiblingErasesTheOtherOrAllInItsFn) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  EXPECT_RUN(kInstantiated, run_which(1, 4, [&] { EXPECT_TRUE(cache->erase(key("k", 0))); }));
  EXPECT_RUN(kReplayed, run_which(1, 4));
  EXPECT_RUN(kUpdated, run_which(2, 5));
  EXPECT_RUN(kInstantiated, run_which(3, 6, [&] { cache->clear(); }));
  EXPECT_TRUE(cache->entries().empty());
  EXPECT_RUN(kInstantiated, run_which(1, 4));
  EXPECT_EQ(calls, 5u);
}

TEST_F(LeavingTest, SiblingWhoseFnFailsLeavesTheOthersExecutable) {
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_which(0, 3));
  const auto add_first = [&](Recorder& rec) { rec.launch(blend, {2, 32}, at(0), 128, 3, 3); };
  EXPECT_THROW((void)cache->run(key("throws"), stream, params(1),
                                [&](Recorder& rec, Slot<int>) {
                                  add_first(rec);
                                  throw std::runtime_error("no");
                                }),
               std::runtime_error);
  EXPECT_RUN(kReplayed, run_which(0, 3));
  EXPECT_FAILURE(kAborted, cache->run(key("fails"), stream, [&](Recorder& rec) {
    add_first(rec);
    return absl::AbortedError("no");
  }));
  EXPECT_RUN(kPatched, run_which(0, 4));
  EXPECT_FALSE(cache
                   ->run(key("fails"), stream,
                         [&](Recorder& rec) {
                           add_first(rec);
                           return cudaErrorInvalidValue;
                         })
                   .ok());
  EXPECT_RUN(kReplayed, run_which(0, 4));
  // A capture that breaks.
  EXPECT_RUN(kEager, cache->run(key("breaks"), stream, [&](Recorder& rec) {
    add_first(rec);
    return cudaStreamSynchronize(rec.stream());
  }));
  EXPECT_RUN(kReplayed, run_which(0, 4));
  EXPECT_EQ(cache->stats().updates, 0u);
  EXPECT_EQ(cache->stats().failed, 3u);

  EXPECT_RUN(kUpdated, run_which(1, 5));
  EXPECT_THROW((void)run_which(2, 6, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_RUN(kReplayed, run_which(1, 5));
  EXPECT_RUN(kSwitched, run_which(0, 4));
  EXPECT_RUN(kUpdated, run_which(2, 6));
  EXPECT_RUN(kSwitched, run_which(1, 7));
}

// ---- Streams, threads and the last-error slot -----------------------------------------------------------------------

TEST_F(SharingTest, SiblingsOnTwoStreamsInTurn) {
  use(at_most(1));
  Log logs[] = {Log(7 * 300), Log(7 * 300)};
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(run_logged(*cache, logs[i % 2], i % 2, i, nullptr).ok());
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(run_logged(*cache, logs[i % 2], i % 3, i, nullptr).ok());
  for (const Log& log : logs) log.expect_right();
  EXPECT_EQ(cache->stats().instantiations, 1u);
  EXPECT_EQ(cache->stats().captures, 3u);
}

TEST_F(SharingTest, SwitchesLeaveTheThreadAsItWas) {
  int before = -1, after = -1;
  CUDA_OK(cudaGetDevice(&before));
  for (const int padding : {0, 30}) {
    use(at_most(1));
    Log log(100);
    const auto run_which = [&](int which) {
      return cache->run(key("k", which), log.stream, [&, which](Recorder& rec) {
        for (int i = 0; i < padding; ++i) rec.launch(do_nothing, {1, 1});
        rec.launch(append, {1u + static_cast<unsigned>(which), 1}, log.numbers.get(), log.count.get(), which);
      });
    };
    // An error of the caller, for others to find.
    EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
    EXPECT_RUN(kInstantiated, run_which(0));
    EXPECT_RUN(kUpdated, run_which(1));
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    EXPECT_RUN(kSwitched, run_which(0));
    EXPECT_RUN(kUpdated, run_which(2));
    EXPECT_RUN(kSwitched, run_which(1));
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    CUDA_OK(cudaGetLastError());
    EXPECT_RUN(kSwitched, run_which(0));
    CUDA_OK(cudaPeekAtLastError());
    CUDA_OK(cudaGetDevice(&after));
    EXPECT_EQ(after, before);
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
    log.wanted = {0, 1, 0, 2, 1, 0};
    log.expect_right();
  }
}

TEST_F(SharingTest, SwitchesBesideAnotherThreadsCaptureInGlobalMode) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kNever}) {
    SCOPED_TRACE(static_cast<int>(sharing));
    use(at_most(1, sharing));
    Log log(7 * 100);
    EXPECT_TRUE(run_logged(*cache, log, 0, 1, nullptr).ok());
    CUDA_OK(cudaStreamSynchronize(log.stream));
    DeviceBuffer<int> captured_into(32);
    Stream other;
    std::promise<void> begun, done;
    std::thread thread([&] {
      CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
      CUDA_OK(launch(blend, 1, 32, other, captured_into.get(), 32, 3, 4));
      begun.set_value();
      done.get_future().wait();
      CUDA_OK(launch(blend, 1, 32, other, captured_into.get(), 32, 3, 4));
      cudaGraph_t graph = nullptr;
      CUDA_OK(cudaStreamEndCapture(other, &graph));
      EXPECT_NE(graph, nullptr);
      if (graph != nullptr) {
        CUDA_OK(cudaGraphDestroy(graph));
      }
    });
    begun.get_future().wait();
    for (int i = 0; i < 20; ++i) {
      const auto outcome = run_logged(*cache, log, i % 5, i, nullptr);
      EXPECT_TRUE(outcome.ok() && *outcome != Outcome::kEager) << i << ' ' << outcome.status();
    }
    done.set_value();
    thread.join();
    log.expect_right();
  }
}

}  // namespace
}  // namespace graphcache::test
