// The cache under its policy: carries each plan out on the ledger.
#pragma once

#include "policies.h"

namespace graphcache::sim {

// The policy that was chosen (chosen.h), for each preference.
const std::vector<NamedPolicy>& chosen_policies();

}  // namespace graphcache::sim
