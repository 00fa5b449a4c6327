// The store without a cache. The program is linked with no CUDA runtime, not even hostrt, so the store makes no CUDA
// call. Tests play the part of runs: what an entry has is a Graph, and executables exist only in the store's books.
#include "store/store.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "graphcache/key.h"
#include "graphcache/stats.h"
#include "index_support.h"
#include "policy/policy.h"

namespace graphcache {
namespace {

using Numbers = std::vector<std::uint64_t>;

// What a capture gives, and what can be read of it.
struct Graph : EntryGraphs {
  GraphFacts facts;
  std::optional<std::string> signature;
};

// Its shape is like no other one's, so it is never read.
Graph alone(std::size_t bytes = 1000) {
  static std::atomic<std::uint64_t> last_shape{100};
  Graph graph;
  graph.facts = {.shape = ++last_shape, .nodes = 100, .bytes = bytes};
  return graph;
}

// All of them have the same signature. With a class they can share a table.
Graph sibling(std::uint64_t table_class = 0) {
  Graph graph;
  graph.facts = {.table_class = table_class, .shape = 1, .nodes = 100, .bytes = 1000};
  if (table_class != 0) graph.facts.table_bytes = 100, graph.facts.set_bytes = 10;
  graph.signature = "of siblings";
  return graph;
}

// The rule's number, and what the key gets.
std::string text_of(const Plan& plan) {
  const char* const rules[] = {"", "1: ", "2: ", "3: "};
  const char* const actions[] = {"direct", "own", "table", "borrow"};
  return std::string(rules[static_cast<int>(plan.rule)]) + actions[static_cast<int>(plan.action)];
}

// Waits for `flag`, but not for ever, so that a test fails instead of hanging.
bool comes_true(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flag && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return flag;
}

// Long enough for another thread to begin to wait. If it has not, the test passes without having tested anything.
void let_others_wait() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

void in_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

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
  void price(Cost update) { price_ = update; }

