// The effect of each call on the policy's counts, in concrete numbers.
#include "policy_calls.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace graphcache {
namespace {

class PolicyCallsTest : public PolicyCalls {};

// ---- What is lost ---------------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, ALostExecutableCountsNoMoreAndIsReplaced) {
  set_limits({.share = Share::kAlways});
  run(0, graph(1));
  EXPECT_PLAN("2: borrow 0", run(1, graph(1)));
  lose(1);
  expect_now(0, 0);
  EXPECT_EQ(look().order(), Keys());
  EXPECT_PLAN("1: own", run(0, graph(1)));
  EXPECT_PLAN("2: borrow 0", run(1, graph(1)));
}

TEST_F(PolicyCallsTest, ALostTableLosesItsSets) {
  make_table();
  EXPECT_PLAN("2: borrow 1, add 10", run(2, of_class(graph(1))));
  EXPECT_EQ(policy().bytes(), 1110u);
  lose(2);
  expect_now(0, 0);
  EXPECT_PLAN("1: own", run(0, of_class(graph(1))));
  EXPECT_PLAN("2: table, evict 0", run(1, of_class(graph(1))));
  EXPECT_EQ(policy().bytes(), 1100u);
}

TEST_F(PolicyCallsTest, ALostUpdaterNodeMakesPlaceForAnother) {
  for (KeyId key = 0; key < 4; ++key) EXPECT_PLAN("1: own with slots", run(key, with_slots(graph(key + 1))));
  EXPECT_PLAN("1: own", run(4, with_slots(graph(5))));
  lose(2);
  EXPECT_PLAN("1: own with slots", run(5, with_slots(graph(6))));
}

TEST_F(PolicyCallsTest, APinnedKeyThatLosesItsExecutableStaysPinned) {
  run(0, graph(1));
  pin(0);
  lose(0);
  EXPECT_EQ(policy().executables(), 0u);
  run(0, graph(1));
  EXPECT_EQ(look().order(), Keys());
  EXPECT_EQ(victim(), kNoKey);
}

TEST_F(PolicyCallsTest, AKeyWithoutAnExecutableLosesNothing) {
  use(0);
  lose(0);
  set_limits({.share = Share::kAlways});
  run(1, graph(1));
  run(0, graph(1));
  lose(1);
  EXPECT_EQ(policy().executables(), 1u);
  EXPECT_TRUE(policy().is_live(0));
}

// ---- What is erased and forgotten -----------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, AnErasedKeyLeavesNothingToTheNextOfItsId) {
  set_limits({.max_executables = 2});
  run(0, graph(1));
  pin(0);
  erase(0);
  expect_now(0, 0);
  EXPECT_EQ(policy().families(), 0u);
  EXPECT_PLAN("1: own", run(0, graph(2)));
  run(1, graph(3));
  EXPECT_PLAN("3: own, evict 0", run(2, graph(4))) << "not pinned any more";
}

TEST_F(PolicyCallsTest, AnErasedKeyIsNoMemberOfItsClass) {
  make_table();
  EXPECT_EQ(look().members(1), 2u);
  erase(0);
  EXPECT_EQ(look().members(1), 1u);
  EXPECT_EQ(policy().bytes(), 1100u);
  erase(1);
  EXPECT_EQ(policy().families(), 0u);
  EXPECT_EQ(policy().bytes(), 0u);
}

TEST_F(PolicyCallsTest, AKeyWithoutATemplateIsErased) {
  use(0);
  erase(0);
  set_limits({.share = Share::kAlways});
  run(1, graph(1));
  run(0, graph(1));
  forget(1);
  EXPECT_EQ(look().members(0), 1u);
  move(1, 2);
  EXPECT_EQ(policy().family(1), 0u);
  erase(1);
  EXPECT_EQ(policy().executables(), 1u);
}

// ---- Bytes ----------------------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, ATableGrowsWithinTheBytes) {
  make_table(2115);
  EXPECT_PLAN("1: own", run(9, graph(2)));
  EXPECT_PLAN("2: borrow 1, add 10", run(2, of_class(graph(1))));
  EXPECT_EQ(policy().bytes(), 2110u);
  EXPECT_EQ(policy().bytes(2), 1110u);
  EXPECT_EQ(policy().bytes(9), 1000u);
  EXPECT_PLAN("2: borrow 2, add 10, evict 9", run(3, of_class(graph(1))));
  expect_now(1, 1120);
}

