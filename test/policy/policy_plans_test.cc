// The rules of the policy, in concrete numbers.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>

#include "policy_calls.h"

namespace graphcache {
namespace {

class PolicyPlansTest : public PolicyCalls {
 protected:
  // Keys 0 to 2 are of one class and have executables, as keys 10 and 11 of other families do. Key 0 has run longest
  // ago. There is room for no more.
  void fill(const Limits& limits) {
    set_limits(limits);
    ASSERT_EQ(limits.max_executables, 5u);
    for (KeyId key = 0; key < 3; ++key) run(key, of_class(graph(1)));
    for (KeyId key = 10; key < 12; ++key) run(key, graph(key));
    ASSERT_EQ(policy().executables(), 5u);
  }
};

// ---- 1: there is room -----------------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, WhileThereIsRoomEachKeyHasAnExecutableOfItsOwn) {
  for (const Share share : {Share::kNever, Share::kWhenFull}) {
    set_limits({.share = share, .max_executables = 8});
    for (KeyId key = 0; key < 8; ++key) {
      EXPECT_EQ(candidate(key, of_class(graph(1))), kNoKey);
      EXPECT_PLAN("1: own", policy().plan(key, {.lender = 0}, view())) << "an offer is not taken";
      EXPECT_PLAN("1: own", run(key, of_class(graph(1))));
    }
    expect_now(8, 8000);
  }
}

TEST_F(PolicyPlansTest, ThereIsNoRoomWhereTheBytesAreFull) {
  set_limits({.max_device_bytes = 2999});
  EXPECT_PLAN("1: own", run(0, graph(1)));
  EXPECT_PLAN("1: own", run(1, graph(1)));
  EXPECT_PLAN("3: borrow 0", run(2, graph(1)));
  EXPECT_PLAN("1: own", run(3, with_bytes(999, graph(2))));
  EXPECT_EQ(policy().bytes(), 2999u);
}

TEST_F(PolicyPlansTest, AKeyThatIsTooLargeHasNoRoom) {
  set_limits({.max_device_bytes = 1500});
  run(1, graph(2));
  use(0);
  EXPECT_TRUE(policy().has_room(0, view())) << "nothing is known of it";
  capture(0, with_bytes(1501, graph(1)));
  EXPECT_FALSE(policy().has_room(0, view()));
  forget(0);
  EXPECT_FALSE(policy().has_room(0, view())) << "its last capture reported";
}

TEST_F(PolicyPlansTest, AKeyHasRoomIfAnotherCanLeave) {
  set_limits({.max_executables = 1});
  run(0, graph(1));
  use(1);
  EXPECT_TRUE(policy().has_room(1, view()));
  make_busy({0});
  EXPECT_FALSE(policy().has_room(1, view()));
  make_busy({});
  pin(0);
  EXPECT_FALSE(policy().has_room(1, view()));
  lose(0);
  EXPECT_TRUE(policy().has_room(1, view()));
}

TEST_F(PolicyPlansTest, APlanAheadOnlyTakesRoom) {
  set_limits({.max_executables = 2});
  for (KeyId key = 0; key < 3; ++key) {
    use(key, graph(key));
    const Plan ahead = policy().plan(key, {}, {[](KeyId) { return false; }});
    EXPECT_PLAN(key < 2 ? "1: own" : "direct", ahead);
    policy().done(key, ahead);
  }
}

// ---- 2: the table of the class lends --------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, ASiblingWithoutATableLendsNothing) {
  set_limits({.max_executables = 3});
  run(0, graph(2));
  run(1, graph(1));
  run(2, graph(1));
  EXPECT_EQ(candidate(3, graph(1)), kNoKey);
  EXPECT_PLAN("3: own, evict 0", policy().plan(3, {.lender = 1}, view())) << "an offer is not taken";
  EXPECT_PLAN("3: own, evict 0", run(3, graph(1)));
  EXPECT_EQ(policy().executables(), 3u);
}

TEST_F(PolicyPlansTest, TheTableOfTheClassLends) {
  fill({.max_executables = 5});
  EXPECT_PLAN("3: table, evict 0", run(3, of_class(graph(1))));
  EXPECT_PLAN("2: borrow 3, add 10", run(0, of_class(graph(1))));
  EXPECT_EQ(look().order(), (Keys{1, 2, 10, 11, 0}));
  use(3);
  EXPECT_EQ(candidate(3), 0u) << "though 1 has run longer ago";
  const Plan back = policy().plan(3, {.lender = 0}, view());
  EXPECT_PLAN("2: borrow 0", back);
  policy().done(3, back);
  EXPECT_EQ(policy().bytes(), 5110u);

  // Where the table is not to be had, the executable that has to leave is brought over.
  make_busy({3});
  EXPECT_PLAN("3: borrow 1", plan(0, of_class(graph(1))));
  make_busy({});
  pin(3);
  EXPECT_PLAN("3: borrow 1", plan(0, of_class(graph(1))));
  pin(3, false);
  EXPECT_PLAN("3: borrow 1", plan(4, of_class(graph(1), 2))) << "of another class";
  EXPECT_PLAN("3: own, evict 1", plan(5, on(2, of_class(graph(2))))) << "of another family";
  lose(10);
  EXPECT_PLAN("1: own", policy().plan(0, {.lender = 3}, view())) << "there is room";
}