  // After every test nothing is locked or waits for its end, and the counts are those of the entries.
  void TearDown() override {
    EXPECT_EQ(recycle(store().wake()), 0);
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
  Entry* claim(int number, const detail::Site& site = kHere) { return used(store().claim(key(number), site)); }
  Entry* find_free(int number, const detail::Site& site = kHere) { return store().find_free(key(number), site); }
  // Returns how many erased entries have come to their end.
  int unlock(Entry* locked) { return recycle(store().unlock(locked)); }
  int recycle(Store::Gone gone) {
    int count = 0;
    for (Entry* entry = gone; entry != nullptr; entry = entry->older, ++count) entry->graphs.reset();
    if (gone != nullptr) store().recycle(gone);
    return count;
  }
  int erase(int number) {
    std::size_t found = 0;
    const Key keys[] = {key(number)};
    return recycle(store().erase(keys, &found));
  }

  void hit(int number) {
    Entry* const entry = find_free(number);
    ASSERT_NE(entry, nullptr);
    unlock(used(entry));
  }
  void capture(Entry* locked, Graph graph) {
    const GraphFacts facts = graph.facts;
    locked->graphs = std::make_unique<Graph>(std::move(graph));
    store().captured(locked, {.shape = facts.shape, .nodes = facts.nodes, .bytes = facts.bytes}, 100, 7);
  }
  // A run up to its capture. The entry is locked.
  Entry* record(int number, Graph graph = alone()) {
    Entry* const entry = claim(number);
    EXPECT_TRUE(store().begin(entry));
    capture(entry, std::move(graph));
    return entry;
  }
  void read(Entry* locked) {
    const Graph& graph = static_cast<Graph&>(*locked->graphs);
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
  Offer offer_of(const Entry* lender) const {
    if (lender == nullptr) return {};
    return {.lender = lender->id,
            .update = price_,
            .set_bytes = static_cast<const Graph&>(*lender->graphs).facts.set_bytes};
  }
  Store::Decision decide(Entry* locked, Entry* lender = nullptr, bool may_evict = true) {
    Store::Decision made;
    EXPECT_TRUE(store().decide(locked, lender, offer_of(lender), may_evict, &made));
    return made;
  }
  // The lender that is found first, locked, or null.
  Entry* find_lender(Entry* locked) {
    Store::Decision made;
    EXPECT_FALSE(store().decide(locked, nullptr, {}, /*may_evict=*/true, &made));
    EXPECT_TRUE(made.victims.empty());
    return made.lender;
  }
  std::string obtain(Entry* locked) {
    Entry* lender = nullptr;
    for (;;) {
      Store::Decision made;
      const bool is_decided = store().decide(locked, lender, offer_of(lender), /*may_evict=*/true, &made);
      for (Entry* victim : made.victims) {
        if (victim != lender) unlock(victim);
      }
      if (made.lender != lender && lender != nullptr) unlock(lender);
      lender = made.lender;
      if (!is_decided) continue;
      if (lender != nullptr) unlock(lender);
      return text_of(made.plan);
    }
  }
  // Everything that a run asks of the store. Returns what the key gets, or "hit".
  std::string run(int number, Graph graph = alone(), std::uint64_t stream = 1) {
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
  Stats stats() const {
    Stats stats;
    store_->add_to(&stats);
    return stats;
  }
  // What there is: executables, templates, families, and bytes of device memory.
  Numbers now() const {
    const Stats stats = this->stats();
    return {stats.live_executables, stats.live_templates, stats.families, stats.estimated_device_bytes};
  }

 private:
  std::atomic<std::uint64_t> epoch_{0}, uses_{0};
  std::unique_ptr<Store> store_;
  Cost price_ = 0;
};

// ---- Finding an entry -----------------------------------------------------------------------------------------------

TEST_F(StoreTest, AClaimedEntryIsColdAndLocked) {
  EXPECT_EQ(find_free(1), nullptr);
  Entry* entry = claim(1);
  EXPECT_EQ(find_free(1), nullptr) << "it is in use";
  EXPECT_FALSE(store().contains(key(1)));
  const std::vector<EntryInfo> entries = store().entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].id, entry->number());
  EXPECT_EQ(entries[0].key, key(1));
  EXPECT_FALSE(entries[0].live || entries[0].recorded || entries[0].pinned);
  EXPECT_EQ(entries[0].outcomes, OutcomeCounts());
  EXPECT_EQ(entries[0].eager_reason, std::nullopt);
  EXPECT_EQ(entries[0].error, "");
  EXPECT_EQ(now(), (Numbers{0, 0, 0, 0}));
  EXPECT_EQ(unlock(entry), 0);
  EXPECT_EQ(find_free(1), entry);
  unlock(entry);
  EXPECT_EQ(claim(1), entry);
  unlock(entry);
  EXPECT_EQ(store().entries().size(), 1u);
}

TEST_F(StoreTest, EachPlaceOfAKeyHasAnEntry) {
  Entry* here = claim(1, kHere);
  EXPECT_EQ(find_free(1, kThere), nullptr);
  Entry* there = claim(1, kThere);
  EXPECT_NE(there, here);
  unlock(here);
  EXPECT_EQ(find_free(1, kThere), nullptr) << "only the other one is free";
  EXPECT_EQ(find_free(1, kHere), here);
  unlock(there);
  unlock(here);
  const std::vector<EntryInfo> entries = store().entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_NE(entries[0].place, entries[1].place);
  EXPECT_NE(entries[0].id, entries[1].id);
}

// The code of another module may have taken the addresses of one that was unloaded.
TEST_F(StoreTest, APlaceOfAnotherModuleIsAnotherPlace) {
  const detail::Site reloaded{kHere.type, kHere.target, kHere.module + 1};
  Entry* former = claim(1);
  unlock(former);
  EXPECT_EQ(find_free(1, reloaded), nullptr);
  EXPECT_TRUE(is_free(1)) << "it was not kept";
  Entry* entry = claim(1, reloaded);
  EXPECT_NE(entry, former);
  unlock(entry);
  EXPECT_EQ(find_free(1, reloaded), entry);
  EXPECT_EQ(find_free(1), former);
  unlock(entry);
  unlock(former);
  EXPECT_EQ(erase(1), 2);
}

TEST_F(StoreTest, OneThreadAtATimeHasTheEntry) {
  constexpr int kRuns = 2000;
  int runs = 0;  // Guarded by the entry's lock.
  in_threads(2, [&](int) {
    for (int i = 0; i < kRuns; ++i) {
      Entry* entry = find_free(1);
      if (entry == nullptr) entry = claim(1);
      ++runs;
      EXPECT_EQ(unlock(entry), 0);
    }
  });
  EXPECT_EQ(runs, 2 * kRuns);
  EXPECT_EQ(order(), names_of({1}));
}

TEST_F(StoreTest, AWaiterGetsTheEntryWhenItIsUnlocked) {
  Entry* entry = claim(1);
  std::atomic<bool> is_unlocked{false};
  Entry* got = nullptr;
  std::thread waiter([&] {
    got = claim(1);
    EXPECT_TRUE(is_unlocked);
  });
  let_others_wait();
  is_unlocked = true;
  unlock(entry);
  waiter.join();
  EXPECT_EQ(got, entry);
  EXPECT_FALSE(is_free(1)) << "the waiter has it";
  unlock(entry);
}

TEST_F(StoreTest, AWaiterForAnErasedEntryGetsANewOne) {
  Entry* entry = claim(1);
  std::atomic<bool> has_got{false};
  std::thread waiter([&] {
    Entry* const other = claim(1);
    EXPECT_NE(other, entry);
    has_got = true;
    unlock(other);
  });
  let_others_wait();
  EXPECT_EQ(erase(1), 0) << "it is in use";
  EXPECT_TRUE(comes_true(has_got));
  EXPECT_EQ(unlock(entry), 1);
  waiter.join();
  EXPECT_EQ(order(), names_of({1}));
}

TEST_F(StoreTest, AnIdFindsAnEntryThatHasAGraph) {
  Entry* entry = claim(1);
  const std::uint64_t id = entry->number();
  Entry* locked = nullptr;
  std::uint64_t family = 7;
  const auto code = [&](std::uint64_t number) { return store().claim(number, &locked, &family).code(); };
  EXPECT_EQ(code(id + 1), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(id + (std::uint64_t{1} << 32)), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(id), absl::StatusCode::kNotFound) << "it has no graph";
  capture(entry, alone());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(code(id), absl::StatusCode::kUnavailable) << "it is in use";
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100));
  EXPECT_EQ(locked, nullptr);
  EXPECT_EQ(family, 7u);
  unlock(entry);
  EXPECT_EQ(code(id), absl::StatusCode::kOk);
  EXPECT_EQ(locked, entry);
  EXPECT_EQ(family, 0u);
  EXPECT_FALSE(is_free(1));
  EXPECT_EQ(erase(1), 0);
  EXPECT_EQ(code(id), absl::StatusCode::kNotFound) << "it is erased, and in use";
  EXPECT_EQ(unlock(entry), 1);
  EXPECT_EQ(code(id), absl::StatusCode::kNotFound);
  EXPECT_EQ(claim(2), entry) << "its place is used again";
  capture(entry, alone());
  unlock(entry);
  EXPECT_EQ(code(id), absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, AWaiterWithAnIdGetsTheEntryWhenItIsUnlocked) {
  make({.share = Share::kAlways});
  Entry* entry = record(1, sibling());
  read(entry);
  std::atomic<bool> is_unlocked{false};
  std::thread waiter([&] {
    Entry* locked = nullptr;
    std::uint64_t family = 0;
    absl::Status status;
    do {
      status = store().claim(entry->number(), &locked, &family);
    } while (absl::IsUnavailable(status));
    EXPECT_TRUE(is_unlocked);
    EXPECT_EQ(locked, entry);
    EXPECT_EQ(family, 1u);
    unlock(locked);
  });
  let_others_wait();
  is_unlocked = true;
  unlock(entry);
  waiter.join();
}

TEST_F(StoreTest, TheLatestEntryOfAKeyIsTheLastUsedOneWithAGraph) {
  EXPECT_EQ(store().latest(key(1)), std::nullopt);
  Entry* here = claim(1, kHere);
  EXPECT_EQ(store().latest(key(1)), here->number());
  Entry* there = claim(1, kThere);
  capture(there, alone());
  used(here);
  EXPECT_EQ(store().latest(key(1)), there->number()) << "the other one has no graph";
  capture(here, alone());
  EXPECT_EQ(store().latest(key(1)), here->number());
  used(there);
  EXPECT_EQ(store().latest(key(1)), there->number());
  used(here);
  EXPECT_EQ(store().latest(key(1)), here->number());
  Entry* cold = claim(1, kHereWithFunction);
  EXPECT_EQ(store().latest(key(1)), here->number());
  for (Entry* entry : {here, there, cold}) unlock(entry);
  EXPECT_EQ(erase(1), 3);
}

// ---- The begin of a run, and its capture ----------------------------------------------------------------------------

TEST_F(StoreTest, EachRunThatIsNoHitBeginsAnEpoch) {
  Entry* entry = claim(1);
  EXPECT_TRUE(store().begin(entry));
  EXPECT_EQ(epoch(), 1u);
  EXPECT_TRUE(store().begin(entry));
  EXPECT_EQ(epoch(), 2u);
  unlock(entry);
  hit(1);
  EXPECT_EQ(epoch(), 2u);
}

TEST_F(StoreTest, BeginSaysWhetherTheEntryCouldHaveAnExecutable) {
  make_unshared(1);
  Entry* entry = claim(2);
  EXPECT_TRUE(store().begin(entry));
  run(1);
  EXPECT_TRUE(store().begin(entry)) << "the other one could be evicted";
  EXPECT_EQ(state(1), "live");
  EXPECT_EQ(stats().evictions, 0u);
  store().pin(key(1), true);
  EXPECT_FALSE(store().begin(entry));
  store().pin(key(1), false);
  Entry* in_use = find_free(1);
  EXPECT_FALSE(store().begin(entry));
  entry->retry.left = 1;
  EXPECT_TRUE(store().begin(entry)) << "this run captures nothing";
  entry->retry.left = 0;
  EXPECT_FALSE(store().begin(entry));
  capture(entry, alone());
  EXPECT_TRUE(store().begin(entry)) << "it has a graph";
  unlock(in_use);
  unlock(entry);
}

TEST_F(StoreTest, BeginRemembersThatTheGraphAloneIsTooLarge) {
  make({.share = Share::kNever, .max_device_bytes = 1500});
  Entry* entry = record(1, alone(/*bytes=*/2000));
  EXPECT_EQ(obtain(entry), "direct");
  store().lose(entry, Loss::kStale, /*had_executable=*/false, /*and_template=*/true, absl::OkStatus());
  entry->graphs.reset();
  EXPECT_FALSE(store().begin(entry));
  capture(entry, alone(/*bytes=*/1500));
  EXPECT_EQ(obtain(entry), "1: own");
  unlock(entry);
}

TEST_F(StoreTest, ACapturedEntryHasATemplate) {
  Entry* entry = claim(1);
  EXPECT_TRUE(store().begin(entry));
  EXPECT_EQ(state(1), "cold");
  capture(entry, alone());
  EXPECT_EQ(state(1), "recorded");
  EXPECT_TRUE(store().contains(key(1)));
  EXPECT_FALSE(store().contains(key(2)));
  EXPECT_EQ(info(1).nodes, 100u);
  EXPECT_EQ(info(1).slot_nodes, 7u);
  EXPECT_EQ(info(1).estimated_device_bytes, 0u) << "of its executable";
  EXPECT_FALSE(info(1).looked_for_siblings);
  EXPECT_EQ(now(), (Numbers{0, 1, 0, 0}));
  EXPECT_EQ(stats().captures, 1u);
  unlock(entry);
}

TEST_F(StoreTest, OnePlaceWithATemplateIsEnoughToContainAKey) {
  for (const bool is_first : {true, false}) {
    const int number = is_first ? 1 : 2;
    Entry* const here = claim(number, kHere);
    Entry* const there = claim(number, kThere);
    EXPECT_FALSE(store().contains(key(number)));
    capture(is_first ? here : there, alone());
    EXPECT_TRUE(store().contains(key(number)));
    unlock(here);
    unlock(there);
  }
}

TEST_F(StoreTest, TheErrorOfAFailedCaptureStaysUntilOneSucceeds) {
  Entry* entry = claim(1);
  store().capture_failed(entry, absl::UnknownError("it broke"), /*broke=*/true);
  EXPECT_EQ(info(1).error, "it broke");
  EXPECT_TRUE(entry->broke);
  const absl::Status nameless = absl::CancelledError("");
  store().capture_failed(entry, nameless, /*broke=*/false);
  EXPECT_EQ(info(1).error, nameless.ToString());
  EXPECT_TRUE(entry->broke) << "an earlier capture broke";
  EXPECT_EQ(state(1), "cold");
  EXPECT_FALSE(store().contains(key(1)));
  EXPECT_EQ(stats().captures, 0u);
  capture(entry, alone());
  EXPECT_EQ(info(1).error, "");
  EXPECT_FALSE(entry->broke);
  store().capture_failed(entry, nameless, /*broke=*/false);
  EXPECT_FALSE(entry->broke);
  unlock(entry);
}

// ---- Families -------------------------------------------------------------------------------------------------------

TEST_F(StoreTest, NothingIsReadWhileThereIsRoom) {
  run(1, sibling());
  Entry* entry = record(2, sibling());
  const Store::ToRead to_read = store().join_family(entry, 1);
  EXPECT_FALSE(to_read.itself);
  EXPECT_EQ(to_read.other, nullptr);
  unlock(entry);
}

TEST_F(StoreTest, EntriesOfOneSignatureAndStreamAreAFamily) {
  make({.max_executables = 1});
  run(1, sibling());
  EXPECT_EQ(info(1).family, 0u);
  Entry* entry = record(2, sibling());
  const Store::ToRead to_read = store().join_family(entry, 1);
  EXPECT_TRUE(to_read.itself);
  ASSERT_NE(to_read.other, nullptr);
  EXPECT_EQ(to_read.other->key, key(1));
  EXPECT_FALSE(is_free(1)) << "it is locked for the caller";
  EXPECT_EQ(now(), (Numbers{1, 2, 0, 1000})) << "nothing has been read yet";
  read(to_read.other);
  read(entry);
  unlock(to_read.other);
  EXPECT_EQ(info(1).family, 1u);
  EXPECT_EQ(info(2).family, 1u);
  EXPECT_TRUE(info(1).looked_for_siblings && info(2).looked_for_siblings);
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1000}));
  const Store::ToRead again = store().join_family(entry, 1);
  EXPECT_FALSE(again.itself);
  EXPECT_EQ(again.other, nullptr);
  unlock(entry);

  Entry* elsewhere = record(3, sibling());
  find_family(elsewhere, /*stream=*/2);
  EXPECT_EQ(info(3).family, 2u);
  EXPECT_EQ(now(), (Numbers{1, 3, 2, 1000}));
  find_family(elsewhere, /*stream=*/1);
  EXPECT_EQ(info(3).family, 1u) << "it has moved";
  EXPECT_EQ(now(), (Numbers{1, 3, 1, 1000}));
  unlock(elsewhere);
}

