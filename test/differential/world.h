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

// Limits from the command line, for all worlds.
struct Limits {
  int threads = INT_MAX, least_threads = 1;
  int executables = INT_MAX;
  int runs = 0;  // of each lane; 0 if the seed decides
  bool compare_each = false;
};

// The choices of a seed.
struct Settings {
  Settings(std::uint64_t the_seed, const Limits& limits);

  // One line that begins with the seed.
  std::string text() const;

  std::uint64_t seed;
  Options options;
  Flavor flavor;
  int threads, runs;
  bool priorities;      // streams have different ones
  bool default_stream;  // some runs are on the default stream; then no other stream is blocking
  int per_thread;       // so many lanes are per-thread ones (any_lane.h)
  bool steps;           // half of the programs run as steps
  bool listens;         // a listener follows all runs and launches
  bool registers;       // after each comparison, pinned places are registered anew, or all allocated anew
  bool bad_values;      // some runs have values that no launch accepts
  bool spins;           // some runs find their stream busy
  bool synchronizes;    // some runs find it idle for certain
  int runs_to_compare;  // average number of runs between two comparisons
  std::vector<Program> programs;
};

// Counts of what was done.
struct Tally {
  void add(const Tally& other);

  std::uint64_t runs = 0;        // of lanes, without nested ones
  std::uint64_t failed = 0;      // runs and warm() that failed
  std::uint64_t alike = 0;       // runs that failed in both ways
  std::uint64_t per_thread = 0;  // runs of per-thread lanes on stream 0
  std::uint64_t steps = 0;       // runs of steps, including nested ones
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};
  std::array<std::uint64_t, kKinds> kinds{};
  std::array<std::uint64_t, 8> changes{};  // counters of Stats, by kChangeNames
};
inline constexpr std::array<const char*, 8> kChangeNames = {"captures",        "instantiations",        "updates",
                                                            "row switches",    "nodes patched",         "evictions",
                                                            "updates refused", "device updates refused"};

class World {
 public:
  World(std::uint64_t seed, const Limits& limits) : settings(seed, limits) {}

  // Returns the first error, or an empty text. Adds to the tally.
  std::string run(Tally* tally);
  // Records an error and stops all lanes. Thread-safe.
  void fault(const std::string& what);

  const Settings settings;
  std::atomic<bool> stopped{false};

 private:
  void check_stats(const Cache& cache, const Stats& stats, const Tally& tally);

  std::mutex mutex_;
  std::string fault_;
};

}  // namespace graphcache::test::differential
