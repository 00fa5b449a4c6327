// Families of the store without a cache, and its decisions: who gets an executable, who lends, who is evicted.
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "store_support.h"

namespace graphcache {
namespace {

// ---- Families -------------------------------------------------------------------------------------------------------

TEST_F(StoreTest, NothingIsReadWhileThereIsRoom) {
  run(1, sibling());
  Entry* entry = record(2, sibling());
  EXPECT_EQ(to_read(entry), "");
  unlock(entry);
}

TEST_F(StoreTest, EntriesOfOneSignatureAndStreamAreAFamily) {
  fill_the_only_room();
  EXPECT_EQ(info(1).family, 0u);
  Entry* entry = record(2, sibling());
  Entry* other = nullptr;
  ASSERT_EQ(to_read(entry, &other), "itself 1");
  EXPECT_FALSE(is_free(1)) << "it is locked for the caller";
  EXPECT_EQ(now(), (Numbers{1, 2, 0, 1000})) << "nothing has been read yet";
  read(other);
  read(entry);
  unlock(other);
  EXPECT_EQ(info(1).family, 1u);
  EXPECT_EQ(info(2).family, 1u);
  EXPECT_TRUE(info(1).looked_for_siblings && info(2).looked_for_siblings);
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1000}));
  EXPECT_EQ(to_read(entry), "");
  unlock(entry);

  Entry* elsewhere = record_sibling(3, /*table_class=*/0, /*stream=*/2);
  EXPECT_EQ(info(3).family, 2u);
  EXPECT_EQ(now(), (Numbers{1, 3, 2, 1000}));
  find_family(elsewhere, /*stream=*/1);
  EXPECT_EQ(info(3).family, 1u) << "it has moved";
  EXPECT_EQ(now(), (Numbers{1, 3, 1, 1000}));
  unlock(elsewhere);
}

TEST_F(StoreTest, AnotherSignatureIsAnotherFamily) {
  fill_the_only_room();
  StoredGraph unlike = sibling();
  unlike.signature = "of another graph";
  EXPECT_EQ(run(2, unlike), "3: own");
  EXPECT_EQ(now(), (Numbers{1, 2, 2, 1000}));
  EXPECT_NE(info(1).family, info(2).family);
}

TEST_F(StoreTest, AnEntryWithoutASignatureHasNoFamily) {
  fill_the_only_room();
  StoredGraph unique = sibling();
  unique.signature.reset();
  Entry* entry = record(2, unique);
  find_family(entry);
  EXPECT_TRUE(info(2).looked_for_siblings);
  EXPECT_EQ(info(2).family, 0u);
  EXPECT_EQ(info(1).family, 1u);
  unlock(entry);
}

TEST_F(StoreTest, AGraphInUseIsNotRead) {
  fill_the_only_room();
  Entry* entry = record(2, sibling());
  Entry* in_use = find_free(1);
  EXPECT_EQ(to_read(entry), "itself");
  unlock(in_use);
  unlock(entry);
}

TEST_F(StoreTest, AnErasedEntryJoinsNoFamily) {
  fill_the_only_room();
  Entry* entry = record(2, sibling());
  EXPECT_EQ(erase(2), 0);
  EXPECT_EQ(to_read(entry), "");
  EXPECT_TRUE(is_free(1));
  EXPECT_EQ(unlock(entry), 1);
}

// ---- The decision ---------------------------------------------------------------------------------------------------

TEST_F(StoreTest, AnEntryGetsItsOwnExecutableWhileThereIsRoom) {
  run(1, sibling());
  Entry* entry = record(2, sibling());
  const Store::Decision made = decide(entry);
  EXPECT_EQ(text_of(made), "1: own");
  EXPECT_EQ(state(2), "live");
  EXPECT_EQ(info(2).rule, Rule::kRoom);
  EXPECT_EQ(info(2).estimated_device_bytes, 1000u);
  EXPECT_EQ(now(), (Numbers{2, 2, 0, 2000}));
  EXPECT_EQ(stats().evictions, 0u);
  unlock(entry);
}