TEST_F(PolicyPlansTest, APinnedKeyBorrowsNothing) {
  fill({.max_executables = 5});
  use(3, graph(1));
  pin(3);
  EXPECT_EQ(candidate(3), kNoKey);
  EXPECT_PLAN("3: borrow 0", plan(3)) << "but takes what would be evicted";
}

TEST_F(PolicyPlansTest, AnExecutableWithSlotsIsLentToNobodyAndDoesNotCountForATable) {
  for (const bool has_plain : {false, true}) {
    SCOPED_TRACE(has_plain);
    set_limits({.max_executables = 8});
    for (KeyId key = 0; key < 4; ++key) EXPECT_PLAN("1: own with slots", run(key, with_slots(of_class(graph(1)))));
    run(4, has_plain ? of_class(graph(1)) : graph(4));
    for (KeyId key = 5; key < 8; ++key) run(key, graph(key));
    EXPECT_EQ(look().members(0), has_plain ? 5u : 4u);
    EXPECT_PLAN(has_plain ? "3: borrow 4" : "3: own, evict 4", plan(8, of_class(graph(1))));
    EXPECT_EQ(candidate(8), kNoKey);
  }
}

// ---- 2, Share::kAlways ----------------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, AlwaysSharingAKeyBorrowsThoughThereIsRoom) {
  set_limits({.share = Share::kAlways, .max_executables = 8});
  EXPECT_PLAN("1: own", run(0, graph(1)));
  for (KeyId key = 1; key < 20; ++key) EXPECT_PLAN("2: borrow " + std::to_string(key - 1), run(key, graph(1)));
  expect_now(1, 1000);
}

TEST_F(PolicyPlansTest, AlwaysSharingTheSiblingThatHasNotRunForLongestLends) {
  set_limits({.share = Share::kAlways, .max_executables = 4});
  run(9, graph(2));
  for (KeyId key = 0; key < 3; ++key) {
    EXPECT_PLAN("1: own", run(key, graph(1))) << "the others are in use";
    make_busy({0, 1, 2});
  }
  make_busy({});
  hit(0);
  EXPECT_PLAN("2: borrow 1", run(3, graph(1)));
  EXPECT_EQ(look().order(), (Keys{9, 2, 0, 3})) << "the hit was found out";
  make_busy({2});
  EXPECT_PLAN("2: borrow 0", run(1, graph(1)));
  make_busy({});
  pin(2);
  EXPECT_PLAN("2: borrow 3", run(0, graph(1)));
}

TEST_F(PolicyPlansTest, AlwaysSharingTheSecondMemberOfAClassMakesItsTable) {
  set_limits({.share = Share::kAlways});
  EXPECT_PLAN("1: own", run(0, of_class(graph(1), 1)));
  EXPECT_PLAN("2: borrow 0", run(1, of_class(graph(1), 2)));
  EXPECT_PLAN("2: borrow 1", run(2, of_class(graph(1), 3)));
  EXPECT_PLAN("2: table, evict 2", run(3, of_class(graph(1), 2))) << "the second member";
  EXPECT_PLAN("2: borrow 3, add 10", run(4, of_class(graph(1), 2)));
  EXPECT_PLAN("2: borrow 4, add 10", run(9, of_class(graph(1), 2)));
  expect_now(1, 1120);
  EXPECT_PLAN("1: own", run(5, of_class(graph(1), 3))) << "another class's table cannot lend";
  EXPECT_PLAN("1: own", run(6, on(2, of_class(graph(1), 2)))) << "on another stream";
  EXPECT_PLAN("1: own", run(7, graph(2))) << "of another family";
}

TEST_F(PolicyPlansTest, AlwaysSharingAKeyHasItsOwnWhereNobodyCanLend) {
  set_limits({.share = Share::kAlways, .max_executables = 3});
  run(0, of_class(graph(1)));
  make_busy({0});
  EXPECT_PLAN("1: own", run(1, of_class(graph(1))));
  pin(1);
  EXPECT_PLAN("1: own", run(2, of_class(graph(1))));
  pin(2);
  EXPECT_PLAN("direct", plan(3, of_class(graph(1))));
  make_busy({});
  EXPECT_PLAN("2: table, evict 0", plan(3, of_class(graph(1))));
}

