// Properties of every plan of the policy, for random keys, graphs, orders of use, pins, busy keys, refusals, failures
// and limits. The simulator's traces have none of the last five.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policy_checker.h"
#include "size.h"

namespace graphcache {
namespace {

using Action = Plan::Action;
using Tables = Mechanisms::Tables;
using Patching = Mechanisms::Patching;

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

// What has happened in worlds.
struct Happened {
  std::map<std::pair<Rule, Action>, int> plans;
  int read = 0, read_alive = 0, evictions = 0, updater_nodes = 0, refusals = 0, undone = 0, too_large = 0;
};

// A cache without graphs: it makes the same calls to two policies, carries out their plans, and checks that these are
// what the rules say.
class World {
 public:
  World(std::uint64_t seed, Limits limits, const Variety& variety, Happened* happened)
      : happened_(*happened),
        random_(seed),
        limits_(limits),
        variety_(variety),
        policies_{Policy(limits, last_use_), Policy(limits, last_use_)} {
    for_both([&](Policy& policy) { policy.add(static_cast<KeyId>(variety.keys - 1)); });
  }

  void go_on(int runs) {
    for (int i = 0; i < runs && !testing::Test::HasFailure(); ++i) {
      const auto any_key = [&] { return static_cast<KeyId>(random_.below(variety_.keys)); };
      if (variety_.pins && random_.one_in(8)) pin(any_key(), random_.one_in(3));
      if (variety_.forgets && random_.one_in(16)) forget(any_key());
      if (variety_.fails && random_.one_in(16)) lose(any_key());
      if (variety_.fails && random_.one_in(16)) erase(any_key());
      run(any_key());
    }
  }

 private:
  enum class Kind { kNone, kPlain, kSlots, kTable };
  struct Executable {
    Kind kind = Kind::kNone;
    std::set<KeyId> sets;         // The keys that have a set.
    std::size_t added_bytes = 0;  // Device memory of all sets but the first, those of keys that are gone included.
  };
  struct Key {
    bool is_used = false, has_template = false, is_unread = false, is_pinned = false, is_busy = false;
    bool refuses_slots = false;
    GraphFacts truth, known;  // What there is to know of its graph, and what the policy knows.
    Use last_use;
    Executable executable;
  };

  template <class F>
  void for_both(F&& f) {
    for (Policy& policy : policies_) f(policy);
  }
  // What both answer.
  template <class F>
  auto of_both(F&& f) {
    const auto answer = f(policies_[0]);
    EXPECT_TRUE(answer == f(policies_[1])) << "equal calls, other answers";
    return answer;
  }

  // ---- What the policy should know

  Kind kind(KeyId key) const { return keys_[key].executable.kind; }
  bool is_live(KeyId key) const { return kind(key) != Kind::kNone; }
  bool is_plain(KeyId key) const { return kind(key) == Kind::kPlain; }
  bool has_table(KeyId key) const { return kind(key) == Kind::kTable; }
  bool is_idle(KeyId key) const { return !keys_[key].is_busy; }
  bool may_leave(KeyId key) const { return is_idle(key) && !keys_[key].is_pinned; }
  const GraphFacts& facts(KeyId key) const { return keys_[key].known; }
  bool is_related(KeyId key) const { return keys_[key].has_template && facts(key).signature != 0; }

  // Small numbers of the key's family and class, which is related.
  std::size_t family(KeyId key) const { return facts(key).signature * variety_.streams + facts(key).stream; }
  std::size_t class_of(KeyId key) const { return family(key) * variety_.classes + facts(key).table_class; }
  std::size_t classes() const { return (variety_.signatures + 1) * variety_.streams * variety_.classes; }
  bool are_siblings(KeyId a, KeyId b) const { return is_related(a) && is_related(b) && family(a) == family(b); }
  bool are_of_one_class(KeyId a, KeyId b) const { return is_related(a) && is_related(b) && class_of(a) == class_of(b); }

