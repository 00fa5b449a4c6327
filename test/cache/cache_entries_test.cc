// Reports of a cache, and forgetting entries, on either runtime.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "cache_support.h"
#include "graph/template.h"

namespace graphcache::test {
namespace {

TEST_F(CacheTest, EraseForgetsAKeyAtEveryPlace) {
  Cache cache(unshared());
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }); };
  EXPECT_FALSE(cache.erase(key("k")));
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  EXPECT_EQ(cache.entries()[0].place, cache.entries()[1].place);
  EXPECT_NE(cache.entries()[0].place, cache.entries()[2].place);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_FALSE(cache.erase(key("k")));
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_TRUE(cache.contains(key("other")));
  EXPECT_EQ(cache.stats().live_executables, 1u);
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run_add(cache, key("other")));
  EXPECT_EQ(cache.stats().outcome(Outcome::kInstantiated), 4u);
  EXPECT_EQ(cache.stats().evictions, 0u);
  expect_sum(5);
}

// Keys of a model, and of another one that stays.
bool is_old(const Key& key) { return key.label() == "old"; }

TEST_F(CacheTest, EraseIfForgetsTheKeysThatMatch) {
  Cache cache(unshared(4));
  const auto run = [&](const Key& key) { return cache.run(key, stream, [&](cudaStream_t on) { return add_one(on); }); };
  EXPECT_EQ(cache.erase_if(is_old), 0u);
  for (int i = 0; i < 6; ++i) {  // Two are left with a template only.
    EXPECT_RUN(kInstantiated, run(key("old", i)));
    EXPECT_EQ(i != 4 || cache.pin(key("old", i)), true);
  }
  EXPECT_RUN(kEager, cache.run(key("old", "cold"), stream, [](cudaStream_t) {}));
  EXPECT_RUN(kInstantiated, run_add(cache, key("old", 5)));  // At another place.
  EXPECT_RUN(kInstantiated, run_add(cache, key("new", 5)));
  EXPECT_EQ(cache.erase_if(is_old), 7u);
  EXPECT_EQ(cache.erase_if(is_old), 0u);
  ASSERT_EQ(cache.entries().size(), 1u);
  EXPECT_EQ(cache.entries()[0].key, key("new", 5));
  EXPECT_EQ(cache.stats().live_executables, 1u);
  EXPECT_EQ(cache.stats().live_templates, 1u);
  EXPECT_RUN(kReplayed, run_add(cache, key("new", 5)));
  EXPECT_RUN(kInstantiated, run(key("old", 0)));
  Cache of_many(unshared(4));
  for (int i = 0; i < 400; ++i) EXPECT_TRUE(run_add(of_many, key(i % 4 == 0 ? "new" : "old", i)).ok());
  EXPECT_EQ(of_many.erase_if(is_old), 300u);
  EXPECT_EQ(of_many.entries().size(), 100u);
}

TEST_F(CacheTest, APredicateThatThrowsChangesNothing) {
  Cache cache(unshared());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(run_add(cache, key("k", i)).ok());
  int asked = 0;
  const auto throws = [&](const Key& key) -> bool {
    EXPECT_TRUE(cache.contains(key));  // No lock is held.
    if (++asked == 15) throw std::runtime_error("of the caller");
    return true;
  };
  EXPECT_THROW((void)cache.erase_if(throws), std::runtime_error);
  EXPECT_EQ(cache.stats().live_executables, 20u);
  EXPECT_RUN(kReplayed, run_add(cache, key("k", 0)));
}

TEST_F(CacheTest, ErasingTheKeyThatHasTheSharedExecutableLeavesItsSiblings) {
  Cache cache(renting());
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_RUN(kUpdated, run_add(cache, key("b")));
  EXPECT_TRUE(cache.erase(key("b")));
  EXPECT_EQ(cache.stats().live_executables, 0u);
  EXPECT_EQ(cache.stats().live_templates, 1u);
  EXPECT_TRUE(cache.contains(key("a")));
  EXPECT_RUN(kRestored, run_add(cache, key("a")));
  EXPECT_RUN(kReplayed, run_add(cache, key("a")));
  EXPECT_EQ(calls, 2);
  expect_sum(4);
}

TEST_F(CacheTest, ClearForgetsEveryKeyAndKeepsTheCounters) {
  Cache cache(unshared());
  for (int i = 0; i < 5; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key(i)));
  cache.clear();
  EXPECT_TRUE(cache.entries().empty());
  expect_empty(cache);
  EXPECT_EQ(cache.stats().estimated_device_bytes, 0u);
  EXPECT_EQ(cache.stats().outcome(Outcome::kInstantiated), 5u);
  EXPECT_EQ(cache.stats().evictions, 0u);
  for (int i = 0; i < 5; ++i) EXPECT_RUN(kInstantiated, run_add(cache, key(i)));
  expect_sum(10);
}

TEST_F(CacheTest, EraseAndClearInsideFnLetTheRunEnd) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  const auto run = [&](bool all) {
    return cache.run(key("k", all), stream, [&, all](cudaStream_t on) {
      all ? cache.clear() : static_cast<void>(cache.erase(key("k", all)));
      return add_one(on);
    });
  };
  EXPECT_TRUE(run(false).ok());
  EXPECT_TRUE(run(true).ok());
  expect_sum(3);
  EXPECT_FALSE(cache.contains(key("other")));
  EXPECT_TRUE(run(false).ok());
  expect_sum(4);
}

