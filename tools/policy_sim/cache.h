// The library's policy (lib/policy): carries each of its plans out on the ledger.
#pragma once

#include "policies.h"

namespace graphcache::sim {

// For each preference.
const std::vector<NamedPolicy>& cache_policies();

}  // namespace graphcache::sim