TEST_F(StoreTest, VictimsAreLockedForTheCaller) {
  make_unshared(2);
  run(1);
  run(2);
  Entry* entry = record(3);
  const Store::Decision made = decide(entry);
  ASSERT_EQ(text_of(made), "3: own, evict 1");
  EXPECT_EQ(made.victims[0]->state, State::kRecorded);
  EXPECT_FALSE(is_free(1));
  EXPECT_TRUE(is_free(2));
  EXPECT_EQ(state(1), "recorded");
  EXPECT_EQ(info(1).executable_lost, Loss::kEvicted);
  EXPECT_EQ(info(1).template_lost, Loss::kNone);
  EXPECT_EQ(info(1).others, 2u);
  EXPECT_EQ(state(2), "live");
  EXPECT_EQ(info(2).executable_lost, Loss::kNone);
  EXPECT_EQ(state(3), "live");
  EXPECT_EQ(info(3).rule, Rule::kEviction);
  EXPECT_EQ(now(), (Numbers{2, 3, 0, 2000}));
  EXPECT_EQ(stats().evictions, 1u);
  unlock(made.victims[0]);
  unlock(entry);
}

TEST_F(StoreTest, TheVictimIsTheLeastRecentlyUsed) {
  make_unshared(2);
  run(1);
  run(2);
  hit(1);
  run(3);
  EXPECT_EQ(state(2), "recorded");
  EXPECT_EQ(run(1), "hit");
  run(2);
  EXPECT_EQ(state(3), "recorded");
  EXPECT_EQ(state(1), "live");
  EXPECT_EQ(stats().evictions, 2u);
  Entry* entry = record(4);
  hit(1);  // after the run of key 4 has begun
  EXPECT_EQ(obtain(entry), "3: own");
  EXPECT_EQ(state(2), "recorded");
  unlock(entry);
}

TEST_F(StoreTest, WhatIsInUseOrPinnedIsNotEvicted) {
  make_unshared(3);
  for (int i = 1; i <= 3; ++i) run(i);
  Entry* entry = record(4);
  Entry* locked = find_free(1);
  Entry* other = find_free(2);
  EXPECT_TRUE(store().pin(key(3), true));
  EXPECT_EQ(text_of(decide(entry)), "direct");
  EXPECT_EQ(state(4), "recorded");
  EXPECT_EQ(info(4).rule, Rule::kNone);
  EXPECT_EQ(now(), (Numbers{3, 4, 0, 3000}));
  EXPECT_EQ(stats().evictions, 0u);

  unlock(locked);
  EXPECT_EQ(obtain(entry), "3: own");
  EXPECT_EQ(state(1), "recorded");
  store().lose(entry, Loss::kFailed, true, false, absl::OkStatus());
  EXPECT_EQ(obtain(entry), "1: own");
  unlock(entry);
  unlock(other);
  run(1);
  EXPECT_EQ(state(2), "recorded");
  run(2);
  EXPECT_EQ(state(4), "recorded");
  EXPECT_TRUE(store().pin(key(3), false));
  run(4);
  EXPECT_EQ(state(3), "recorded");
}

TEST_F(StoreTest, WithoutLeaveToEvictNothingIsEvicted) {
  make_unshared(1);
  run(1);
  Entry* entry = record(2);
  EXPECT_EQ(text_of(decide(entry, nullptr, /*may_evict=*/false)), "direct");
  EXPECT_EQ(state(1), "live");
  EXPECT_TRUE(is_free(1));
  EXPECT_EQ(state(2), "recorded");
  EXPECT_EQ(stats().evictions, 0u);
  unlock(entry);
  erase(1);
  entry = find_free(2);
  EXPECT_EQ(text_of(decide(entry, nullptr, /*may_evict=*/false)), "1: own");
  unlock(entry);
}