TEST_F(StoreTest, AnotherSignatureIsAnotherFamily) {
  make({.max_executables = 1});
  run(1, sibling());
  Graph unlike = sibling();
  unlike.signature = "of another graph";
  EXPECT_EQ(run(2, unlike), "3: own");
  EXPECT_EQ(now(), (Numbers{1, 2, 2, 1000}));
  EXPECT_NE(info(1).family, info(2).family);
}

TEST_F(StoreTest, AnEntryWithoutASignatureHasNoFamily) {
  make({.max_executables = 1});
  run(1, sibling());
  Graph unique = sibling();
  unique.signature.reset();
  Entry* entry = record(2, unique);
  find_family(entry);
  EXPECT_TRUE(info(2).looked_for_siblings);
  EXPECT_EQ(info(2).family, 0u);
  EXPECT_EQ(info(1).family, 1u);
  unlock(entry);
}

TEST_F(StoreTest, AGraphInUseIsNotRead) {
  make({.max_executables = 1});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  Entry* in_use = find_free(1);
  const Store::ToRead to_read = store().join_family(entry, 1);
  EXPECT_TRUE(to_read.itself);
  EXPECT_EQ(to_read.other, nullptr);
  unlock(in_use);
  unlock(entry);
}

TEST_F(StoreTest, AnErasedEntryJoinsNoFamily) {
  make({.max_executables = 1});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  EXPECT_EQ(erase(2), 0);
  const Store::ToRead to_read = store().join_family(entry, 1);
  EXPECT_FALSE(to_read.itself);
  EXPECT_EQ(to_read.other, nullptr);
  EXPECT_TRUE(is_free(1));
  EXPECT_EQ(unlock(entry), 1);
}

