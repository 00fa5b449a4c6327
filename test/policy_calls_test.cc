// The effect of each call on the policy's counts, in concrete numbers.
#include "policy_calls.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "policy/policy.h"
#include "policy_checker.h"

namespace graphcache {
namespace {

class PolicyCallsTest : public PolicyCalls {};

TEST_F(PolicyCallsTest, ALostSharedExecutableCountsNoMoreAndIsReplaced) {
  run(0, graph(1));
  EXPECT_EQ(run(1, graph(1)).lender, 0u);
  policy().lost(1);
  look().check();
  EXPECT_EQ(look().units(), 0u);
  EXPECT_EQ(look().bytes(), 0u);
  EXPECT_EQ(look().order(), Keys());
  EXPECT_EQ(look().rent(1), kUpdate) << "what was paid stays paid";
  EXPECT_EQ(run(0, graph(1)).action, Action::kOwn);
  EXPECT_EQ(run(1, graph(1)).lender, 0u);
}

TEST_F(PolicyCallsTest, ALostTableLosesItsSets) {
  make_table();
  EXPECT_EQ(run(2, of_class(graph(1))).set_bytes, 10u);
  EXPECT_EQ(look().bytes(), 1110u);
  policy().lost(2);
  look().check();
  EXPECT_EQ(look().units(), 0u);
  EXPECT_EQ(look().bytes(), 0u);
  EXPECT_EQ(run(0, of_class(graph(1))).action, Action::kOwn);
  EXPECT_EQ(run(1, of_class(graph(1))).action, Action::kTable);
  EXPECT_EQ(look().bytes(), 1100u);
}

TEST_F(PolicyCallsTest, ALostUpdaterNodeMakesPlaceForAnother) {
  for (KeyId key = 0; key < 4; ++key) EXPECT_TRUE(run(key, with_slots(graph(key))).writes_slots);
  EXPECT_FALSE(run(4, with_slots(graph(4))).writes_slots);
  policy().lost(2);
  EXPECT_TRUE(run(5, with_slots(graph(5))).writes_slots);
}

TEST_F(PolicyCallsTest, APinnedKeyThatLosesItsExecutableStaysPinned) {
  run(0, graph(1));
  policy().pinned(0, true);
  policy().lost(0);
  look().check();
  EXPECT_EQ(look().units(), 0u);
  run(0, graph(1));
  EXPECT_EQ(look().order(), Keys());
  EXPECT_EQ(look().shared(0), kNoKey);
}

TEST_F(PolicyCallsTest, AKeyWithoutAnExecutableLosesNothing) {
  policy().used(0);
  policy().lost(0);
  run(1, graph(1));
  run(0, graph(1));
  policy().lost(1);
  look().check();
  EXPECT_EQ(look().units(), 1u);
  EXPECT_EQ(look().shared(1), 0u);
}

TEST_F(PolicyCallsTest, AnErasedKeyLeavesNothingToTheNextOfItsId) {
  set_limits({.max_executables = 2});
  run(0, graph(1));
  run(1, graph(1));
  run(0, graph(1));
  EXPECT_EQ(look().rent(0), kUpdate);
  policy().pinned(0, true);
  policy().erased(0);
  look().check();
  EXPECT_EQ(look().keys(), 1u);
  EXPECT_EQ(look().units(), 0u);
  EXPECT_EQ(run(0, graph(2)).action, Action::kOwn);
  EXPECT_EQ(look().rent(0), 0u);
  EXPECT_EQ(look().keys(), 2u);
  run(2, graph(3));
  EXPECT_EQ(run(3, graph(4)).evict, Keys{0}) << "not pinned any more";
}

TEST_F(PolicyCallsTest, AnErasedKeyIsNoMemberOfItsClass) {
  make_table();
  EXPECT_EQ(look().members(1), 2u);
  policy().erased(0);
  look().check();
  EXPECT_EQ(look().members(1), 1u);
  EXPECT_EQ(look().bytes(), 1100u);
  policy().erased(1);
  look().check();
  EXPECT_EQ(look().keys(), 0u);
  EXPECT_EQ(look().bytes(), 0u);
}

TEST_F(PolicyCallsTest, AKeyWithoutATemplateIsErased) {
  policy().used(0);
  policy().erased(0);
  run(1, graph(1));
  run(0, graph(1));
  policy().forgotten(1);
  policy().erased(1);
  look().check();
  EXPECT_EQ(look().keys(), 1u);
  EXPECT_EQ(look().units(), 1u);
}

TEST_F(PolicyCallsTest, BytesBoundTheExecutables) {
  set_limits({.max_device_bytes = 2500});
  run(0, graph(1));
  run(1, graph(2));
  EXPECT_EQ(run(2, graph(3)).evict, Keys{0});
  EXPECT_EQ(look().bytes(), 2000u);
  EXPECT_EQ(run(3, with_bytes(500, graph(4))).evict, Keys());
  EXPECT_EQ(look().bytes(), 2500u);
  EXPECT_EQ(run(4, with_bytes(1501, graph(5))).evict, (Keys{1, 2})) << "a large one evicts several";
  EXPECT_EQ(look().bytes(), 2001u);
}

TEST_F(PolicyCallsTest, AnExecutableBeyondTheBytesGivesADirectRun) {
  set_limits({.max_device_bytes = 2500});
  run(0, graph(1));
  const Plan large = run(1, with_bytes(2501, graph(2)));
  EXPECT_EQ(large.action, Action::kDirect);
  EXPECT_EQ(large.evict, Keys());
  EXPECT_EQ(look().bytes(), 1000u);
  EXPECT_EQ(run(2, with_bytes(2500, graph(3))).action, Action::kOwn);
  EXPECT_EQ(look().bytes(), 2500u);
}

// Rent or buy needs room in bytes as well as in the number of executables.
TEST_F(PolicyCallsTest, WhereTheBytesAreFullASmallGraphBorrows) {
  set_limits({.max_device_bytes = 2000});
  GraphFacts small = graph(1);
  small.nodes = 8;
  EXPECT_EQ(run(0, small).action, Action::kOwn);
  EXPECT_EQ(run(1, small).action, Action::kOwn);
  EXPECT_EQ(run(2, small).rent, kUpdate);
  EXPECT_EQ(look().bytes(), 2000u);
}

TEST_F(PolicyCallsTest, ATableGrowsWithinTheBytes) {
  make_table(2115);
  EXPECT_EQ(run(9, graph(2)).evict, Keys());
  EXPECT_EQ(run(2, of_class(graph(1))).evict, Keys());
  EXPECT_EQ(look().bytes(), 2110u);
  const Plan borrow = run(3, of_class(graph(1)));
  EXPECT_EQ(borrow.lender, 2u);
  EXPECT_EQ(borrow.evict, Keys{9});
  EXPECT_EQ(look().bytes(), 1120u);
}

TEST_F(PolicyCallsTest, ATableHasBytesForEachMember) {
  make_table(2000);
  GraphFacts large = of_class(graph(1));
  large.set_bytes = 300;
  for (KeyId key = 2; key < 5; ++key) EXPECT_EQ(run(key, large).action, Action::kBorrow);
  EXPECT_EQ(look().bytes(), 2000u);
  policy().forgotten(0);
  policy().forgotten(1);
  const Plan anew = run(5, large);
  EXPECT_EQ(anew.action, Action::kTable) << "four members have a place";
  EXPECT_EQ(anew.evict, Keys{4});
  EXPECT_EQ(look().bytes(), 1100u);
  for (KeyId key = 2; key < 5; ++key) EXPECT_EQ(run(key, large).action, Action::kBorrow);
  const Plan own = run(6, large);
  EXPECT_EQ(own.action, Action::kOwn) << "five have none";
  EXPECT_EQ(own.evict, Keys{4});
  EXPECT_EQ(run(5, large).action, Action::kBorrow);
  EXPECT_EQ(look().bytes(), 1000u);
}

TEST_F(PolicyCallsTest, AnExecutableIsReturnedToItsLender) {
  run(0, graph(1));
  run(1, graph(2));
  const Plan borrow = run(2, graph(1));
  EXPECT_EQ(look().order(), (Keys{1, 2}));
  policy().undone(2, borrow);
  look().check();
  EXPECT_EQ(look().order(), (Keys{0, 1})) << "in its old place";
  EXPECT_EQ(look().shared(0), 0u);
  EXPECT_EQ(look().rent(2), kUpdate);
  EXPECT_EQ(run(2, graph(1)).lender, 0u);
  EXPECT_EQ(look().rent(2), 2 * kUpdate);
}

TEST_F(PolicyCallsTest, ALenderThatWasPinnedMeanwhileGetsItsExecutableBack) {
  run(0, graph(1));
  const Plan borrow = run(1, graph(1));
  policy().pinned(0, true);
  policy().undone(1, borrow);
  look().check();
  EXPECT_TRUE(look().is_live(0));
  EXPECT_EQ(look().order(), Keys());
  EXPECT_EQ(look().shared(0), kNoKey);
}

TEST_F(PolicyCallsTest, ALenderThatIsPinnedBeforeThePlanLendsNothing) {
  run(0, graph(1));
  policy().used(1);
  policy().captured(1, graph(1));
  const Offer offer{policy().candidate(1, is_idle), kUpdate};
  EXPECT_EQ(offer.lender, 0u);
  policy().pinned(0, true);
  EXPECT_EQ(policy().plan(1, offer, is_idle).action, Action::kOwn);
}

TEST_F(PolicyCallsTest, AKeyWhoseUpdateIsRefusedAfterAllHasNoSiblings) {
  run(0, graph(1));
  const Plan borrow = run(1, graph(1));
  policy().undone(1, borrow);
  refuse(policy(), 1, borrow);
  look().check();
  EXPECT_EQ(look().members(0), 1u);
  EXPECT_EQ(run(1, graph(1)).action, Action::kOwn);
  EXPECT_EQ(look().units(), 2u);
}

TEST_F(PolicyCallsTest, AnUnpinnedKeyIsEvictedByItsLastUse) {
  for (KeyId key = 0; key < 4; ++key) run(key, graph(key));
  policy().pinned(1, true);
  policy().pinned(2, true);
  policy().pinned(3, true);
  policy().used(0);
  policy().used(3);
  EXPECT_EQ(look().order(), Keys{0});
  policy().pinned(2, false);
  EXPECT_EQ(look().order(), (Keys{2, 0}));
  policy().pinned(3, false);
  EXPECT_EQ(look().order(), (Keys{2, 0, 3}));
  policy().pinned(1, false);
  EXPECT_EQ(look().order(), (Keys{1, 2, 0, 3}));
  look().check();
  policy().used(2);
  EXPECT_EQ(look().order(), (Keys{1, 0, 3, 2}));
}

TEST_F(PolicyCallsTest, AKeyWhoseUpdaterNodeIsRefusedGetsNoneUntilItIsErased) {
  EXPECT_TRUE(plan(1, with_slots(graph(2))).writes_slots);
  const Plan refused = plan(0, with_slots(graph(1)));
  EXPECT_TRUE(refused.writes_slots);
  refuse(policy(), 0, refused);
  const Plan next = plan(0);
  EXPECT_EQ(next.action, Action::kOwn);
  EXPECT_FALSE(next.writes_slots);
  policy().forgotten(0);
  EXPECT_FALSE(plan(0, with_slots(graph(1))).writes_slots) << "captured again";
  EXPECT_TRUE(plan(1).writes_slots) << "another key";
  policy().erased(0);
  EXPECT_TRUE(plan(0, with_slots(graph(1))).writes_slots);
}

TEST_F(PolicyCallsTest, AMovedKeyJoinsTheFamilyOfItsStreamWithItsRent) {
  run(0, graph(1));
  run(1, on(2, graph(1)));
  run(2, graph(1));
  EXPECT_EQ(run(0, graph(1)).lender, 2u);
  EXPECT_EQ(look().shared(2), 0u);
  policy().used(2);
  policy().moved(2, 2);
  look().check();
  EXPECT_EQ(look().members(0), 1u);
  EXPECT_EQ(look().members(1), 2u);
  EXPECT_EQ(look().rent(2), kUpdate);
  EXPECT_EQ(look().shared(0), 0u) << "the shared executable stays behind";
  EXPECT_EQ(run(2, graph(1)).lender, 1u);
  EXPECT_EQ(look().rent(2), 2 * kUpdate);
  EXPECT_EQ(look().shared(1), 2u);
}

TEST_F(PolicyCallsTest, AMovedKeyLeavesTheTableBehind) {
  make_table();
  run(2, of_class(graph(1)));
  run(3, on(2, of_class(graph(1))));
  policy().used(0);
  policy().moved(0, 2);
  look().check();
  EXPECT_EQ(look().members(2), 2u);
  EXPECT_EQ(look().members(3), 2u);
  EXPECT_TRUE(look().has_table(2));
  EXPECT_EQ(look().set_bytes(2), 10u) << "its set stays in the table";
  const Plan table = run(0, of_class(graph(1)));
  EXPECT_EQ(table.action, Action::kTable);
  EXPECT_EQ(table.evict, Keys{3});
  EXPECT_TRUE(look().has_table(2));
  EXPECT_EQ(look().bytes(), 1110u + 1100u);
}

TEST_F(PolicyCallsTest, AMovedKeyTakesItsFamilyAlongIfItIsTheLast) {
  run(0, graph(1));
  policy().lost(0);
  policy().moved(0, 2);
  look().check();
  EXPECT_EQ(look().members(0), 1u);
  EXPECT_EQ(run(0, graph(1)).action, Action::kOwn);
}

TEST_F(PolicyCallsTest, APlanQueriesOnlyTheKeysThatItEvicts) {
  set_limits({.max_executables = 1000, .max_device_bytes = 1'000'000});
  for (KeyId key = 0; key < 1000; ++key) run(key, graph(key));
  policy().used(1000);
  policy().captured(1000, with_bytes(500'000, graph(1000)));
  std::size_t asked = 0;
  const auto counts = [&](KeyId) { return ++asked != 0; };
  EXPECT_EQ(policy().plan(1000, {}, counts).evict.size(), 500u);
  EXPECT_EQ(asked, 500u);
}

TEST_F(PolicyCallsTest, TheVictimIsTheLeastRecentlyUsedPlainOne) {
  EXPECT_EQ(policy().victim(is_idle), kNoKey);
  run(0, with_slots(graph(1)));
  run(1, graph(2));
  run(2, graph(3));
  EXPECT_EQ(policy().victim(is_idle), 1u);
  EXPECT_EQ(policy().victim([](KeyId key) { return key != 1; }), 2u);
  EXPECT_EQ(policy().victim([](KeyId key) { return key == 0; }), 0u);
}

TEST_F(PolicyCallsTest, EveryWrongCountIsFound) {
  make_table();
  run(2, graph(2));
  look().with_each_wrong([&](const char* wrong) { EXPECT_NE(policy().find_fault(), "") << wrong; });
}

}  // namespace
}  // namespace graphcache
