// The index alone: no CUDA call is made.
#include "index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graphcache/key.h"

namespace graphcache {
namespace {

char places[3];
const detail::Site kHere{&places[0], nullptr};
const detail::Site kThere{&places[1], nullptr};
const detail::Site kHereWithFunction{&places[0], &places[2]};

// Keys of entries by their number, in the order of `entries`.
std::vector<std::string> names(const std::vector<Entry*>& entries) {
  std::vector<std::string> all;
  for (const Entry* entry : entries) all.push_back(entry->key.to_string());
  return all;
}
std::vector<std::string> names_of(std::initializer_list<int> numbers) {
  std::vector<std::string> all;
  for (const int number : numbers) all.push_back(key(number).to_string());
  return all;
}

class IndexTest : public testing::Test {
 protected:
  Entry* add(int number, bool live = true) {
    Entry* entry = index.insert(key(number), kHere);
    index.touch(entry);
    if (live) index.set_live(entry, true);
    return entry;
  }
  // Evicts as the cache does; the number's key, or "none".
  std::string evict() {
    Entry* victim = index.lock_victim();
    if (victim == nullptr) return "none";
    const std::string name = victim->key.to_string();
    index.erase(victim);
    (void)victim->lock.unlock();
    sweep();
    return name;
  }
  int sweep() {
    int swept = 0;
    index.sweep([&](Entry&) { ++swept; });
    return swept;
  }

  Index index;
};

TEST_F(IndexTest, FindsByKeyAndPlace) {
  EXPECT_EQ(index.find(key(1)), nullptr);
  EXPECT_EQ(index.find(key(1), kHere), nullptr);
  Entry* here = index.insert(key(1), kHere);
  EXPECT_EQ(index.find(key(1), kHere), here);
  EXPECT_EQ(index.find(key(1), kThere), nullptr);
  Entry* there = index.insert(key(1), kThere);
  Entry* with_function = index.insert(key(1), kHereWithFunction);
  EXPECT_EQ(index.find(key(1), kHere), here);
  EXPECT_EQ(index.find(key(1), kThere), there);
  EXPECT_EQ(index.find(key(1), kHereWithFunction), with_function);
  EXPECT_EQ(index.find(key(2), kHere), nullptr);
  int places_of_key = 0;
  for (Entry* entry = index.find(key(1)); entry != nullptr; entry = entry->next_of_key) ++places_of_key;
  EXPECT_EQ(places_of_key, 3);
}

TEST_F(IndexTest, ErasesOnePlaceOfAKeyWhereverItStands) {
  for (int erased = 0; erased < 3; ++erased) {
    const detail::Site sites[] = {kHere, kThere, kHereWithFunction};
    for (const detail::Site& site : sites) index.insert(key(erased), site);
    index.erase(index.find(key(erased), sites[erased]));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(index.find(key(erased), sites[i]) == nullptr, i == erased);
  }
  EXPECT_EQ(index.found().size(), 6u);
  EXPECT_EQ(index.all().size(), 9u);
  EXPECT_EQ(sweep(), 3);
  EXPECT_EQ(index.all().size(), 6u);
}

TEST_F(IndexTest, VictimIsTheLeastRecentlyUsed) {
  Entry* first = add(1);
  add(2);
  add(3);
  index.touch(first);
  EXPECT_EQ(names(index.found()), names_of({1, 3, 2}));
  EXPECT_EQ(evict(), key(2).to_string());
  EXPECT_EQ(evict(), key(3).to_string());
  EXPECT_EQ(evict(), key(1).to_string());
  EXPECT_EQ(evict(), "none");
}

TEST_F(IndexTest, TouchingTheNewestOldestAndMiddleKeepsTheOrder) {
  Entry* entries[] = {add(0), add(1), add(2)};
  index.touch(entries[2]);
  EXPECT_EQ(names(index.found()), names_of({2, 1, 0}));
  index.touch(entries[0]);
  EXPECT_EQ(names(index.found()), names_of({0, 2, 1}));
  index.touch(entries[2]);
  EXPECT_EQ(names(index.found()), names_of({2, 0, 1}));
  EXPECT_GT(entries[2]->last_use, entries[0]->last_use);
  EXPECT_GT(entries[0]->last_use, entries[1]->last_use);
}

TEST_F(IndexTest, EntriesInUseAreNoVictims) {
  Entry* pinned = add(1);
  Entry* locked = add(2);
  add(3);
  ++pinned->pins;
  ASSERT_TRUE(locked->lock.try_lock());
  EXPECT_EQ(evict(), key(3).to_string());
  EXPECT_EQ(evict(), "none");
  --pinned->pins;
  EXPECT_EQ(evict(), key(1).to_string());
  (void)locked->lock.unlock();
  EXPECT_EQ(evict(), key(2).to_string());
}

TEST_F(IndexTest, ColdEntriesAreNoVictims) {
  add(1, /*live=*/false);
  Entry* entry = add(2);
  EXPECT_EQ(index.live(), 1u);
  index.set_live(entry, false);
  EXPECT_EQ(index.live(), 0u);
  EXPECT_EQ(evict(), "none");
  EXPECT_EQ(index.found().size(), 2u);
}

TEST_F(IndexTest, LiveCountsErasedEntriesUntilTheyAreSwept) {
  Entry* entry = add(1);
  add(2);
  EXPECT_EQ(index.live(), 2u);
  ASSERT_TRUE(entry->lock.try_lock());
  index.erase(entry);
  EXPECT_EQ(index.find(key(1)), nullptr);
  EXPECT_EQ(sweep(), 0);  // In use.
  EXPECT_EQ(index.live(), 2u);
  EXPECT_EQ(index.found().size(), 1u);
  EXPECT_EQ(index.all().size(), 2u);
  (void)entry->lock.unlock();
  ++entry->pins;
  EXPECT_EQ(sweep(), 0);  // Still needed.
  --entry->pins;
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.live(), 1u);
  EXPECT_EQ(index.all().size(), 1u);
}

TEST_F(IndexTest, ErasedEntriesMayBecomeLiveAndColdAgain) {
  Entry* entry = add(1, /*live=*/false);
  ASSERT_TRUE(entry->lock.try_lock());
  index.erase(entry);
  index.erase(entry);  // Once more changes nothing.
  EXPECT_EQ(index.live(), 0u);
  index.set_live(entry, true);
  index.set_live(entry, true);
  EXPECT_EQ(index.live(), 1u);
  index.set_live(entry, false);
  EXPECT_EQ(index.live(), 0u);
  index.set_live(entry, true);
  (void)entry->lock.unlock();
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.live(), 0u);
}