// ---- The decision ---------------------------------------------------------------------------------------------------

TEST_F(StoreTest, AnEntryGetsItsOwnExecutableWhileThereIsRoom) {
  run(1, sibling());
  Entry* entry = record(2, sibling());
  const Store::Decision made = decide(entry);
  EXPECT_EQ(text_of(made.plan), "1: own");
  EXPECT_EQ(made.lender, nullptr);
  EXPECT_TRUE(made.victims.empty());
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
  EXPECT_EQ(text_of(made.plan), "3: own");
  EXPECT_EQ(made.lender, nullptr);
  ASSERT_EQ(made.victims.size(), 1u);
  EXPECT_EQ(made.victims[0]->key, key(1));
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
  Entry* entered = find_free(2);
  store().enter(entered);
  unlock(entered);
  EXPECT_TRUE(store().pin(key(3), true));
  EXPECT_EQ(text_of(decide(entry).plan), "direct");
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
  EXPECT_EQ(store().leave(entered, std::nullopt), nullptr);
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
  EXPECT_EQ(text_of(decide(entry, nullptr, /*may_evict=*/false).plan), "direct");
  EXPECT_EQ(state(1), "live");
  EXPECT_TRUE(is_free(1));
  EXPECT_EQ(state(2), "recorded");
  EXPECT_EQ(stats().evictions, 0u);
  unlock(entry);
  erase(1);
  entry = find_free(2);
  EXPECT_EQ(text_of(decide(entry, nullptr, /*may_evict=*/false).plan), "1: own");
  unlock(entry);
}