TEST_F(PolicyCallsTest, ATableTakesTheBytesOfTheOneThatItReplaces) {
  set_limits({.max_device_bytes = 2130});
  run(0, of_class(graph(1)));
  run(1, of_class(graph(1)));
  EXPECT_EQ(policy().bytes(), 2000u);
  EXPECT_PLAN("3: table, evict 0", run(2, of_class(graph(1))));
  EXPECT_EQ(policy().bytes(), 2100u);
  for (KeyId key = 3; key < 6; ++key) {
    EXPECT_PLAN("2: borrow " + std::to_string(key - 1) + ", add 10", run(key, of_class(graph(1))));
  }
  EXPECT_EQ(policy().bytes(), 2130u);
  EXPECT_PLAN("2: borrow 5, add 10, evict 1", run(6, of_class(graph(1))));
  EXPECT_EQ(policy().bytes(), 1140u);
}

// ---- What is undone -------------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, AnExecutableIsReturnedToItsLender) {
  set_limits({.max_executables = 2});
  run(0, graph(1));
  run(1, graph(2));
  const Plan borrow = run(2, graph(1));
  EXPECT_PLAN("3: borrow 0", borrow);
  EXPECT_EQ(look().order(), (Keys{1, 2}));
  undo(2, borrow);
  EXPECT_EQ(look().order(), (Keys{0, 1})) << "in its old place";
  EXPECT_FALSE(policy().is_live(2));
  EXPECT_PLAN("3: borrow 0", run(2, graph(1)));
}

TEST_F(PolicyCallsTest, AnExecutableIsReturnedToAKeyOfAnotherStream) {
  set_limits({.max_executables = 1});
  run(0, of_class(graph(1)));
  const Plan borrow = run(1, on(2, of_class(graph(1), 2)));
  EXPECT_PLAN("3: borrow 0", borrow);
  undo(1, borrow);
  EXPECT_TRUE(policy().is_live(0));
  EXPECT_FALSE(policy().is_live(1));
}

TEST_F(PolicyCallsTest, ALenderThatWasPinnedMeanwhileGetsItsExecutableBack) {
  set_limits({.share = Share::kAlways});
  run(0, graph(1));
  const Plan borrow = run(1, graph(1));
  pin(0);
  undo(1, borrow);
  EXPECT_TRUE(policy().is_live(0) && policy().is_pinned(0));
  EXPECT_EQ(look().order(), Keys());
  EXPECT_EQ(candidate(1), kNoKey);
  pin(0, false);
  EXPECT_EQ(candidate(1), 0u);
  EXPECT_PLAN("2: borrow 0", run(1, graph(1))) << "it is lent again";
}

TEST_F(PolicyCallsTest, ALenderThatIsPinnedBeforeThePlanLendsNothing) {
  set_limits({.share = Share::kAlways, .max_executables = 2});
  run(0, graph(1));
  run(1, graph(2));
  use(2, graph(1));
  const Offer offer{.lender = candidate(2)};
  EXPECT_EQ(offer.lender, 0u);
  pin(0);
  EXPECT_PLAN("3: own, evict 1", policy().plan(2, offer, view()));
  pin(0, false);
  lose(0);
  EXPECT_PLAN("1: own", policy().plan(2, offer, view())) << "it has nothing to lend";
}

TEST_F(PolicyCallsTest, AKeyWhoseUpdateIsRefusedAfterAllHasNoSiblings) {
  set_limits({.share = Share::kAlways});
  run(0, graph(1));
  const Plan borrow = run(1, graph(1));
  undo(1, borrow);
  refuse_siblings(1);
  EXPECT_EQ(look().members(0), 1u);
  EXPECT_PLAN("1: own", run(1, graph(1)));
  EXPECT_EQ(policy().executables(), 2u);
}

// ---- Pins -----------------------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, AnUnpinnedKeyIsEvictedByItsLastUse) {
  for (KeyId key = 0; key < 4; ++key) run(key, graph(key + 1));
  pin(1);
  pin(2);
  pin(3);
  use(0);
  use(3);
  EXPECT_EQ(look().order(), Keys{0});
  pin(2, false);
  EXPECT_EQ(look().order(), (Keys{2, 0}));
  pin(3, false);
  EXPECT_EQ(look().order(), (Keys{2, 0, 3}));
  pin(1, false);
  EXPECT_EQ(look().order(), (Keys{1, 2, 0, 3}));
  pin(1, false);
  use(2);
  EXPECT_EQ(look().order(), (Keys{1, 0, 3, 2}));
}