TEST_F(PolicyPlansTest, AlwaysSharingATableThatDoesNotFitIsNotMade) {
  for (const auto& [bytes, text] : {std::pair(2119u, "2: borrow 0"), std::pair(2120u, "2: table, evict 0")}) {
    set_limits({.share = Share::kAlways, .max_device_bytes = bytes});
    run(0, of_class(graph(1)));
    run(9, graph(2));
    EXPECT_PLAN(text, run(1, of_class(graph(1)))) << bytes;
  }
}

TEST_F(PolicyPlansTest, ASetThatHasNoRoomIsNotAdded) {
  make_table(2115);
  EXPECT_PLAN("1: own", run(2, with_set_bytes(2000, of_class(graph(1)))));
  EXPECT_EQ(policy().bytes(), 2100u);
  EXPECT_PLAN("3: borrow 2", run(3, with_set_bytes(2000, of_class(graph(1)))));
  use(0);
  EXPECT_PLAN("2: borrow 1", policy().plan(0, {.lender = 1}, view()));
}

TEST_F(PolicyPlansTest, WhereAllIsFullASetThatHasNoRoomCostsTheTable) {
  make_table(1120);
  EXPECT_PLAN("2: borrow 1, add 10", run(2, of_class(graph(1))));
  EXPECT_PLAN("2: borrow 2, add 10", run(3, of_class(graph(1))));
  EXPECT_PLAN("3: own, evict 3", run(4, of_class(graph(1))));
  EXPECT_EQ(policy().bytes(), 1000u);
}

// Those of keys that are gone included.
TEST_F(PolicyPlansTest, ATableIsMadeAnewBeforeItsSetsTakeMoreThanTheExecutablesMay) {
  make_table();
  for (KeyId key = 2; key < 801; ++key) {
    EXPECT_PLAN("2: borrow " + std::to_string(key - 1) + ", add 10", run(key, of_class(graph(1))));
    forget(key - 1);
  }
  EXPECT_EQ(look().members(800), 2u);
  EXPECT_EQ(policy().bytes(), 1100u + 7990u);
  use(0);
  EXPECT_PLAN("2: borrow 800", policy().plan(0, {.lender = 800}, view()));
  EXPECT_PLAN("2: borrow 800, add 9", plan(801, with_set_bytes(9, of_class(graph(1)))));
  EXPECT_PLAN("2: table, evict 800", run(802, of_class(graph(1)))) << "eight executables have 8000 bytes";
  EXPECT_EQ(look().set_bytes(802), 0u);
  EXPECT_EQ(policy().bytes(), 1100u);
}

TEST_F(PolicyPlansTest, ATableIsMadeAnewInAFullCacheAsWell) {
  fill({.max_executables = 5});
  EXPECT_PLAN("3: table, evict 0", run(3, of_class(graph(1))));
  for (KeyId key = 20; key < 24; ++key) {
    EXPECT_EQ(run(key, with_set_bytes(1000, of_class(graph(1)))).action, Action::kBorrow);
  }
  EXPECT_EQ(policy().bytes(), 9100u);
  EXPECT_PLAN("2: table, evict 23", run(24, with_set_bytes(1000, of_class(graph(1)))));
  EXPECT_EQ(policy().bytes(), 5100u);
}

// ---- 3: the least recently used one gives way -----------------------------------------------------------------------

TEST_F(PolicyPlansTest, TheLeastRecentlyUsedExecutableGivesWay) {
  set_limits({.max_executables = 3});
  for (KeyId key = 0; key < 3; ++key) run(key, graph(key + 1));
  hit(0);
  EXPECT_PLAN("3: own, evict 1", run(3, graph(4)));
  hit(2);
  EXPECT_PLAN("3: own, evict 0", run(1, graph(2)));
  EXPECT_PLAN("3: own, evict 3", run(0, graph(1)));
  EXPECT_EQ(policy().executables(), 3u);
}

TEST_F(PolicyPlansTest, ThoseWithUpdaterNodesGiveWayWhereThereIsNoPlainOne) {
  set_limits({.max_executables = 8});
  for (KeyId key = 0; key < 4; ++key) EXPECT_PLAN("1: own with slots", run(key, with_slots(graph(key + 1))));
  for (KeyId key = 4; key < 8; ++key) EXPECT_PLAN("1: own", run(key, graph(key + 1)));
  EXPECT_PLAN("3: own, evict 4", plan(8, graph(9)));
  make_busy({4, 6, 7});
  EXPECT_PLAN("3: own, evict 5", plan(8));
  make_busy({4, 5, 6, 7});
  EXPECT_PLAN("direct", plan(8)) << "plain ones are in use";
  EXPECT_FALSE(policy().has_room(8, view()));
  make_busy({});
  for (KeyId key = 4; key < 8; ++key) pin(key);
  EXPECT_PLAN("3: own, evict 0", plan(8));
  make_busy({0});
  EXPECT_PLAN("3: own, evict 1", plan(8));
}