TEST_F(StoreTest, NothingIsEvictedIfThatIsNotEnough) {
  make({.share = Share::kNever, .max_device_bytes = 2000});
  run(1);
  run(2);
  Entry* in_use = find_free(2);
  Entry* entry = record(3, alone(/*bytes=*/2000));
  EXPECT_EQ(text_of(decide(entry).plan), "direct");
  EXPECT_EQ(state(1), "live");
  EXPECT_TRUE(is_free(1)) << "it was locked while the plan was made";
  unlock(in_use);
  const Store::Decision made = decide(entry);
  EXPECT_EQ(text_of(made.plan), "3: own");
  ASSERT_EQ(made.victims.size(), 2u);
  EXPECT_EQ(made.victims[0]->key, key(1));
  EXPECT_EQ(made.victims[1]->key, key(2));
  EXPECT_FALSE(is_free(1) || is_free(2));
  EXPECT_EQ(now(), (Numbers{1, 3, 0, 2000}));
  EXPECT_EQ(stats().evictions, 2u);
  for (Entry* victim : made.victims) unlock(victim);
  unlock(entry);
}

TEST_F(StoreTest, ALenderIsFoundBeforeThePlanCounts) {
  make({.max_executables = 1});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  find_family(entry);
  Entry* lender = find_lender(entry);
  ASSERT_NE(lender, nullptr);
  EXPECT_EQ(lender->key, key(1));
  EXPECT_FALSE(is_free(1)) << "it is locked for the caller";
  EXPECT_EQ(state(1), "live");
  EXPECT_EQ(state(2), "recorded");

  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(text_of(made.plan), "2: borrow");
  EXPECT_EQ(made.lender, lender);
  EXPECT_TRUE(made.victims.empty());
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
  make({.max_executables = 1});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  find_family(entry);
  Entry* in_use = find_free(1);
  EXPECT_EQ(text_of(decide(entry).plan), "direct");
  store().enter(in_use);
  unlock(in_use);
  EXPECT_EQ(text_of(decide(entry).plan), "direct");
  EXPECT_EQ(store().leave(in_use, std::nullopt), nullptr);
  store().pin(key(1), true);
  EXPECT_EQ(text_of(decide(entry).plan), "direct");
  EXPECT_EQ(state(1), "live");
  store().pin(key(1), false);
  EXPECT_EQ(obtain(entry), "2: borrow");
  unlock(entry);
}

TEST_F(StoreTest, ASiblingThatWouldBeEvictedLendsInstead) {
  make({.max_executables = 2});
  price(std::numeric_limits<Cost>::max());
  run(1, sibling());
  run(2);
  Entry* entry = record(3, sibling());
  find_family(entry);
  Entry* lender = find_lender(entry);
  ASSERT_NE(lender, nullptr);
  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(text_of(made.plan), "3: borrow");
  EXPECT_EQ(made.lender, lender);
  EXPECT_TRUE(made.victims.empty());
  EXPECT_FALSE(is_free(1));
  EXPECT_EQ(info(1).executable_lost, Loss::kLent);
  EXPECT_EQ(info(3).rule, Rule::kEviction);
  EXPECT_EQ(now(), (Numbers{2, 3, 1, 2000}));
  EXPECT_EQ(stats().evictions, 0u);
  unlock(lender);
  unlock(entry);
}

