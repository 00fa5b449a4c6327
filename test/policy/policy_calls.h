// A policy that each test calls directly, and graphs for it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "policy_checker.h"

namespace graphcache {

using Action = Plan::Action;
using Tables = Mechanisms::Tables;
using Patching = Mechanisms::Patching;
using Keys = std::vector<KeyId>;

// Has no table, unless a test gives the graph a class.
inline GraphFacts graph(std::uint64_t signature) {
  return {.signature = signature, .stream = 1, .bytes = 1000, .table_bytes = 100, .set_bytes = 10};
}

// What is known of a graph before it is read.
inline GraphFacts unread() { return graph(0); }

inline GraphFacts of_class(GraphFacts facts, std::uint64_t number = 1) {
  facts.table_class = number;
  return facts;
}

inline GraphFacts on(std::uint64_t stream, GraphFacts facts) {
  facts.stream = stream;
  return facts;
}

inline GraphFacts shaped(std::uint64_t shape, GraphFacts facts) {
  facts.shape = shape;
  return facts;
}

inline GraphFacts with_slots(GraphFacts facts, std::size_t kernels = 40) {
  facts.slot_kernels = kernels;
  return facts;
}

inline GraphFacts with_bytes(std::size_t bytes, GraphFacts facts) {
  facts.bytes = bytes;
  return facts;
}

inline GraphFacts with_set_bytes(std::size_t bytes, GraphFacts facts) {
  facts.set_bytes = bytes;
  return facts;
}

// The whole plan: the number of its rule, what the key gets, and what is evicted.
inline std::string text_of(const Plan& plan) {
  const char* const rules[] = {"", "1: ", "2: ", "3: "};
  const char* const actions[] = {"direct", "own", "table", "borrow"};
  std::string text = rules[static_cast<int>(plan.rule)];
  text += actions[static_cast<int>(plan.action)];
  if (plan.writes_slots) text += " with slots";
  if (plan.lender != kNoKey) text += " " + std::to_string(plan.lender);
  if (plan.set_bytes != 0) text += ", add " + std::to_string(plan.set_bytes);
  for (std::size_t i = 0; i < plan.evict.size(); ++i)
    text += (i == 0 ? ", evict " : " ") + std::to_string(plan.evict[i]);
  return text;
}

#define EXPECT_PLAN(text, plan) EXPECT_EQ(text_of(plan), text)

class PolicyCalls : public testing::Test {
 protected:
  void set_limits(const Limits& limits) {
    policy_ = std::make_unique<Policy>(limits, last_use_);
    look_ = std::make_unique<PolicyChecker>(*policy_);
    captured_.clear();
    uses_.clear();
    busy_.clear();
  }
  void SetUp() override { set_limits({.max_executables = 8}); }
  void TearDown() override { look().check(); }

  Policy& policy() { return *policy_; }
  const PolicyChecker& look() const { return *look_; }

  void make_busy(const std::set<KeyId>& keys) { busy_ = keys; }
  Policy::Idle view() const { return idle_; }
  std::size_t asked_for_uses() const { return asked_for_uses_; }

  // A run that is not a hit, and one that is, which is not reported.
  void use(KeyId key) { policy().used(key, uses_[key] = {++epoch_, ++tick_}); }
  void hit(KeyId key) { uses_[key] = {epoch_, ++tick_}; }
  // The key's first run, up to its decision.
  void use(KeyId key, const GraphFacts& facts) {
    use(key);
    capture(key, facts);
  }

  void capture(KeyId key, const GraphFacts& facts) {
    if (captured_.insert(key).second) policy().captured(key, facts);
  }
  // Each checks the policy's structure afterwards.
  void forget(KeyId key) {
    captured_.erase(key);
    policy().forgotten(key);
    look().check();
  }
  void erase(KeyId key) {
    captured_.erase(key);
    policy().erased(key);
    look().check();
  }
  void lose(KeyId key) {
    policy().lost(key);
    look().check();
  }
  void move(KeyId key, std::uint64_t stream) {
    policy().moved(key, stream);
    look().check();
  }
  void undo(KeyId key, const Plan& made) {
    policy().undone(key, made);
    look().check();
  }
  void refuse_siblings(KeyId key) {
    policy().refuse_siblings(key);
    look().check();
  }
  void refuse_sets(KeyId key) {
    policy().refuse_sets(key);
    look().check();
  }
  void refuse_device_updates(KeyId key) {
    policy().refuse_device_updates(key);
    look().check();
  }
  void pin(KeyId key, bool pinned = true) {
    policy().pinned(key, pinned);
    look().check();
  }

  KeyId candidate(KeyId key) { return policy().candidate(key, view()); }
  // At the key's first run.
  KeyId candidate(KeyId key, const GraphFacts& facts) {
    use(key, facts);
    return candidate(key);
  }
  KeyId victim() { return policy().victim(kNoKey, view()); }
  // The graphs that the run reads, in order.
  Keys to_read(KeyId key) {
    const Policy::ToRead read = policy().to_read(key);
    Keys keys;
    if (read.other != kNoKey) keys.push_back(read.other);
    if (read.itself) keys.push_back(key);
    return keys;
  }
  // By its first run.
  Keys to_read(KeyId key, const GraphFacts& facts) {
    use(key, facts);
    return to_read(key);
  }

  // Each set is new to its table.
  Plan plan(KeyId key, const GraphFacts& facts) {
    use(key, facts);
    return plan(key);
  }
  Plan plan(KeyId key) {
    EXPECT_FALSE(policy().is_live(key)) << "a hit";
    const Offer offer{candidate(key), look().facts(key).set_bytes};
    return policy().plan(key, offer, view());
  }
  Plan run(KeyId key, const GraphFacts& facts) {
    Plan made = plan(key, facts);
    policy().done(key, made);
    look().check();
    return made;
  }
  void expect_now(std::size_t executables, std::size_t bytes) {
    EXPECT_EQ(policy().executables(), executables);
    EXPECT_EQ(policy().bytes(), bytes);
  }
  // Afterwards key 1 has a table, for which key 0 has lent its executable, and key 2 has no set in it.
  void make_table(std::size_t max_device_bytes = Limits().max_device_bytes) {
    set_limits({.share = Share::kAlways, .max_executables = 8, .max_device_bytes = max_device_bytes});
    EXPECT_PLAN("1: own", run(0, of_class(graph(1))));
    EXPECT_PLAN("2: table, evict 0", run(1, of_class(graph(1))));
    expect_now(1, 1100);
  }

 private:
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<PolicyChecker> look_;
  std::set<KeyId> captured_, busy_;
  std::map<KeyId, Use> uses_;
  std::uint64_t epoch_ = 0, tick_ = 0;
  const std::function<bool(KeyId)> idle_ = [this](KeyId key) { return !busy_.contains(key); };
  std::size_t asked_for_uses_ = 0;
  const std::function<Use(KeyId)> last_use_ = [this](KeyId key) {
    ++asked_for_uses_;
    return uses_[key];
  };
};

}  // namespace graphcache
