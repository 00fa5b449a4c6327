// What entries of the store lose without a cache: refusals of the runtime, lost executables and templates, surplus
// templates, erased entries.
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "store_support.h"

namespace graphcache {
namespace {

// ---- What the runtime refuses ---------------------------------------------------------------------------------------

TEST_F(StoreTest, AClassWithoutDeviceUpdatesHasNoTable) {
  make_table();
  Entry* table = find_free(1);
  store().refuse(table, &Policy::refuse_device_updates, "no updater node");
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1000})) << "its executable is a plain one";
  EXPECT_EQ(state(1), "live");
  EXPECT_EQ(stats().refused_device_updates, 1u);
  EXPECT_EQ(info(1).refusal, "no updater node");
  unlock(table);
  EXPECT_EQ(run(2, sibling(/*table_class=*/1)), "2: borrow");
  EXPECT_EQ(now(), (Numbers{1, 3, 1, 1000}));
}

TEST_F(StoreTest, AnEntryWithoutSetsKeepsItsSiblings) {
  make({.share = Share::kAlways, .max_executables = 8});
  run(1, sibling(/*table_class=*/1));
  Entry* entry = record_sibling(2, /*table_class=*/1);
  store().refuse(entry, &Policy::refuse_sets);
  EXPECT_EQ(info(2).family, info(1).family);
  EXPECT_EQ(info(2).refusal, "");
  EXPECT_EQ(stats().refused_device_updates, 0u);
  EXPECT_EQ(obtain(entry), "2: borrow") << "and makes no table";
  unlock(entry);
}

TEST_F(StoreTest, AnEntryWithoutSiblingsHasNoFamily) {
  make({.share = Share::kAlways, .max_executables = 8});
  run(1, sibling());
  Entry* entry = record_sibling(2);
  EXPECT_EQ(info(2).family, info(1).family);
  store().refuse(entry, &Policy::refuse_siblings, "nodes differ");
  EXPECT_EQ(info(2).family, 0u);
  EXPECT_NE(info(1).family, 0u);
  EXPECT_EQ(info(2).refusal, "nodes differ");
  store().refuse(entry, &Policy::refuse_siblings);
  EXPECT_EQ(info(2).refusal, "nodes differ") << "no reason was given this time";
  EXPECT_EQ(stats().refused_device_updates, 0u);
  EXPECT_EQ(obtain(entry), "1: own");
  unlock(entry);
}

// ---- What is lost ---------------------------------------------------------------------------------------------------

TEST_F(StoreTest, ALostExecutableLeavesTheTemplate) {
  make_unshared(1);
  run(1);
  Entry* entry = find_free(1);
  store().lose(entry, Loss::kFailed, /*had_executable=*/true, /*and_template=*/false, absl::UnknownError("no launch"));
  EXPECT_EQ(state(1), "recorded");
  EXPECT_TRUE(store().contains(key(1)));
  EXPECT_EQ(info(1).executable_lost, Loss::kFailed);
  EXPECT_EQ(info(1).template_lost, Loss::kNone);
  EXPECT_EQ(info(1).error, "no launch");
  EXPECT_EQ(now(), (Numbers{0, 1, 0, 0}));
  EXPECT_EQ(stats().forgotten, 0u);
  EXPECT_EQ(stats().evictions, 0u);
  store().lose(entry, Loss::kStale, /*had_executable=*/false, /*and_template=*/false, absl::OkStatus());
  EXPECT_EQ(info(1).executable_lost, Loss::kFailed) << "it had none to lose";
  EXPECT_EQ(info(1).error, "no launch");
  EXPECT_EQ(obtain(entry), "1: own");
  unlock(entry);
}

TEST_F(StoreTest, APromiseMayBeLost) {
  Entry* entry = record(1);
  decide(entry);
  EXPECT_EQ(state(1), "live");
  store().lose(entry, Loss::kFailed, /*had_executable=*/false, /*and_template=*/false, absl::OkStatus());
  EXPECT_EQ(state(1), "recorded");
  EXPECT_EQ(now(), (Numbers{0, 1, 0, 0}));
  unlock(entry);
}

