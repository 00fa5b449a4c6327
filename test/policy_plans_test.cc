// The rules of the policy, in concrete numbers.
#include <gtest/gtest.h>

#include <utility>

#include "policy/policy.h"
#include "policy_calls.h"
#include "policy_checker.h"

namespace graphcache {
namespace {

class PolicyPlansTest : public PolicyCalls {};

TEST_F(PolicyPlansTest, AKeyThatHasPaidForAnExecutableGetsOneWhereThereIsRoom) {
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

TEST_F(PolicyPlansTest, ARenterEvictsOnlyKeysThatHaveNotRunSince) {
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
  FAIL() << "the other key, which is not used any more, keeps its executable";
}

TEST_F(PolicyPlansTest, SmallGraphsDoNotPayRentWhileThereIsRoom) {
  GraphFacts small = graph(1);
  small.nodes = 8;
  for (KeyId key = 0; key < 8; ++key) EXPECT_EQ(run(key, small).action, Action::kOwn);
  const Plan ninth = run(8, small);
  EXPECT_EQ(ninth.action, Action::kBorrow);
  EXPECT_EQ(look().units(), 8u);
}

TEST_F(PolicyPlansTest, InAFullBudgetATableTakesThePlaceOfItsOwnClassAlone) {
  set_limits({.max_executables = 4});
  const auto plan_dear = [&](KeyId key) {  // an update costs more than a parameter set
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

TEST_F(PolicyPlansTest, ATableOfManySetsOfKeysThatAreGoneIsMadeAnew) {
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

TEST_F(PolicyPlansTest, ATableThatHasNoRoomForAMemberIsNotMadeAnewForIt) {
  make_table(2115);  // an executable with a table, and 1015 bytes for others
  GraphFacts large = of_class(graph(1));
  large.set_bytes = 2000;
  EXPECT_EQ(run(2, large).action, Action::kOwn);
  policy().lost(2);
  const Offer larger_than_told{1, 0, /*has_set=*/false, 2000};
  policy().used(0);
  EXPECT_EQ(policy().plan(0, larger_than_told, is_idle).action, Action::kOwn);
}

TEST_F(PolicyPlansTest, WhereAllIsInUseTheExecutablesAloneAreCounted) {
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

TEST_F(PolicyPlansTest, AKeyThatIsTooLargeHasNoRoom) {
  set_limits({.max_device_bytes = 1500});
  policy().used(0);
  EXPECT_TRUE(policy().has_room(0, is_idle)) << "nothing is known of it";
  policy().captured(0, with_bytes(1501, graph(1)));
  EXPECT_FALSE(policy().has_room(0, is_idle));
  policy().forgotten(0);
  EXPECT_FALSE(policy().has_room(0, is_idle)) << "its last capture reported";
}

TEST_F(PolicyPlansTest, ARefusedKeyHasNoSiblingsOnAnyStream) {
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

TEST_F(PolicyPlansTest, ARefusalLeavesAPlainExecutable) {
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

TEST_F(PolicyPlansTest, AKeyThatDoesNotFitIntoTheTableKeepsItsSiblings) {
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

TEST_F(PolicyPlansTest, AnExecutableWithSlotsIsLentOnlyToGiveWayToATable) {
  run(0, with_slots(graph(1)));
  EXPECT_EQ(look().shared(0), 0u);
  plan(1, graph(1));
  EXPECT_EQ(policy().candidate(1, is_idle), kNoKey);
  policy().used(2);
  policy().captured(2, of_class(graph(1)));
  EXPECT_EQ(policy().candidate(2, is_idle), 0u);
}

TEST_F(PolicyPlansTest, AnUnpinnedExecutableIsSharedAgain) {
  run(0, graph(1));
  policy().pinned(0, true);
  EXPECT_EQ(look().shared(0), kNoKey);
  policy().pinned(0, false);
  look().check();
  EXPECT_EQ(look().shared(0), 0u);
  EXPECT_EQ(run(1, graph(1)).lender, 0u);
}

TEST_F(PolicyPlansTest, PlansAheadStayWithinTheBudget) {
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

TEST_F(PolicyPlansTest, GraphsAreReadWhereExecutablesCanBeLent) {
  const auto reads = [&](KeyId key) { return !policy().to_read(key).empty(); };
  const auto capture = [&] {
    for (const KeyId key : {8u, 9u}) {
      policy().used(key);
      policy().captured(key, graph(0));
    }
    return reads(9);
  };
  EXPECT_TRUE(capture());
  set_limits({.share = false});
  EXPECT_FALSE(capture());
  set_limits({.prefer = Prefer::kDeviceTime, .max_executables = 2});
  EXPECT_FALSE(capture());
  run(0, graph(0));
  EXPECT_FALSE(reads(9));
  run(1, graph(0));
  EXPECT_TRUE(reads(9)) << "one has to leave";
  set_limits({.prefer = Prefer::kDeviceTime, .max_device_bytes = 1500});
  run(0, graph(0));
  EXPECT_TRUE(capture()) << "the bytes are full";
  policy().described(9, graph(1));
  look().check();
  EXPECT_NE(policy().family(9), 0u);
}

GraphFacts shaped(std::uint64_t shape, GraphFacts facts) {
  facts.shape = shape;
  return facts;
}

TEST_F(PolicyPlansTest, GraphsAreReadOnceAnotherKeyHasTheirShape) {
  run(0, shaped(7, graph(0)));
  EXPECT_EQ(policy().to_read(0), Keys());
  run(1, shaped(8, graph(0)));
  EXPECT_EQ(policy().to_read(1), Keys()) << "another shape";
  EXPECT_EQ(plan(2, on(2, shaped(7, graph(0)))).action, Action::kOwn);
  EXPECT_EQ(policy().to_read(2), (Keys{0, 2}));
  policy().described(0, graph(1));
  look().check();
  EXPECT_EQ(policy().to_read(2), Keys{2});
  EXPECT_EQ(look().order(), (Keys{0, 1})) << "in its place";
  EXPECT_EQ(look().shared(0), 0u);
  policy().described(2, on(9, graph(1)));
  EXPECT_EQ(policy().to_read(2), Keys());
  EXPECT_NE(policy().family(2), policy().family(0)) << "each stays on its stream";
  policy().moved(2, 1);
  EXPECT_EQ(policy().family(2), policy().family(0));
  EXPECT_EQ(plan(2).lender, 0u);

  // One that can have no siblings is not read again, unless it is captured again.
  policy().described(1, graph(0));
  EXPECT_EQ(plan(3, shaped(8, graph(0))).action, Action::kOwn);
  EXPECT_EQ(policy().to_read(3), Keys{3});
  EXPECT_EQ(policy().to_read(1), Keys());
  policy().lost(1);
  policy().forgotten(1);
  EXPECT_EQ(policy().to_read(3), Keys()) << "it is alone again";
  policy().used(1);
  policy().captured(1, shaped(8, graph(0)));
  EXPECT_EQ(policy().to_read(1), (Keys{3, 1}));
  look().check();
  policy().erased(3);
  EXPECT_EQ(policy().to_read(1), Keys());
  look().check();
}

TEST_F(PolicyPlansTest, SmallGraphsAreReadWhereThereIsNoRoomSomeAtOnce) {
  const auto small = [](GraphFacts facts) {
    facts.nodes = 31;
    return facts;
  };
  for (const Prefer prefer : {Prefer::kTotalTime, Prefer::kDeviceTime}) {
    set_limits({.prefer = prefer, .max_executables = 12});
    for (KeyId key = 0; key < 12; ++key) {
      EXPECT_EQ(plan(key, small(graph(0))).action, Action::kOwn);
      EXPECT_EQ(policy().to_read(key), Keys()) << "there is room";
      run(key, small(graph(0)));
    }
    EXPECT_EQ(plan(12, small(graph(0))).evict, Keys{0});
    EXPECT_EQ(policy().to_read(12), (Keys{0, 1, 2, 3, 4, 5, 6, 7, 12}));
    for (const KeyId key : policy().to_read(12)) policy().described(key, small(of_class(graph(1))));
    EXPECT_EQ(plan(12).lender, 0u);
    EXPECT_EQ(plan(13, small(graph(0))).evict, Keys{0});
    EXPECT_EQ(policy().to_read(13), (Keys{8, 9, 10, 11, 13}));
    look().check();
  }
  set_limits({.prefer = Prefer::kMemory});
  run(0, small(graph(0)));
  EXPECT_EQ(plan(1, small(graph(0))).action, Action::kOwn);
  EXPECT_EQ(policy().to_read(1), (Keys{0, 1})) << "for the sake of memory";

  // A table takes more of the room than the executables are.
  set_limits({.max_executables = 4});
  const auto in_table = [&](GraphFacts facts) {
    facts.table_bytes = 900;
    return small(of_class(facts));
  };
  for (KeyId key = 0; key < 4; ++key) run(key, in_table(graph(1)));
  policy().used(4);
  policy().captured(4, in_table(graph(1)));
  const Plan table = policy().plan(4, {policy().candidate(4, is_idle), 100 * kUpdate}, is_idle);
  EXPECT_EQ(table.action, Action::kTable);
  policy().done(4, table);
  EXPECT_EQ(look().units(), 4u);
  EXPECT_EQ(policy().executables(), 3u);
  EXPECT_EQ(plan(5, in_table(graph(0))).action, Action::kOwn);
  EXPECT_EQ(policy().to_read(5), Keys{5});
}

TEST_F(PolicyPlansTest, AMemberOfATableIsReadAtOnceWhereTablesAreForced) {
  set_limits({.mechanisms = {.sharing = detail::Sharing::kTable}});
  EXPECT_EQ(plan(0, graph(0)).action, Action::kOwn);
  EXPECT_EQ(policy().to_read(0), Keys{0});
  policy().described(0, of_class(graph(1)));
  EXPECT_EQ(plan(0).action, Action::kTable);
}

TEST_F(PolicyPlansTest, FamiliesHaveNumbersInTheOrderInWhichTheyAreFounded) {
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

TEST_F(PolicyPlansTest, WaysThatAreForced) {
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

}  // namespace
}  // namespace graphcache