TEST_F(CacheTest, EntriesReportTheRunsOfEachKey) {
  Cache cache;
  const auto run_slots = [&](float value) {
    return cache.run(key("slots", 8), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      add_one(rec.stream());
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 5.0f);
    });
  };
  EXPECT_TRUE(run_slots(1).ok());
  EXPECT_TRUE(run_slots(2).ok());
  EXPECT_TRUE(run_add(cache, key("plain")).ok());
  const std::vector<EntryInfo> entries = cache.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].label, "plain");
  EXPECT_EQ(entries[0].nodes, 1u);
  EXPECT_EQ(entries[0].slot_nodes, 0u);
  EXPECT_EQ(entries[0].last_use_order, 0u);
  EXPECT_EQ(entries[1].label, "slots");
  EXPECT_EQ(entries[1].key, key("slots", 8));
  EXPECT_TRUE(entries[1].live);
  EXPECT_TRUE(entries[1].recorded);
  EXPECT_FALSE(entries[1].pinned);
  EXPECT_EQ(entries[1].family, 0u) << "no other key has its shape";
  EXPECT_EQ(entries[1].nodes, 3u);
  EXPECT_EQ(entries[1].slot_nodes, 1u);
  EXPECT_EQ(entries[1].estimated_device_bytes, estimated_device_bytes(3));
  EXPECT_EQ(entries[1].last_use_order, 1u);
  EXPECT_EQ(entries[1].outcomes[static_cast<int>(Outcome::kInstantiated)], 1u);
  EXPECT_EQ(entries[1].outcomes[static_cast<int>(Outcome::kPatched)], 1u);
  EXPECT_EQ(cache.stats().estimated_device_bytes, estimated_device_bytes(3) + estimated_device_bytes(1));
  EXPECT_EQ(cache.stats().families, 0u);

  EXPECT_TRUE(run_slots(2).ok());
  EXPECT_EQ(cache.entries()[0].label, "slots");
}

TEST_F(CacheTest, EntriesShowExecutablesAndTemplates) {
  Cache cache(renting());
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  EXPECT_RUN(kUpdated, run_add(cache, key("b")));
  EXPECT_TRUE(cache.pin(key("b")));
  const std::vector<EntryInfo> entries = cache.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].label, "b");
  EXPECT_TRUE(entries[0].live);
  EXPECT_TRUE(entries[0].pinned);
  EXPECT_EQ(entries[0].estimated_device_bytes, estimated_device_bytes(1));
  EXPECT_EQ(entries[1].label, "a");
  EXPECT_FALSE(entries[1].live);
  EXPECT_TRUE(entries[1].recorded);
  EXPECT_FALSE(entries[1].pinned);
  EXPECT_EQ(entries[1].place, entries[0].place);
  EXPECT_EQ(entries[0].rule, Rule::kSibling);
  EXPECT_EQ(entries[0].executable_lost, Loss::kNone);
  EXPECT_EQ(entries[1].rule, Rule::kRoom);
  EXPECT_EQ(entries[1].executable_lost, Loss::kLent);
  EXPECT_EQ(entries[1].template_lost, Loss::kNone);
  EXPECT_EQ(entries[1].nodes, 1u);
  EXPECT_EQ(entries[1].estimated_device_bytes, 0u);
  EXPECT_NE(entries[0].family, 0u);
  EXPECT_EQ(entries[0].family, entries[1].family);
  EXPECT_EQ(cache.stats().families, 1u);
}

TEST_F(CacheTest, OptionsReportTheDevice) {
  Cache cache;
  const int device = current_device();
  EXPECT_EQ(cache.options().device, Options::kCurrentDevice);
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_EQ(cache.options().device, device);
  EXPECT_EQ(cache.options().max_executables, Options().max_executables);
}

TEST_F(CacheTest, CacheForADeviceIsOneObject) {
  Cache& cache = cache_for(0);
  EXPECT_EQ(&cache, &cache_for(0));
  EXPECT_TRUE(cache.status().ok());
  EXPECT_EQ(cache.options().device, 0);
  EXPECT_TRUE(run_add(cache, key("CacheForADeviceIsOneObject")).ok());
  expect_sum(1);
  cache.clear();
}

TEST_F(CacheTest, CacheForADeviceThatDoesNotExistFailsEveryRun) {
  for (const int device : {1000, -5, -1}) {
    Cache& cache = cache_for(device);
    EXPECT_EQ(cache.status().ok(), device == 1000) << device;  // The first run counts the devices.
    EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k"))) << device;
    EXPECT_FAILURE(kInvalidArgument, cache.status()) << device;
  }
  EXPECT_EQ(calls, 0);
  const std::string of_minus_one(cache_for(-1).status().message());
  EXPECT_NE(of_minus_one.find("cache_for(-1): there is no such device"), std::string::npos) << of_minus_one;
}

}  // namespace
}  // namespace graphcache::test