TEST_F(StoreTest, ALostTemplateLeavesTheFamily) {
  fill_the_only_room();
  run(2, sibling());
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1000}));
  for (const int number : {2, 1}) {
    Entry* const entry = find_free(number);
    store().lose(entry, Loss::kStale, /*had_executable=*/number == 2, /*and_template=*/true, absl::OkStatus());
    entry->graphs.reset();
    EXPECT_EQ(state(number), "cold");
    EXPECT_FALSE(store().contains(key(number)));
    EXPECT_EQ(info(number).template_lost, Loss::kStale);
    EXPECT_EQ(info(number).executable_lost, number == 2 ? Loss::kStale : Loss::kLent);
    EXPECT_EQ(info(number).family, 0u);
    EXPECT_EQ(entry->signature, nullptr);
    unlock(entry);
  }
  EXPECT_EQ(now(), (Numbers{0, 0, 0, 0}));
  EXPECT_EQ(stats().forgotten, 2u);
  Entry* cold = find_free(1);
  store().lose(cold, Loss::kFailed, /*had_executable=*/false, /*and_template=*/true, absl::OkStatus());
  EXPECT_EQ(info(1).template_lost, Loss::kStale) << "it had none to lose";
  EXPECT_EQ(stats().forgotten, 2u);
  unlock(cold);
  EXPECT_EQ(run(1, sibling()), "1: own");
  EXPECT_EQ(run(2, sibling()), "3: borrow");
  EXPECT_EQ(stats().captures, 4u);
}

// As when an update has left the executable in doubt: it is the lender's no more, and not yet the borrower's.
TEST_F(StoreTest, WhatIsBeingLentMayBeLost) {
  Entry* entry = record_without_room();
  Entry* lender = find_lender(entry, 1);
  decide(entry, lender);
  store().lose(lender, Loss::kFailed, /*had_executable=*/true, /*and_template=*/false, absl::OkStatus());
  EXPECT_EQ(info(1).executable_lost, Loss::kFailed);
  EXPECT_EQ(state(1), "recorded");
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1000})) << "the promise to the borrower";
  store().lose(entry, Loss::kFailed, /*had_executable=*/false, /*and_template=*/false, absl::OkStatus());
  EXPECT_EQ(info(2).executable_lost, Loss::kFailed);
  EXPECT_EQ(now(), (Numbers{0, 2, 1, 0}));
  unlock(lender);
  unlock(entry);
}

// ---- Too many templates ---------------------------------------------------------------------------------------------

class StoreTemplatesTest : public StoreTest {
 protected:
  // The number of the key that has lost its template, or 0.
  int drop() {
    Entry* const dropped = store().drop_surplus();
    if (dropped == nullptr) return 0;
    const int number = number_of(*dropped);
    EXPECT_FALSE(is_free(number)) << "it is locked for the caller";
    dropped->graphs.reset();
    unlock(dropped);
    return number;
  }
};

TEST_F(StoreTemplatesTest, TheLeastRecentlyUsedIsDropped) {
  make({}, /*max_templates=*/2);
  for (int i = 1; i <= 4; ++i) {
    unlock(record(i));
    if (i == 2) {
      EXPECT_EQ(drop(), 0);
    }
  }
  Entry* used = claim(1);
  EXPECT_TRUE(store().begin(used));
  unlock(used);
  EXPECT_EQ(drop(), 2);
  EXPECT_EQ(state(2), "cold");
  EXPECT_EQ(info(2).template_lost, Loss::kTemplates);
  EXPECT_EQ(info(2).executable_lost, Loss::kNone);
  EXPECT_EQ(now(), (Numbers{0, 3, 0, 0}));
  EXPECT_EQ(stats().forgotten, 1u);
  EXPECT_EQ(drop(), 3);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(stats().forgotten, 2u);
  EXPECT_EQ(state(1), "recorded");
  EXPECT_EQ(state(4), "recorded");
}

TEST_F(StoreTemplatesTest, PinnedEntriesAndThoseInUseKeepTheirs) {
  make({}, /*max_templates=*/0);
  Entry* locked = record(1);
  unlock(record(2));
  Entry* other = find_free(2);
  unlock(record(3));
  store().pin(key(3), true);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(now(), (Numbers{0, 3, 0, 0}));
  store().pin(key(3), false);
  EXPECT_EQ(drop(), 3);
  EXPECT_EQ(drop(), 0);
  unlock(other);
  EXPECT_EQ(drop(), 2);
  unlock(locked);
  EXPECT_EQ(drop(), 1);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(now(), (Numbers{0, 0, 0, 0}));
}

