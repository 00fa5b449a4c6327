// Properties of every plan of the policy, for random keys, graphs, orders of use, pins, busy keys, refusals, failures
// and limits. The simulator's traces have none of the last five.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "policy_checker.h"
#include "size.h"

namespace graphcache {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  std::uint64_t below(std::uint64_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ % limit;
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

struct Variety {
  std::uint64_t keys, signatures, classes, streams;
  bool pins = false, is_busy = false, refuses = false, forgets = false;
  // Plans fail after they were reported as done, executables are lost, keys are erased.
  bool fails = false;
  // `max_device_bytes` is between less than the smallest executable and 13 of the largest.
  bool is_tight = false;
};

// A cache without graphs: it makes the same calls to two policies, carries out their plans, and checks that this is
// possible.
class World {
 public:
  World(std::uint64_t seed, Limits limits, const Variety& variety)
      : random_(seed), limits_(limits), variety_(variety), policies_{Policy(limits), Policy(limits)} {}

  void go_on(int runs) {
    for (int i = 0; i < runs && !testing::Test::HasFailure(); ++i) {
      const auto key = static_cast<KeyId>(random_.below(variety_.keys));
      if (variety_.pins && random_.one_in(8)) pin(key, random_.one_in(3));
      if (variety_.forgets && random_.one_in(16)) forget(static_cast<KeyId>(random_.below(variety_.keys)));
      if (variety_.fails && random_.one_in(16)) lose(static_cast<KeyId>(random_.below(variety_.keys)));
      if (variety_.fails && random_.one_in(16)) erase(static_cast<KeyId>(random_.below(variety_.keys)));
      check();
      run(key);
    }
  }

  std::map<Plan::Action, int> actions;
  int read = 0, read_alive = 0, evictions = 0, refusals = 0, undone = 0, too_large = 0;

 private:
  struct Executable {
    bool is_table = false;
    std::set<KeyId> sets;       // the keys that have a set
    std::size_t set_bytes = 0;  // of all sets but the first, those of erased keys included
  };

  template <class F>
  void for_both(F&& f) {
    for (Policy& policy : policies_) f(policy);
  }
  bool is_live(KeyId key) const { return live_.count(key) != 0; }
  bool may_leave(KeyId key) const { return pinned_.count(key) == 0 && busy_.count(key) == 0; }

  void pin(KeyId key, bool pinned) {
    if (facts_.count(key) == 0) return;
    pinned ? void(pinned_.insert(key)) : void(pinned_.erase(key));
    for_both([&](Policy& policy) { policy.pinned(key, pinned); });
  }

  void forget(KeyId key) {
    if (facts_.count(key) == 0 || is_live(key) || pinned_.count(key) != 0) return;
    facts_.erase(key);
    for_both([&](Policy& policy) { policy.forgotten(key); });
  }

  void lose(KeyId key) {
    if (last_use_.count(key) == 0) return;
    live_.erase(key);
    for_both([&](Policy& policy) { policy.lost(key); });
  }

  // The key's id may be reused with another graph.
  void erase(KeyId key) {
    if (last_use_.erase(key) == 0) return;
    live_.erase(key);
    facts_.erase(key);
    pinned_.erase(key);
    for (auto& [holder, executable] : live_) executable.sets.erase(key);
    for_both([&](Policy& policy) { policy.erased(key); });
  }

  void capture(KeyId key) {
    const std::uint64_t identity = variety_.fails ? random_.below(variety_.keys) : key;
    GraphFacts facts;
    facts.signature = identity % variety_.signatures + 1;
    facts.table_class = identity / variety_.signatures % variety_.classes;
    facts.stream = random_.below(variety_.streams);
    facts.nodes = 8 + 100 * facts.signature;
    facts.bytes = 114'000 + 2'600 * facts.nodes;
    facts.table_bytes = 150 * facts.nodes;
    facts.set_bytes = 40 * facts.nodes;
    facts.slot_kernels = facts.signature == 2 ? 40 : 0;
    facts.shape = facts.signature / 2;
    facts_[key] = facts;
    if (random_.one_in(2)) facts.signature = 0;
    for_both([&](Policy& policy) { policy.captured(key, facts); });
  }

  void run(KeyId key) {
    for_both([&](Policy& policy) { policy.used(key); });
    last_use_[key] = ++uses_;
    if (is_live(key)) return;
    busy_.clear();
    for (const auto& [other, kind] : live_) {
      if (variety_.is_busy && random_.one_in(4)) busy_.insert(other);
    }
    if (facts_.count(key) == 0) {
      capture(key);
    } else if (random_.one_in(4)) {
      const std::uint64_t stream = random_.below(variety_.streams);
      for_both([&](Policy& policy) { policy.moved(key, stream); });
    }
    const std::vector<KeyId> to_read = policies_[0].to_read(key);
    EXPECT_EQ(to_read, policies_[1].to_read(key));
    for (const KeyId other : to_read) {
      if (other != key && busy_.count(other) != 0) continue;
      for_both([&](Policy& policy) { policy.described(other, facts_.at(other)); });
      check();
      ++(is_live(other) ? read_alive : read);
    }
    for (int tries = 0; !settle(key); ++tries) ASSERT_LT(tries, 4) << "a refused plan is made again and again";
  }

  // Returns false if the plan was refused.
  bool settle(KeyId key) {
    const auto idle = [this](KeyId other) { return busy_.count(other) == 0; };
    const KeyId lender = policies_[0].candidate(key, idle);
    EXPECT_EQ(lender, policies_[1].candidate(key, idle));
    Offer offer;
    if (lender != kNoKey) {
      EXPECT_TRUE(is_live(lender) && may_leave(lender)) << "lender " << lender;
      EXPECT_EQ(facts_.at(lender).signature, facts_.at(key).signature);
      if (variety_.fails && random_.one_in(8)) pin(lender, true);
      offer = {lender, costs::kTakeOver + random_.below(2) * 100 * facts_.at(key).nodes, has_set(lender, key),
               facts_.at(key).set_bytes};
    }
    const Plan plan = policies_[0].plan(key, offer, idle);
    expect_equal(plan, policies_[1].plan(key, offer, idle));
    expect_possible(key, plan);
    if (testing::Test::HasFailure()) return true;
    if (variety_.refuses && can_be_refused(plan) && random_.one_in(6)) {
      ++refusals;
      for_both([&](Policy& policy) { refuse(policy, key, plan); });
      return false;
    }
    const Executable lent = plan.action == Plan::Action::kBorrow ? live_.at(plan.lender) : Executable();
    carry_out(key, plan);
    for_both([&](Policy& policy) { policy.done(key, plan); });
    check();
    return !variety_.fails || !random_.one_in(6) || fail(key, plan, lent);
  }

  // A plan fails after it was reported as done. Returns false if the runtime refuses it.
  bool fail(KeyId key, const Plan& plan, const Executable& lent) {
    if (plan.action != Plan::Action::kBorrow || lent.is_table || random_.one_in(2)) {
      lose(key);
    } else {
      ++undone;
      if (random_.one_in(4)) pin(plan.lender, true);
      live_.erase(key);
      live_[plan.lender] = lent;
      for_both([&](Policy& policy) { policy.undone(key, plan); });
    }
    check();
    if (!can_be_refused(plan) || random_.one_in(2)) return true;
    ++refusals;
    for_both([&](Policy& policy) { refuse(policy, key, plan); });
    return false;
  }

  // Compares the policy's knowledge with the truth, and checks the limits. The other policy gets the same calls and
  // must make the same plans.
  void check() const {
    const PolicyChecker look(policies_[0]);
    look.check();
    EXPECT_LE(live_.size(), limits_.max_executables);
    // More memory may be taken only to avoid a direct run.
    EXPECT_TRUE(variety_.pins || variety_.is_busy || units() <= limits_.max_executables);
    EXPECT_LE(look.bytes(), limits_.max_device_bytes);
    EXPECT_EQ(look.units(), units());
    EXPECT_EQ(look.keys(), facts_.size());
    for (KeyId key = 0; key < variety_.keys; ++key) {
      const auto live = live_.find(key);
      const bool is_live = live != live_.end(), has_table = is_live && live->second.is_table;
      EXPECT_TRUE(look.is_captured(key) == (facts_.count(key) != 0) &&
                  look.is_pinned(key) == (pinned_.count(key) != 0) && look.is_live(key) == is_live &&
                  look.has_table(key) == has_table && (!has_table || look.set_bytes(key) == live->second.set_bytes))
          << "key " << key;
    }
  }

  // The memory of the executables, counted in executables. A forced table counts one.
  std::size_t units() const {
    std::size_t units = live_.size();
    if (limits_.mechanisms.sharing == detail::Sharing::kTable) return units;
    for (const auto& [key, executable] : live_) {
      if (!executable.is_table) continue;
      const GraphFacts& facts = facts_.at(key);
      const std::size_t bytes = facts.table_bytes + executable.set_bytes;
      units += (bytes + facts.bytes - 1) / facts.bytes;
    }
    return units;
  }

  bool has_set(KeyId lender, KeyId key) const {
    const auto found = live_.find(lender);
    return found != live_.end() && found->second.is_table && found->second.sets.count(key) != 0;
  }

  static bool can_be_refused(const Plan& plan) {
    return plan.action == Plan::Action::kTable || plan.action == Plan::Action::kBorrow || plan.writes_slots;
  }

  static void expect_equal(const Plan& a, const Plan& b) {
    EXPECT_TRUE(a.action == b.action && a.lender == b.lender && a.evict == b.evict && a.rent == b.rent &&
                a.set_bytes == b.set_bytes && a.writes_slots == b.writes_slots)
        << "equal calls, other plans";
  }

  void expect_possible(KeyId key, const Plan& plan) {
    std::set<KeyId> leaving;
    for (const KeyId loser : plan.evict) {
      EXPECT_TRUE(is_live(loser) && may_leave(loser)) << "evicts " << loser;
      EXPECT_TRUE(loser != key && loser != plan.lender && leaving.insert(loser).second) << "evicts " << loser;
    }
    switch (plan.action) {
      case Plan::Action::kDirect:
        if (facts_.at(key).bytes > limits_.max_device_bytes) return void(++too_large);
        EXPECT_TRUE(std::any_of(live_.begin(), live_.end(), [&](const auto& one) { return !may_leave(one.first); }))
            << "a direct run, though everybody's executable may leave";
        break;
      case Plan::Action::kBorrow:
        EXPECT_TRUE(is_live(plan.lender) && may_leave(plan.lender)) << "borrows from " << plan.lender;
        if (live_.count(plan.lender) != 0 && live_.at(plan.lender).is_table) {
          EXPECT_EQ(facts_.at(plan.lender).table_class, facts_.at(key).table_class);
        }
        break;
      case Plan::Action::kTable:
        EXPECT_NE(facts_.at(key).table_class, 0u);
        EXPECT_TRUE(limits_.prefer != Prefer::kDeviceTime || limits_.mechanisms.sharing == detail::Sharing::kTable);
        break;
      case Plan::Action::kOwn:
        break;
    }
  }

  void carry_out(KeyId key, const Plan& plan) {
    ++actions[plan.action];
    evictions += static_cast<int>(plan.evict.size());
    for (const KeyId loser : plan.evict) live_.erase(loser);
    switch (plan.action) {
      case Plan::Action::kDirect:
        break;
      case Plan::Action::kOwn:
        live_[key] = {};
        break;
      case Plan::Action::kTable:
        live_[key] = {true, {key}, 0};
        break;
      case Plan::Action::kBorrow: {
        Executable executable = live_.at(plan.lender);
        live_.erase(plan.lender);
        if (executable.is_table && executable.sets.insert(key).second) executable.set_bytes += facts_.at(key).set_bytes;
        live_[key] = executable;
        break;
      }
    }
  }

  Random random_;
  const Limits limits_;
  const Variety variety_;
  Policy policies_[2];
  std::map<KeyId, GraphFacts> facts_;  // of keys that have a template
  std::map<KeyId, Executable> live_;
  std::set<KeyId> pinned_, busy_;
  std::map<KeyId, std::uint64_t> last_use_;
  std::uint64_t uses_ = 0;
};

constexpr Prefer kPreferences[] = {Prefer::kTotalTime, Prefer::kDeviceTime, Prefer::kMemory};

class PolicyPropertiesTest : public testing::Test {
 protected:
  // Sums over all worlds.
  void run_worlds(const Variety& variety) {
    for (const Prefer prefer : kPreferences) {
      for (const std::size_t budget : {1, 2, 4, 8, 64}) {
        for (std::uint64_t seed = 1; seed <= 10 && !HasFailure(); ++seed) {
          SCOPED_TRACE("prefer " + std::to_string(static_cast<int>(prefer)) + ", budget " + std::to_string(budget) +
                       ", seed " + std::to_string(seed));
          Limits limits{prefer, budget};
          // Some worlds force each way of sharing.
          const detail::Sharing ways[] = {detail::Sharing::kAlways, detail::Sharing::kTable, detail::Sharing::kNever};
          if (seed > 7) limits.mechanisms.sharing = ways[seed - 8];
          if (variety.is_tight) limits.max_device_bytes = 300'000 + seed * seed * 120'000;
          World world(seed, limits, variety);
          world.go_on(test::by_size(80, 300, 600));
          for (const auto& [action, count] : world.actions) actions[action] += count;
          read += world.read;
          read_alive += world.read_alive;
          evictions += world.evictions;
          refusals += world.refusals;
          undone += world.undone;
          too_large += world.too_large;
        }
      }
    }
    EXPECT_GT(actions[Plan::Action::kOwn], 0);
    EXPECT_GT(actions[Plan::Action::kBorrow], 0);
    EXPECT_GT(evictions, 0);
    EXPECT_GT(read, 0);
    EXPECT_GT(read_alive, 0);
  }

  std::map<Plan::Action, int> actions;
  int read = 0, read_alive = 0, evictions = 0, refusals = 0, undone = 0, too_large = 0;
};

TEST_F(PolicyPropertiesTest, OfOneFamily) {
  run_worlds({.keys = 40, .signatures = 1, .classes = 2, .streams = 1});
  EXPECT_GT(actions[Plan::Action::kTable], 0);
  EXPECT_EQ(actions[Plan::Action::kDirect], 0);
}

TEST_F(PolicyPropertiesTest, OfManyFamiliesAndStreams) {
  run_worlds({.keys = 60, .signatures = 5, .classes = 3, .streams = 3});
  EXPECT_GT(actions[Plan::Action::kTable], 0);
  EXPECT_EQ(actions[Plan::Action::kDirect], 0);
}

TEST_F(PolicyPropertiesTest, WherePinnedAndBusyOnesStay) {
  run_worlds({.keys = 40, .signatures = 3, .classes = 2, .streams = 2, .pins = true, .is_busy = true});
  EXPECT_GT(actions[Plan::Action::kDirect], 0);
}

TEST_F(PolicyPropertiesTest, WhereKeysAreForgottenAndPlansRefused) {
  run_worlds({.keys = 40,
              .signatures = 3,
              .classes = 2,
              .streams = 2,
              .pins = true,
              .is_busy = true,
              .refuses = true,
              .forgets = true});
  EXPECT_GT(refusals, 0);
}

TEST_F(PolicyPropertiesTest, WhereExecutablesAreLostAndPlansUndone) {
  run_worlds({.keys = 40,
              .signatures = 3,
              .classes = 2,
              .streams = 2,
              .pins = true,
              .is_busy = true,
              .refuses = true,
              .forgets = true,
              .fails = true});
  EXPECT_GT(actions[Plan::Action::kTable], 0);
  EXPECT_GT(undone, 0);
}

TEST_F(PolicyPropertiesTest, WithinTheBytesOfTheDevice) {
  run_worlds({.keys = 40, .signatures = 3, .classes = 2, .streams = 2, .is_tight = true});
  EXPECT_GT(actions[Plan::Action::kTable], 0);
  EXPECT_GT(too_large, 0);
}

TEST_F(PolicyPropertiesTest, WithinTheBytesOfTheDeviceWhateverFails) {
  run_worlds({.keys = 40,
              .signatures = 3,
              .classes = 2,
              .streams = 2,
              .pins = true,
              .is_busy = true,
              .refuses = true,
              .forgets = true,
              .fails = true,
              .is_tight = true});
  EXPECT_GT(actions[Plan::Action::kTable], 0);
  EXPECT_GT(undone, 0);
}

}  // namespace
}  // namespace graphcache
