// What each call does to the counts of the policy, in concrete numbers.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "policy_checker.h"

namespace graphcache {
namespace {

using Action = Plan::Action;
using Keys = std::vector<KeyId>;

bool is_idle(KeyId) { return true; }

// Without a table, unless a test gives the graph a class.
GraphFacts graph(std::uint64_t signature) {
  return {.signature = signature, .stream = 1, .nodes = 100, .bytes = 1000, .table_bytes = 100, .set_bytes = 10};
}

GraphFacts of_class(GraphFacts facts) {
  facts.table_class = 1;
  return facts;
}

GraphFacts on(std::uint64_t stream, GraphFacts facts) {
  facts.stream = stream;
  return facts;
}

GraphFacts with_slots(GraphFacts facts) {
  facts.slot_kernels = 40;
  return facts;
}

GraphFacts with_bytes(std::size_t bytes, GraphFacts facts) {
  facts.bytes = bytes;
  return facts;
}

class PolicyCallsTest : public testing::Test {
 protected:
  static constexpr Cost kUpdate = 1000;  // The price of an update. Each set is new to its table.

  void set_limits(const Limits& limits) {
    policy_ = std::make_unique<Policy>(limits);
    look_ = std::make_unique<PolicyChecker>(*policy_);
  }
  void SetUp() override { set_limits({.max_executables = 8}); }
  void TearDown() override { look().check(); }

  Policy& policy() { return *policy_; }
  const PolicyChecker& look() const { return *look_; }

  Plan plan(KeyId key, const GraphFacts& facts) {
    policy().used(key);
    if (!look().is_captured(key)) policy().captured(key, facts);
    return plan(key);
  }
  Plan plan(KeyId key) {
    EXPECT_FALSE(look().is_live(key)) << "a hit";
    const Offer offer{policy().candidate(key, is_idle), kUpdate, /*has_set=*/false, look().facts(key).set_bytes};
    return policy().plan(key, offer, is_idle);
  }
  Plan run(KeyId key, const GraphFacts& facts) {
    Plan made = plan(key, facts);
    policy().done(key, made);
    look().check();
    return made;
  }
  // Key 1 has a table then, key 0 has lent its executable for it, and key 2 has no set there yet.
  void make_table(std::size_t max_device_bytes = Limits().max_device_bytes) {
    set_limits({.prefer = Prefer::kMemory, .max_executables = 8, .max_device_bytes = max_device_bytes});
    EXPECT_EQ(run(0, of_class(graph(1))).action, Action::kOwn);
    EXPECT_EQ(run(1, of_class(graph(1))).action, Action::kTable);
    EXPECT_EQ(look().units(), 2u);
    EXPECT_EQ(look().bytes(), 1100u);
  }