  template <class F>
  std::size_t count(F&& suits) const {
    std::size_t count = 0;
    for (KeyId key = 0; key < keys_.size(); ++key) count += suits(key) ? 1 : 0;
    return count;
  }
  std::size_t executables() const {
    return count([&](KeyId key) { return is_live(key); });
  }
  std::size_t members(KeyId key) const {
    return count([&](KeyId other) { return are_of_one_class(other, key); });
  }
  bool class_has_table(KeyId key) const { return table_of_class(key) != kNoKey; }
  KeyId table_of_class(KeyId key) const {
    for (KeyId other = 0; other < keys_.size(); ++other) {
      if (has_table(other) && are_of_one_class(other, key)) return other;
    }
    return kNoKey;
  }

  std::size_t bytes(KeyId key) const {
    if (!is_live(key)) return 0;
    return facts(key).bytes + (has_table(key) ? facts(key).table_bytes + keys_[key].executable.added_bytes : 0);
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (KeyId key = 0; key < keys_.size(); ++key) sum += bytes(key);
    return sum;
  }
  std::size_t bytes(const std::vector<KeyId>& keys) const {
    std::size_t sum = 0;
    for (const KeyId key : keys) sum += bytes(key);
    return sum;
  }
  bool has_room(KeyId key) const { return is_enough({}, 1, facts(key).bytes); }

  // The executables that suit and are not pinned, in order of use.
  template <class F>
  std::vector<KeyId> by_use(F&& suits) const {
    std::vector<KeyId> keys;
    for (KeyId key = 0; key < keys_.size(); ++key) {
      if (is_live(key) && !keys_[key].is_pinned && suits(key)) keys.push_back(key);
    }
    std::sort(keys.begin(), keys.end(), [&](KeyId a, KeyId b) { return keys_[a].last_use < keys_[b].last_use; });
    return keys;
  }
  static KeyId first(const std::vector<KeyId>& keys) { return keys.empty() ? kNoKey : keys.front(); }

  // The executables that may leave, in order of eviction. The device-updated ones stay while a plain one is in use.
  std::vector<KeyId> losers() const {
    std::vector<KeyId> keys = by_use([&](KeyId key) { return is_plain(key); });
    const std::size_t plain = keys.size();
    std::erase_if(keys, [&](KeyId key) { return !is_idle(key); });
    if (keys.size() < plain) return keys;
    for (const KeyId key : by_use([&](KeyId key) { return is_idle(key) && !is_plain(key); })) keys.push_back(key);
    return keys;
  }
  // Those of them that leave for this many more executables and bytes. All if they do not suffice.
  std::vector<KeyId> leaving_for(std::size_t executables, std::size_t bytes, KeyId stays = kNoKey) const {
    std::vector<KeyId> leaving;
    for (const KeyId key : losers()) {
      if (is_enough(leaving, executables, bytes)) break;
      if (key != stays) leaving.push_back(key);
    }
    return leaving;
  }
  bool is_enough(const std::vector<KeyId>& leaving, std::size_t executables, std::size_t bytes) const {
    return this->executables() + executables - leaving.size() <= limits_.max_executables &&
           this->bytes() + bytes - this->bytes(leaving) <= limits_.max_device_bytes;
  }

  KeyId lender(KeyId key) const {
    if (limits_.share == Share::kNever || keys_[key].is_pinned || !is_related(key)) return kNoKey;
    if (limits_.share == Share::kWhenFull && has_room(key)) return kNoKey;
    if (const KeyId table = table_of_class(key); table != kNoKey && may_leave(table)) return table;
    if (limits_.share == Share::kWhenFull) return kNoKey;
    return first(by_use([&](KeyId other) { return is_plain(other) && is_idle(other) && are_siblings(other, key); }));
  }

