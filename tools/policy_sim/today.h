// The rules of the library before this policy, for comparison: rent or buy for keys and tables, uses counted by
// periods, half of the executables for those that the device updates.
#pragma once

#include <vector>

#include "policies.h"

namespace graphcache::sim {

const std::vector<NamedPolicy>& today_policies();

}  // namespace graphcache::sim
