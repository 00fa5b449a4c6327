// The simple ways to keep executables, each as a program without a library would do it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ledger.h"

namespace graphcache::sim {

class SimPolicy {
 public:
  virtual ~SimPolicy() = default;
  // Books what this run takes, from finding the key's executable to its launch.
  virtual void run(const Run& run) = 0;
};

struct NamedPolicy {
  std::string name;
  std::unique_ptr<SimPolicy> (*make)(Ledger& ledger);
};

// An executable a key, the least recently used leaves; the same, but templates stay; the same, and the host patches
// slots however many; one table for each family and stream; one shared executable for each family and stream, updated.
const std::vector<NamedPolicy>& simple_policies();

}  // namespace graphcache::sim