TEST_F(PolicyPlansTest, ATableGivesWayWhereThereIsNoPlainOne) {
  fill({.max_executables = 5});
  EXPECT_PLAN("3: table, evict 0", run(3, of_class(graph(1))));
  for (const KeyId key : {1u, 2u, 10u, 11u}) hit(key);
  EXPECT_PLAN("3: own, evict 1", run(20, graph(20)));
  for (const KeyId key : {2u, 10u, 11u, 20u}) pin(key);
  EXPECT_PLAN("3: own, evict 3", plan(21, graph(21)));
  EXPECT_PLAN("3: own, evict 3", plan(22, of_class(graph(1), 2))) << "a table is not brought over";
}

TEST_F(PolicyPlansTest, WhereAllArePinnedOrInUseARunIsDirect) {
  for (const Share share : {Share::kNever, Share::kWhenFull, Share::kAlways}) {
    set_limits({.share = share, .max_executables = 3});
    run(0, graph(1));
    run(1, graph(2));
    run(2, graph(3));
    pin(0);
    pin(1);
    make_busy({2});
    EXPECT_PLAN("direct", run(3, graph(1)));
    EXPECT_PLAN("direct", run(4, graph(4)));
    EXPECT_FALSE(policy().has_room(3, view()));
    EXPECT_FALSE(look().is_live(3));
    EXPECT_EQ(look().order(), Keys{2});
    make_busy({});
    EXPECT_PLAN("3: own, evict 2", run(3, graph(1)));
    pin(1, false);
    EXPECT_PLAN("3: own, evict 1", run(4, graph(4)));
  }
}

TEST_F(PolicyPlansTest, ALargeExecutableEvictsSeveral) {
  set_limits({.max_executables = 8, .max_device_bytes = 4000});
  for (KeyId key = 0; key < 4; ++key) run(key, graph(key + 1));
  EXPECT_PLAN("3: own, evict 0 1", run(4, with_bytes(1001, graph(5))));
  EXPECT_EQ(policy().bytes(), 3001u);
  EXPECT_EQ(policy().bytes(4), 1001u);
  EXPECT_EQ(policy().bytes(1), 0u);
  make_busy({2});
  EXPECT_PLAN("3: own, evict 3 4", run(5, with_bytes(3000, graph(6))));
  EXPECT_PLAN("direct", plan(6, with_bytes(3001, graph(7)))) << "what is left is too large, so nobody is evicted";
  make_busy({});
  EXPECT_PLAN("3: own, evict 2 5", run(7, with_bytes(4000, graph(8))));
  EXPECT_PLAN("direct", plan(8, with_bytes(4001, graph(9))));
  EXPECT_EQ(policy().bytes(), 4000u);
}

TEST_F(PolicyPlansTest, AnExecutableOfTheSameSignatureIsBroughtOver) {
  set_limits({.max_executables = 2});
  run(0, graph(1));
  run(1, graph(2));
  EXPECT_PLAN("3: borrow 0", run(2, graph(1)));
  EXPECT_PLAN("3: borrow 1", run(3, on(2, graph(2)))) << "of another stream";
  EXPECT_PLAN("3: own, evict 2", run(4, graph(3)));
  EXPECT_EQ(policy().executables(), 2u);
}

TEST_F(PolicyPlansTest, AnExecutableWithSlotsIsNotBroughtOver) {
  set_limits({.max_executables = 8});
  for (KeyId key = 0; key < 4; ++key) run(key, with_slots(graph(1)));
  for (KeyId key = 4; key < 8; ++key) {
    run(key, graph(2));
    pin(key);
  }
  EXPECT_PLAN("3: own, evict 0", plan(8, with_slots(graph(1))));
}

TEST_F(PolicyPlansTest, ATableTakesThePlaceOfTwoOfItsClass) {
  fill({.max_executables = 5});
  EXPECT_PLAN("3: table, evict 0", run(3, of_class(graph(1))));
  expect_now(5, 5100);
  EXPECT_TRUE(look().has_table(3));
  EXPECT_PLAN("2: borrow 3, add 10", run(4, of_class(graph(1))));
  make_busy({4});
  EXPECT_PLAN("3: borrow 1", plan(5, of_class(graph(1)))) << "its class has one table, which is in use";

  fill({.max_executables = 5});
  make_busy({0, 2});
  EXPECT_PLAN("3: table, evict 1", plan(3, of_class(graph(1)))) << "others of its class count though they are in use";
  make_busy({});
  pin(0);
  EXPECT_PLAN("3: table, evict 1", plan(3));
  pin(3);
  EXPECT_PLAN("3: borrow 1", plan(3)) << "a pinned key makes no table";
}