  // Whether the class may have a table, and there are bytes for it in the place of these executables.
  bool may_have_table(KeyId key, const std::vector<KeyId>& in_place_of) const {
    return is_related(key) && facts(key).table_class != 0 && !keys_[key].is_pinned && !class_has_table(key) &&
           limits_.mechanisms.tables != Tables::kNever && !refuses_table_[class_of(key)] &&
           has_bytes_for_sets(key, bytes_of_sets(key)) &&
           bytes() - bytes(in_place_of) + facts(key).bytes + facts(key).table_bytes + bytes_of_sets(key) <=
               limits_.max_device_bytes;
  }
  // Those of all members, or of 64.
  std::size_t bytes_of_sets(KeyId key) const { return facts(key).set_bytes * std::min<std::size_t>(members(key), 64); }
  // A table's sets take less than all executables may.
  bool has_bytes_for_sets(KeyId key, std::size_t bytes) const {
    return bytes < facts(key).bytes * limits_.max_executables;
  }

  bool has_set(KeyId holder, KeyId key) const { return keys_[holder].executable.sets.contains(key); }
  std::size_t with_slots() const {
    return count([&](KeyId key) { return kind(key) == Kind::kSlots; });
  }

  bool wants_slots(KeyId key) const {
    if (keys_[key].refuses_slots || facts(key).slot_kernels == 0) return false;
    if (limits_.mechanisms.patching != Patching::kAuto) return limits_.mechanisms.patching == Patching::kDeviceUpdated;
    return limits_.share == Share::kWhenFull && has_room(key) && limits_.max_executables >= 8 &&
           with_slots() < limits_.max_executables / 2;
  }

  // ---- What happens to keys

  void pin(KeyId key, bool pinned) {
    if (!keys_[key].has_template) return;
    keys_[key].is_pinned = pinned;
    for_both([&](Policy& policy) { policy.pinned(key, pinned); });
    check();
  }

  void forget(KeyId key) {
    if (!keys_[key].has_template || is_live(key) || keys_[key].is_pinned) return;
    keys_[key].has_template = keys_[key].is_unread = false;
    drop_sets(key);
    for_both([&](Policy& policy) { policy.forgotten(key); });
    check();
  }

  void lose(KeyId key) {
    if (!keys_[key].is_used) return;
    keys_[key].executable = {};
    for_both([&](Policy& policy) { policy.lost(key); });
    check();
  }

  // The key's id may be reused with another graph.
  void erase(KeyId key) {
    if (!keys_[key].is_used) return;
    keys_[key] = {};
    drop_sets(key);
    for_both([&](Policy& policy) { policy.erased(key); });
    check();
  }

  // Nobody can use them any more, but they take their memory.
  void drop_sets(KeyId key) {
    for (Key& holder : keys_) holder.executable.sets.erase(key);
  }