TEST_F(PolicyCallsTest, APinnedTableCountsAndIsLentAgain) {
  make_table();
  pin(1);
  EXPECT_EQ(policy().bytes(), 1100u);
  EXPECT_PLAN("1: own", run(2, of_class(graph(1))));
  EXPECT_PLAN("2: borrow 2", run(3, of_class(graph(1)))) << "the class still has a table";
  pin(1, false);
  EXPECT_PLAN("2: borrow 1, add 10", run(2, of_class(graph(1))));
}

// ---- Refusals -------------------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, AKeyWhoseUpdaterNodeIsRefusedGetsNoneUntilItIsErased) {
  EXPECT_PLAN("1: own with slots", plan(1, with_slots(graph(2))));
  EXPECT_PLAN("1: own with slots", plan(0, with_slots(graph(1))));
  refuse_device_updates(0);
  EXPECT_PLAN("1: own", plan(0));
  forget(0);
  EXPECT_PLAN("1: own", plan(0, with_slots(graph(1)))) << "captured again";
  EXPECT_PLAN("1: own with slots", plan(1)) << "another key";
  erase(0);
  EXPECT_PLAN("1: own with slots", plan(0, with_slots(graph(1))));
}

TEST_F(PolicyCallsTest, AClassIsRefusedATableAsLongAsItHasMembers) {
  set_limits({.share = Share::kAlways});
  run(0, of_class(graph(1)));
  refuse_device_updates(0);
  EXPECT_PLAN("2: borrow 0", run(1, of_class(graph(1))));
  erase(1);
  EXPECT_PLAN("1: own", run(2, of_class(graph(1))));
  EXPECT_PLAN("2: borrow 2", run(3, of_class(graph(1))));
  erase(0);
  erase(2);
  erase(3);
  run(2, of_class(graph(1)));
  EXPECT_PLAN("2: table, evict 2", run(3, of_class(graph(1))));
}

// ---- Streams --------------------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, AMovedKeyJoinsTheFamilyOfItsStream) {
  set_limits({.share = Share::kAlways});
  run(0, graph(1));
  run(1, on(2, graph(1)));
  run(2, graph(1));
  EXPECT_PLAN("2: borrow 2", run(0, graph(1)));
  use(2);
  move(2, 2);
  EXPECT_EQ(look().members(0), 1u);
  EXPECT_EQ(look().members(1), 2u);
  EXPECT_TRUE(look().is_live(0)) << "the executable stays behind";
  EXPECT_PLAN("2: borrow 1", run(2, graph(1)));
  move(1, 2);
  EXPECT_EQ(policy().family(1), 2u) << "it is there already";
}

TEST_F(PolicyCallsTest, AMovedKeyLeavesTheTableBehind) {
  make_table();
  run(2, of_class(graph(1)));
  run(3, on(2, of_class(graph(1))));
  use(0);
  move(0, 2);
  EXPECT_EQ(look().members(2), 2u);
  EXPECT_EQ(look().members(3), 2u);
  EXPECT_TRUE(look().has_table(2));
  EXPECT_EQ(look().set_bytes(2), 10u) << "its set stays in the table";
  EXPECT_PLAN("2: table, evict 3", run(0, of_class(graph(1))));
  EXPECT_TRUE(look().has_table(2));
  EXPECT_EQ(policy().bytes(), 1110u + 1100u);
}

TEST_F(PolicyCallsTest, TheLastKeyTakesItsFamilyAlongIfItMovesOrIsForgotten) {
  run(0, graph(1));
  lose(0);
  move(0, 2);
  EXPECT_EQ(policy().families(), 1u);
  EXPECT_EQ(policy().family(0), 2u) << "another family";
  EXPECT_EQ(look().members(0), 1u);
  EXPECT_PLAN("1: own", run(0, graph(1)));
  lose(0);
  forget(0);
  EXPECT_EQ(policy().families(), 0u);
}

TEST_F(PolicyCallsTest, AnUnreadKeyIsReadOnTheStreamThatItHasMovedTo) {
  use(0, unread());
  move(0, 2);
  EXPECT_EQ(policy().family(0), 0u);
  policy().described(0, on(9, graph(1)));
  EXPECT_EQ(look().facts(0).stream, 2u);
  run(1, on(2, graph(1)));
  EXPECT_EQ(policy().family(0), policy().family(1));
}

