// How the list of scenarios is written.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "faults.h"

namespace graphcache::test {

// By which names Scenario::prepared is written.
enum Prepared { kMine, kTheOther };

class ScenarioList {
 public:
  Scenario& add(const char* name, const ForcedOptions& options, const Work& mine, const Work& other,
                const std::vector<Prepared>& prepared, std::optional<Outcome> outcome) {
    all.push_back(std::make_unique<Scenario>(Scenario{name, options, mine, other, {}, outcome}));
    Scenario& added = *all.back();
    for (const Prepared which : prepared) added.prepared.push_back(which == kMine ? &added.mine : &added.other);
    return added;
  }
  std::vector<std::unique_ptr<Scenario>> all;
};

// For a scenario that ends the cache.
inline void make_another_cache(World& world) {
  world.cache.emplace();
  EXPECT_TRUE(world.cache->run(key("first"), world.stream, [](cudaStream_t) {}).ok());
}

// Of executables that the device updates.
void add_tables(ScenarioList& list);

// Of conditional nodes.
void add_conditionals(ScenarioList& list);

}  // namespace graphcache::test