TEST_F(StoreTest, ALenderThatIsTooDearStaysAsItIs) {
  make({.max_executables = 2});
  price(std::numeric_limits<Cost>::max());
  run(1, sibling());
  run(2);
  hit(1);
  Entry* entry = record(3, sibling());
  find_family(entry);
  Entry* lender = find_lender(entry);
  ASSERT_NE(lender, nullptr);
  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(text_of(made.plan), "3: own");
  EXPECT_EQ(made.lender, lender);
  ASSERT_EQ(made.victims.size(), 1u);
  EXPECT_EQ(made.victims[0]->key, key(2));
  EXPECT_EQ(state(1), "live");
  EXPECT_FALSE(is_free(1)) << "the caller still has its lock";
  unlock(made.victims[0]);
  unlock(lender);
  unlock(entry);
}

// A key of another stream has the same signature, so its executable can be brought over.
TEST_F(StoreTest, TheLenderMayBeOneThatWasNotOffered) {
  make({.max_executables = 1});
  run(1, sibling(), /*stream=*/1);
  Entry* entry = record(2, sibling());
  find_family(entry, /*stream=*/2);
  EXPECT_NE(info(1).family, info(2).family);
  const Store::Decision made = decide(entry);
  EXPECT_EQ(text_of(made.plan), "3: borrow");
  ASSERT_NE(made.lender, nullptr);
  EXPECT_EQ(made.lender->key, key(1));
  EXPECT_TRUE(made.victims.empty());
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
  Entry* entry = record(2, sibling(/*table_class=*/1));
  find_family(entry);
  Entry* lender = find_lender(entry);
  ASSERT_NE(lender, nullptr);
  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(text_of(made.plan), "2: table");
  ASSERT_EQ(made.victims.size(), 1u);
  EXPECT_EQ(made.victims[0], lender);
  EXPECT_EQ(made.lender, lender);
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
  make({.max_executables = 1});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  find_family(entry);
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
    Store::Decision looked;
    if (store().decide(entry, nullptr, {}, /*may_evict=*/true, &looked)) {
      EXPECT_EQ(text_of(looked.plan), "direct");
      EXPECT_EQ(looked.lender, nullptr);
    }
    if (looked.lender == nullptr) continue;
    ++uses;
    const Store::Decision made = decide(entry, looked.lender);
    EXPECT_EQ(text_of(made.plan), "2: borrow");
    EXPECT_EQ(made.lender, looked.lender);
    store().undone(entry, made.lender, made.plan);
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
  make({.max_executables = 1});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  find_family(entry);
  Entry* lender = find_lender(entry);
  const Store::Decision made = decide(entry, lender);
  EXPECT_EQ(state(2), "live");
  store().undone(entry, lender, made.plan);
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
  EXPECT_EQ(text_of(decide(entry).plan), "1: own");
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
  EXPECT_EQ(recycle(store().wake()), 1);
  unlock(entry);
}

// ---- What the runtime refuses ---------------------------------------------------------------------------------------

TEST_F(StoreTest, AClassWithoutDeviceUpdatesHasNoTable) {
  make_table();
  Entry* table = find_free(1);
  store().refuse(table, Store::Refused::kDeviceUpdates, "no updater node");
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
  Entry* entry = record(2, sibling(/*table_class=*/1));
  find_family(entry);
  store().refuse(entry, Store::Refused::kSets);
  EXPECT_EQ(info(2).family, info(1).family);
  EXPECT_EQ(info(2).refusal, "");
  EXPECT_EQ(stats().refused_device_updates, 0u);
  EXPECT_EQ(obtain(entry), "2: borrow") << "and makes no table";
  unlock(entry);
}

TEST_F(StoreTest, AnEntryWithoutSiblingsHasNoFamily) {
  make({.share = Share::kAlways, .max_executables = 8});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  find_family(entry);
  EXPECT_EQ(info(2).family, info(1).family);
  store().refuse(entry, Store::Refused::kSiblings, "nodes differ");
  EXPECT_EQ(info(2).family, 0u);
  EXPECT_NE(info(1).family, 0u);
  EXPECT_EQ(info(2).refusal, "nodes differ");
  store().refuse(entry, Store::Refused::kSiblings);
  EXPECT_EQ(info(2).refusal, "nodes differ") << "no reason was given this time";
  EXPECT_EQ(stats().refused_device_updates, 0u);
  EXPECT_EQ(obtain(entry), "1: own");
  unlock(entry);
}

TEST_F(StoreTest, SetsCountUntilTheyAreTakenBack) {
  make_table(/*max_device_bytes=*/1125);
  Entry* table = find_free(1);
  EXPECT_TRUE(store().add_set(table, 10));
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1110}));
  EXPECT_EQ(info(1).estimated_device_bytes, 1110u);
  EXPECT_TRUE(store().add_set(table, 10));
  EXPECT_FALSE(store().add_set(table, 10));
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1120}));
  store().take_back_set(table, 10);
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1110}));
  EXPECT_TRUE(store().add_set(table, 15));
  EXPECT_EQ(now(), (Numbers{1, 2, 1, 1125}));
  unlock(table);
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
  make({.max_executables = 1});
  run(1, sibling());
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
  EXPECT_EQ(run(2, sibling()), "2: borrow");
  EXPECT_EQ(stats().captures, 4u);
}