TEST_F(PolicyPlansTest, ATableNeedsTheLeastRecentlyUsedOne) {
  fill({.max_executables = 5});
  for (KeyId key = 0; key < 3; ++key) hit(key);
  EXPECT_PLAN("3: own, evict 10", run(3, of_class(graph(1)))) << "of another family";

  fill({.max_executables = 5});
  EXPECT_PLAN("3: borrow 0", plan(3, of_class(graph(1), 2))) << "of another class";
  EXPECT_PLAN("3: borrow 0", plan(4, on(2, of_class(graph(1))))) << "of another stream";
  EXPECT_PLAN("3: borrow 0", plan(5, graph(1))) << "the key has no class";
  use(6, of_class(graph(1)));
  EXPECT_PLAN("3: table, evict 0", plan(6));

  set_limits({.max_executables = 3});
  run(0, of_class(graph(1), 2));
  run(1, of_class(graph(1)));
  run(2, of_class(graph(1)));
  EXPECT_PLAN("3: borrow 0", plan(3, of_class(graph(1)))) << "of another class, though there are two of its own";
}

TEST_F(PolicyPlansTest, ATableNeedsASecondExecutableOfItsClass) {
  fill({.max_executables = 5});
  lose(1);
  lose(2);
  run(12, of_class(graph(1), 2));
  run(13, on(2, of_class(graph(1))));
  EXPECT_PLAN("3: borrow 0", plan(3, of_class(graph(1))));

  fill({.max_executables = 5});
  pin(1);
  EXPECT_PLAN("3: table, evict 0", plan(3, of_class(graph(1))));
  pin(2);
  EXPECT_PLAN("3: borrow 0", plan(3)) << "pinned ones do not count";
}

TEST_F(PolicyPlansTest, ATableIsMadeWithinTheBytes) {
  for (const auto& [bytes, text] : {std::pair(5139u, "3: borrow 0"), std::pair(5140u, "3: table, evict 0")}) {
    fill({.max_executables = 5, .max_device_bytes = bytes});
    EXPECT_PLAN(text, run(3, of_class(graph(1)))) << bytes;
    EXPECT_EQ(policy().bytes(), text[3] == 't' ? 5100u : 5000u);
  }
}

// A table is for the sets of all members, or for 64.
TEST_F(PolicyPlansTest, ATableWhoseSetsWouldTakeTooMuchIsNotMade) {
  for (const auto& [bytes, text] : {std::pair(1249u, "3: table, evict 0"), std::pair(1250u, "3: borrow 0")}) {
    fill({.max_executables = 5});
    EXPECT_PLAN(text, run(3, with_set_bytes(bytes, of_class(graph(1))))) << "of four members";
  }
  for (const auto& [bytes, text] : {std::pair(78u, "3: table, evict 0"), std::pair(79u, "3: borrow 0")}) {
    fill({.max_executables = 5});
    for (KeyId key = 100; key < 200; ++key) use(key, of_class(graph(1)));
    EXPECT_PLAN(text, run(3, with_set_bytes(bytes, of_class(graph(1))))) << "of many members";
  }
  for (const auto& [bytes, text] : {std::pair(499u, "2: table, evict 0"), std::pair(500u, "2: borrow 0")}) {
    set_limits({.share = Share::kAlways, .max_executables = 1});
    run(0, of_class(graph(1)));
    EXPECT_PLAN(text, run(1, with_set_bytes(bytes, of_class(graph(1)))));
  }
}

// ---- Phases ---------------------------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, KeysOfARetiredPhaseGiveWay) {
  for (const Share share : {Share::kNever, Share::kWhenFull}) {
    for (const std::uint64_t retired_stream : {1, 2}) {
      set_limits({.share = share});
      for (KeyId key = 0; key < 64; ++key) EXPECT_PLAN("1: own", run(key, on(retired_stream, of_class(graph(1)))));
      for (KeyId key = 64; key < 76; ++key) {
        EXPECT_PLAN("3: own, evict " + std::to_string(key - 64), run(key, of_class(graph(2))));
      }
      for (KeyId key = 64; key < 76; ++key) EXPECT_TRUE(look().is_live(key));
      EXPECT_EQ(policy().executables(), 64u);
    }
  }
}

// ---- Share::kNever --------------------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, NeverSharingAKeyBorrowsNothingButTakesAVictimOver) {
  fill({.share = Share::kNever, .max_executables = 5});
  EXPECT_EQ(candidate(3, of_class(graph(1))), kNoKey);
  EXPECT_PLAN("3: borrow 0", run(3, of_class(graph(1)))) << "of its signature";
  EXPECT_PLAN("3: borrow 1", run(4, on(2, of_class(graph(1))))) << "of its signature, on another stream";
  hit(2);
  EXPECT_PLAN("3: own, evict 10", run(0, of_class(graph(1)))) << "of another signature";
  EXPECT_PLAN("3: own, evict 11", run(12, graph(12)));
  expect_now(5, 5000);
}

