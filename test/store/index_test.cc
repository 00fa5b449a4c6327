// The index without a cache: no CUDA call is made.
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "graphcache/key.h"
#include "index_support.h"

namespace graphcache {
namespace {

TEST_F(IndexTest, ErasesOnePlaceOfAKeyWhereverItStands) {
  for (int erased = 0; erased < 3; ++erased) {
    const detail::Site sites[] = {kHere, kThere, kHereWithFunction};
    for (const detail::Site& site : sites) index.insert(key(erased), site);
    index.erase(index.find(key(erased), sites[erased]));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(index.find(key(erased), sites[i]) == nullptr, i == erased);
  }
  EXPECT_EQ(found().size(), 6u);
  EXPECT_EQ(size(), 9u);
  EXPECT_EQ(sweep(), 3);
  EXPECT_EQ(size(), 6u);
}

TEST_F(IndexTest, TouchingTheNewestOldestAndMiddleKeepsTheOrder) {
  Entry* entries[] = {add(0), add(1), add(2)};
  index.touch(entries[2]);
  EXPECT_EQ(names(found()), names_of({2, 1, 0}));
  index.touch(entries[0]);
  EXPECT_EQ(names(found()), names_of({0, 2, 1}));
  index.touch(entries[2]);
  EXPECT_EQ(names(found()), names_of({2, 0, 1}));
}

TEST_F(IndexTest, EntriesInUseOrPinnedAreNotDropped) {
  Entry* pinned = add(0);
  Entry* other = add(1);
  Entry* locked = add(2);
  add(3);
  known().pinned(pinned->id, true);
  ASSERT_TRUE(other->lock.try_lock());
  ASSERT_TRUE(locked->lock.try_lock());
  EXPECT_EQ(drop(), key(3).to_string());
  EXPECT_EQ(drop(), "none");
  (void)other->lock.unlock();
  EXPECT_EQ(drop(), key(1).to_string());
  (void)locked->lock.unlock();
  EXPECT_EQ(drop(), key(2).to_string());
  EXPECT_EQ(drop(), "none");
  policy.pinned(pinned->id, false);
  EXPECT_EQ(drop(), key(0).to_string());
}

TEST_F(IndexTest, TemplatesOfErasedEntriesDoNotCount) {
  Entry* entry = add(1);
  add(2);
  EXPECT_EQ(index.templates(), 2u);
  ASSERT_TRUE(entry->lock.try_lock());
  index.erase(entry);
  EXPECT_EQ(index.find(key(1)), nullptr);
  EXPECT_EQ(sweep(), 0);  // in use
  EXPECT_EQ(index.templates(), 1u);
  EXPECT_EQ(found().size(), 1u);
  EXPECT_EQ(size(), 2u);
  (void)entry->lock.unlock();
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.templates(), 1u);
  EXPECT_EQ(size(), 1u);
}

TEST_F(IndexTest, ErasedEntriesMayBecomeLiveAndColdAgain) {
  Entry* entry = add(1, /*is_recorded=*/false);
  ASSERT_TRUE(entry->lock.try_lock());
  index.erase(entry);
  index.erase(entry);  // erasing it again changes nothing
  index.set_state(entry, State::kLive);
  index.set_state(entry, State::kLive);
  index.set_state(entry, State::kCold);
  index.set_state(entry, State::kLive);
  (void)entry->lock.unlock();
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.templates(), 0u);
}

TEST_F(IndexTest, SurplusIsTheLeastRecentlyUsedColdEntry) {
  add(-1);  // an entry with a template does not count
  std::vector<Entry*> cold;
  for (std::size_t i = 0; i < Index::kMaxColdEntries; ++i) cold.push_back(add(static_cast<int>(i), false));
  EXPECT_EQ(surplus(), nullptr);
  add(1 << 20, false);
  index.touch(cold[0]);
  ASSERT_TRUE(cold[1]->lock.try_lock());
  ASSERT_EQ(surplus(), cold[2]);
  index.erase(surplus());
  EXPECT_EQ(surplus(), nullptr);
  EXPECT_EQ(sweep(), 1);
  (void)cold[1]->lock.unlock();
}

TEST_F(IndexTest, ColdKeysAreBoundedInBytes) {
  const auto large = [](int number) { return key(number, std::string(Index::kMaxColdKeyBytes / 4, 'x')); };
  std::vector<Entry*> cold;
  for (int i = 0; i < 3; ++i) index.touch(cold.emplace_back(index.insert(large(i), kHere)));
  EXPECT_EQ(surplus(), nullptr);
  index.touch(cold.emplace_back(index.insert(large(3), kHere)));
  EXPECT_EQ(surplus(), cold[0]);
  index.touch(cold[0]);
  EXPECT_EQ(surplus(), cold[1]);
  index.set_state(cold[1], State::kRecorded);  // templates have a limit of their own
  EXPECT_EQ(surplus(), nullptr);
  index.set_state(cold[1], State::kCold);
  index.erase(surplus());
  EXPECT_EQ(surplus(), nullptr);
  EXPECT_EQ(sweep(), 1);
}

