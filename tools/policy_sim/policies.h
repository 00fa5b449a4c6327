// What is compared, and the dictionary beside which it is judged.
#pragma once

#include <memory>
#include <string>

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

// As a program writes it by hand: an executable a key, whose slots the host patches. Where there is no room, the least
// recently used one is destroyed, and its key's next run captures again.
const NamedPolicy& dictionary();

}  // namespace graphcache::sim
