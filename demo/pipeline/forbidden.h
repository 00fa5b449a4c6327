// Calls that a capture forbids.
#pragma once

#include "../support.h"

namespace demo {

// Makes each forbidden call between two kernels in the `fn` of a cache. A row has the error that the cache reports,
// whether the run continued without a graph, and whether the kernels ran exactly once. Sets `equal` to false if they
// did not.
Section forbidden(bool* equal);

}  // namespace demo
