// Shared by the suites of sharing: runs that are made twice from the same memory, directly and through the cache.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

inline Options at_most(int max_executables, Sharing sharing = Sharing::kUpdates) {
  Options options;
  options.max_executables = max_executables;
  force(&options, sharing);
  return options;
}

inline Options direct() { return {.max_executables = 0}; }

// What blend() does to `n` numbers.
inline void blend_here(int* p, int n, int factor, int addend) {
  for (int i = 0; i < n; ++i) {
    p[i] = static_cast<int>(static_cast<unsigned>(factor) * static_cast<unsigned>(p[i]) +
                            static_cast<unsigned>(addend + i));
  }
}

struct Counts {
  std::uint64_t calls = 0, captures = 0, instantiations = 0, updates = 0, patched_nodes = 0;
};

inline std::set<std::uint64_t> families(const Cache& cache) {
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

  // Replaces the cache by a new, empty one.
  Cache& use(const ForcedOptions& options) {
    calls = 0;
    cache.emplace(options.again());
    mechanisms_of_new_caches = {};
    return *cache;
  }

  // Runs `fn` directly and then through the cache, each from the same memory, and compares the results.
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

  // Each of `members` keys runs in turn, `rounds` times: run_member(which).
  template <class Run>
  void take_turns(int rounds, int members, const Run& run_member) {
    for (int round = 0; round < rounds; ++round) {
      for (int which = 0; which < members; ++which) {
        ASSERT_SUCCESS(run_member(which)) << "member " << which << ", round " << round;
      }
    }
  }

  void expect(const Counts& wanted) {
    const Stats stats = cache->stats();
    EXPECT_EQ(calls, wanted.calls);
    EXPECT_EQ(stats.captures, wanted.captures);
    EXPECT_EQ(stats.instantiations, wanted.instantiations);
    EXPECT_EQ(stats.updates, wanted.updates);
    EXPECT_EQ(stats.patched_nodes, wanted.patched_nodes);
    EXPECT_EQ(stats.refused_updates, 0u);
  }
  std::uint64_t updates() const { return cache->stats().updates; }
  std::uint64_t patched_nodes() const { return cache->stats().patched_nodes; }

  int* at(int index) const { return memory.get() + index; }

  // Steps that are equal for all keys, so that only few of all nodes differ.
  void pad(Recorder& rec, int count, int salt = 0) {
    for (int i = 0; i < count; ++i) rec.launch(blend, {1, 32}, at(992), 32, 3 + 2 * salt, salt + i);
  }

  Cache directly{direct()};
  std::optional<Cache> cache;
  std::vector<int> seed;
  DeviceBuffer<int> memory{kSize};
  std::uint64_t calls = 0;  // of `fn` through the cache
};

}  // namespace graphcache::test