// ---- Updater nodes for slots ----------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, HalfOfTheBudgetHasUpdaterNodes) {
  for (const std::size_t budget : {8, 9, 16}) {
    set_limits({.max_executables = budget});
    for (KeyId key = 0; key < budget; ++key) {
      EXPECT_PLAN(key < budget / 2 ? "1: own with slots" : "1: own", run(key, with_slots(graph(key + 1))));
    }
    EXPECT_TRUE(policy().is_device_updated(0));
    EXPECT_FALSE(policy().is_device_updated(static_cast<KeyId>(budget) - 1));
    EXPECT_PLAN("3: own, evict " + std::to_string(budget / 2), run(100, with_slots(graph(101))))
        << "none where there is no room";
  }
  set_limits({.max_executables = 7});
  EXPECT_PLAN("1: own", run(0, with_slots(graph(1)))) << "the budget is small";
}

TEST_F(PolicyPlansTest, AnUpdaterNodeMustBeCheaperThanPatches) {
  EXPECT_PLAN("1: own", run(0, graph(1)));
  EXPECT_PLAN("1: own", run(1, with_slots(graph(2), 24)));
  EXPECT_PLAN("1: own with slots", run(2, with_slots(graph(3), 25)));
}

TEST_F(PolicyPlansTest, UpdaterNodesAreForSharingWhenFull) {
  for (const Share share : {Share::kNever, Share::kAlways}) {
    set_limits({.share = share});
    EXPECT_PLAN("1: own", run(0, with_slots(graph(1))));
  }
}

// ---- Ways that are forced -------------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, AWayOfPatchingIsForced) {
  for (const Share share : {Share::kNever, Share::kWhenFull, Share::kAlways}) {
    set_limits({.share = share, .max_executables = 8, .mechanisms = {.patching = Patching::kPerNode}});
    EXPECT_PLAN("1: own", run(0, with_slots(graph(1))));
    set_limits({.share = share, .max_executables = 1, .mechanisms = {.patching = Patching::kDeviceUpdated}});
    EXPECT_PLAN("1: own with slots", run(0, with_slots(graph(1), 1)));
    EXPECT_PLAN("3: own with slots, evict 0", run(1, with_slots(graph(1), 1)));
    EXPECT_PLAN("3: own, evict 1", run(2, graph(1))) << "it has no slots";
    use(3);
    refuse_device_updates(3);
    EXPECT_PLAN("3: own, evict 2", run(3, with_slots(graph(2), 1))) << "it was refused";
  }
}

TEST_F(PolicyPlansTest, TablesAreForced) {
  set_limits({.share = Share::kAlways, .max_executables = 2, .mechanisms = {.tables = Tables::kAlways}});
  EXPECT_PLAN("1: table", run(0, of_class(graph(1))));
  EXPECT_PLAN("2: borrow 0, add 10", run(1, of_class(graph(1))));
  EXPECT_PLAN("1: table", run(2, on(2, of_class(graph(1)))));
  EXPECT_PLAN("3: table, evict 1", run(3, on(3, of_class(graph(1)))));
  EXPECT_PLAN("3: own, evict 2", run(4, graph(1))) << "it has no class";
  EXPECT_PLAN("2: borrow 4", run(5, of_class(graph(1), 2))) << "of another class";
  EXPECT_EQ(policy().bytes(), 2100u);

  set_limits({.max_executables = 2, .max_device_bytes = 2199, .mechanisms = {.tables = Tables::kAlways}});
  EXPECT_PLAN("1: table", run(0, of_class(graph(1))));
  EXPECT_PLAN("1: own", run(1, of_class(graph(1)))) << "the class has a table";
  EXPECT_PLAN("2: borrow 0, add 10", run(2, of_class(graph(1))));
  lose(1);
  EXPECT_PLAN("1: own", run(3, on(2, of_class(graph(1))))) << "a table does not fit";
  EXPECT_PLAN("3: own, evict 3", run(4, on(2, of_class(graph(2))))) << "a table does not fit in its place";
}

TEST_F(PolicyPlansTest, TablesAreForbidden) {
  set_limits({.share = Share::kAlways, .mechanisms = {.tables = Tables::kNever}});
  EXPECT_PLAN("1: own", run(0, of_class(graph(1))));
  EXPECT_PLAN("2: borrow 0", run(1, of_class(graph(1))));
  fill({.max_executables = 5, .mechanisms = {.tables = Tables::kNever}});
  EXPECT_PLAN("3: borrow 0", run(3, of_class(graph(1))));
}

TEST_F(PolicyPlansTest, KeysOfDifferentStreamsAreMadeSiblings) {
  set_limits({.share = Share::kAlways, .mechanisms = {.across_streams = true}});
  run(0, graph(1));
  use(1, graph(1));
  move(1, 2);
  EXPECT_EQ(policy().family(1), policy().family(0));
  EXPECT_PLAN("2: borrow 0", run(1, graph(1)));
}

