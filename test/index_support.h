// What the suites of the index share: entries by numbers, and what would be locked.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "run/index.h"

namespace graphcache {

inline char places[3];
inline const detail::Site kHere{&places[0], nullptr};
inline const detail::Site kThere{&places[1], nullptr};
inline const detail::Site kHereWithFunction{&places[0], &places[2]};

// Keys of entries by their number, in the order of `entries`.
inline std::vector<std::string> names(const std::vector<Entry*>& entries) {
  std::vector<std::string> all;
  for (const Entry* entry : entries) all.push_back(entry->key.to_string());
  return all;
}
inline std::vector<std::string> names_of(std::initializer_list<int> numbers) {
  std::vector<std::string> all;
  for (const int number : numbers) all.push_back(key(number).to_string());
  return all;
}

class IndexTest : public testing::Test {
 protected:
  Entry* add(int number, bool live = true) {
    Entry* entry = index.insert(key(number), kHere);
    index.touch(entry);
    if (live) index.set_state(entry, State::kLive);
    return entry;
  }
  // Evicts as the cache does; the number's key, or "none".
  std::string evict() {
    Entry* victim = index.lock_oldest(State::kLive);
    if (victim == nullptr) return "none";
    const std::string name = victim->key.to_string();
    index.erase(victim);
    (void)victim->lock.unlock();
    sweep();
    return name;
  }
  // A recorded entry whose executable would take so many bytes.
  Entry* add_sized(int number, std::size_t bytes) {
    Entry* entry = add(number, /*live=*/false);
    entry->device_bytes = bytes;
    index.set_state(entry, State::kRecorded);
    return entry;
  }
  Entry* add_member(int number, const Signature& signature, State state = State::kRecorded) {
    Entry* entry = add(number, /*live=*/false);
    index.set_state(entry, State::kRecorded);
    index.join(entry, signature);
    index.set_state(entry, state);
    return entry;
  }
  static Entry* unlocked(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (entry != nullptr) (void)entry->lock.unlock();
    return entry;
  }
  // What would be locked.
  Entry* lock_oldest(State state, const Family* family = nullptr) { return unlocked(index.lock_oldest(state, family)); }
  Entry* lock_lender(const Family* family) { return unlocked(index.lock_lender(family)); }
  int sweep() {
    int swept = 0;
    index.sweep([&](Entry&) { ++swept; });
    return swept;
  }

  // Those that are found: the cold ones, the recorded ones, the live ones, each in order of use.
  std::vector<Entry*> found() const {
    std::vector<Entry*> all;
    index.for_each([&](Entry* entry) {
      if (!entry->erased) all.push_back(entry);
    });
    return all;
  }
  // Those that exist, erased ones included.
  std::size_t size() const {
    std::size_t all = 0;
    index.for_each([&](const Entry*) { ++all; });
    return all;
  }

  Index index;
};

}  // namespace graphcache