  // Some keys are read at once, and some can have no siblings.
  void capture(KeyId key) {
    const std::uint64_t identity = variety_.fails ? random_.below(variety_.keys) : key;
    GraphFacts facts;
    facts.signature = identity % variety_.signatures + 1;
    facts.table_class = identity / variety_.signatures % variety_.classes;
    facts.stream = random_.below(variety_.streams);
    const std::size_t nodes = 8 + 100 * facts.signature;
    facts.bytes = 114'000 + 2'600 * nodes;
    facts.table_bytes = 150 * nodes;
    facts.set_bytes = (identity % 3 == 0 ? 1'000 : 40) * nodes;
    facts.slot_kernels = facts.signature == 2 ? 40 : 0;
    facts.shape = facts.signature / 2;
    if (identity % 10 == 9) facts.signature = facts.table_class = 0;
    keys_[key].has_template = true;
    keys_[key].truth = facts;
    keys_[key].is_unread = facts.signature == 0 || random_.one_in(2);
    if (keys_[key].is_unread) facts.signature = facts.table_class = 0;
    keys_[key].known = facts;
    for_both([&](Policy& policy) { policy.captured(key, facts); });
    check();
  }

  void read_graph(KeyId key) {
    const std::uint64_t stream = facts(key).stream;
    keys_[key].is_unread = false;
    keys_[key].known = keys_[key].truth;
    keys_[key].known.stream = stream;
    for_both([&](Policy& policy) { policy.described(key, keys_[key].truth); });
    ++(is_live(key) ? happened_.read_alive : happened_.read);
    check();
  }

  void move(KeyId key, std::uint64_t stream) {
    if (!limits_.mechanisms.across_streams) keys_[key].known.stream = stream;
    for_both([&](Policy& policy) { policy.moved(key, stream); });
    check();
  }

  void run(KeyId key) {
    keys_[key].is_used = true;
    if (is_live(key)) {  // Hits are not reported.
      keys_[key].last_use = {epoch_, ++tick_};
      return;
    }
    keys_[key].last_use = {++epoch_, ++tick_};
    for_both([&](Policy& policy) { policy.used(key, keys_[key].last_use); });
    for (Key& other : keys_) other.is_busy = variety_.is_busy && random_.one_in(4);
    keys_[key].is_busy = false;
    if (!keys_[key].has_template) {
      capture(key);
    } else if (random_.one_in(4)) {
      move(key, random_.below(variety_.streams));
    }
    read_what_is_needed(key);
    const KeyId victim = of_both([&](Policy& policy) { return policy.victim(kNoKey, idle_); });
    EXPECT_EQ(victim, first(losers()));
    EXPECT_EQ(of_both([&](Policy& policy) { return policy.has_room(key, idle_); }),
              facts(key).bytes <= limits_.max_device_bytes && (has_room(key) || victim != kNoKey));
    if (random_.one_in(12)) return warm(key);
    for (int tries = 0; !settle(key); ++tries) ASSERT_LT(tries, 8) << "a refused plan is made again and again";
  }

  void read_what_is_needed(KeyId key) {
    const auto [itself, other] = of_both([&](Policy& policy) {
      const Policy::ToRead to_read = policy.to_read(key);
      return std::pair(to_read.itself, to_read.other);
    });
    const auto is_like = [&](KeyId one) { return facts(one).shape == facts(key).shape; };
    const auto is_needed = [&](KeyId one) { return is_like(one) && keys_[one].is_unread && is_plain(one); };
    if (limits_.share != Share::kAlways && has_room(key)) {
      EXPECT_FALSE(itself || other != kNoKey) << "reads, though there is room";
    } else {
      const bool has_company = limits_.mechanisms.tables == Tables::kAlways || !by_use(is_like).empty();
      EXPECT_EQ(itself, keys_[key].is_unread && has_company);
      EXPECT_EQ(other, first(by_use(is_needed)));
    }
    if (testing::Test::HasFailure()) return;
    if (other != kNoKey && is_idle(other)) read_graph(other);
    if (itself) read_graph(key);
  }

  // ---- What is planned

  // A key that is made ready gets what is free.
  void warm(KeyId key) {
    if (find_lender(key) != kNoKey) return;
    const auto nobody = [](KeyId) { return false; };
    const Plan plan = plan_of_both(key, {}, nobody);
    EXPECT_EQ(plan.action == Action::kDirect, !has_room(key)) << "made ready";
    EXPECT_TRUE(plan.lender == kNoKey && plan.evict.empty()) << "made ready";
    if (plan.action == Action::kDirect) return;
    if (follows_the_rules(key, {}, plan)) carry_out(key, plan);
  }

  KeyId find_lender(KeyId key) {
    const KeyId found = of_both([&](Policy& policy) { return policy.candidate(key, idle_); });
    EXPECT_EQ(found, lender(key)) << "the lender of key " << key;
    return testing::Test::HasFailure() ? kNoKey : found;
  }

  Plan plan_of_both(KeyId key, const Offer& offer, Policy::Idle idle) {
    const Plan a = policies_[0].plan(key, offer, idle), b = policies_[1].plan(key, offer, idle);
    EXPECT_TRUE(a.action == b.action && a.rule == b.rule && a.lender == b.lender && a.evict == b.evict &&
                a.set_bytes == b.set_bytes && a.writes_slots == b.writes_slots)
        << "equal calls, other plans";
    return a;
  }

  // Returns false if the key has to try again.
  bool settle(KeyId key) {
    Offer offer;
    if (const KeyId found = find_lender(key); found != kNoKey) {
      if (variety_.refuses && has_table(found) && !has_set(found, key) && random_.one_in(8)) {
        refuse_sets(key);
        return false;
      }
      if (variety_.fails && random_.one_in(8)) pin(found, true);
      offer.lender = found;
      if (has_table(found) && !has_set(found, key)) offer.set_bytes = facts(key).set_bytes;
      if (random_.one_in(10)) offer = {};  // It could not be locked.
    }
    const Plan plan = plan_of_both(key, offer, idle_);
    if (!follows_the_rules(key, offer, plan)) return true;
    const Executable lent = plan.action == Action::kBorrow ? keys_[plan.lender].executable : Executable();
    carry_out(key, plan);
    if (variety_.refuses && random_.one_in(6)) return refuse(key, plan, lent);
    return !variety_.fails || !random_.one_in(6) || fail(key, plan, lent);
  }

  bool follows_the_rules(KeyId key, const Offer& offer, const Plan& plan) {
    expect_by_the_rules(key, offer, plan);
    if (!testing::Test::HasFailure()) return true;
    ADD_FAILURE() << "key " << key << ", rule " << static_cast<int>(plan.rule) << ", action "
                  << static_cast<int>(plan.action);
    return false;
  }

  void expect_by_the_rules(KeyId key, const Offer& offer, const Plan& plan) {
    const bool room = has_room(key);
    const bool forces_table = limits_.mechanisms.tables == Tables::kAlways;
    const bool can_lend = offer.lender != kNoKey && !keys_[offer.lender].is_pinned;
    const bool lends_table = can_lend && has_table(offer.lender);
    const bool borrows = can_lend && (limits_.share == Share::kAlways || (!room && lends_table));
    // What the table must grow by, and who leaves for that.
    const std::size_t growth = lends_table ? offer.set_bytes : 0;
    const std::vector<KeyId> for_set = leaving_for(0, growth, offer.lender);
    const bool set_fits = is_enough(for_set, 0, growth);
    // Who leaves for another executable.
    const std::vector<KeyId> for_own = leaving_for(1, facts(key).bytes);
    const bool own_fits = is_enough(for_own, 1, facts(key).bytes);
    const KeyId loser = for_own.size() == 1 ? for_own.front() : kNoKey;
    const bool is_brought_over =
        loser != kNoKey && is_plain(loser) && is_related(key) && facts(loser).signature == facts(key).signature;

    EXPECT_EQ(plan.set_bytes, plan.action == Action::kBorrow && plan.rule == Rule::kSibling ? growth : 0);
    EXPECT_EQ(plan.lender != kNoKey, plan.action == Action::kBorrow);
    if (plan.action == Action::kOwn) {
      EXPECT_EQ(plan.writes_slots, wants_slots(key));
    }
    switch (plan.rule) {
      case Rule::kNone:
        EXPECT_EQ(plan.action, Action::kDirect);
        EXPECT_TRUE(plan.evict.empty());
        EXPECT_FALSE(room || own_fits || (borrows && set_fits));
        happened_.too_large += facts(key).bytes > limits_.max_device_bytes ? 1 : 0;
        break;
      case Rule::kRoom:
        EXPECT_TRUE(room && plan.evict.empty());
        EXPECT_TRUE(!borrows || !set_fits);
        EXPECT_EQ(plan.action, forces_table && may_have_table(key, {}) ? Action::kTable : Action::kOwn);
        break;
      case Rule::kSibling: {
        EXPECT_TRUE(borrows);
        const bool has_many_sets =
            growth != 0 && !has_bytes_for_sets(key, keys_[offer.lender].executable.added_bytes + growth);
        const bool makes_table = !lends_table && limits_.share == Share::kAlways &&
                                 may_have_table(key, {offer.lender}) &&
                                 count([&](KeyId one) { return are_of_one_class(one, key); }) > 1;
        if (makes_table || has_many_sets) {
          EXPECT_EQ(plan.action, Action::kTable);
          EXPECT_EQ(plan.evict, std::vector{offer.lender});
        } else {
          EXPECT_EQ(plan.action, Action::kBorrow);
          EXPECT_EQ(plan.lender, offer.lender);
          EXPECT_EQ(plan.evict, for_set);
          EXPECT_TRUE(set_fits);
        }
        break;
      }
      case Rule::kEviction: {
        EXPECT_TRUE(!room && own_fits);
        EXPECT_TRUE(!borrows || !set_fits);
        const bool has_two =
            is_brought_over && are_of_one_class(loser, key) &&
            count([&](KeyId one) { return is_plain(one) && !keys_[one].is_pinned && are_of_one_class(one, key); }) > 1;
        const bool makes_table = is_brought_over ? has_two && limits_.share != Share::kNever : forces_table;
        EXPECT_EQ(plan.action, makes_table && may_have_table(key, for_own) ? Action::kTable
                               : is_brought_over                           ? Action::kBorrow
                                                                           : Action::kOwn);
        if (plan.action == Action::kBorrow) {
          EXPECT_EQ(plan.lender, loser);
          EXPECT_TRUE(plan.evict.empty());
        } else {
          EXPECT_EQ(plan.evict, for_own);
        }
      }
    }
  }

  void add_set(Executable* executable, KeyId key) const {
    executable->sets.insert(key);
    executable->added_bytes += facts(key).set_bytes;
  }

  void carry_out(KeyId key, const Plan& plan) {
    ++happened_.plans[{plan.rule, plan.action}];
    happened_.evictions += static_cast<int>(plan.evict.size());
    happened_.updater_nodes += plan.writes_slots ? 1 : 0;
    for (const KeyId loser : plan.evict) keys_[loser].executable = {};
    Executable& executable = keys_[key].executable;
    switch (plan.action) {
      case Action::kDirect:
        break;
      case Action::kOwn:
        executable.kind = plan.writes_slots ? Kind::kSlots : Kind::kPlain;
        break;
      case Action::kTable:
        executable = {Kind::kTable, {key}};
        break;
      case Action::kBorrow:
        executable = std::exchange(keys_[plan.lender].executable, {});
        if (plan.set_bytes != 0) add_set(&executable, key);
        break;
    }
    for_both([&](Policy& policy) { policy.done(key, plan); });
    check();
  }

  // ---- What fails after it was reported as done

  void refuse_sets(KeyId key) {
    ++happened_.refusals;
    keys_[key].known.table_class = 0;
    for_both([&](Policy& policy) { policy.refuse_sets(key); });
    check();
  }

  void refuse_siblings(KeyId key) {
    ++happened_.refusals;
    keys_[key].known.signature = keys_[key].known.table_class = 0;
    for_both([&](Policy& policy) { policy.refuse_siblings(key); });
    check();
  }

  void refuse_device_updates(KeyId key) {
    ++happened_.refusals;
    if (is_related(key)) refuses_table_[class_of(key)] = true;
    keys_[key].refuses_slots = true;
    if (is_live(key)) keys_[key].executable = {Kind::kPlain, {}};
    for_both([&](Policy& policy) { policy.refuse_device_updates(key); });
    check();
  }

  // The runtime refuses what was planned. Returns false if the key has to try again.
  bool refuse(KeyId key, const Plan& plan, const Executable& lent) {
    if (plan.action == Action::kTable || kind(key) == Kind::kSlots) refuse_device_updates(key);
    if (plan.action != Action::kBorrow) return true;
    if (lent.kind == Kind::kTable) {
      if (plan.set_bytes == 0) return true;
      refuse_device_updates(key);
      lose(plan.lender);
      lose(key);
    } else {
      undo(key, plan, lent);
      refuse_siblings(key);
    }
    return false;
  }

  void undo(KeyId key, const Plan& plan, const Executable& lent) {
    ++happened_.undone;
    keys_[key].executable = {};
    keys_[plan.lender].executable = lent;
    for_both([&](Policy& policy) { policy.undone(key, plan); });
    check();
  }

  // Returns false if the key has to try again.
  bool fail(KeyId key, const Plan& plan, const Executable& lent) {
    if (plan.action != Action::kBorrow || lent.kind == Kind::kTable || random_.one_in(2)) {
      lose(key);
    } else {
      if (random_.one_in(4)) pin(plan.lender, true);
      undo(key, plan, lent);
    }
    return random_.one_in(2);
  }

  // Compares the policy's knowledge with the truth, and checks the limits.
  void check() {
    const Policy& policy = policies_[0];
    const PolicyChecker look(policy);
    look.check();
    EXPECT_LE(executables(), limits_.max_executables);
    EXPECT_LE(bytes(), limits_.max_device_bytes);
    EXPECT_EQ(policy.executables(), executables());
    EXPECT_EQ(policy.bytes(), bytes());
    std::vector<std::size_t> members(classes());
    std::vector<std::uint64_t> numbers(classes());  // Of families.
    for (KeyId key = 0; key < keys_.size(); ++key) {
      if (!is_related(key)) continue;
      ++members[class_of(key)];
      numbers[family(key)] = look.family(key);
    }
    for (KeyId key = 0; key < keys_.size(); ++key) {
      const bool related = is_related(key);
      EXPECT_TRUE(look.is_live(key) == is_live(key) && look.has_table(key) == has_table(key) &&
                  look.has_slots(key) == (kind(key) == Kind::kSlots) && look.bytes(key) == bytes(key) &&
                  look.is_pinned(key) == keys_[key].is_pinned &&
                  (!keys_[key].has_template || look.is_unread(key) == keys_[key].is_unread) &&
                  look.family(key) == (related ? numbers[family(key)] : 0) &&
                  (!related || look.members(key) == members[class_of(key)]))
          << "key " << key;
    }
    std::set<std::uint64_t> different(numbers.begin(), numbers.end());
    different.erase(0);
    EXPECT_EQ(different.size(),
              numbers.size() - static_cast<std::size_t>(std::count(numbers.begin(), numbers.end(), 0)));
    EXPECT_EQ(policy.families(), different.size());
    // A class without members is forgotten.
    for (std::size_t i = 0; i < members.size(); ++i) refuses_table_[i] = refuses_table_[i] && members[i] != 0;
  }

  Happened& happened_;
  Random random_;
  const Limits limits_;
  const Variety variety_;
  const std::function<Use(KeyId)> last_use_ = [this](KeyId key) { return keys_[key].last_use; };
  Policy policies_[2];
  std::vector<Key> keys_ = std::vector<Key>(variety_.keys);
  std::vector<bool> refuses_table_ = std::vector<bool>(classes());  // By class.
  std::uint64_t epoch_ = 0, tick_ = 0;
  const std::function<bool(KeyId)> idle_ = [this](KeyId key) { return is_idle(key); };
};

class PolicyPropertiesTest : public testing::Test {
 protected:
  void run_worlds(const Variety& variety) {
    for (const Share share : {Share::kNever, Share::kWhenFull, Share::kAlways}) {
      for (const std::size_t budget : {1, 2, 4, 8, 64}) {
        for (std::uint64_t seed = 1; seed <= 10 && !HasFailure(); ++seed) {
          SCOPED_TRACE("share " + std::to_string(static_cast<int>(share)) + ", budget " + std::to_string(budget) +
                       ", seed " + std::to_string(seed));
          Limits limits{.share = share, .max_executables = budget};
          // Some worlds force each way.
          if (seed == 7) limits.mechanisms.across_streams = true;
          if (seed == 8) limits.mechanisms.tables = Tables::kNever;
          if (seed == 9) limits.mechanisms.tables = Tables::kAlways;
          if (seed == 10) limits.mechanisms.patching = Patching::kDeviceUpdated;
          if (variety.is_tight) limits.max_device_bytes = 300'000 + seed * seed * 120'000;
          World world(seed, limits, variety, &happened);
          world.go_on(test::by_size(80, 300, 600));
        }
      }
    }
    for (const auto& [rule, action] :
         {std::pair(Rule::kRoom, Action::kOwn), std::pair(Rule::kRoom, Action::kTable),
          std::pair(Rule::kSibling, Action::kBorrow), std::pair(Rule::kSibling, Action::kTable),
          std::pair(Rule::kEviction, Action::kOwn), std::pair(Rule::kEviction, Action::kBorrow),
          std::pair(Rule::kEviction, Action::kTable)}) {
      EXPECT_GT((happened.plans[{rule, action}]), 0) << static_cast<int>(rule) << ' ' << static_cast<int>(action);
    }
    EXPECT_GT(happened.evictions, 0);
    EXPECT_GT(happened.read, 0);
    EXPECT_GT(happened.read_alive, 0);
  }
  int direct() { return happened.plans[{Rule::kNone, Action::kDirect}]; }
  // Pinned and busy keys, refusals and forgotten keys, and what else.
  void run_troubled_worlds(bool fails, bool is_tight) {
    run_worlds({.keys = 40,
                .signatures = 3,
                .classes = 2,
                .streams = 2,
                .pins = true,
                .is_busy = true,
                .refuses = true,
                .forgets = true,
                .fails = fails,
                .is_tight = is_tight});
  }