// As when an update has left the executable in doubt: it is the lender's no more, and not yet the borrower's.
TEST_F(StoreTest, WhatIsBeingLentMayBeLost) {
  make({.max_executables = 1});
  run(1, sibling());
  Entry* entry = record(2, sibling());
  find_family(entry);
  Entry* lender = find_lender(entry);
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
    int number = 1;
    while (dropped->key != key(number)) ++number;
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
  Entry* entered = record(2);
  store().enter(entered);
  unlock(entered);
  unlock(record(3));
  store().pin(key(3), true);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(now(), (Numbers{0, 3, 0, 0}));
  store().pin(key(3), false);
  EXPECT_EQ(drop(), 3);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(store().leave(entered, std::nullopt), nullptr);
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
  std::size_t found = 10;
  const Store::Gone gone = store().erase(keys, &found);
  EXPECT_EQ(found, 12u);
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
  EXPECT_EQ(now(), (Numbers{1, 1, 0, 1000})) << "what it has still exists";
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

TEST_F(StoreTest, AnEnteredEntryIsGoneWhenTheLastOneLeaves) {
  run(1);
  Entry* entry = find_free(1);
  store().enter(entry);
  store().enter(entry);
  unlock(entry);
  EXPECT_EQ(store().leave(entry, std::nullopt), nullptr);
  EXPECT_EQ(erase(1), 0);
  EXPECT_EQ(order(), names_of({}));
  EXPECT_EQ(now(), (Numbers{1, 1, 0, 1000}));
  EXPECT_EQ(store().take_gone(), nullptr);
  EXPECT_EQ(recycle(store().wake()), 0);
  EXPECT_EQ(recycle(store().leave(entry, std::nullopt)), 1);
  EXPECT_EQ(now(), (Numbers{0, 0, 0, 0}));
}

TEST_F(StoreTest, AnEntryThatIsEnteredAndLockedIsGoneAfterBoth) {
  for (const bool leaves_first : {true, false}) {
    Entry* entry = claim(1);
    store().enter(entry);
    EXPECT_EQ(erase(1), 0);
    const auto leave = [&] { return recycle(store().leave(entry, std::nullopt)); };
    EXPECT_EQ(leaves_first ? leave() : unlock(entry), 0);
    EXPECT_EQ(leaves_first ? unlock(entry) : leave(), 1);
  }
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
  std::size_t found = 0;
  const Key keys[] = {key(1)};
  const Store::Gone gone = store().erase(keys, &found);
  EXPECT_EQ(gone, entry);
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
  EXPECT_EQ(recycle(store().wake()), 1);
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
  Entry* entered = find_free(6);
  store().enter(entered);
  unlock(entered);
  std::optional<EntryTable::Walk> walk;
  int gone = 0;
  do {
    gone += recycle(store().erase_some(&walk));
  } while (!walk->done());
  EXPECT_EQ(gone, kMany - 2);
  EXPECT_EQ(order(), names_of({}));
  EXPECT_EQ(now(), (Numbers{0, 1, 0, 0}));
  EXPECT_EQ(unlock(locked), 1);
  EXPECT_EQ(recycle(store().leave(entered, std::nullopt)), 1);
  EXPECT_EQ(now(), (Numbers{0, 0, 0, 0}));
  unlock(claim(1));
  EXPECT_EQ(recycle(store().erase_some(&walk)), 0);
  EXPECT_TRUE(walk->done());
  EXPECT_EQ(order(), names_of({1})) << "the walk was over before";
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
  unlock(store().claim(key(kMany), kHere));
  EXPECT_EQ(erase(0), 0);
  recycle(store().take_gone());
}

// ---- Direct runs and texts ------------------------------------------------------------------------------------------

TEST_F(StoreTest, DirectRunsCountByTheirReason) {
  Entry* entry = claim(1);
  store().count_direct(entry, EagerReason::kNothingCaptured);
  EXPECT_EQ(info(1).eager_reason, EagerReason::kNothingCaptured);
  store().enter(entry);
  unlock(entry);
  EXPECT_EQ(store().leave(entry, EagerReason::kBudget), nullptr);
  EXPECT_EQ(info(1).eager_reason, EagerReason::kBudget);
  store().count_direct(EagerReason::kBudget);  // of no entry
  store().enter(entry);
  EXPECT_EQ(store().leave(entry, std::nullopt), nullptr);
  EXPECT_EQ(info(1).outcomes[static_cast<int>(Outcome::kEager)], 2u);
  Stats stats;
  stats.outcomes[static_cast<int>(Outcome::kEager)] = 10;
  store().add_to(&stats);
  EXPECT_EQ(stats.outcome(Outcome::kEager), 13u);
  EXPECT_EQ(stats.eager(EagerReason::kBudget), 2u);
  EXPECT_EQ(stats.eager(EagerReason::kNothingCaptured), 1u);
}

TEST_F(StoreTest, ADirectRunOfAnErasedEntryCounts) {
  Entry* entry = claim(1);
  store().enter(entry);
  unlock(entry);
  EXPECT_EQ(erase(1), 0);
  EXPECT_EQ(recycle(store().leave(entry, EagerReason::kDisabled)), 1);
  EXPECT_EQ(stats().eager(EagerReason::kDisabled), 1u);
}

TEST_F(StoreTest, EqualNotesAreCounted) {
  Entry* entry = claim(1);
  const auto note = [&](std::vector<Counted> Notes::*kind, const std::string& text) {
    return store().note(entry, kind, text, [&](const std::string& known) { return known[0] == text[0]; });
  };
  EXPECT_TRUE(note(&Notes::stale, "a: 1"));
  EXPECT_TRUE(note(&Notes::stale, "b: 1"));
  EXPECT_FALSE(note(&Notes::stale, "a: 2"));
  EXPECT_TRUE(note(&Notes::stray_work, "a: 3"));
  const EntryInfo noted = info(1);
  ASSERT_EQ(noted.stale.size(), 2u);
  EXPECT_EQ(noted.stale[0].text, "a: 2") << "the last one";
  EXPECT_EQ(noted.stale[0].count, 2u);
  EXPECT_EQ(noted.stale[1].text, "b: 1");
  EXPECT_EQ(noted.stale[1].count, 1u);
  ASSERT_EQ(noted.stray_work.size(), 1u);
  EXPECT_EQ(noted.stray_work[0].text, "a: 3");
  for (char first = '0'; first < 'a'; ++first) note(&Notes::stale, std::string(1, first));
  EXPECT_EQ(info(1).stale.size(), 32u) << "there may be any number";
  EXPECT_FALSE(note(&Notes::stale, "c"));
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
  Entry* entry = used(store().claim(key("step", 8), kHere));
  entry->outcomes[static_cast<int>(Outcome::kPatched)].add(2);
  entry->outcomes[static_cast<int>(Outcome::kReplayed)].add(3);
  entry->replayed.add(4);
  const EntryInfo info = store().entries().at(0);
  EXPECT_EQ(info.label, "step");
  EXPECT_EQ(info.outcomes[static_cast<int>(Outcome::kPatched)], 2u);
  EXPECT_EQ(info.outcomes[static_cast<int>(Outcome::kReplayed)], 7u);
  unlock(entry);
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
  Totals& totals = store().totals;
  std::uint64_t last = 0;
  for (Totals::Count* count : {&totals.failed, &totals.captures, &totals.capture_failures, &totals.instantiations,
                               &totals.updates, &totals.set_switches, &totals.evictions, &totals.forgotten,
                               &totals.refused_device_updates, &totals.verified, &totals.stale}) {
    *count = ++last;
  }
  for (Totals::Count& count : totals.refused_updates) count = ++last;
  for (Totals::Time* time :
       {&totals.capture_time, &totals.instantiate_time, &totals.update_time, &totals.first_launch_time}) {
    *time = static_cast<nanoseconds::rep>(++last);
  }
  const Stats stats = this->stats();
  EXPECT_EQ((Numbers{stats.failed, stats.captures, stats.capture_failures, stats.instantiations, stats.updates,
                     stats.set_switches, stats.evictions, stats.forgotten, stats.refused_device_updates, stats.verified,
                     stats.stale}),
            (Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  for (std::size_t i = 0; i < kUpdateRefusalCount; ++i) EXPECT_EQ(stats.refused_updates[i], 12 + i);
  EXPECT_EQ(stats.capture_time, nanoseconds(19));
  EXPECT_EQ(stats.instantiate_time, nanoseconds(20));
  EXPECT_EQ(stats.update_time, nanoseconds(21));
  EXPECT_EQ(stats.first_launch_time, nanoseconds(22));
}

// ---- Threads --------------------------------------------------------------------------------------------------------

// Each thread runs keys of one family and others, loses some, and erases some.
TEST_F(StoreTest, ThreadsLeaveTheBooksInOrder) {
  constexpr int kThreads = 3, kRuns = 400, kKeys = 8;
  make({.max_executables = 3}, /*max_templates=*/5);
  in_threads(kThreads, [&](int thread) {
    for (int i = 0; i < kRuns; ++i) {
      const int number = (i * (thread + 1) + i / 7) % kKeys;
      run(number, number < kKeys / 2 ? sibling() : alone(), static_cast<std::uint64_t>(thread % 2 + 1));
      drop_surplus();
      if (i % 11 == 0) {
        if (Entry* const entry = find_free(number)) {
          const bool and_template = i % 2 == 0;
          store().lose(entry, Loss::kFailed, /*had_executable=*/false, and_template, absl::OkStatus());
          if (and_template) entry->graphs.reset();
          unlock(entry);
        }
      }
      if (i % 17 == 0) erase((number + 1) % kKeys);
      if (i % 50 == 0) {
        EXPECT_LE(store().entries().size(), std::size_t{kKeys});
      }
      recycle(store().take_gone());
    }
  });
  drop_surplus();           // It passes over what other threads are using,
  recycle(store().wake());  // and so does a sweep.
  EXPECT_LE(stats().live_executables, 3u);
  EXPECT_LE(stats().live_templates, 5u);
}

}  // namespace
}  // namespace graphcache

// The other suites' main() is linked with a CUDA runtime.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  std::printf("\n%d passed, %d failed, %d skipped\n", tests.successful_test_count(), tests.failed_test_count(),
              tests.skipped_test_count());
  return result;
}
