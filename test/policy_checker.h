// Access to the internals of a Policy.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "policy/policy.h"

namespace graphcache {

// Reports that the runtime has refused the plan.
inline void refuse(Policy& policy, KeyId key, const Plan& plan) {
  if (plan.action == Plan::Action::kBorrow) policy.refuse_siblings(key);
  if (plan.action == Plan::Action::kTable) policy.refuse_table(key);
  if (plan.writes_slots) policy.refuse_slots(key);
}

class PolicyChecker {
 public:
  explicit PolicyChecker(const Policy& policy) : policy_(policy) {}

  std::size_t keys() const { return policy_.keys_; }
  std::size_t units() const { return policy_.units_; }
  std::size_t bytes() const { return policy_.bytes_; }
  bool is_captured(KeyId key) const { return knows(key) && of(key).family != nullptr; }
  bool is_live(KeyId key) const { return knows(key) && of(key).kind != Policy::Kind::kNone; }
  bool is_pinned(KeyId key) const { return knows(key) && of(key).is_pinned; }
  bool has_table(KeyId key) const { return knows(key) && of(key).kind == Policy::Kind::kTable; }
  const GraphFacts& facts(KeyId key) const { return of(key).facts; }
  Cost rent(KeyId key) const { return of(key).rent; }
  // Of the key's class.
  std::size_t members(KeyId key) const { return of(key).of_class->members; }
  std::size_t set_bytes(KeyId key) const { return of(key).of_class->set_bytes; }
  // Of the key's family.
  KeyId shared(KeyId key) const { return of(key).family->shared; }

  // The order of eviction.
  std::vector<KeyId> order() const {
    std::vector<KeyId> keys;
    for (const Policy::Order* order : {&policy_.plain_, &policy_.updated_}) {
      for (KeyId key = order->oldest; key != kNoKey; key = of(key).newer) keys.push_back(key);
    }
    return keys;
  }

  void check() const { EXPECT_EQ(policy_.find_fault(), ""); }

  // Calls found(what) while one count or link of the policy is wrong, for each of them. REQUIRES: key 1 has a table,
  // key 2 a plain executable.
  template <class F>
  void with_each_wrong(F&& found) const {
    auto& policy = const_cast<Policy&>(policy_);
    const auto with = [&](const char* what, auto& place, auto value) {
      const auto right = std::exchange(place, static_cast<std::decay_t<decltype(place)>>(value));
      found(what);
      place = right;
    };
    with("keys", policy.keys_, 7);
    with("executables", policy.executables_, 7);
    with("units", policy.units_, 7);
    with("bytes", policy.bytes_, 7);
    with("executables with slots", policy.with_slots_, 7);
    with("tables", policy.tables_, 7);
    with("families", policy.families_with_siblings_, 7);
    Policy::Entry& table = policy.entries_[1];
    Policy::Entry& plain = policy.entries_[2];
    with("family", plain.family, table.family);
    with("class", plain.of_class, table.of_class);
    with("no template", plain.family, nullptr);
    with("kind", plain.kind, Policy::Kind::kSlots);
    with("pin", plain.is_pinned, true);
    with("members of a class", table.of_class->members, 7);
    with("executables of a class", table.of_class->executables, 7);
    with("table of a class", table.of_class->table, kNoKey);
    with("bytes of a table", table.of_class->set_bytes, 7);
    with("shared", plain.family->shared, 1);
    with("older", plain.older, 1);
    with("oldest", policy.plain_.oldest, kNoKey);
    with("newest", policy.plain_.newest, kNoKey);
    with("newer", plain.newer, 2);
    with("shape", plain.shape, nullptr);
    with("keys of a shape", plain.shape->keys, 7);
    for (const KeyId key : {2u, 7u}) {
      plain.shape->unread.insert(key);
      found("unread");
      plain.shape->unread.erase(key);
    }
    Policy::Family& empty = policy.families_[{1000, 0}];
    found("an empty family");
    empty.classes[0];
    found("an empty class");
    policy.families_.erase({1000, 0});
  }

 private:
  bool knows(KeyId key) const { return key < policy_.entries_.size(); }
  const Policy::Entry& of(KeyId key) const { return policy_.entries_[key]; }

  const Policy& policy_;
};

}  // namespace graphcache
