// The index alone: no CUDA call is made.
#include "index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
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
    if (live) index.set_standing(entry, Standing::kLive);
    return entry;
  }
  // Evicts as the cache does; the number's key, or "none".
  std::string evict() {
    Entry* victim = index.lock_oldest(Standing::kLive);
    if (victim == nullptr) return "none";
    const std::string name = victim->key.to_string();
    index.erase(victim);
    (void)victim->lock.unlock();
    sweep();
    return name;
  }
  // A demoted entry whose executable would take so many bytes.
  Entry* add_sized(int number, std::size_t bytes) {
    Entry* entry = add(number, /*live=*/false);
    entry->device_bytes = bytes;
    index.set_standing(entry, Standing::kDemoted);
    return entry;
  }
  Entry* add_member(int number, const Signature& signature, Standing standing = Standing::kDemoted) {
    Entry* entry = add(number, /*live=*/false);
    index.set_standing(entry, Standing::kDemoted);
    index.join(entry, signature);
    index.set_standing(entry, standing);
    return entry;
  }
  static Entry* unlocked(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (entry != nullptr) (void)entry->lock.unlock();
    return entry;
  }
  // What would be locked.
  Entry* lock_oldest(Standing standing, const Family* family = nullptr) {
    return unlocked(index.lock_oldest(standing, family));
  }
  Entry* lock_lender(const Family* family) { return unlocked(index.lock_lender(family)); }
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
  ++pinned->users;
  ASSERT_TRUE(locked->lock.try_lock());
  EXPECT_EQ(evict(), key(3).to_string());
  EXPECT_EQ(evict(), "none");
  --pinned->users;
  EXPECT_EQ(evict(), key(1).to_string());
  (void)locked->lock.unlock();
  EXPECT_EQ(evict(), key(2).to_string());
}

TEST_F(IndexTest, ColdEntriesAreNoVictims) {
  add(1, /*live=*/false);
  Entry* entry = add(2);
  EXPECT_EQ(index.live(), 1u);
  index.set_standing(entry, Standing::kCold);
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
  ++entry->users;
  EXPECT_EQ(sweep(), 0);  // Still needed.
  --entry->users;
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
  index.set_standing(entry, Standing::kLive);
  index.set_standing(entry, Standing::kLive);
  EXPECT_EQ(index.live(), 1u);
  index.set_standing(entry, Standing::kCold);
  EXPECT_EQ(index.live(), 0u);
  index.set_standing(entry, Standing::kLive);
  (void)entry->lock.unlock();
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.live(), 0u);
}

TEST_F(IndexTest, ErasedKeyMayBeInsertedAgainBesideItsErasedEntry) {
  Entry* old = add(1);
  ++old->users;
  index.erase(old);
  Entry* fresh = add(1);
  EXPECT_NE(fresh, old);
  EXPECT_EQ(index.find(key(1), kHere), fresh);
  EXPECT_EQ(index.live(), 2u);
  --old->users;
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.live(), 1u);
  EXPECT_EQ(index.find(key(1), kHere), fresh);
}

TEST_F(IndexTest, SweepPassesOverEntriesInUse) {
  Entry* entries[] = {add(0), add(1), add(2), add(3)};
  ++entries[1]->users;
  for (Entry* entry : entries) index.erase(entry);
  std::vector<std::string> swept;
  index.sweep([&](Entry& entry) { swept.push_back(entry.key.to_string()); });
  EXPECT_EQ(swept, names_of({0, 2, 3}));
  EXPECT_EQ(index.live(), 1u);
  --entries[1]->users;
  EXPECT_EQ(sweep(), 1);
}

TEST_F(IndexTest, SurplusIsTheLeastRecentlyUsedColdEntry) {
  add(-1);  // Live ones do not count.
  std::vector<Entry*> cold;
  for (std::size_t i = 0; i < Index::kMaxColdEntries; ++i) cold.push_back(add(static_cast<int>(i), false));
  EXPECT_EQ(index.lock_surplus(), nullptr);
  add(1 << 20, false);
  index.touch(cold[0]);
  ++cold[1]->users;
  Entry* surplus = index.lock_surplus();
  ASSERT_EQ(surplus, cold[2]);
  index.erase(surplus);
  (void)surplus->lock.unlock();
  EXPECT_EQ(index.lock_surplus(), nullptr);
  EXPECT_EQ(sweep(), 1);
  --cold[1]->users;
}

// ---- Standings and budgets ------------------------------------------------------------------------------------------