  Happened happened;  // In all worlds together.
};

TEST_F(PolicyPropertiesTest, OfOneFamily) {
  run_worlds({.keys = 40, .signatures = 1, .classes = 2, .streams = 1});
  EXPECT_EQ(direct(), 0);
}

TEST_F(PolicyPropertiesTest, OfManyFamiliesAndStreams) {
  run_worlds({.keys = 60, .signatures = 5, .classes = 3, .streams = 3});
  EXPECT_EQ(direct(), 0);
  EXPECT_GT(happened.updater_nodes, 0);
}

TEST_F(PolicyPropertiesTest, WherePinnedAndBusyOnesStay) {
  run_worlds({.keys = 40, .signatures = 3, .classes = 2, .streams = 2, .pins = true, .is_busy = true});
  EXPECT_GT(direct(), 0);
}

TEST_F(PolicyPropertiesTest, WhereKeysAreForgottenAndPlansRefused) {
  run_troubled_worlds(/*fails=*/false, /*is_tight=*/false);
  EXPECT_GT(happened.refusals, 0);
}

TEST_F(PolicyPropertiesTest, WhereExecutablesAreLostAndPlansUndone) {
  run_troubled_worlds(/*fails=*/true, /*is_tight=*/false);
  EXPECT_GT(happened.undone, 0);
}

TEST_F(PolicyPropertiesTest, WithinTheBytesOfTheDevice) {
  run_worlds({.keys = 40, .signatures = 3, .classes = 2, .streams = 2, .is_tight = true});
  EXPECT_GT(happened.too_large, 0);
}

TEST_F(PolicyPropertiesTest, WithinTheBytesOfTheDeviceWhateverFails) {
  run_troubled_worlds(/*fails=*/true, /*is_tight=*/true);
  EXPECT_GT(happened.undone, 0);
}

}  // namespace
}  // namespace graphcache