TEST_F(StoreTemplatesTest, AnEntryWithAnExecutableKeepsItsTemplate) {
  make({.share = Share::kNever, .max_executables = 2}, /*max_templates=*/1);
  run(1);
  run(2);
  EXPECT_EQ(drop(), 0);
  unlock(record(3));
  Entry* entry = find_free(1);
  store().lose(entry, Loss::kFailed, /*had_executable=*/true, /*and_template=*/false, absl::OkStatus());
  unlock(entry);
  EXPECT_EQ(drop(), 3) << "the other one has just lost its executable";
  EXPECT_EQ(drop(), 1);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(now(), (Numbers{1, 1, 0, 1000}));
}

TEST_F(StoreTemplatesTest, WhatIsErasedIsNoSurplus) {
  make({}, /*max_templates=*/1);
  unlock(record(1));
  unlock(record(2));
  EXPECT_EQ(erase(1), 1);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(state(2), "recorded");
}

// ---- Entries that are erased ----------------------------------------------------------------------------------------

TEST_F(StoreTest, AnErasedEntryIsGone) {
  make_unshared(8);
  for (int i = 1; i <= 3; ++i) run(i);
  unlock(claim(1, kThere));
  store().pin(key(2), true);
  const Key keys[] = {key(1), key(7), key(2), key(1)};
  EXPECT_EQ(store().erase(keys), 2u);
  Entry* const gone = store().take_gone();
  EXPECT_EQ(order(), names_of({3}));
  EXPECT_FALSE(store().contains(key(1)));
  EXPECT_EQ(find_free(1), nullptr);
  EXPECT_EQ(find_free(1, kThere), nullptr);
  EXPECT_EQ(now(), (Numbers{1, 1, 0, 1000}));
  EXPECT_EQ(stats().evictions, 0u);
  EXPECT_EQ(stats().forgotten, 0u);
  EXPECT_EQ(recycle(gone), 3);
  EXPECT_EQ(store().take_gone(), nullptr);
}

TEST_F(StoreTest, AnEntryInUseIsGoneWhenItIsUnlocked) {
  make_unshared(1);
  run(1);
  Entry* entry = find_free(1);
  const std::uint64_t number = entry->number();
  EXPECT_EQ(erase(1), 0);
  EXPECT_EQ(state(1), "none");
  EXPECT_FALSE(store().contains(key(1)));
  EXPECT_EQ(now(), (Numbers{1, 0, 0, 1000})) << "its executable still exists";
  EXPECT_EQ(run(2), "direct") << "no other key gets its executable";
  EXPECT_EQ(erase(1), 0);
  Entry* again = claim(1);
  EXPECT_NE(again, entry);
  EXPECT_NE(again->number(), number);
  unlock(again);
  EXPECT_EQ(unlock(entry), 1);
  EXPECT_EQ(now(), (Numbers{0, 1, 0, 0}));
  EXPECT_EQ(run(2), "1: own");
}

TEST_F(StoreTest, AnIdIsUsedAgainOnceTheEntryIsRecycled) {
  make({.share = Share::kAlways});
  run(0, sibling());
  run(1, sibling());
  EXPECT_EQ(info(1).family, 1u);
  Entry* entry = find_free(1);
  const std::uint64_t number = entry->number();
  unlock(entry);
  store().pin(key(1), true);
  const Key keys[] = {key(1)};
  EXPECT_EQ(store().erase(keys), 1u);
  Entry* const gone = store().take_gone();
  ASSERT_EQ(gone, entry);
  EXPECT_EQ(gone->signature, nullptr);
  EXPECT_EQ(gone->key, key(1)) << "the caller may still look at it";
  Entry* other = claim(2);
  EXPECT_NE(other, entry);
  unlock(other);
  EXPECT_EQ(recycle(gone), 1);
  EXPECT_EQ(claim(3), entry);
  EXPECT_EQ(entry->id, static_cast<KeyId>(number));
  EXPECT_NE(entry->number(), number);
  EXPECT_EQ(entry->graphs, nullptr);
  EXPECT_EQ(state(3), "cold");
  EXPECT_FALSE(info(3).pinned);
  EXPECT_EQ(info(3).rule, Rule::kNone);
  EXPECT_EQ(info(3).nodes, 0u);
  unlock(entry);
}