TEST_F(IndexTest, EntryKeepsItsPlaceInTheOrderOfUseWhenItsStandingChanges) {
  Entry* entries[] = {add(0), add(1), add(2), add(3), add(4)};
  for (const int i : {2, 4, 0, 3, 1}) index.set_standing(entries[i], Standing::kDemoted);
  EXPECT_EQ(names(index.found()), names_of({4, 3, 2, 1, 0}));
  EXPECT_EQ(index.live(), 0u);
  for (const int i : {3, 0}) index.set_standing(entries[i], Standing::kCold);
  EXPECT_EQ(names(index.found()), names_of({3, 0, 4, 2, 1}));  // The cold ones first.
  for (const int i : {1, 3, 0}) index.set_standing(entries[i], Standing::kLive);
  EXPECT_EQ(names(index.found()), names_of({4, 2, 3, 1, 0}));
  index.touch(entries[1]);
  index.set_standing(entries[2], Standing::kLive);
  EXPECT_EQ(names(index.found()), names_of({4, 1, 3, 2, 0}));
  for (const int i : {0, 2, 3, 1}) EXPECT_EQ(evict(), key(i).to_string());
  EXPECT_EQ(evict(), "none");
}

TEST_F(IndexTest, OldestIsThatOfAStanding) {
  Entry* entries[] = {add(0), add(1), add(2), add(3, /*live=*/false)};
  index.set_standing(entries[1], Standing::kDemoted);
  index.set_standing(entries[2], Standing::kDemoted);
  EXPECT_EQ(lock_oldest(Standing::kLive), entries[0]);
  EXPECT_EQ(lock_oldest(Standing::kDemoted), entries[1]);
  EXPECT_EQ(lock_oldest(Standing::kCold), entries[3]);
  index.touch(entries[1]);
  EXPECT_EQ(lock_oldest(Standing::kDemoted), entries[2]);
}

TEST_F(IndexTest, PinnedEntriesAreNoVictimsOfAnyStanding) {
  for (const Standing standing : {Standing::kLive, Standing::kDemoted, Standing::kCold}) {
    Index other;
    Entry* older = other.insert(key(1), kHere);
    Entry* newer = other.insert(key(2), kHere);
    for (Entry* entry : {older, newer}) {
      other.touch(entry);
      other.set_standing(entry, standing);
    }
    older->pinned = true;
    EXPECT_EQ(unlocked(other.lock_oldest(standing)), newer);
    newer->pinned = true;
    EXPECT_EQ(other.lock_oldest(standing), nullptr);
    older->pinned = false;
    EXPECT_EQ(unlocked(other.lock_oldest(standing)), older);
  }
}

TEST_F(IndexTest, VictimIsLockedAndOthersAreNot) {
  Entry* older = add(1);
  Entry* newer = add(2);
  EXPECT_EQ(index.lock_oldest(Standing::kLive), older);
  EXPECT_FALSE(older->lock.try_lock());
  EXPECT_EQ(index.lock_oldest(Standing::kLive), newer);
  EXPECT_EQ(index.lock_oldest(Standing::kLive), nullptr);
  unlocked(older);
  EXPECT_EQ(lock_oldest(Standing::kLive), older);
  unlocked(newer);
}

TEST_F(IndexTest, TemplatesAreThoseOfLiveAndDemotedEntries) {
  EXPECT_EQ(index.templates(), 0u);
  Entry* entries[] = {add(0), add(1), add(2, /*live=*/false)};
  EXPECT_EQ(index.templates(), 2u);
  index.set_standing(entries[0], Standing::kDemoted);
  EXPECT_EQ(index.templates(), 2u);
  EXPECT_EQ(index.live(), 1u);
  index.set_standing(entries[2], Standing::kDemoted);
  EXPECT_EQ(index.templates(), 3u);
  index.set_standing(entries[0], Standing::kCold);
  EXPECT_EQ(index.templates(), 2u);
  ++entries[2]->users;
  index.erase(entries[2]);
  EXPECT_EQ(index.templates(), 2u);  // It exists until it is swept.
  EXPECT_EQ(sweep(), 0);
  --entries[2]->users;
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.templates(), 1u);
}

TEST_F(IndexTest, LiveBytesAreThoseOfLiveEntries) {
  Entry* small = add_sized(1, 100);
  Entry* large = add_sized(2, 1000);
  EXPECT_EQ(index.live_bytes(), 0u);
  index.set_standing(small, Standing::kLive);
  index.set_standing(large, Standing::kLive);
  index.set_standing(large, Standing::kLive);
  EXPECT_EQ(index.live_bytes(), 1100u);
  index.set_standing(small, Standing::kDemoted);
  EXPECT_EQ(index.live_bytes(), 1000u);
  ++large->users;
  index.erase(large);
  EXPECT_EQ(index.live_bytes(), 1000u);
  index.set_standing(large, Standing::kDemoted);
  EXPECT_EQ(index.live_bytes(), 0u);
  index.set_standing(large, Standing::kLive);
  EXPECT_EQ(index.live_bytes(), 1000u);
  --large->users;
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(index.live_bytes(), 0u);
}