TEST_F(IndexTest, TheColdKeyUsedLastIsKeptWhateverItsSizeAndThoughNoOtherCanBeDropped) {
  Entry* small = add(1, /*is_recorded=*/false);
  Entry* large = index.insert(key(std::string(2 * Index::kMaxColdKeyBytes, 'x')), kHere);
  index.touch(large);
  EXPECT_EQ(surplus(), small);
  index.erase(small);
  EXPECT_EQ(surplus(), nullptr);
  EXPECT_EQ(sweep(), 1);
  known().pinned(large->id, true);
  Entry* last = add(2, /*is_recorded=*/false);
  EXPECT_EQ(surplus(), nullptr);
  add(3, /*is_recorded=*/false);
  EXPECT_EQ(surplus(), last);
}

TEST_F(IndexTest, FindsEveryEntryAtEverySize) {
  constexpr int kKeys = 20000;  // More than there are buckets.
  for (int i = 0; i < kKeys; ++i) {
    add(i);
    if (i % 3 == 0) index.insert(key(i), kThere);
    for (const int j : {0, i / 2, i}) ASSERT_EQ(names({index.find(key(j), kHere)}), names_of({j})) << i;
  }
  for (int i = 0; i < kKeys; ++i) {
    Entry* const there = index.find(key(i), kThere);
    Entry* const here = index.find(key(i), kHere);
    ASSERT_EQ(there != nullptr, i % 3 == 0);
    if (there != nullptr) {
      EXPECT_EQ(Index::next_of_key(there), here);
    }
    EXPECT_EQ(Index::next_of_key(here), nullptr);
    if (i % 2 == 0) index.erase(here);
  }
  EXPECT_EQ(index.find(key(kKeys)), nullptr);
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(index.find(key(i), kHere) != nullptr, i % 2 != 0);
}

TEST(EntryTableTest, HasTwoBucketsForEachEntry) {
  for (const std::size_t entries : {0, 1, 2, 3, 100, 128, 129, 5000}) {
    const EntryTable table(entries);
    EXPECT_TRUE(std::has_single_bit(table.buckets())) << entries;
    EXPECT_GE(table.buckets(), 2 * entries);
    EXPECT_LT(table.buckets(), 4 * entries + 2);
  }
}

TEST(IndexRoomTest, IsForColdEntriesAndForAMillionAtMost) {
  EXPECT_EQ(IndexPeer::buckets(Index(0)), 2 * Index::kMaxColdEntries);
  EXPECT_EQ(IndexPeer::buckets(Index(512)), 4 * Index::kMaxColdEntries);
  for (const std::size_t many : {std::size_t{1} << 20, std::numeric_limits<std::size_t>::max()}) {
    EXPECT_EQ(IndexPeer::buckets(Index(many)), std::size_t{2} << 20) << many;
  }
}

// ---- States and budgets ------------------------------------------------------------------------------------------

TEST_F(IndexTest, AChangedStateIsAUse) {
  Entry* entries[] = {add(0), add(1), add(2), add(3), add(4)};
  for (const int i : {2, 4, 0, 3, 1}) index.set_state(entries[i], State::kLive);
  EXPECT_EQ(oldest_recorded(), nullptr);
  for (const int i : {3, 0}) index.set_state(entries[i], State::kCold);
  index.touch(entries[1]);  // a live entry has no place
  for (const int i : {1, 3, 0, 2}) index.set_state(entries[i], State::kRecorded);
  EXPECT_EQ(names(found()), names_of({2, 0, 3, 1, 4}));  // the live one last
  index.touch(entries[0]);
  index.set_state(entries[4], State::kRecorded);
  EXPECT_EQ(names(found()), names_of({4, 0, 2, 3, 1}));
  for (const int i : {1, 3, 2, 0, 4}) EXPECT_EQ(drop(), key(i).to_string());
  EXPECT_EQ(drop(), "none");
}

TEST_F(IndexTest, IdsAreSmallAndOfOneEntryEach) {
  Entry* entries[] = {add(0), add(1), add(2)};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(entries[i]->id, static_cast<KeyId>(i));
    EXPECT_EQ(index.of(entries[i]->id), entries[i]);
  }
  EXPECT_EQ(index.next_id(), 3u);
  ASSERT_TRUE(entries[1]->lock.try_lock());
  index.erase(entries[1]);
  EXPECT_EQ(sweep(), 0);
  EXPECT_EQ(index.next_id(), 3u) << "an erased entry that is in use has its id";
  EXPECT_EQ(index.of(1), entries[1]);
  (void)entries[1]->lock.unlock();
  index.erase(entries[0]);
  EXPECT_EQ(sweep(), 2);
  const KeyId next = index.next_id();
  EXPECT_LT(next, 2u);
  EXPECT_EQ(add(3)->id, next);
  EXPECT_EQ(add(4)->id, 1u - next);
  EXPECT_EQ(add(5)->id, 3u);
}

TEST_F(IndexTest, DestroysRemainingEntries) {
  Index other(1);
  other.set_state(other.insert(key(1), kHere), State::kLive);
  other.insert(key(2), kHere);
  Entry* erased = other.insert(key(3), kHere);
  ASSERT_TRUE(erased->lock.try_lock());
  other.erase(erased);
}

}  // namespace
}  // namespace graphcache
