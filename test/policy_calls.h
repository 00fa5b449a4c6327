// A policy that each test calls directly, and graphs for it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/policy.h"
#include "policy_checker.h"

namespace graphcache {

using Action = Plan::Action;
using Keys = std::vector<KeyId>;

inline bool is_idle(KeyId) { return true; }

// Has no table, unless a test gives the graph a class.
inline GraphFacts graph(std::uint64_t signature) {
  return {.signature = signature, .stream = 1, .nodes = 100, .bytes = 1000, .table_bytes = 100, .set_bytes = 10};
}

inline GraphFacts of_class(GraphFacts facts) {
  facts.table_class = 1;
  return facts;
}

inline GraphFacts on(std::uint64_t stream, GraphFacts facts) {
  facts.stream = stream;
  return facts;
}

inline GraphFacts with_slots(GraphFacts facts) {
  facts.slot_kernels = 40;
  return facts;
}

inline GraphFacts with_bytes(std::size_t bytes, GraphFacts facts) {
  facts.bytes = bytes;
  return facts;
}

class PolicyCalls : public testing::Test {
 protected:
  static constexpr Cost kUpdate = 1000;  // the price of an update; each set is new to its table

  void set_limits(const Limits& limits) {
    policy_ = std::make_unique<Policy>(limits);
    look_ = std::make_unique<PolicyChecker>(*policy_);
  }
  void SetUp() override { set_limits({.max_executables = 8}); }
  void TearDown() override { look().check(); }

  Policy& policy() { return *policy_; }
  const PolicyChecker& look() const { return *look_; }

  Plan plan(KeyId key, const GraphFacts& facts) {
    policy().used(key);
    if (!look().is_captured(key)) policy().captured(key, facts);
    return plan(key);
  }
  Plan plan(KeyId key) {
    EXPECT_FALSE(look().is_live(key)) << "a hit";
    const Offer offer{policy().candidate(key, is_idle), kUpdate, /*has_set=*/false, look().facts(key).set_bytes};
    return policy().plan(key, offer, is_idle);
  }
  Plan run(KeyId key, const GraphFacts& facts) {
    Plan made = plan(key, facts);
    policy().done(key, made);
    look().check();
    return made;
  }
  // Afterwards key 1 has a table, for which key 0 has lent its executable, and key 2 has no set in it.
  void make_table(std::size_t max_device_bytes = Limits().max_device_bytes) {
    set_limits({.prefer = Prefer::kMemory, .max_executables = 8, .max_device_bytes = max_device_bytes});
    EXPECT_EQ(run(0, of_class(graph(1))).action, Action::kOwn);
    EXPECT_EQ(run(1, of_class(graph(1))).action, Action::kTable);
    EXPECT_EQ(look().units(), 2u);
    EXPECT_EQ(look().bytes(), 1100u);
  }

 private:
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<PolicyChecker> look_;
};

}  // namespace graphcache
