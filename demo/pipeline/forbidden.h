// What a capture forbids.
#pragma once

#include "../support.h"

namespace demo {

// Each call that a capture forbids, made between two kernels by the `fn` of a cache: the error that the cache reports,
// whether the run went on without a graph, and whether the kernels' work was done, once. `equal` becomes false where it
// was not.
Section forbidden(bool* equal);

}  // namespace demo