 private:
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<PolicyChecker> look_;
};

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

// Rent or buy asks for room as it does where the executables are as many as may be.
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

TEST_F(PolicyCallsTest, AnExecutableGoesBackToItsLender) {
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

TEST_F(PolicyCallsTest, AnUnpinnedKeyLeavesByItsLastUse) {
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

TEST_F(PolicyCallsTest, APlanAsksOnlyForThoseThatItEvicts) {
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

// ---- The rules in numbers -------------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, AKeyThatHasPaidForAnExecutableGetsOneWhereThereIsRoom) {
  const Cost price = costs::buy(graph(1).nodes);
  const auto rents = static_cast<int>(price / kUpdate);
  run(0, graph(1));
  for (int i = 0; i < rents; ++i) {
    EXPECT_EQ(run(1, graph(1)).action, Action::kBorrow) << i;
    EXPECT_EQ(run(0, graph(1)).action, Action::kBorrow) << i;
  }
  EXPECT_EQ(run(1, graph(1)).action, Action::kOwn);
  EXPECT_EQ(look().rent(1), 0u);
}

TEST_F(PolicyCallsTest, WhoPaysRentEvictsOnlyWhatNobodyHasUsedSince) {
  const auto rents = static_cast<int>(costs::buy(graph(1).nodes) / kUpdate);
  set_limits({.max_executables = 2});
  run(5, graph(9));
  run(0, graph(1));
  for (int i = 0; i < 3 * rents; ++i) {
    EXPECT_EQ(run((i + 1) % 2, graph(1)).action, Action::kBorrow) << "the other key is in use";
    policy().used(5);
  }
  for (int i = 3 * rents; i < 8 * rents; ++i) {
    const Plan plan = run((i + 1) % 2, graph(1));
    if (plan.action == Action::kBorrow) continue;
    EXPECT_EQ(plan.evict, Keys{5});
    return;
  }
  FAIL() << "the other key, which nobody uses any more, keeps its executable";
}

TEST_F(PolicyCallsTest, SmallGraphsDoNotPayRentWhileThereIsRoom) {
  GraphFacts small = graph(1);
  small.nodes = 8;
  for (KeyId key = 0; key < 8; ++key) EXPECT_EQ(run(key, small).action, Action::kOwn);
  const Plan ninth = run(8, small);
  EXPECT_EQ(ninth.action, Action::kBorrow);
  EXPECT_EQ(look().units(), 8u);
}

TEST_F(PolicyCallsTest, InAFullBudgetATableTakesThePlaceOfItsOwnClassAlone) {
  set_limits({.max_executables = 4});
  const auto plan_dear = [&](KeyId key) {  // An update costs more than a parameter set.
    policy().used(key);
    if (!look().is_captured(key)) policy().captured(key, of_class(graph(1)));
    return policy().plan(key, {policy().candidate(key, is_idle), 100'000}, is_idle);
  };
  const auto give_own = [&](KeyId key) {
    plan_dear(key);
    Plan own;
    own.action = Action::kOwn;
    policy().done(key, own);
  };
  give_own(0);
  give_own(1);
  run(10, graph(10));
  run(11, graph(11));
  EXPECT_EQ(plan_dear(2).action, Action::kBorrow) << "its class has two executables, and a table counts two";
  policy().lost(11);
  give_own(3);
  policy().used(0);
  const Plan table = plan_dear(2);
  EXPECT_EQ(table.action, Action::kTable);
  EXPECT_EQ(table.evict, (Keys{0, 1})) << "the lender and the oldest of the class, though 10 is older";
  const Offer offer{0, 100'000};
  EXPECT_EQ(policy().plan(2, offer, [](KeyId key) { return key == 0 || key == 10; }).action, Action::kBorrow)
      << "others of the class are in use";
}

TEST_F(PolicyCallsTest, ATableOfManySetsOfKeysThatAreGoneIsMadeAnew) {
  make_table();
  KeyId next = 2;
  for (int i = 0; i < 80; ++i, ++next) {
    const Plan plan = run(next, of_class(graph(1)));
    if (plan.action == Action::kTable) {
      EXPECT_GE(i, 64);
      EXPECT_EQ(look().set_bytes(next), 0u);
      return;
    }
    EXPECT_EQ(plan.action, Action::kBorrow);
    policy().forgotten(next - 1);
  }
  FAIL() << "sets of keys that are gone pile up";
}

TEST_F(PolicyCallsTest, ATableThatHasNoRoomForAMemberIsNotMadeAnewForIt) {
  make_table(2115);  // An executable with a table, 1015 bytes for others.
  GraphFacts large = of_class(graph(1));
  large.set_bytes = 2000;
  EXPECT_EQ(run(2, large).action, Action::kOwn);
  policy().lost(2);
  const Offer larger_than_told{1, 0, /*has_set=*/false, 2000};
  policy().used(0);
  EXPECT_EQ(policy().plan(0, larger_than_told, is_idle).action, Action::kOwn);
}

TEST_F(PolicyCallsTest, WhereAllIsInUseTheExecutablesAloneAreCounted) {
  set_limits({.prefer = Prefer::kMemory, .max_executables = 3});
  run(0, of_class(graph(1)));
  EXPECT_EQ(run(1, of_class(graph(1))).action, Action::kTable);
  run(2, graph(2));
  EXPECT_EQ(look().units(), 3u);
  const auto busy = [](KeyId) { return false; };
  policy().used(3);
  policy().captured(3, of_class(graph(1)));
  Plan beyond = policy().plan(3, {}, busy);
  EXPECT_EQ(beyond.action, Action::kOwn);
  EXPECT_EQ(beyond.evict, Keys());
  policy().done(3, beyond);
  look().check();
  EXPECT_EQ(look().units(), 4u);
  policy().used(4);
  policy().captured(4, of_class(graph(1)));
  EXPECT_EQ(policy().plan(4, {}, busy).action, Action::kDirect) << "there are three executables";
  EXPECT_FALSE(policy().has_room(4, busy));
  EXPECT_TRUE(policy().has_room(4, is_idle));
}

TEST_F(PolicyCallsTest, AKeyThatIsTooLargeHasNoRoom) {
  set_limits({.max_device_bytes = 1500});
  policy().used(0);
  EXPECT_TRUE(policy().has_room(0, is_idle)) << "nothing is known of it";
  policy().captured(0, with_bytes(1501, graph(1)));
  EXPECT_FALSE(policy().has_room(0, is_idle));
  policy().forgotten(0);
  EXPECT_FALSE(policy().has_room(0, is_idle)) << "its last capture told";
}

TEST_F(PolicyCallsTest, ARefusedKeyHasNoSiblingsOnAnyStream) {
  run(0, graph(1));
  refuse(policy(), 1, plan(1, graph(1)));
  EXPECT_EQ(policy().family(1), 0u);
  EXPECT_EQ(policy().families(), 1u);
  EXPECT_EQ(run(1, graph(1)).action, Action::kOwn);
  set_limits({.max_executables = 1});
  run(0, graph(1));
  refuse(policy(), 1, plan(1, graph(1)));
  policy().moved(1, 2);
  EXPECT_EQ(plan(1).evict, Keys{0}) << "it would be refused again";
}

TEST_F(PolicyCallsTest, WhatIsRefusedIsAPlainExecutable) {
  set_limits({.mechanisms = {.sharing = detail::Sharing::kTable}});
  EXPECT_EQ(run(0, of_class(graph(1))).action, Action::kTable);
  policy().refuse_table(0);
  look().check();
  EXPECT_FALSE(policy().has_table(0));
  EXPECT_TRUE(look().is_live(0));
  EXPECT_EQ(look().shared(0), 0u);
  EXPECT_EQ(look().bytes(), 1000u);
  EXPECT_EQ(run(1, of_class(graph(1))).action, Action::kBorrow) << "the class gets no other";
  set_limits({});
  EXPECT_TRUE(run(0, with_slots(graph(1))).writes_slots);
  EXPECT_TRUE(policy().is_device_updated(0));
  policy().refuse_slots(0);
  look().check();
  EXPECT_FALSE(policy().is_device_updated(0));
  EXPECT_EQ(policy().victim(is_idle), 0u);
}

TEST_F(PolicyCallsTest, WhoDoesNotFitIntoTheTableHasItsSiblingsStill) {
  make_table();
  run(2, graph(1));
  refuse(policy(), 3, {});
  policy().used(3);
  policy().captured(3, of_class(graph(1)));
  policy().refuse_sets(3);
  look().check();
  EXPECT_EQ(look().members(1), 2u);
  EXPECT_EQ(policy().candidate(3, is_idle), 2u);
  EXPECT_EQ(policy().family(3), policy().family(1));
}

TEST_F(PolicyCallsTest, AnExecutableWithSlotsIsLentOnlyToGiveWayToATable) {
  run(0, with_slots(graph(1)));
  EXPECT_EQ(look().shared(0), 0u);
  plan(1, graph(1));
  EXPECT_EQ(policy().candidate(1, is_idle), kNoKey);
  policy().used(2);
  policy().captured(2, of_class(graph(1)));
  EXPECT_EQ(policy().candidate(2, is_idle), 0u);
}

TEST_F(PolicyCallsTest, AnUnpinnedExecutableIsSharedAgain) {
  run(0, graph(1));
  policy().pinned(0, true);
  EXPECT_EQ(look().shared(0), kNoKey);
  policy().pinned(0, false);
  look().check();
  EXPECT_EQ(look().shared(0), 0u);
  EXPECT_EQ(run(1, graph(1)).lender, 0u);
}

TEST_F(PolicyCallsTest, WhatIsMadeAheadStaysWithinTheBudget) {
  set_limits({.prefer = Prefer::kMemory, .max_executables = 3});
  run(0, of_class(graph(1)));
  EXPECT_EQ(run(1, of_class(graph(1))).action, Action::kTable);
  for (const KeyId key : {2u, 3u}) {
    policy().used(key);
    policy().captured(key, graph(key));
    const Plan ahead = policy().plan_ahead(key);
    EXPECT_EQ(ahead.action, key == 2 ? Action::kOwn : Action::kDirect) << "a table counts two";
    EXPECT_EQ(ahead.evict, Keys());
    policy().done(key, ahead);
  }
  EXPECT_EQ(look().units(), 3u);
}

TEST_F(PolicyCallsTest, GraphsAreReadWhereExecutablesCanBeLent) {
  const auto reads = [&] {
    policy().used(9);
    return policy().reads_graph(9);
  };
  EXPECT_TRUE(reads());
  set_limits({.share = false});
  EXPECT_FALSE(reads());
  set_limits({.prefer = Prefer::kDeviceTime, .max_executables = 2});
  EXPECT_FALSE(reads());
  run(0, graph(0));
  EXPECT_FALSE(reads());
  run(1, graph(0));
  EXPECT_TRUE(reads()) << "one has to leave";
  set_limits({.prefer = Prefer::kDeviceTime, .max_device_bytes = 1500});
  run(0, graph(0));
  policy().used(9);
  policy().captured(9, graph(0));
  EXPECT_TRUE(policy().reads_graph(9)) << "the bytes are full";
  policy().described(9, graph(1));
  look().check();
  EXPECT_NE(policy().family(9), 0u);
}

TEST_F(PolicyCallsTest, FamiliesHaveNumbersInTheOrderInWhichTheyAreFounded) {
  run(0, graph(7));
  run(1, graph(3));
  run(2, on(2, graph(7)));
  run(3, graph(0));
  EXPECT_EQ(policy().family(0), 1u);
  EXPECT_EQ(policy().family(1), 2u);
  EXPECT_EQ(policy().family(2), 3u);
  EXPECT_EQ(policy().family(3), 0u);
  EXPECT_EQ(policy().families(), 3u);
  policy().erased(1);
  EXPECT_EQ(policy().families(), 2u);
  run(1, graph(3));
  EXPECT_EQ(policy().family(1), 4u);
}

TEST_F(PolicyCallsTest, WaysThatAreForced) {
  GraphFacts small = of_class(graph(1));
  small.nodes = 8;
  using detail::Sharing;
  set_limits({.mechanisms = {.sharing = Sharing::kNever}});
  for (KeyId key = 0; key < 3; ++key) EXPECT_EQ(run(key, small).action, Action::kOwn);
  EXPECT_EQ(policy().families(), 0u);
  set_limits({.mechanisms = {.sharing = Sharing::kRent}});
  run(0, small);
  EXPECT_EQ(run(1, small).action, Action::kBorrow);
  EXPECT_EQ(run(2, on(2, small)).action, Action::kOwn);
  set_limits({.prefer = Prefer::kDeviceTime, .mechanisms = {.sharing = Sharing::kAlways}});
  EXPECT_FALSE(policy().has_to_borrow((run(0, small), policy().lost(0), 0)));
  run(0, small);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(run(1 + i % 3, on(i % 2, small)).action, Action::kBorrow);
  EXPECT_TRUE(policy().has_to_borrow(0));
  EXPECT_EQ(look().units(), 1u);
  set_limits({.max_executables = 1, .mechanisms = {.sharing = Sharing::kTable}});
  EXPECT_EQ(run(0, small).action, Action::kTable) << "it counts one";
  for (KeyId key = 1; key < 4; ++key) EXPECT_EQ(run(key, on(key, small)).action, Action::kBorrow);
  EXPECT_TRUE(policy().has_to_borrow(0));
  for (const auto& [patching, writes] :
       {std::pair(detail::Patching::kPerNode, false), std::pair(detail::Patching::kDeviceUpdated, true)}) {
    set_limits({.max_executables = 1, .mechanisms = {.patching = patching}});
    EXPECT_EQ(run(0, with_slots(graph(1))).writes_slots, writes);
  }
}

// ---- What find_fault() finds ----------------------------------------------------------------------------------------

TEST_F(PolicyCallsTest, EveryWrongCountIsFound) {
  make_table();
  run(2, graph(2));
  look().with_each_wrong([&](const char* wrong) { EXPECT_NE(policy().find_fault(), "") << wrong; });
}

}  // namespace
}  // namespace graphcache