TEST_F(IndexTest, ErasedKeyMayBeInsertedAgainBesideItsErasedEntry) {
  Entry* old = add(1);
  ++old->pins;
  index.erase(old);
  Entry* fresh = add(1);
  EXPECT_NE(fresh, old);
  EXPECT_EQ(index.find(key(1), kHere), fresh);
  EXPECT_EQ(index.live(), 2u);
  --old->pins;
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.live(), 1u);
  EXPECT_EQ(index.find(key(1), kHere), fresh);
}

TEST_F(IndexTest, SweepPassesOverEntriesInUse) {
  Entry* entries[] = {add(0), add(1), add(2), add(3)};
  ++entries[1]->pins;
  for (Entry* entry : entries) index.erase(entry);
  std::vector<std::string> swept;
  index.sweep([&](Entry& entry) { swept.push_back(entry.key.to_string()); });
  EXPECT_EQ(swept, names_of({0, 2, 3}));
  EXPECT_EQ(index.live(), 1u);
  --entries[1]->pins;
  EXPECT_EQ(sweep(), 1);
}

TEST_F(IndexTest, SurplusIsTheLeastRecentlyUsedColdEntry) {
  add(-1);  // Live ones do not count.
  std::vector<Entry*> cold;
  for (std::size_t i = 0; i < Index::kMaxColdEntries; ++i) cold.push_back(add(static_cast<int>(i), false));
  EXPECT_EQ(index.lock_surplus(), nullptr);
  add(1 << 20, false);
  index.touch(cold[0]);
  ++cold[1]->pins;
  Entry* surplus = index.lock_surplus();
  ASSERT_EQ(surplus, cold[2]);
  index.erase(surplus);
  (void)surplus->lock.unlock();
  EXPECT_EQ(index.lock_surplus(), nullptr);
  EXPECT_EQ(sweep(), 1);
  --cold[1]->pins;
}

TEST_F(IndexTest, DestroysWhatIsStillThere) {
  Index other;
  other.set_live(other.insert(key(1), kHere), true);
  other.insert(key(2), kHere);
  Entry* erased = other.insert(key(3), kHere);
  ++erased->pins;
  other.erase(erased);
}

}  // namespace
}  // namespace graphcache
