// What a program asks the store, without a cache: counts of direct runs, texts, entries and totals.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "store_support.h"

namespace graphcache {
namespace {

// ---- Direct runs and texts ------------------------------------------------------------------------------------------

TEST_F(StoreTest, DirectRunsCountByTheirReason) {
  Entry* entry = claim(1);
  store().count_direct(entry->number(), EagerReason::kNothingCaptured);
  EXPECT_EQ(info(1).eager_reason, EagerReason::kNothingCaptured);
  unlock(entry);
  store().count_direct(entry->number(), EagerReason::kBudget);
  EXPECT_EQ(info(1).eager_reason, EagerReason::kBudget);
  store().count_direct(0, EagerReason::kBudget);
  EXPECT_EQ(info(1).outcomes[static_cast<int>(Outcome::kEager)], 2u);
  const Stats stats = this->stats();
  EXPECT_EQ(stats.outcome(Outcome::kEager), 3u);
  EXPECT_EQ(stats.eager(EagerReason::kBudget), 2u);
  EXPECT_EQ(stats.eager(EagerReason::kNothingCaptured), 1u);
}

TEST_F(StoreTest, ADirectRunOfAnErasedEntryCounts) {
  Entry* entry = claim(1);
  const std::uint64_t number = entry->number();
  unlock(entry);
  EXPECT_EQ(erase(1), 1);
  EXPECT_EQ(claim(2), entry) << "it serves another key, which does not count this run";
  store().count_direct(number, EagerReason::kDisabled);
  EXPECT_EQ(stats().eager(EagerReason::kDisabled), 1u);
  EXPECT_EQ(info(2).outcomes[static_cast<int>(Outcome::kEager)], 0u);
  EXPECT_FALSE(info(2).eager_reason);
  unlock(entry);
}

TEST_F(StoreTest, EqualNotesAreCounted) {
  Entry* entry = claim(1);
  const auto note = [&](std::vector<Counted> EntryInfo::*kind, const std::string& text) {
    return store().note(entry, kind, text, [&](const std::string& known) { return known[0] == text[0]; });
  };
  EXPECT_TRUE(note(&EntryInfo::stale, "a: 1"));
  EXPECT_TRUE(note(&EntryInfo::stale, "b: 1"));
  EXPECT_FALSE(note(&EntryInfo::stale, "a: 2"));
  EXPECT_TRUE(note(&EntryInfo::stray_work, "a: 3"));
  const EntryInfo noted = info(1);
  ASSERT_EQ(noted.stale.size(), 2u);
  EXPECT_EQ(noted.stale[0].text, "a: 2") << "the last one";
  EXPECT_EQ(noted.stale[0].count, 2u);
  EXPECT_EQ(noted.stale[1].text, "b: 1");
  EXPECT_EQ(noted.stale[1].count, 1u);
  ASSERT_EQ(noted.stray_work.size(), 1u);
  EXPECT_EQ(noted.stray_work[0].text, "a: 3");
  for (char first = '0'; first < 'a'; ++first) note(&EntryInfo::stale, std::string(1, first));
  EXPECT_EQ(info(1).stale.size(), 32u) << "there may be any number";
  EXPECT_FALSE(note(&EntryInfo::stale, "c"));
  unlock(entry);
}

// ---- What a program asks for ----------------------------------------------------------------------------------------

TEST_F(StoreTest, AKeyIsPinnedAtAllItsPlaces) {
  EXPECT_FALSE(store().pin(key(1), true));
  unlock(claim(1, kHere));
  unlock(claim(1, kThere));
  unlock(claim(2));
  EXPECT_TRUE(store().pin(key(1), true));
  for (const EntryInfo& info : store().entries()) EXPECT_EQ(info.pinned, info.key == key(1));
  EXPECT_TRUE(store().pin(key(1), false));
  for (const EntryInfo& info : store().entries()) EXPECT_FALSE(info.pinned);
}

TEST_F(StoreTest, EntriesAreInOrderOfUse) {
  constexpr int kMany = 600;  // More than are looked at while the lock is held.
  for (int i = 0; i < kMany; ++i) unlock(claim(i));
  Entry* entry = claim(5);
  EXPECT_TRUE(store().begin(entry));  // an epoch ends
  unlock(entry);
  hit(7);
  hit(3);
  const std::vector<EntryInfo> entries = store().entries();
  ASSERT_EQ(entries.size(), static_cast<std::size_t>(kMany));
  std::vector<std::string> wanted = names_of({3, 7, 5});
  for (int i = kMany - 1; i >= 0; --i) {
    if (i != 3 && i != 5 && i != 7) wanted.push_back(key(i).to_string());
  }
  EXPECT_EQ(order(), wanted);
  for (std::size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(entries[i].last_use_order, i);
}

TEST_F(StoreTest, AnEntryHasItsLabelAndItsRuns) {
  Entry* entry = used(store().claim(key("step", 8), kHere, kThread));
  entry->outcomes[static_cast<int>(Outcome::kPatched)].add(2);
  entry->outcomes[static_cast<int>(Outcome::kReplayed)].add(3);
  entry->replayed.add(4);
  const EntryInfo info = store().entries().at(0);
  EXPECT_EQ(info.label, "step");
  EXPECT_EQ(info.outcomes[static_cast<int>(Outcome::kPatched)], 2u);
  EXPECT_EQ(info.outcomes[static_cast<int>(Outcome::kReplayed)], 7u);
  unlock(entry);
}

TEST_F(StoreTest, RunsOfErasedKeysCount) {
  constexpr int kKeys = 600;  // More than have an executable at once.
  for (int i = 0; i < kKeys; ++i) {
    Entry* const entry = record(i);
    EXPECT_FALSE(obtain(entry).empty());
    entry->replayed.add(2);
    entry->outcomes[static_cast<int>(Outcome::kPatched)].add(1);
    entry->patched_nodes.add(3);
    unlock(entry);
  }
  std::vector<Key> odd;
  for (int i = 0; i < kKeys; i += 2) {
    EXPECT_EQ(erase(i), 1);
    unlock(claim(kKeys + i));  // in the memory of the erased entry
    odd.push_back(key(i + 1));
  }
  const Stats stats = this->stats();
  EXPECT_EQ(stats.outcome(Outcome::kReplayed), 2u * kKeys);
  EXPECT_EQ(stats.outcome(Outcome::kPatched), 1u * kKeys);
  EXPECT_EQ(stats.patched_nodes, 3u * kKeys);
  for (const EntryInfo& info : store().entries()) {
    const bool is_old = std::any_of(odd.begin(), odd.end(), [&](const Key& one) { return one == info.key; });
    EXPECT_EQ(info.outcomes[static_cast<int>(Outcome::kReplayed)], is_old ? 2u : 0u) << info.key.to_string();
  }
}

TEST_F(StoreTest, MatchingKeysAreFoundWithoutTheLock) {
  constexpr int kMany = 600;
  for (int i = 0; i < kMany; ++i) unlock(i % 3 == 0 ? record(i) : claim(i));
  int asked = 0;
  const std::vector<Key> keys = store().matching([&](const Key& which) {
    ++asked;
    return store().contains(which);  // takes the lock
  });
  EXPECT_EQ(asked, kMany);
  std::set<std::string> found;
  for (const Key& which : keys) found.insert(which.to_string());
  EXPECT_EQ(keys.size(), static_cast<std::size_t>(kMany / 3));
  EXPECT_EQ(found.size(), keys.size());
  for (int i = 0; i < kMany; i += 3) EXPECT_TRUE(found.contains(key(i).to_string())) << i;
  EXPECT_TRUE(store().matching([](const Key&) { return false; }).empty());
}

TEST_F(StoreTest, StatsHaveAllTotals) {
  using std::chrono::nanoseconds;
  std::uint64_t last = 0;
  for (std::uint64_t Stats::*count :
       {&Stats::failed, &Stats::captures, &Stats::capture_failures, &Stats::instantiations, &Stats::updates,
        &Stats::set_switches, &Stats::evictions, &Stats::forgotten, &Stats::refused_updates,
        &Stats::refused_device_updates, &Stats::verified, &Stats::stale, &Stats::value_captures}) {
    EXPECT_EQ(store().count(count, last + 1), last + 1);
    ++last;
  }
  for (nanoseconds Stats::*time :
       {&Stats::capture_time, &Stats::instantiate_time, &Stats::update_time, &Stats::first_launch_time}) {
    store().count(time, nanoseconds(++last));
  }
  const Stats stats = this->stats();
  EXPECT_EQ((Numbers{stats.failed, stats.captures, stats.capture_failures, stats.instantiations, stats.updates,
                     stats.set_switches, stats.evictions, stats.forgotten, stats.refused_updates,
                     stats.refused_device_updates, stats.verified, stats.stale, stats.value_captures}),
            (Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(stats.capture_time, nanoseconds(14));
  EXPECT_EQ(stats.instantiate_time, nanoseconds(15));
  EXPECT_EQ(stats.update_time, nanoseconds(16));
  EXPECT_EQ(stats.first_launch_time, nanoseconds(17));
}

}  // namespace
}  // namespace graphcache