TEST_F(StoreTest, NothingIsEvictedIfThatIsNotEnough) {
  make({.share = Share::kNever, .max_device_bytes = 2000});
  run(1);
  run(2);
  Entry* in_use = find_free(2);
  Entry* entry = record(3, alone(/*bytes=*/2000));
  EXPECT_EQ(text_of(decide(entry)), "direct");
  EXPECT_EQ(state(1), "live");
  EXPECT_TRUE(is_free(1)) << "it was locked while the plan was made";
  unlock(in_use);
  const Store::Decision made = decide(entry);
  EXPECT_EQ(text_of(made), "3: own, evict 1, evict 2");
  EXPECT_FALSE(is_free(1) || is_free(2));
  EXPECT_EQ(now(), (Numbers{1, 3, 0, 2000}));
  EXPECT_EQ(stats().evictions, 2u);
  for (Entry* victim : made.victims) unlock(victim);
  unlock(entry);
}

TEST_F(StoreTest, ALenderIsFoundBeforeThePlanCounts) {
  Entry* entry = record_without_room();
  Entry* lender = find_lender(entry, 1);
  EXPECT_EQ(state(1), "live");
  EXPECT_EQ(state(2), "recorded");

  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(text_of(made), "2: borrow 1");
  EXPECT_FALSE(is_free(1));
  EXPECT_EQ(state(1), "recorded");
  EXPECT_EQ(info(1).executable_lost, Loss::kLent);
  EXPECT_EQ(state(2), "live");
  EXPECT_EQ(info(2).rule, Rule::kSibling);
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1000}));
  EXPECT_EQ(stats().evictions, 0u);
  unlock(lender);
  unlock(entry);
  EXPECT_EQ(run(1), "2: borrow");
  EXPECT_EQ(info(2).executable_lost, Loss::kLent);
}

TEST_F(StoreTest, WhatIsInUseDoesNotLend) {
  Entry* entry = record_without_room();
  Entry* in_use = find_free(1);
  EXPECT_EQ(text_of(decide(entry)), "direct");
  unlock(in_use);
  store().pin(key(1), true);
  EXPECT_EQ(text_of(decide(entry)), "direct");
  EXPECT_EQ(state(1), "live");
  store().pin(key(1), false);
  EXPECT_EQ(obtain(entry), "2: borrow");
  unlock(entry);
}

// A key of another stream has the same signature, so its executable can be brought over.
TEST_F(StoreTest, TheLenderMayBeOneThatWasNotOffered) {
  make({.max_executables = 1});
  run(1, sibling(), /*stream=*/1);
  Entry* entry = record_sibling(2, /*table_class=*/0, /*stream=*/2);
  EXPECT_NE(info(1).family, info(2).family);
  const Store::Decision made = decide(entry);
  ASSERT_EQ(text_of(made), "3: borrow 1");
  EXPECT_FALSE(is_free(1)) << "it is locked for the caller";
  EXPECT_EQ(info(1).executable_lost, Loss::kLent);
  EXPECT_EQ(state(2), "live");
  EXPECT_EQ(now(), (Numbers{1, 2, 2, 1000}));
  unlock(made.lender);
  unlock(entry);
}

TEST_F(StoreTest, ALenderMayGiveWayToATable) {
  make({.share = Share::kAlways, .max_executables = 8});
  run(1, sibling(/*table_class=*/1));
  Entry* entry = record_sibling(2, /*table_class=*/1);
  Entry* lender = find_lender(entry, 1);
  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(text_of(made), "2: table 1, evict 1");
  EXPECT_FALSE(is_free(1));
  EXPECT_EQ(info(1).executable_lost, Loss::kEvicted);
  EXPECT_EQ(info(2).rule, Rule::kSibling);
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1100}));
  EXPECT_EQ(stats().evictions, 1u);
  unlock(lender);
  unlock(entry);
}

