// The library's policy (lib/policy), with its plans carried out on the ledger.
#pragma once

#include <vector>

#include "policies.h"

namespace graphcache::sim {

// One for each Share.
const std::vector<NamedPolicy>& cache_policies();

}  // namespace graphcache::sim