// ---- Families -------------------------------------------------------------------------------------------------------

TEST_F(IndexTest, EntriesOfOneSignatureAreOneFamily) {
  Entry* a = add_member(1, "s");
  Entry* b = add_member(2, "s");
  Entry* c = add_member(3, "other");
  ASSERT_NE(a->family, nullptr);
  EXPECT_EQ(a->family, b->family);
  EXPECT_NE(a->family, c->family);
  EXPECT_EQ(a->family->members, 2u);
  EXPECT_EQ(c->family->members, 1u);
  EXPECT_EQ(*a->family->signature, "s");
  EXPECT_EQ(index.families(), 2u);
  EXPECT_NE(a->family->id, 0u);
  EXPECT_NE(a->family->id, c->family->id);
}

TEST_F(IndexTest, FamilyWithoutMembersIsNoMore) {
  Entry* a = add_member(1, "s");
  Entry* b = add_member(2, "s");
  index.leave(a);
  index.leave(a);  // Once more changes nothing.
  EXPECT_EQ(a->family, nullptr);
  EXPECT_EQ(b->family->members, 1u);
  EXPECT_EQ(index.families(), 1u);
  const std::uint64_t id = b->family->id;
  index.erase(b);
  EXPECT_EQ(b->family, nullptr);
  EXPECT_EQ(index.families(), 0u);
  index.join(a, "s");
  EXPECT_GT(a->family->id, id);
  EXPECT_EQ(index.families(), 1u);
}

TEST_F(IndexTest, FamilyCountsTheExecutablesOfItsMembers) {
  Entry* a = add_member(1, "s");
  Entry* b = add_member(2, "s");
  Family* const family = a->family;
  EXPECT_EQ(family->executables, 0u);
  index.set_standing(a, Standing::kLive);
  index.set_standing(b, Standing::kLive);
  EXPECT_EQ(family->executables, 2u);
  index.set_standing(a, Standing::kDemoted);
  EXPECT_EQ(family->executables, 1u);
  index.leave(a);
  EXPECT_EQ(family->executables, 1u);
  index.set_standing(a, Standing::kLive);
  EXPECT_EQ(family->executables, 1u);
  index.join(a, "s");
  EXPECT_EQ(family->executables, 2u);
  index.erase(a);
  EXPECT_EQ(family->executables, 1u);
  EXPECT_EQ(index.live(), 2u);  // Still there, but nobody's.
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(family->executables, 1u);
  index.split(b);
  EXPECT_EQ(b->family->executables, 1u);
}

TEST_F(IndexTest, SplitLeadsToFamiliesThatTheEntryWasNotIn) {
  Entry* entries[] = {add_member(0, "s"), add_member(1, "s"), add_member(2, "s"), add_member(3, "s")};
  Family* const first = entries[0]->family;
  index.split(entries[1]);
  Family* const second = entries[1]->family;
  EXPECT_NE(second, first);
  EXPECT_EQ(*second->signature, "s");
  EXPECT_EQ(first->members, 3u);
  EXPECT_EQ(second->members, 1u);
  EXPECT_EQ(index.families(), 2u);
  index.split(entries[2]);
  EXPECT_EQ(entries[2]->family, second);  // It may suit the next one,
  EXPECT_EQ(second->members, 2u);
  index.split(entries[2]);
  Family* const third = entries[2]->family;
  EXPECT_NE(third, first);  // or the one after that,
  EXPECT_NE(third, second);
  index.split(entries[2]);
  EXPECT_NE(entries[2]->family, first);  // but comes never back.
  EXPECT_NE(entries[2]->family, second);
  EXPECT_EQ(index.families(), 3u);  // The third had no other member.
  Entry* newcomer = add_member(4, "s");
  EXPECT_EQ(newcomer->family, first);
  EXPECT_EQ(first->members, 3u);
  for (Entry* entry : entries) index.erase(entry);
  index.erase(newcomer);
  EXPECT_EQ(index.families(), 0u);
}

TEST_F(IndexTest, SplitOfTheOnlyMemberIsAFamilyOfItsOwn) {
  Entry* only = add_member(1, "s");
  index.split(only);
  ASSERT_NE(only->family, nullptr);
  EXPECT_EQ(only->family->members, 1u);
  EXPECT_EQ(*only->family->signature, "s");
  EXPECT_EQ(index.families(), 1u);
  Entry* without = add(2);
  index.split(without);
  EXPECT_EQ(without->family, nullptr);
}

