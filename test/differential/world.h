// One seed's world: a cache with random options, random programs, and lanes that run them, each in a thread.
#pragma once

#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "program.h"

namespace graphcache::test::differential {

// What the command line says of all worlds.
struct Limits {
  int threads = INT_MAX;
  int runs = 0;  // Of each lane; 0: as the seed decides.
  bool compare_each = false;
};

// What a seed decides.
struct Settings {
  Settings(std::uint64_t the_seed, const Limits& limits);

  // One line, the seed first.
  std::string text() const;

  std::uint64_t seed;
  Options options;
  Flavor flavor;
  int threads, runs;
  bool priorities;      // Streams have different ones.
  bool default_stream;  // Some runs are on the default stream; then no other stream blocks.
  bool bad_values;      // Some runs have values that no launch accepts.
  bool spins;           // Some runs find their stream busy.
  bool synchronizes;    // Some runs find it idle for certain.
  int runs_to_compare;  // So many runs are compared at once, on average.
  std::vector<Program> programs;
};

// What was done, in numbers.
struct Tally {
  void add(const Tally& other);

  std::uint64_t runs = 0;    // Of lanes, nested ones not included.
  std::uint64_t failed = 0;  // Runs and warm() that failed.
  std::uint64_t alike = 0;   // Runs that failed, and so did the direct one.
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};
  std::array<std::uint64_t, kKinds> kinds{};
  std::array<std::uint64_t, 8> changes{};  // Counters of Stats, by kChangeNames.
};
inline constexpr std::array<const char*, 8> kChangeNames = {"captures",        "instantiations",        "updates",
                                                            "row switches",    "nodes patched",         "evictions",
                                                            "updates refused", "device updates refused"};

class World {
 public:
  World(std::uint64_t seed, const Limits& limits) : settings(seed, limits) {}

  // Returns what was wrong first, or an empty text. Adds to the tally.
  std::string run(Tally* tally);
  // Notes what is wrong and stops all lanes. Thread-safe.
  void fault(const std::string& what);

  const Settings settings;
  std::atomic<bool> stopped{false};

 private:
  void check_stats(const Cache& cache, const Stats& stats, const Tally& tally);

  std::mutex mutex_;
  std::string fault_;
};

}  // namespace graphcache::test::differential