// ---- Which graphs are read ------------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, WhileThereIsRoomNothingIsRead) {
  for (const Share share : {Share::kNever, Share::kWhenFull}) {
    set_limits({.share = share, .max_executables = 8});
    for (KeyId key = 0; key < 8; ++key) {
      EXPECT_EQ(to_read(key, unread()), Keys());
      EXPECT_PLAN("1: own", run(key, unread()));
    }
    EXPECT_EQ(policy().families(), 0u);
    set_limits({.share = share, .max_device_bytes = 1999});
    run(0, unread());
    EXPECT_EQ(to_read(1, unread()), (Keys{0, 1})) << "the bytes are full";
  }
}

TEST_F(PolicyPlansTest, AFullCacheReadsTheKeyAndOneOther) {
  for (const Share share : {Share::kNever, Share::kWhenFull}) {
    set_limits({.share = share, .max_executables = 12});
    const auto read = [&](KeyId key) { policy().described(key, graph(1)); };
    for (KeyId key = 0; key < 12; ++key) run(key, unread());
    hit(0);
    for (KeyId key = 12; key < 16; ++key) {
      use(key, unread());
      const KeyId oldest = key - 11;
      EXPECT_EQ(to_read(key), (Keys{oldest, key})) << "the least recently used one";
      read(oldest);
      EXPECT_EQ(to_read(key), (Keys{oldest + 1, key}));
      read(key);
      EXPECT_EQ(to_read(key), Keys{oldest + 1});
      EXPECT_PLAN("3: borrow " + std::to_string(oldest), run(key, unread()));
    }
    EXPECT_EQ(policy().families(), 1u);
  }
}

TEST_F(PolicyPlansTest, OnlyExecutablesThatCouldBeLentAreRead) {
  set_limits({.max_executables = 4, .mechanisms = {.patching = Patching::kDeviceUpdated}});
  run(0, with_slots(shaped(7, unread())));
  run(1, shaped(7, unread()));
  run(2, shaped(7, unread()));
  run(3, shaped(8, unread()));
  EXPECT_EQ(to_read(4, shaped(7, unread())), (Keys{1, 4})) << "0 has slots";
  pin(1);
  EXPECT_EQ(to_read(4), (Keys{2, 4})) << "1 is pinned";
  pin(2);
  pin(0);
  EXPECT_EQ(to_read(4), Keys()) << "the only other one has another shape";
  pin(1, false);
  policy().described(1, graph(0));
  EXPECT_EQ(to_read(4), Keys{4}) << "1 can have no siblings, and is not read again";
  EXPECT_EQ(to_read(5, shaped(9, unread())), Keys()) << "no other key has its shape";
}

TEST_F(PolicyPlansTest, AKeyIsReadAgainOnceItIsCapturedAgain) {
  set_limits({.max_executables = 1});
  run(0, unread());
  use(1, unread());
  policy().described(1, graph(1));
  EXPECT_EQ(to_read(1), Keys{0});
  forget(1);
  EXPECT_EQ(to_read(1), Keys{0});
  EXPECT_EQ(to_read(1, unread()), (Keys{0, 1}));
}

TEST_F(PolicyPlansTest, AlwaysSharingTheSecondOfAShapeIsRead) {
  set_limits({.share = Share::kAlways});
  EXPECT_EQ(to_read(0, shaped(7, unread())), Keys());
  run(0, shaped(7, unread()));
  EXPECT_EQ(to_read(1, shaped(8, unread())), Keys());
  run(1, shaped(8, unread()));
  EXPECT_EQ(to_read(2, on(2, shaped(7, unread()))), (Keys{0, 2}));
  policy().described(0, of_class(graph(1)));
  policy().described(2, on(9, of_class(graph(1))));
  EXPECT_EQ(to_read(2), Keys());
  EXPECT_EQ(look().order(), (Keys{0, 1})) << "0 stays in its place";
  EXPECT_NE(policy().family(2), policy().family(0)) << "each stays on its stream";
  move(2, 1);
  EXPECT_EQ(policy().family(2), policy().family(0));
  EXPECT_PLAN("2: table, evict 0", run(2, unread()));
}

TEST_F(PolicyPlansTest, WhereTablesAreForcedTheFirstKeyIsRead) {
  set_limits({.share = Share::kAlways, .mechanisms = {.tables = Tables::kAlways}});
  EXPECT_EQ(to_read(0, unread()), Keys{0});
  policy().described(0, of_class(graph(1)));
  EXPECT_PLAN("1: table", run(0, unread()));
}

TEST_F(PolicyPlansTest, NothingIsReadWhereThatIsForbidden) {
  for (const Share share : {Share::kNever, Share::kWhenFull, Share::kAlways}) {
    for (const Tables tables : {Tables::kAuto, Tables::kAlways}) {
      set_limits({.share = share, .max_executables = 1, .mechanisms = {.reads = false, .tables = tables}});
      run(0, unread());
      EXPECT_EQ(to_read(1, unread()), Keys());
      EXPECT_PLAN("3: own, evict 0", run(1, unread()));
    }
  }
}

