// An entry: what a key maps to at one place of the program.
#pragma once

#include <absl/status/status.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>

#include "graphcache/detail/call.h"
#include "graphcache/key.h"
#include "graphcache/stats.h"
#include "policy/policy.h"
#include "store/hot_entry.h"

namespace graphcache {

using detail::Counter;

// What an entry has. With an executable it also has a template: its own, or the executable's base.
enum class State {
  kCold,      // Neither template nor executable, only counts and failed captures.
  kRecorded,  // A template without an executable.
  kLive,      // An executable, or a promise of one.
};

// When a key that runs directly is captured or brought back again.
struct Retry {
  static constexpr int kNew = -1;
  static constexpr int kNever = std::numeric_limits<int>::max();

  int left = kNew;                               // Number of direct runs before that. kNew: no run has been made.
  EagerReason why = EagerReason::kCaptureAfter;  // Why those runs are direct.
  int failures = 0;                              // Number of broken captures and failed executables in a row.

  void at_once() { left = 0; }
  void never(EagerReason reason) {
    left = kNever;
    why = reason;
  }
  // Ever more rarely. The cause may be temporary, such as a library that initialises itself at its first call.
  void later() {
    constexpr int kMaxDoublings = 10;
    left = 1 << std::min(failures++, kMaxDoublings);
    why = EagerReason::kBackoff;
  }
  // At once for the first few times.
  void soon() {
    constexpr int kFew = 3;
    if (failures >= kFew) return later();
    ++failures;
    at_once();
  }
};

// Site::identity of the entry for all others of a key that has kMostIdentities.
inline constexpr std::uint64_t kManyIdentities = 2;  // Values::identity() is odd.
inline constexpr int kMostIdentities = 16;

// The signatures of entries, and the number of entries with each.
using Signatures = std::unordered_map<std::string, std::size_t>;

// What an entry has while it is not cold: its graphs. The store only keeps it (run/core.h).
struct EntryGraphs {
  virtual ~EntryGraphs() = default;
};

// What runs have counted.
struct RunCounts {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::uint64_t patched_nodes = 0;
};

// The part of an entry that is reset when it is deleted and reused for another key.
struct EntryContents {
  // Guarded by `lock`. An executable moves from one entry to another while both locks are held. Thread-safety analysis
  // cannot follow that; the thread sanitizer checks it (test/run --lanes tsan).
  std::unique_ptr<EntryGraphs> graphs;  // Null while cold.
  Retry retry;

  // Written under `lock` and the store's lock, before the entry can be found.
  Key key;
  detail::Site site{};
  KeyId id = kNoKey;  // Its id in the policy.

  // Guarded by the store's lock.
  Entry* newer = nullptr;
  Entry* older = nullptr;
  State state = State::kCold;  // Changed under `lock` as well.
  // The signature of its content, or null if the content cannot have siblings.
  Signatures::value_type* signature = nullptr;
  EntryInfo info;  // What is only reported. Store::entries() fills in the rest.

  // Written under `lock` and the store's lock.
  absl::Status error;  // The error behind the last direct run; ok after a capture.
  bool broke = false;  // Whether a capture has broken since the last one that did not fail.
};

// The memory of an entry stays one while the cache exists. So a hit may find an entry and take its lock without the
// store's lock, and then check that it is still the right one. Members that a hit accesses come first.
struct alignas(64) Entry : detail::HotEntry, EntryContents {
  // Written under `lock`, except that kEager is counted under the store's lock. Most replays are counted in `replayed`.
  std::array<Counter, kOutcomeCount> outcomes{};
  Counter patched_nodes;
  // The number of the thread that has `lock` in a run that is no hit.
  std::atomic<unsigned> holder{0};
  RunCounts counted;  // What Index::runs() has of them. Guarded by the store's lock.

  static std::size_t tag_of(const Key& key, const detail::Site& site) {
    const auto mix = [](const void* pointer) {
      return reinterpret_cast<std::uintptr_t>(pointer) * 0x9e3779b97f4a7c15u;
    };
    return key.hash() ^ mix(site.type) ^ (mix(site.target) >> 1) ^ site.identity;
  }
  Use last_use() const { return {used_in.value(), used_at.value()}; }
  // Number of its runs by outcome, hits included.
  std::array<std::uint64_t, kOutcomeCount> counts() const {
    std::array<std::uint64_t, kOutcomeCount> counts;
    for (int i = 0; i < kOutcomeCount; ++i) counts[i] = outcomes[i].value();
    counts[static_cast<int>(Outcome::kReplayed)] += replayed.value();
    return counts;
  }
  // EntryInfo::id. Requires `lock` or the store's lock.
  std::uint64_t number() const { return life << 32 | id; }
  // Loads everything that a hit reads at once, instead of one cache line after the other. This matters with many
  // entries.
  void prefetch() const {
    constexpr std::size_t kLine = 64;
    const char* const begin = reinterpret_cast<const char*>(this);
    for (std::size_t at = 0; at < 3 * kLine; at += kLine) __builtin_prefetch(begin + at, /*write=*/1);
  }
};

}  // namespace graphcache
