// Scenarios of device-updated executables: one key's slots, and families that share a table.
#include "faults_scenarios.h"

namespace graphcache::test {
namespace {

Options tables(int max_executables) {
  Options options;
  options.max_executables = max_executables;
  force(&options, Sharing::kTable);
  return options;
}

// Members of their own family with many nodes, whose rows soon take the memory that a table may have.
const Work& passing(int i) {
  static std::vector<std::unique_ptr<Work>> all;
  while (all.size() <= static_cast<std::size_t>(i)) {
    const auto number = static_cast<int>(all.size());
    auto work = std::make_unique<Work>(Work{key("passing", number)});
    work->launches.assign(20, Work::Launch{-number, 1});
    all.push_back(std::move(work));
  }
  return *all[static_cast<std::size_t>(i)];
}
void run_passing(World& world, int i) {
  EXPECT_TRUE(world.run(passing(i), 1).ok());
  world.expect_runs({{passing(i), 1}});
  world.forget();
}

// How many of them run before the table is made anew for the next one, because rows are never freed.
int passing_before_a_new_table() {
  static const int number = [] {
    World world(tables(1));
    for (int i = 0;; ++i) {
      run_passing(world, i);
      if (i > 1) world.cache->erase(passing(i).key);
      if (i > 1 && world.cache->stats().instantiations > 1) return i;
    }
  }();
  return number;
}

void add_runs_by_rows(ScenarioList& list) {
  // The first member's graph is the base.
  const std::vector<Prepared> turns{kTheOther, kMine, kTheOther};
  const std::vector<Prepared> back{kMine, kTheOther, kMine, kTheOther};
  list.add("table", tables(2), kSmall, kLarge, {}, Outcome::kInstantiated);
  list.add("table in place of another's executable", tables(1), kSmall, Work{kOther}, {kTheOther},
           Outcome::kInstantiated);
  list.add("table on a second device", tables(2), kSmall, kLarge, {}, Outcome::kInstantiated).devices = 2;
  list.add("first switch by a row", tables(1), kSmall, kLarge, {kTheOther}, Outcome::kUpdated).may_destroy = false;
  list.add("switch by a row of grids", tables(1), kSmall, kLarge, turns, Outcome::kSwitched).may_destroy = false;
  list.add("switch by a row of arguments", tables(1), kFirst, kSecond, turns, Outcome::kSwitched).may_destroy = false;
  list.add("switch by the base's row", tables(1), kSmall, kLarge, back, Outcome::kSwitched).may_destroy = false;
  Work many_first = kFirst, many_second = kSecond;
  many_first.many = many_second.many = true;
  list.add("switch by a row of many arguments", tables(1), many_first, many_second, turns, Outcome::kSwitched)
      .may_destroy = false;
  Scenario& nothing =
      list.add("switch by a row, with nothing to copy", tables(1), kSmall, kLarge, turns, Outcome::kSwitched);
  nothing.value = 0;
  nothing.may_destroy = false;
  list.add("switch by a row on another stream", tables(1), kSmall, kLarge, turns, Outcome::kSwitched).before =
      [](World& world) { world.second = true; };
  list.add("switch by a row on a second device", tables(1), kSmall, kLarge, turns, Outcome::kSwitched).devices = 2;
  list.add("switch by a row in flight", tables(1), kSmall, kLarge, turns, Outcome::kSwitched).before =
      [](World& world) {
        world.hold();
        static const Work in_flight = kLarge;
        world.attempt(in_flight, 2);
      };
  list.add("miss by a row", tables(1), kSmall, kLarge, turns, Outcome::kUpdated).before = [](World& world) {
    EXPECT_TRUE(world.cache->erase(kKey));
  };
  list.add("hit over a row", tables(1), kSmall, kLarge, {kTheOther, kMine}, Outcome::kPatched).may_destroy = false;
  list.add("hit of a table", tables(1), kSmall, kLarge, turns, Outcome::kPatched).operate = [](World& world,
                                                                                               const Scenario& the) {
    world.attempt(the.mine, 4);
    world.attempt(the.mine, 5);
  };
  const auto warm = [](World& world, const Scenario& the) { world.warm(the.mine, the.value); };
  list.add("warmed table", tables(2), kSmall, kLarge, {}, {}).operate = warm;
  list.add("table warmed elsewhere", tables(2), kSmall, kLarge, {}, Outcome::kPatched).operate =
      [](World& world, const Scenario& the) {
        world.second = true;
        world.warm(the.mine, the.value);
        world.second = false;
        world.attempt(the.mine, 2);
      };
  Options by_memory;
  by_memory.share = Share::kAlways;
  list.add("table of a second member, where memory is preferred", by_memory, kSmall, kLarge, {kTheOther},
           Outcome::kInstantiated);
}

void add_ends_of_tables(ScenarioList& list) {
  const std::vector<Prepared> turns{kTheOther, kMine, kTheOther};
  list.add("table without its binary", tables(2), kSmall, kLarge, {}, Outcome::kInstantiated).before = [](World&) {
    hostrt::fail_call("cudaGraphKernelNodeSetAttribute", 1, cudaErrorNotSupported);
  };
  list.add("row without memory", tables(1), kSmall, kLarge, {kTheOther}, Outcome::kInstantiated).before = [](World&) {
    hostrt::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  };
  ForcedOptions small = tables(2);
  small.max_device_bytes = 114'000 + 5 * 2'600 + 100;  // one executable, and less than a row
  list.add("table without a budget by update", small, kSmall, kLarge, {kTheOther}, Outcome::kUpdated).may_destroy =
      false;
  list.add("pinned beside a table", tables(1), kSmall, kLarge, turns, Outcome::kRestored).operate =
      [](World& world, const Scenario& the) {
        world.cache->pin(the.mine.key);
        world.attempt(the.mine, the.value);
        world.cache->unpin(the.mine.key);
      };
  list.add("eviction of a table", tables(1), Work{kKey}, Work{kOther}, {kTheOther}, Outcome::kRestored).before =
      [](World& world) {
        static const Work small_one{key("small"), kSmall.launches}, large_one{key("large"), kLarge.launches};
        EXPECT_TRUE(world.run(Work{kKey}, 1).ok());
        for (const Work* work : {&small_one, &large_one, &small_one}) EXPECT_TRUE(world.run(*work, 2).ok());
        world.forget();
      };
  list.add("table made anew", tables(1), {kKey, passing(1000).launches}, kLarge, {kTheOther}, Outcome::kInstantiated)
      .before = [](World& world) {
    for (int i = 0, end = passing_before_a_new_table(); i < end; ++i) {
      run_passing(world, i);
      if (i > 1) world.cache->erase(passing(i).key);
    }
  };
  list.add("erase of a table's member", tables(1), kSmall, kLarge, turns, {}).operate = [](World& world,
                                                                                           const Scenario& the) {
    EXPECT_TRUE(world.cache->erase(the.mine.key));
    world.attempt(the.other, the.value);
  };
  Scenario& holder = list.add("erase of a table's holder", tables(1), kSmall, kLarge, turns, Outcome::kRestored);
  holder.operate = [](World& world, const Scenario& the) {
    EXPECT_TRUE(world.cache->erase(the.other.key));
    world.attempt(the.mine, the.value);
  };
  holder.forgets_other = true;
  for (const bool in_flight : {false, true}) {
    Scenario& destroy = list.add(in_flight ? "destruction of a table in flight" : "destruction of a table", tables(1),
                                 kSmall, kLarge, turns, {});
    if (in_flight) {
      destroy.before = [](World& world) { world.hold(); };
    }
    destroy.operate = [in_flight](World& world, const Scenario& the) {
      if (in_flight) world.attempt(the.mine, the.value);
      world.cache.reset();
    };
    destroy.after = make_another_cache;
    destroy.ends = true;
    destroy.forgets_other = true;
  }
}

void add_slots(ScenarioList& list) {
  force(Patching::kDeviceUpdated);
  const ForcedOptions by_device = unshared();
  ForcedOptions one = by_device;
  one.max_executables = 1;
  const Work plain{kKey}, plain_other{kOther};
  Work many = plain;
  many.many = true;
  list.add("cold with values by the device", by_device, many, plain_other, {kTheOther}, Outcome::kInstantiated);
  list.add("hit with values by the device", by_device, many, plain_other, {kMine}, Outcome::kPatched).may_destroy =
      false;
  list.add("eviction of values by the device", one, plain, plain_other, {kTheOther}, Outcome::kInstantiated);
}

// Values that kernels read from memory that Recorder::write() writes to.
void add_pointed(ScenarioList& list) {
  Options one, none;
  one.max_executables = 1;
  none.max_executables = 0;
  force(Patching::kDeviceUpdated);
  const ForcedOptions by_device = unshared();
  Work mine{kKey}, other{kOther}, first = kFirst, second = kSecond;
  for (Work* const work : {&mine, &other, &first, &second}) work->pointed = true;
  list.add("cold with a pointed value", {}, mine, other, {}, Outcome::kInstantiated).may_destroy = false;
  list.add("hit with a pointed value", {}, mine, other, {kMine}, Outcome::kPatched).may_destroy = false;
  list.add("eager with a pointed value", none, mine, other, {}, Outcome::kEager).may_destroy = false;
  list.add("switch with a pointed value", one, first, second, {kMine, kTheOther}, Outcome::kSwitched);
  list.add("pointed value by the device", by_device, mine, other, {kMine}, Outcome::kPatched).may_destroy = false;
  for (const bool in_flight : {false, true}) {
    Scenario& destroy =
        list.add(in_flight ? "destruction of pointed values in flight" : "destruction of pointed values", one, first,
                 second, {kMine, kTheOther}, {});
    destroy.operate = [in_flight](World& world, const Scenario& the) {
      if (in_flight) world.hold();
      world.attempt(the.mine, 5);
      world.cache.reset();
    };
    destroy.after = make_another_cache;
    destroy.ends = true;
    destroy.forgets_other = true;
  }
}

}  // namespace

void add_tables(ScenarioList& list) {
  add_slots(list);
  add_runs_by_rows(list);
  add_ends_of_tables(list);
  add_pointed(list);
}

}  // namespace graphcache::test
