// A graph that somebody else made, as a template (graphcache/adopt.h).
#pragma once

#include <absl/status/status.h>
#include <absl/types/span.h>
#include <cuda_runtime_api.h>

#include "graph/template.h"
#include "graphcache/adopt.h"
#include "graphcache/detail/call.h"

namespace graphcache {

// Makes the graph, or a clone of it, a template and its content. Arguments that follow slots get the call's values.
// The device that the cache is for is current. After an error the graph is as it was, and the caller's.
absl::Status adopt(cudaGraph_t graph, const Adoption& adoption, const detail::Call& call,
                   absl::Span<const detail::ValuePlace> places, Template* out, Content* content);

}  // namespace graphcache
