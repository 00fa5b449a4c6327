// Simple policies, as a program without a library would implement them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ledger.h"

namespace graphcache::sim {

class SimPolicy {
 public:
  virtual ~SimPolicy() = default;
  // Books the actions of this run, from finding the key's executable to its launch.
  virtual void run(const Run& run) = 0;
};

struct NamedPolicy {
  std::string name;
  std::unique_ptr<SimPolicy> (*make)(Ledger& ledger);
};

// One executable a key, with LRU eviction. The same with templates kept. The same with all slots patched by the host.
// One table for each family and stream. One shared executable, updated, for each family and stream.
const std::vector<NamedPolicy>& simple_policies();

}  // namespace graphcache::sim
