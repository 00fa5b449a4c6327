// The store without a cache: finding entries, the begin of a run and its capture, threads. The suites store_* are
// linked with no CUDA runtime, not even hostrt, so the store makes no CUDA call.
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "store_support.h"

namespace graphcache {
namespace {

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
  EXPECT_EQ(entries[0].outcomes, decltype(EntryInfo::outcomes)());
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

TEST_F(StoreTest, AHolderDoesNotWaitForItself) {
  make({});
  Entry* entry = claim(1);
  entry->holder = kThread;
  EXPECT_EQ(store().claim(key(1), kHere, kThread), nullptr);
  unlock(entry);
}

TEST_F(StoreTest, TheLatestEntryOfAKeyIsTheLastUsedOneWithAGraph) {
  EXPECT_EQ(store().latest(key(1)), 0u);
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
  drop_surplus();  // It passes over what other threads are using,
  wake();          // and so does a sweep.
  EXPECT_LE(stats().live_executables, 3u);
  EXPECT_LE(stats().live_templates, 5u);
}

}  // namespace
}  // namespace graphcache