// Each time the sibling lends, unless another thread uses it.
TEST_F(StoreTest, ASiblingDoesNotLendWhileAnotherThreadUsesIt) {
  constexpr int kTimes = 200;
  Entry* entry = record_without_room();
  std::atomic<bool> is_over{false};
  int uses = 0, lent = 0;  // `uses` is guarded by the sibling's lock.
  std::thread user([&] {
    while (!is_over) {
      if (Entry* const sibling = find_free(1)) {
        EXPECT_EQ(sibling->state, State::kLive);
        ++uses;
        unlock(sibling);
      }
      std::this_thread::yield();
    }
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (lent < kTimes && std::chrono::steady_clock::now() < end) {
    const Store::Decision looked = store().decide(entry, nullptr, 0, /*may_evict=*/true);
    if (looked.plan) {
      EXPECT_EQ(text_of(looked), "direct");
    }
    if (looked.lender == nullptr) continue;
    ++uses;
    const Store::Decision made = decide(entry, looked.lender);
    EXPECT_EQ(text_of(made), "2: borrow 1");
    store().undone(entry, made.lender, *made.plan);
    unlock(made.lender);
    ++lent;
  }
  is_over = true;
  user.join();
  EXPECT_EQ(lent, kTimes);
  EXPECT_GE(uses, kTimes);
  unlock(entry);
}

TEST_F(StoreTest, ALoanMayBeUndone) {
  Entry* entry = record_without_room();
  Entry* lender = find_lender(entry, 1);
  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(state(2), "live");
  store().undone(entry, lender, *made.plan);
  EXPECT_EQ(state(1), "live");
  EXPECT_EQ(info(1).estimated_device_bytes, 1000u);
  EXPECT_EQ(state(2), "recorded");
  EXPECT_EQ(info(2).estimated_device_bytes, 0u);
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1000}));
  unlock(lender);
  EXPECT_EQ(obtain(entry), "2: borrow") << "it may be lent again";
  unlock(entry);
}

TEST_F(StoreTest, OneMoreIsEvictedInFavourOfAnEntry) {
  make_unshared(8);
  run(1);
  run(2);
  hit(1);
  Entry* entry = record(3);
  EXPECT_EQ(text_of(decide(entry)), "1: own");
  Entry* victim = store().evict_one(entry);
  ASSERT_NE(victim, nullptr);
  EXPECT_EQ(victim->key, key(2));
  EXPECT_FALSE(is_free(2)) << "it is locked for the caller";
  EXPECT_EQ(state(2), "recorded");
  EXPECT_EQ(info(2).executable_lost, Loss::kEvicted);
  EXPECT_EQ(now(), (Numbers{2, 3, 0, 2000}));
  EXPECT_EQ(stats().evictions, 1u);
  Entry* in_use = find_free(1);
  EXPECT_EQ(store().evict_one(entry), nullptr);
  unlock(in_use);
  store().pin(key(1), true);
  EXPECT_EQ(store().evict_one(entry), nullptr);
  store().pin(key(1), false);
  EXPECT_EQ(store().evict_one(entry), in_use);
  EXPECT_EQ(store().evict_one(entry), nullptr) << "only the entry's own is left";
  EXPECT_EQ(state(3), "live");
  EXPECT_EQ(stats().evictions, 2u);
  unlock(in_use);
  unlock(victim);
  unlock(entry);
}

// Destroying an executable that the device updates may take long, so such a one is the last to be evicted.
TEST_F(StoreTest, TheEntryInWhoseFavourATableIsEvictedDoesNotCount) {
  make_table();
  Entry* entry = record(2);
  EXPECT_EQ(obtain(entry), "1: own");
  Entry* victim = store().evict_one(entry);
  ASSERT_NE(victim, nullptr);
  EXPECT_EQ(victim->key, key(1));
  EXPECT_EQ(now(), (Numbers{1, 3, 1, 1000}));
  unlock(victim);
  unlock(entry);
}

TEST_F(StoreTest, AnErasedEntryIsNotEvicted) {
  run(1);
  Entry* entry = record(2);
  Entry* erased = find_free(1);
  EXPECT_EQ(erase(1), 0);
  (void)erased->lock.unlock();  // It is idle, and nothing has swept since.
  EXPECT_EQ(store().evict_one(entry), nullptr);
  EXPECT_EQ(wake(), 1);
  unlock(entry);
}

}  // namespace
}  // namespace graphcache
