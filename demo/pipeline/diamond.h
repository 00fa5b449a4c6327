// The diamond of the CUDA programming guide: A, then B and C, then D.
#pragma once

#include <cuda_runtime_api.h>

#include "../support.h"

namespace demo {

// The diamond by the explicit API, by capture, and by the cache. A row for each: nodes, edges, whether these are the
// explicit graph's, and whether the result is the reference's. `equal` becomes false if any is not.
Section diamond(bool* equal);

}  // namespace demo