TEST_F(PolicyCallsTest, AKeyThatIsReadKeepsItsExecutable) {
  run(0, shaped(7, with_slots(unread())));
  run(1, shaped(7, unread()));
  for (const KeyId key : {0u, 1u}) policy().described(key, of_class(graph(1)));
  look().check();
  EXPECT_EQ(look().order(), (Keys{0, 1}));
  EXPECT_EQ(look().members(0), 2u);
  EXPECT_TRUE(look().has_slots(0));
  EXPECT_EQ(look().facts(0).shape, 7u);
  EXPECT_EQ(policy().bytes(), 2000u);
}

// ---- The order of use -----------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, TheVictimIsTheLeastRecentlyUsedPlainOne) {
  EXPECT_EQ(victim(), kNoKey);
  run(0, with_slots(graph(1)));
  run(1, graph(2));
  run(2, graph(3));
  EXPECT_EQ(victim(), 1u);
  EXPECT_EQ(policy().victim(1, view()), 2u) << "not the one that memory is for";
  make_busy({1});
  EXPECT_EQ(victim(), 2u);
  make_busy({1, 2});
  EXPECT_EQ(victim(), kNoKey) << "plain ones are in use";
  make_busy({});
  pin(1);
  EXPECT_EQ(victim(), 2u);
  pin(2);
  EXPECT_EQ(victim(), 0u);
  make_busy({0});
  EXPECT_EQ(victim(), kNoKey);
  make_busy({});
  pin(1, false);
  pin(2, false);
  hit(1);
  EXPECT_EQ(victim(), 2u);
}

TEST_F(PolicyCallsTest, AHitCountsOnceItIsFoundOut) {
  for (KeyId key = 0; key < 4; ++key) run(key, graph(key + 1));
  hit(1);
  hit(0);
  EXPECT_EQ(look().order(), (Keys{0, 1, 2, 3}));
  EXPECT_EQ(victim(), 2u);
  EXPECT_EQ(look().order(), (Keys{2, 3, 1, 0}));
  use(2);
  hit(3);
  EXPECT_EQ(victim(), 1u);
  EXPECT_EQ(look().order(), (Keys{1, 0, 2, 3}));
}

TEST_F(PolicyCallsTest, AUseThatIsReportedLateDoesNotCountAsTheLatest) {
  run(0, graph(1));
  run(1, graph(2));
  policy().used(0, {2, 7});
  policy().used(0, {2, 1});
  policy().used(1, {2, 6});
  look().check();
  EXPECT_EQ(look().order(), (Keys{1, 0}));
}

// With more hits since the last search, the order is not quite exact.
TEST_F(PolicyCallsTest, ASearchMovesAtMost256) {
  set_limits({.max_executables = 1000});
  for (KeyId key = 0; key < 1000; ++key) run(key, graph(key + 1));
  for (KeyId key = 1000; key-- > 0;) hit(key);
  const std::size_t before = asked_for_uses();
  EXPECT_EQ(policy().victim(kNoKey, view()), 256u);
  EXPECT_EQ(asked_for_uses() - before, 257u);
  EXPECT_EQ(policy().victim(kNoKey, view()), 512u);
  EXPECT_EQ(asked_for_uses() - before, 2 * 257u);
}

TEST_F(PolicyCallsTest, APlanQueriesOnlyTheKeysThatItEvicts) {
  set_limits({.max_executables = 1000, .max_device_bytes = 1'000'000});
  for (KeyId key = 0; key < 1000; ++key) run(key, graph(key + 1));
  use(1000, with_bytes(500'000, graph(1001)));
  std::size_t asked = 0;
  const auto counts = [&](KeyId) { return ++asked != 0; };
  EXPECT_EQ(policy().plan(1000, {}, {counts}).evict.size(), 500u);
  EXPECT_EQ(asked, 500u);
}

TEST_F(PolicyCallsTest, EveryWrongCountIsFound) {
  make_table();
  run(2, graph(2));
  run(3, unread());
  look().with_each_wrong([&](const char* fault) { EXPECT_EQ(StructureChecker::find_fault(policy()), fault); });
}

}  // namespace
}  // namespace graphcache
