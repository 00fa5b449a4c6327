// The diamond of the CUDA programming guide: A, then B and C, then D.
#pragma once

#include <cuda_runtime_api.h>

#include "../support.h"

namespace demo {

// The diamond by the explicit API, by capture, and by the cache. A row for each has the number of nodes and edges, and
// whether they equal those of the explicit graph. It also says whether the result is the reference's. Sets `equal` to
// false if not.
Section diamond(bool* equal);

}  // namespace demo
