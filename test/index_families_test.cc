// Families in the index: who belongs to one, who lends to whom. No CUDA call is made.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "index_support.h"

namespace graphcache {
namespace {

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
  index.set_state(a, State::kLive);
  index.set_state(b, State::kLive);
  EXPECT_EQ(family->executables, 2u);
  index.set_state(a, State::kRecorded);
  EXPECT_EQ(family->executables, 1u);
  index.leave(a);
  EXPECT_EQ(family->executables, 1u);
  index.set_state(a, State::kLive);
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

TEST_F(IndexTest, StreamsHaveFamiliesOfTheirOwn) {
  Entry* first = add(1);
  Entry* same = add(2);
  Entry* other = add(3);
  index.join(first, "s", 7);
  index.join(same, "s", 7);
  index.join(other, "s", 8);
  EXPECT_EQ(first->family, same->family);
  EXPECT_NE(first->family, other->family);
  EXPECT_EQ(first->family->signature, other->family->signature);
  index.split(same);
  EXPECT_NE(same->family, other->family);
  EXPECT_EQ(same->family->stream, 7u);
  EXPECT_EQ(index.families(), 3u);
}

TEST_F(IndexTest, OldestOfAFamilyPassesOverOthers) {
  Entry* stranger = add(0);
  Entry* other = add_member(1, "other", State::kLive);
  Entry* older = add_member(2, "s", State::kLive);
  Entry* newer = add_member(3, "s", State::kLive);
  Entry* recorded = add_member(4, "s");
  EXPECT_EQ(lock_oldest(State::kLive), stranger);
  EXPECT_EQ(lock_oldest(State::kLive, older->family), older);
  EXPECT_EQ(lock_oldest(State::kLive, other->family), other);
  EXPECT_EQ(lock_oldest(State::kRecorded, older->family), recorded);
  EXPECT_EQ(lock_oldest(State::kRecorded, other->family), nullptr);
  index.touch(older);
  EXPECT_EQ(lock_oldest(State::kLive, older->family), newer);
  newer->pinned = true;
  EXPECT_EQ(lock_oldest(State::kLive, older->family), older);
}

TEST_F(IndexTest, LenderIsTheSpareOneElseTheOldest) {
  Entry* borrower = add_member(0, "s");
  EXPECT_EQ(lock_lender(borrower->family), nullptr);
  EXPECT_EQ(lock_lender(nullptr), nullptr);
  Entry* older = add_member(1, "s", State::kLive);
  Entry* newer = add_member(2, "s", State::kLive);
  add_member(3, "other", State::kLive);
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
  Entry* older = add_member(1, "s", State::kLive);
  Entry* newer = add_member(2, "s", State::kLive);
  borrower->family->spare_of = newer;
  EXPECT_EQ(index.lock_lender(borrower->family), newer);
  EXPECT_EQ(lock_lender(borrower->family), nullptr);
  EXPECT_EQ(lock_oldest(State::kLive, borrower->family), older);
  unlocked(newer);
  ++newer->users;
  EXPECT_EQ(lock_lender(borrower->family), nullptr);
  --newer->users;
  EXPECT_EQ(lock_lender(borrower->family), newer);
}

TEST_F(IndexTest, TablesOfAClassAreLentToItAlone) {
  Entry* plain = add_member(1, "s", State::kLive);
  Entry* older = add_member(2, "s", State::kLive);
  Entry* newer = add_member(3, "s", State::kLive);
  Entry* stranger = add_member(4, "other", State::kLive);
  for (Entry* entry : {older, newer, stranger}) index.set_table_bytes(entry, 100);
  const Family* const family = plain->family;
  const auto lock_table = [&](std::uint64_t row_class) {
    Entry* const entry = index.lock_table(family, row_class);
    return entry == nullptr ? nullptr : unlocked(entry);
  };
  EXPECT_EQ(lock_table(0), older);
  EXPECT_EQ(lock_table(1), nullptr);
  ASSERT_TRUE(older->lock.try_lock());
  EXPECT_EQ(lock_table(0), newer);
  newer->pinned = true;
  EXPECT_EQ(lock_table(0), nullptr);
  unlocked(older);
  index.set_table_bytes(older, 0);
  EXPECT_EQ(lock_table(0), nullptr);
}

TEST_F(IndexTest, NothingIsSpareOfAnEntryThatLostItsExecutableOrLeft) {
  const auto expect_not_spare = [&](int number, const std::function<void(Entry*)>& change) {
    Entry* stays = add_member(number, "s");
    Entry* entry = add_member(number + 1, "s", State::kLive);
    Family* const family = stays->family;
    family->spare_of = entry;
    change(entry);
    EXPECT_EQ(family->spare_of, nullptr) << number;
    EXPECT_EQ(family->executables, 0u) << number;
    index.erase(entry);
    index.erase(stays);
    sweep();
  };
  expect_not_spare(10, [&](Entry* entry) { index.set_state(entry, State::kRecorded); });
  expect_not_spare(20, [&](Entry* entry) { index.set_state(entry, State::kCold); });
  expect_not_spare(30, [&](Entry* entry) { index.leave(entry); });
  expect_not_spare(40, [&](Entry* entry) { index.split(entry); });
  expect_not_spare(50, [&](Entry* entry) { index.erase(entry); });
  Entry* spare = add_member(60, "s", State::kLive);
  Entry* other = add_member(61, "s", State::kLive);
  spare->family->spare_of = spare;
  index.set_state(other, State::kRecorded);
  EXPECT_EQ(spare->family->spare_of, spare);  // Another's loss changes nothing.
}

}  // namespace
}  // namespace graphcache
