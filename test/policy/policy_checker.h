// Access to the internals of a Policy.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "structure/checks.h"

namespace graphcache {

class PolicyChecker {
 public:
  explicit PolicyChecker(const Policy& policy) : policy_(policy) {}

  bool is_live(KeyId key) const { return knows(key) && policy_.is_live(key); }
  bool is_pinned(KeyId key) const { return knows(key) && of(key).is_pinned; }
  bool is_unread(KeyId key) const { return knows(key) && of(key).is_unread; }
  bool has_table(KeyId key) const { return knows(key) && policy_.has_table(key); }
  bool has_slots(KeyId key) const { return knows(key) && of(key).kind == Policy::Kind::kSlots; }
  std::size_t bytes(KeyId key) const { return knows(key) ? policy_.bytes(key) : 0; }
  std::uint64_t family(KeyId key) const { return knows(key) ? policy_.family(key) : 0; }
  const GraphFacts& facts(KeyId key) const { return of(key).facts; }
  // Of the key's class.
  std::size_t members(KeyId key) const { return of(key).of_class->members; }
  std::size_t set_bytes(KeyId key) const { return of(key).of_class->set_bytes; }

  // The order of use.
  std::vector<KeyId> order() const {
    std::vector<KeyId> keys;
    for (KeyId key = policy_.oldest_; key != kNoKey; key = of(key).newer) {
      keys.push_back(key);
      if (keys.size() > policy_.entries_.size()) break;  // The links are wrong.
    }
    return keys;
  }

  void check() const { EXPECT_EQ(StructureChecker::find_fault(policy_), ""); }

  // Calls finds(fault) while one count or link of the policy is wrong, for each of them. REQUIRES: the order of use is
  // 1, 2, 3. Key 1 has a table and key 0 no executable, both of one class. Key 2 has a plain executable and another
  // family, key 3 a plain one and no family.
  template <class F>
  void with_each_wrong(F&& finds) const {
    auto& policy = const_cast<Policy&>(policy_);
    const auto with = [&](const char* fault, auto& place, auto value) {
      const auto right = std::exchange(place, static_cast<std::decay_t<decltype(place)>>(value));
      finds(fault);
      place = right;
    };
    Policy::Entry& lent = policy.entries_[0];
    Policy::Entry& table = policy.entries_[1];
    Policy::Entry& plain = policy.entries_[2];
    Policy::Entry& alone = policy.entries_[3];
    with("the executables are counted wrongly", policy.executables_, 7);
    with("the executables are counted wrongly", plain.kind, Policy::Kind::kNone);
    with("the device memory of executables is summed up wrongly", policy.bytes_, 7);
    with("the device memory of executables is summed up wrongly", plain.facts.bytes, 7);
    with("the device memory of executables is summed up wrongly", table.facts.table_bytes, 7);
    with("the device memory of executables is summed up wrongly", table.of_class->set_bytes, 7);
    with("the executables with updater nodes for slots are counted wrongly", policy.with_slots_, 7);
    with("the executables with updater nodes for slots are counted wrongly", plain.kind, Policy::Kind::kSlots);
    with("the executables of unread graphs are counted wrongly", policy.unread_, 7);
    with("the executables of unread graphs are counted wrongly", alone.is_unread, false);

    with("key 2: it has a family and no signature, or no class", plain.family, nullptr);
    with("key 2: it has a family and no signature, or no class", plain.of_class, nullptr);
    with("key 2: it has a family and no signature, or no class", plain.facts.signature, 0);
    with("key 3: it has a family and no signature, or no class", alone.family, plain.family);
    with("key 2: it is of another family", plain.family, table.family);
    with("key 2: it is of another family", plain.facts.stream, 7);
    with("key 2: it is of another class", plain.of_class, table.of_class);
    with("key 2: it is of another class", plain.facts.table_class, 7);
    with("key 2: it is unread, and has a family", plain.is_unread, true);
    with("key 3: it has a table and no class", alone.kind, Policy::Kind::kTable);
    with("key 1: it has the second table of a class", lent.kind, Policy::Kind::kTable);

    with("the members of a class are wrong", table.of_class->members, 7);
    with("the table of a class is another's", table.of_class->table, kNoKey);
    with("the table of a class is another's", table.of_class->table, 0);
    Policy::Family& empty = policy.families_[{1000, 0}];
    finds("a family without keys is kept");
    empty.classes[0];
    finds("the members of a class are wrong");
    policy.families_.erase({1000, 0});

    with("key 2: it is in the order of use", plain.is_pinned, true);
    with("key 2: the order of use is linked wrongly", plain.older, 3);
    with("key 2: the order of use is linked wrongly", plain.newer, 2);
    with("key 2: the order of use is linked wrongly", policy.oldest_, 2);
    with("key 2: it is not in order of use", table.last_use, Use{1000, 0});
    with("the order of use ends elsewhere than it says", policy.oldest_, kNoKey);
    with("the order of use ends elsewhere than it says", policy.newest_, kNoKey);
    with("the order of use ends elsewhere than it says", plain.newer, kNoKey);
    const KeyId newest = std::exchange(policy.newest_, 2);
    with("an executable is not in the order of use", plain.newer, kNoKey);
    policy.newest_ = newest;
  }

 private:
  bool knows(KeyId key) const { return key < policy_.entries_.size(); }
  const Policy::Entry& of(KeyId key) const { return policy_.entries_[key]; }

  const Policy& policy_;
};

}  // namespace graphcache
