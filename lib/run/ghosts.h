// The keys that have lost an executable for lack of room. advise() uses them to estimate what a larger budget would
// save.
//
// Two segments hold the keys that lost an executable most recently: first as many as the budget had executables, then
// twice as many. A key of the first segment that runs again would still have its executable with twice the budget, one
// of the second with four times. This is exact for an LRU order, and the policy's order nearly is one.
//
// Makes no CUDA call and does not allocate; every operation takes constant time. Guarded by the cache's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "run/entry.h"

namespace graphcache {

class Ghosts {
 public:
  // The entry has lost its executable for lack of room, beside `executables` others.
  void lost(Entry* entry, std::size_t executables) {
    remove(entry);
    add(entry, kFirst);
    if (segments_[0].size > executables) pass_on(kFirst);
    if (segments_[1].size > 2 * executables) pass_on(kSecond);
  }
  // The entry has an executable again.
  void came_back(Entry* entry) {
    if (entry->ghost != kNone) ++returns_[entry->ghost - 1u];
    remove(entry);
  }
  // The entry is deleted or does not count any more.
  void remove(Entry* entry) {
    if (entry->ghost == kNone) return;
    Segment& segment = segments_[entry->ghost - 1u];
    (entry->ghost_newer != nullptr ? entry->ghost_newer->ghost_older : segment.newest) = entry->ghost_older;
    (entry->ghost_older != nullptr ? entry->ghost_older->ghost_newer : segment.oldest) = entry->ghost_newer;
    entry->ghost_newer = entry->ghost_older = nullptr;
    entry->ghost = kNone;
    --segment.size;
  }

  // Number of runs that would have found their executable with twice the budget, and the further number with four
  // times.
  const std::array<std::uint64_t, 2>& returns() const { return returns_; }

 private:
  static constexpr std::uint8_t kNone = 0, kFirst = 1, kSecond = 2;  // Values of Entry::ghost.
  struct Segment {
    Entry* newest = nullptr;
    Entry* oldest = nullptr;
    std::size_t size = 0;
  };

  void add(Entry* entry, std::uint8_t which) {
    Segment& segment = segments_[which - 1u];
    entry->ghost = which;
    entry->ghost_older = segment.newest;
    (segment.newest != nullptr ? segment.newest->ghost_newer : segment.oldest) = entry;
    segment.newest = entry;
    ++segment.size;
  }
  void pass_on(std::uint8_t from) {
    Entry* const oldest = segments_[from - 1u].oldest;
    remove(oldest);
    if (from == kFirst) add(oldest, kSecond);
  }

  std::array<Segment, 2> segments_;
  std::array<std::uint64_t, 2> returns_{};
};

}  // namespace graphcache
