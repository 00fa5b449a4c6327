// Shared by the suites of the store: what an entry has is a StoredGraph, and executables exist only in the store's
// books. Tests play the part of runs.
#pragma once

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "graphcache/key.h"
#include "graphcache/stats.h"
#include "in_threads.h"
#include "index_support.h"
#include "policy/policy.h"
#include "store/store.h"

namespace graphcache {

using test::comes_true;
using test::in_threads;

using Numbers = std::vector<std::uint64_t>;

// What a capture gives, and what can be read of it.
struct StoredGraph : EntryGraphs {
  GraphFacts facts;
  std::optional<std::string> signature;
};

// Its shape is like no other one's, so it is never read.
inline StoredGraph alone(std::size_t bytes = 1000) {
  static std::atomic<std::uint64_t> last_shape{100};
  StoredGraph graph;
  graph.facts = {.shape = ++last_shape, .bytes = bytes};
  return graph;
}

// All of them have the same signature. With a class they can share a table.
inline StoredGraph sibling(std::uint64_t table_class = 0) {
  StoredGraph graph;
  graph.facts = {.table_class = table_class, .shape = 1, .bytes = 1000};
  if (table_class != 0) graph.facts.table_bytes = 100, graph.facts.set_bytes = 10;
  graph.signature = "of siblings";
  return graph;
}

// The rule's number, and what the key gets.
inline std::string text_of(const Plan& plan) {
  const char* const rules[] = {"", "1: ", "2: ", "3: "};
  const char* const actions[] = {"direct", "own", "table", "borrow"};
  return std::string(rules[static_cast<int>(plan.rule)]) + actions[static_cast<int>(plan.action)];
}

inline int number_of(const Entry& entry) {
  int number = 0;
  while (entry.key != key(number)) ++number;
  return number;
}

// The same, the number of the lender's key, and those of the victims'.
inline std::string text_of(const Store::Decision& made) {
  std::string text = text_of(made.plan.value());
  if (made.lender != nullptr) text += " " + std::to_string(number_of(*made.lender));
  for (const Entry* victim : made.victims) text += ", evict " + std::to_string(number_of(*victim));
  return text;
}

// Long enough for another thread to begin to wait. If it has not, the test passes without having tested anything.
inline void let_others_wait() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

class StoreTest : public testing::Test {
 protected:
  void SetUp() override { make({}); }
  void make(const Limits& limits, std::size_t max_templates = 1000) {
    store_ = std::make_unique<Store>(limits, max_templates, epoch_);
  }
  // Each key has an executable of its own.
  void make_unshared(std::size_t max_executables) {
    make({.share = Share::kNever, .max_executables = max_executables});
  }
  Store& store() { return *store_; }
  std::uint64_t epoch() const { return epoch_; }
  // What an update costs. The default is cheaper than anything else.

  // After every test nothing is locked or waits for its end, and the counts are those of the entries.
  void TearDown() override {
    EXPECT_EQ(wake(), 0);
    Numbers counted{0, 0, 0, 0};
    std::set<std::uint64_t> families;
    std::set<std::string> keys;
    std::size_t unlocked = 0;
    const std::vector<EntryInfo> entries = store().entries();
    for (const EntryInfo& info : entries) {
      EXPECT_LE(info.live, info.recorded);
      counted[0] += info.live;
      counted[1] += info.recorded;
      if (info.family != 0) families.insert(info.family);
      counted[3] += info.estimated_device_bytes;
      if (!keys.insert(info.key.to_string()).second) continue;
      for (const detail::Site& site : {kHere, kThere}) unlocked += is_free(info.key, site) ? 1 : 0;
    }
    counted[2] = families.size();
    EXPECT_EQ(now(), counted);
    EXPECT_EQ(unlocked, entries.size());
  }

  // ---- The steps of a run ----

  Entry* used(Entry* entry) {
    entry->used_in = epoch_.load();
    entry->used_at = ++uses_;
    return entry;
  }
  Entry* claim(int number, const detail::Site& site = kHere) { return used(store().claim(key(number), site, kThread)); }
  Entry* find_free(int number, const detail::Site& site = kHere) { return store().find_free(key(number), site); }
  // Returns how many erased entries have come to their end.
  int unlock(Entry* locked) { return store().unlock(locked) ? recycle(store().take_gone()) : 0; }
  int wake() {
    store().wake();
    return recycle(store().take_gone());
  }
  int recycle(Entry* gone) {
    int count = 0;
    for (Entry* entry = gone; entry != nullptr; entry = entry->older, ++count) entry->graphs.reset();
    if (gone != nullptr) store().recycle(gone);
    return count;
  }
  int erase(int number) {
    const Key keys[] = {key(number)};
    store().erase(keys);
    return recycle(store().take_gone());
  }

  // A store with room for one executable, which key 1 has.
  void fill_the_only_room(Share share = Share::kWhenFull) {
    make({.share = share, .max_executables = 1});
    run(1, sibling());
  }
  // The same, with keys that always share, and the entry of its sibling, key 2, which is recorded and locked.
  Entry* record_without_room() {
    fill_the_only_room(Share::kAlways);
    return record_sibling(2);
  }

