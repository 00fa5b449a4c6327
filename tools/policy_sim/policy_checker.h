// For tests: looks into a Policy, and counts everything anew.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <vector>

#include "chosen.h"

namespace graphcache {

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
  Cost rent(KeyId key) const { return of(key).rent; }
  // Of the key's class.
  std::size_t members(KeyId key) const { return of(key).of_class->members; }
  std::size_t set_bytes(KeyId key) const { return of(key).of_class->set_bytes; }
  // Of the key's family.
  KeyId spare(KeyId key) const { return of(key).family->spare; }

  // In which executables leave.
  std::vector<KeyId> order() const {
    std::vector<KeyId> keys;
    for (const Policy::Order* order : {&policy_.plain_, &policy_.updated_}) {
      for (KeyId key = order->oldest; key != kNoKey; key = of(key).newer) keys.push_back(key);
    }
    return keys;
  }

  void check() const {
    std::size_t keys = 0, units = 0, bytes = 0, with_slots = 0, tables = 0, in_orders = 0;
    std::map<const Policy::Class*, Policy::Class> classes;
    for (KeyId key = 0; key < policy_.entries_.size(); ++key) {
      const Policy::Entry& entry = of(key);
      if (!is_captured(key)) {
        EXPECT_FALSE(is_live(key)) << "key " << key << " has an executable and no template";
        continue;
      }
      ++keys;
      ASSERT_EQ(entry.family, &policy_.families_.at({entry.facts.signature, entry.facts.stream})) << "key " << key;
      ASSERT_EQ(entry.of_class, &entry.family->classes.at(entry.facts.table_class)) << "key " << key;
      Policy::Class& counted = classes[entry.of_class];
      ++counted.members;
      if (!is_live(key)) continue;
      std::size_t size = entry.facts.bytes;
      if (has_table(key)) {
        EXPECT_EQ(counted.table, kNoKey) << "a second table in a class";
        counted.table = key;
        size += entry.facts.table_bytes + entry.of_class->set_bytes;
      }
      ++counted.executables;
      bytes += size;
      units += (size + entry.facts.bytes - 1) / entry.facts.bytes;
      with_slots += entry.kind == Policy::Kind::kSlots;
      tables += has_table(key);
      in_orders += !entry.is_pinned;
    }
    EXPECT_EQ(policy_.keys_, keys);
    EXPECT_EQ(policy_.units_, units);
    EXPECT_EQ(policy_.bytes_, bytes);
    EXPECT_EQ(policy_.with_slots_, with_slots);
    EXPECT_EQ(policy_.tables_, tables);
    EXPECT_EQ(order().size(), in_orders);
    for (const auto& [id, family] : policy_.families_) {
      EXPECT_FALSE(family.classes.empty()) << "a family without keys";
      for (const auto& [number, of_class] : family.classes) {
        EXPECT_EQ(of_class.members, classes[&of_class].members);
        EXPECT_EQ(of_class.executables, classes[&of_class].executables);
        EXPECT_EQ(of_class.table, classes[&of_class].table);
        EXPECT_NE(of_class.members, 0u) << "a class without keys";
      }
      if (family.spare == kNoKey) continue;
      EXPECT_TRUE(is_live(family.spare) && !has_table(family.spare) && !is_pinned(family.spare)) << family.spare;
      EXPECT_EQ(of(family.spare).family, &family) << "the spare " << family.spare << " is another family's";
    }
    for (const auto* order : {&policy_.plain_, &policy_.updated_}) check(*order, order == &policy_.plain_);
  }

 private:
  bool knows(KeyId key) const { return key < policy_.entries_.size(); }
  const Policy::Entry& of(KeyId key) const { return policy_.entries_.at(key); }

  void check(const Policy::Order& order, bool is_plain) const {
    KeyId older = kNoKey;
    for (KeyId key = order.oldest; key != kNoKey; key = of(key).newer) {
      EXPECT_TRUE(is_live(key) && !is_pinned(key)) << "key " << key;
      EXPECT_EQ(of(key).kind == Policy::Kind::kPlain, is_plain) << "key " << key << " is in the other kind's order";
      EXPECT_EQ(of(key).older, older);
      EXPECT_TRUE(older == kNoKey || of(older).last_use < of(key).last_use) << older << " before " << key;
      older = key;
    }
    EXPECT_EQ(order.newest, older);
  }

  const Policy& policy_;
};

}  // namespace graphcache