TEST_F(IndexTest, OldestOfAFamilyPassesOverOthers) {
  Entry* stranger = add(0);
  Entry* other = add_member(1, "other", Standing::kLive);
  Entry* older = add_member(2, "s", Standing::kLive);
  Entry* newer = add_member(3, "s", Standing::kLive);
  Entry* demoted = add_member(4, "s");
  EXPECT_EQ(lock_oldest(Standing::kLive), stranger);
  EXPECT_EQ(lock_oldest(Standing::kLive, older->family), older);
  EXPECT_EQ(lock_oldest(Standing::kLive, other->family), other);
  EXPECT_EQ(lock_oldest(Standing::kDemoted, older->family), demoted);
  EXPECT_EQ(lock_oldest(Standing::kDemoted, other->family), nullptr);
  index.touch(older);
  EXPECT_EQ(lock_oldest(Standing::kLive, older->family), newer);
  newer->pinned = true;
  EXPECT_EQ(lock_oldest(Standing::kLive, older->family), older);
}

TEST_F(IndexTest, LenderIsTheSpareOneElseTheOldest) {
  Entry* borrower = add_member(0, "s");
  EXPECT_EQ(lock_lender(borrower->family), nullptr);
  EXPECT_EQ(lock_lender(nullptr), nullptr);
  Entry* older = add_member(1, "s", Standing::kLive);
  Entry* newer = add_member(2, "s", Standing::kLive);
  add_member(3, "other", Standing::kLive);
  EXPECT_EQ(lock_lender(borrower->family), older);
  ASSERT_TRUE(older->lock.try_lock());
  EXPECT_EQ(lock_lender(borrower->family), newer);
  unlocked(older);
  older->pinned = true;
  EXPECT_EQ(lock_lender(borrower->family), newer);
  newer->pinned = true;
  EXPECT_EQ(lock_lender(borrower->family), nullptr);
}

// Those of others are theirs, as long as there is one that is meant for all.
TEST_F(IndexTest, WhereTheSpareOneIsInUseNoOtherIsLent) {
  Entry* borrower = add_member(0, "s");
  Entry* older = add_member(1, "s", Standing::kLive);
  Entry* newer = add_member(2, "s", Standing::kLive);
  borrower->family->spare_of = newer;
  EXPECT_EQ(index.lock_lender(borrower->family), newer);
  EXPECT_EQ(lock_lender(borrower->family), nullptr);
  EXPECT_EQ(lock_oldest(Standing::kLive, borrower->family), older);
  unlocked(newer);
  ++newer->users;
  EXPECT_EQ(lock_lender(borrower->family), nullptr);
  --newer->users;
  EXPECT_EQ(lock_lender(borrower->family), newer);
}

TEST_F(IndexTest, NothingIsSpareOfAnEntryThatLostItsExecutableOrLeft) {
  const auto expect_not_spare = [&](int number, const std::function<void(Entry*)>& change) {
    Entry* stays = add_member(number, "s");
    Entry* entry = add_member(number + 1, "s", Standing::kLive);
    Family* const family = stays->family;
    family->spare_of = entry;
    change(entry);
    EXPECT_EQ(family->spare_of, nullptr) << number;
    EXPECT_EQ(family->executables, 0u) << number;
    index.erase(entry);
    index.erase(stays);
    sweep();
  };
  expect_not_spare(10, [&](Entry* entry) { index.set_standing(entry, Standing::kDemoted); });
  expect_not_spare(20, [&](Entry* entry) { index.set_standing(entry, Standing::kCold); });
  expect_not_spare(30, [&](Entry* entry) { index.leave(entry); });
  expect_not_spare(40, [&](Entry* entry) { index.split(entry); });
  expect_not_spare(50, [&](Entry* entry) { index.erase(entry); });
  Entry* spare = add_member(60, "s", Standing::kLive);
  Entry* other = add_member(61, "s", Standing::kLive);
  spare->family->spare_of = spare;
  index.set_standing(other, Standing::kDemoted);
  EXPECT_EQ(spare->family->spare_of, spare);  // Another's loss changes nothing.
}

TEST_F(IndexTest, DestroysWhatIsStillThere) {
  Index other;
  other.set_standing(other.insert(key(1), kHere), Standing::kLive);
  other.insert(key(2), kHere);
  Entry* erased = other.insert(key(3), kHere);
  ++erased->users;
  other.erase(erased);
}

}  // namespace
}  // namespace graphcache
