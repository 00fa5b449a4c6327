// Makes a template of a graph that the program built itself (graphcache/adopt.h).
#pragma once

#include <absl/status/status.h>
#include <absl/types/span.h>
#include <cuda_runtime_api.h>

#include "graph/template.h"
#include "graphcache/adopt.h"
#include "graphcache/detail/call.h"

namespace graphcache {

// Makes a template and its content of the graph or of a clone. Bound arguments get the call's values. REQUIRES: the
// cache's device is current. After an error the graph is unchanged and still belongs to the caller.
absl::Status adopt(cudaGraph_t graph, const Adoption& adoption, const detail::Call& call,
                   absl::Span<const detail::ValuePlace> places, Template* out, Content* content);

}  // namespace graphcache
