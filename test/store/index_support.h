// Shared by the suites of the index: entries identified by numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "store/index.h"
#include "structure/index_peer.h"

namespace graphcache {

inline char places[3];
inline const detail::Site kHere{&places[0], nullptr, 0};
inline constexpr unsigned kThread = 1;  // ThisThread::number.
inline const detail::Site kThere{&places[1], nullptr, 0};
inline const detail::Site kHereWithFunction{&places[0], &places[2], 0};

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
  // Adds an entry with a template, or a cold one.
  Entry* add(int number, bool is_recorded = true) {
    Entry* entry = index.insert(key(number), kHere);
    index.touch(entry);
    if (is_recorded) index.set_state(entry, State::kRecorded);
    return entry;
  }
  // Drops the entry that would be the next to lose its template. Returns its key, or "none".
  std::string drop() {
    Entry* oldest = oldest_recorded();
    if (oldest == nullptr) return "none";
    const std::string name = oldest->key.to_string();
    index.erase(oldest);
    sweep();
    return name;
  }
  int sweep() {
    int swept = 0;
    Entry* gone = nullptr;
    index.sweep([&](Entry* entry) {
      entry->older = std::exchange(gone, entry);
      ++swept;
    });
    index.recycle(gone);
    return swept;
  }
  Entry* oldest_recorded() { return index.oldest_recorded(known()); }
  Entry* surplus() { return index.surplus(known()); }
  // The policy, with all entries.
  Policy& known() {
    policy.add(static_cast<KeyId>(index.ids()));
    return policy;
  }

  // The entries that can be found: cold, recorded and live ones, each in order of use.
  std::vector<Entry*> found() const {
    std::vector<Entry*> all;
    IndexPeer::for_each(index, [&](Entry* entry) {
      if (!entry->erased) all.push_back(entry);
    });
    return all;
  }
  // Number of existing entries, including erased ones.
  std::size_t size() const {
    std::size_t all = 0;
    IndexPeer::for_each(index, [&](const Entry*) { ++all; });
    return all;
  }

  Index index{100};
  Policy policy{Limits()};
};

}  // namespace graphcache
