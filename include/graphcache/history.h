// History: remembers what happened to keys, as far as the cache does not. labels() and advise() use it.
//
//   graphcache::Cache cache({.listeners = {std::make_shared<graphcache::History>()}});
//   for (const graphcache::LabelStats& label : graphcache::labels(cache)) log(label.label, label.entries);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "graphcache/listener.h"
#include "graphcache/stats.h"

namespace graphcache {

class Cache;

// The runs of all keys with one label.
struct LabelStats {
  // The label (EntryInfo::label). The last element may be "other", which sums up all further labels.
  std::string label;
  std::uint64_t entries = 0;  // The number of entries that exist now.
  // As in Stats, for these entries and for entries that no longer exist.
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};
};

// Give each cache a History of its own. One that several caches share counts the runs of all of them, and estimates no
// budget. Hits do not reach it. It keeps 65 labels, and the numbers of at most 8 keys for each executable. All members
// are thread-safe.
class History final : public Listener {
 public:
  static constexpr std::size_t kMostLabels = 64;  // The number of labels that have counts of their own.

  absl::Status begin(const CacheEvent& event) override;
  void end(const CacheEvent& event) override;

  // The runs of entries that no longer exist, and the reasons of all direct runs, by label, in the order in which the
  // labels were met. The last element may be "other". LabelStats::entries is 0. Throws std::bad_alloc.
  std::vector<LabelStats> labels() const;

  // How many runs would have found an executable ready for their key with a larger budget.
  struct Returns {
    std::uint64_t of_twice = 0;       // With twice the budget.
    std::uint64_t of_four_times = 0;  // With four times the budget, these included.
  };
  // `with_lent`: whether a key that lent its executable to a sibling would have kept it with a larger budget. It would
  // not with Share::kAlways.
  Returns returns(bool with_lent) const;

  // The number of captures of keys whose template had been dropped for Options::max_templates.
  std::uint64_t recaptures() const;

 private:
  // The entries that lost their executable last, the latest at the end. How many lost theirs after an entry says how
  // large the budget would have to be for it. This is exact for an LRU order, and the cache's order nearly is one.
  struct Ghosts {
    void lost(std::uint64_t entry, std::size_t executables);
    void came_back(std::uint64_t entry, std::size_t executables);
    void remove(std::uint64_t entry);
    std::vector<std::uint64_t> entries;
    Returns returns;
  };

  // Guards all that follows.
  mutable std::mutex mutex_;
  std::vector<LabelStats> labels_;
  std::multiset<unsigned> runs_;  // The threads of the runs under way.
  std::array<Ghosts, 2> ghosts_;  // Without and with the keys that lent their executable.
  std::size_t executables_ = 0;   // The number of executables that exist and are not evicted.
  std::uint64_t recaptures_ = 0;
};

// The runs of all keys, summed up by the label of the key. With a History among the listeners of the cache there is one
// element for each of the first 64 labels that the cache has met, in that order, and one for all others.
//
// Without one, only entries that exist now are counted, those with the label used last first. All direct runs of an
// entry then count for the reason of its last one.
//
// It reads entries as Cache::entries() does. Runs inside another run's capture, runs of a disabled cache, and failed
// runs are not included; Stats counts them. Empty if there is no memory for it.
std::vector<LabelStats> labels(const Cache& cache);

}  // namespace graphcache