  void hit(int number) {
    Entry* const entry = find_free(number);
    ASSERT_NE(entry, nullptr);
    unlock(used(entry));
  }
  void capture(Entry* locked, StoredGraph graph) {
    const GraphFacts facts = graph.facts;
    locked->graphs = std::make_unique<StoredGraph>(std::move(graph));
    store().captured(locked, {.shape = facts.shape, .bytes = facts.bytes}, 100, 7, {});
  }
  // A run up to its capture. The entry is locked.
  Entry* record(int number, StoredGraph graph = alone()) {
    Entry* const entry = claim(number);
    EXPECT_TRUE(store().begin(entry));
    capture(entry, std::move(graph));
    return entry;
  }
  void read(Entry* locked) {
    const StoredGraph& graph = static_cast<StoredGraph&>(*locked->graphs);
    store().described(locked, graph.facts, graph.signature);
  }
  void find_family(Entry* locked, std::uint64_t stream = 1) {
    const Store::ToRead to_read = store().join_family(locked, stream);
    if (to_read.other != nullptr) {
      read(to_read.other);
      unlock(to_read.other);
    }
    if (to_read.itself) read(locked);
  }
  // The graphs that the run would read: nothing has to be read, itself, or another entry's, which stays locked.
  std::string to_read(Entry* locked, Entry** other = nullptr) {
    const Store::ToRead to_read = store().join_family(locked, /*stream=*/1);
    if (other != nullptr) *other = to_read.other;
    return std::string(to_read.itself ? "itself" : "") +
           (to_read.other != nullptr ? " " + std::to_string(number_of(*to_read.other)) : "");
  }
  // A run of a sibling up to its decision. The entry is locked.
  Entry* record_sibling(int number, std::uint64_t table_class = 0, std::uint64_t stream = 1) {
    Entry* const entry = record(number, sibling(table_class));
    find_family(entry, stream);
    return entry;
  }
  std::size_t set_bytes_of(const Entry* lender) const {
    return lender == nullptr ? 0 : static_cast<const StoredGraph&>(*lender->graphs).facts.set_bytes;
  }
  Store::Decision decide(Entry* locked, Entry* lender = nullptr, bool may_evict = true) {
    Store::Decision made = store().decide(locked, lender, set_bytes_of(lender), may_evict);
    EXPECT_TRUE(made.plan);
    return made;
  }
  // The lender that is found first, which is locked and has the key `number`.
  Entry* find_lender(Entry* locked, int number) {
    const Store::Decision made = store().decide(locked, nullptr, 0, /*may_evict=*/true);
    EXPECT_FALSE(made.plan);
    EXPECT_TRUE(made.victims.empty());
    EXPECT_NE(made.lender, nullptr);
    if (made.lender != nullptr) {
      EXPECT_EQ(number_of(*made.lender), number);
    }
    EXPECT_FALSE(is_free(number)) << "it is locked for the caller";
    return made.lender;
  }
  std::string obtain(Entry* locked) {
    Entry* lender = nullptr;
    for (;;) {
      const Store::Decision made = store().decide(locked, lender, set_bytes_of(lender), /*may_evict=*/true);
      for (Entry* victim : made.victims) {
        if (victim != lender) unlock(victim);
      }
      if (made.lender != lender && lender != nullptr) unlock(lender);
      lender = made.lender;
      if (!made.plan) continue;
      if (lender != nullptr) unlock(lender);
      return text_of(*made.plan);
    }
  }
  // Everything that a run asks of the store. Returns what the key gets, or "hit".
  std::string run(int number, StoredGraph graph = alone(), std::uint64_t stream = 1) {
    Entry* const entry = claim(number);
    (void)store().begin(entry);
    std::string got = "hit";
    if (entry->state != State::kLive) {
      if (entry->graphs == nullptr) capture(entry, std::move(graph));
      find_family(entry, stream);
      got = obtain(entry);
    }
    unlock(entry);
    return got;
  }
  void drop_surplus() {
    while (Entry* const dropped = store().drop_surplus()) {
      dropped->graphs.reset();
      unlock(dropped);
    }
  }
  // Key 0 has lent its executable to the table of key 1.
  void make_table(std::size_t max_device_bytes = Limits().max_device_bytes) {
    make({.share = Share::kAlways, .max_executables = 8, .max_device_bytes = max_device_bytes});
    EXPECT_EQ(run(0, sibling(/*table_class=*/1)), "1: own");
    EXPECT_EQ(run(1, sibling(/*table_class=*/1)), "2: table");
    EXPECT_EQ(now(), (Numbers{1, 2, 1, 1100}));
  }

  // ---- What the store says ----

  bool is_free(const Key& of, const detail::Site& site) {
    Entry* const entry = store().find_free(of, site);
    if (entry != nullptr) unlock(entry);
    return entry != nullptr;
  }
  bool is_free(int number) { return is_free(key(number), kHere); }
  std::optional<EntryInfo> find_info(int number) const {
    for (EntryInfo& info : store_->entries()) {
      if (info.key == key(number)) return std::move(info);
    }
    return std::nullopt;
  }
  EntryInfo info(int number) const { return find_info(number).value_or(EntryInfo()); }
  std::string state(int number) const {
    const std::optional<EntryInfo> info = find_info(number);
    return !info ? "none" : info->live ? "live" : info->recorded ? "recorded" : "cold";
  }
  // Keys of entries, the one that was used last first.
  std::vector<std::string> order() const {
    std::vector<std::string> keys;
    for (const EntryInfo& info : store_->entries()) keys.push_back(info.key.to_string());
    return keys;
  }
  Stats stats() { return store_->stats(); }
  // What there is: executables, templates, families, and bytes of device memory.
  Numbers now() {
    const Stats stats = this->stats();
    return {stats.live_executables, stats.live_templates, stats.families, stats.estimated_device_bytes};
  }

 private:
  std::atomic<std::uint64_t> epoch_{0}, uses_{0};
  std::unique_ptr<Store> store_;
};

}  // namespace graphcache