TEST_F(StoreTest, OtherStepsFindWhatIsGone) {
  const auto erase_and_go = [&] {
    Entry* const entry = claim(1);
    EXPECT_EQ(erase(1), 0);
    (void)entry->lock.unlock();  // as a hit does that has not woken anybody yet
  };
  erase_and_go();
  EXPECT_EQ(recycle(store().take_gone()), 0);
  EXPECT_EQ(wake(), 1);
  erase_and_go();
  Entry* const other = claim(2);  // a new entry
  EXPECT_EQ(recycle(store().take_gone()), 1);
  EXPECT_EQ(recycle(store().take_gone()), 0);
  erase_and_go();
  EXPECT_TRUE(store().begin(other));
  EXPECT_EQ(recycle(store().take_gone()), 1);
  capture(other, alone());
  erase_and_go();
  decide(other);
  EXPECT_EQ(recycle(store().take_gone()), 1);
  unlock(other);
}

TEST_F(StoreTest, EraseSomeGoesOnUntilAllAreErased) {
  constexpr int kMany = 1000;
  make_unshared(100);
  for (int i = 0; i < kMany; ++i) {
    if (i % 3 == 0) {
      unlock(claim(i));
    } else {
      run(i);
    }
  }
  Entry* locked = find_free(4);
  Entry* cold = find_free(6);
  std::size_t next = 0;
  int gone = 0;
  while (store().erase_some(&next)) gone += recycle(store().take_gone());
  gone += recycle(store().take_gone());
  EXPECT_EQ(gone, kMany - 2);
  EXPECT_EQ(order(), names_of({}));
  EXPECT_EQ(now(), (Numbers{0, 0, 0, 0}));
  EXPECT_EQ(unlock(locked), 1);
  EXPECT_EQ(unlock(cold), 1);
  EXPECT_EQ(now(), (Numbers{0, 0, 0, 0}));
  unlock(claim(1));
  EXPECT_FALSE(store().erase_some(&next));
  EXPECT_EQ(recycle(store().take_gone()), 0);
  EXPECT_EQ(order(), names_of({1})) << "the walk was over before";
  for (next = 0, gone = 0; store().erase_some(&next);) gone += recycle(store().take_gone());
  EXPECT_EQ(gone + recycle(store().take_gone()), 1) << "all others are free";
}

TEST_F(StoreTest, SurplusColdEntriesAreErased) {
  constexpr int kMost = static_cast<int>(Index::kMaxColdEntries), kMany = kMost + 100, kUsedAgain = 2;
  int gone = 0;
  for (int i = 0; i < kMany; ++i) {
    Entry* entry = claim(i);
    EXPECT_TRUE(store().begin(entry));
    if (i != 0) gone += unlock(entry);
    if (i == 1) {
      EXPECT_TRUE(store().pin(key(1), true));
    }
    if (i == kMost - 1) {
      EXPECT_EQ(store().entries().size(), Index::kMaxColdEntries);
      EXPECT_EQ(recycle(store().take_gone()), 0);
      entry = claim(kUsedAgain);
      EXPECT_TRUE(store().begin(entry));
      unlock(entry);
    }
  }
  gone += recycle(store().take_gone());
  EXPECT_EQ(gone, kMany - kMost);
  std::set<std::string> kept;
  for (const EntryInfo& info : store().entries()) kept.insert(info.key.to_string());
  EXPECT_EQ(kept.size(), Index::kMaxColdEntries);
  for (const int spared : {0, 1, kUsedAgain}) EXPECT_TRUE(kept.contains(key(spared).to_string())) << spared;
  const int first_kept = 3 + kMany - kMost;
  EXPECT_FALSE(kept.contains(key(first_kept - 1).to_string()));
  EXPECT_TRUE(kept.contains(key(first_kept).to_string()));
  unlock(store().claim(key(kMany), kHere, kThread));
  EXPECT_EQ(erase(0), 0);
  recycle(store().take_gone());
}

}  // namespace
}  // namespace graphcache