TEST_F(PolicyPlansTest, UnreadKeysAreNotRelated) {
  for (const Share share : {Share::kNever, Share::kWhenFull, Share::kAlways}) {
    set_limits({.share = share, .max_executables = 1});
    run(0, unread());
    EXPECT_PLAN("3: own, evict 0", run(1, unread()));
    EXPECT_EQ(policy().family(0), 0u);
    use(0);
    EXPECT_EQ(candidate(0), kNoKey);
    policy().described(0, graph(1));
    EXPECT_PLAN("3: own, evict 1", plan(0, unread())) << "the other one is still unread";
    policy().described(1, graph(1));
    EXPECT_PLAN(share == Share::kAlways ? "2: borrow 1" : "3: borrow 1", plan(0, unread()));
    EXPECT_EQ(policy().family(0), 1u);
    EXPECT_EQ(policy().family(1), 1u);
  }
}

// ---- Families and refusals ------------------------------------------------------------------------------------------

TEST_F(PolicyPlansTest, FamiliesHaveNumbersInTheOrderInWhichTheyAreFounded) {
  run(0, graph(7));
  run(1, graph(3));
  run(2, on(2, graph(7)));
  run(3, unread());
  EXPECT_EQ(policy().family(0), 1u);
  EXPECT_EQ(policy().family(1), 2u);
  EXPECT_EQ(policy().family(2), 3u);
  EXPECT_EQ(policy().family(3), 0u);
  EXPECT_EQ(policy().families(), 3u);
  erase(1);
  EXPECT_EQ(policy().families(), 2u);
  run(1, graph(3));
  EXPECT_EQ(policy().family(1), 4u);
}

TEST_F(PolicyPlansTest, ARefusedKeyHasNoSiblingsOnAnyStream) {
  set_limits({.share = Share::kAlways, .max_executables = 1});
  run(0, of_class(graph(1)));
  plan(1, of_class(graph(1)));
  refuse_siblings(1);
  EXPECT_EQ(policy().family(1), 0u);
  EXPECT_EQ(policy().families(), 1u);
  EXPECT_EQ(look().members(0), 1u);
  EXPECT_EQ(to_read(1), Keys()) << "it has been read";
  EXPECT_PLAN("3: own, evict 0", plan(1)) << "an update would be refused again";
  move(1, 2);
  EXPECT_EQ(policy().family(1), 0u);
  EXPECT_PLAN("3: own, evict 0", plan(1));
  EXPECT_PLAN("2: table, evict 0", plan(2, of_class(graph(1)))) << "another key";
}

TEST_F(PolicyPlansTest, AKeyThatDoesNotFitIntoTheTableKeepsItsSiblings) {
  make_table();
  run(2, graph(1));
  EXPECT_EQ(candidate(3, of_class(graph(1))), 1u);
  refuse_sets(3);
  EXPECT_EQ(look().members(1), 2u);
  EXPECT_EQ(policy().family(3), policy().family(1));
  EXPECT_EQ(candidate(3), 2u);
  EXPECT_PLAN("2: borrow 2", run(3, of_class(graph(1))));
}

TEST_F(PolicyPlansTest, AClassWhoseTableIsRefusedHasPlainOnes) {
  make_table();
  refuse_device_updates(1);
  EXPECT_TRUE(look().is_live(1));
  EXPECT_FALSE(policy().has_table(1));
  EXPECT_EQ(policy().bytes(), 1000u);
  EXPECT_PLAN("2: borrow 1", run(2, of_class(graph(1))));
  EXPECT_PLAN("1: own", run(3, on(2, of_class(graph(1)))));
  EXPECT_PLAN("2: table, evict 3", run(4, on(2, of_class(graph(1))))) << "another class";

  fill({.max_executables = 5});
  refuse_device_updates(1);
  EXPECT_PLAN("3: borrow 0", run(3, of_class(graph(1))));

  set_limits({.mechanisms = {.tables = Tables::kAlways}});
  EXPECT_PLAN("1: table", run(0, of_class(graph(1))));
  refuse_device_updates(0);
  EXPECT_PLAN("1: own", run(1, of_class(graph(1))));
}

TEST_F(PolicyPlansTest, AKeyWhoseUpdaterNodeIsRefusedHasAPlainExecutable) {
  for (const GraphFacts& facts : {graph(1), unread()}) {
    set_limits({.max_executables = 8});
    EXPECT_PLAN("1: own with slots", run(0, with_slots(facts))) << facts.signature;
    EXPECT_TRUE(policy().is_device_updated(0));
    refuse_device_updates(0);
    EXPECT_FALSE(policy().is_device_updated(0));
    EXPECT_TRUE(policy().is_live(0));
    EXPECT_EQ(victim(), 0u);
  }
}

}  // namespace
}  // namespace graphcache
