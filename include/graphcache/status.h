// Errors. Every function that can fail returns an absl::Status or absl::StatusOr. A status that stems from a CUDA call
// names the call, the CUDA error and the label of the key, and carries the error itself:
//
//   absl::StatusOr<graphcache::Outcome> outcome = cache.run(...);
//   if (graphcache::cuda_error(outcome.status()) == cudaErrorMemoryAllocation) ...
#pragma once

#include <absl/status/status.h>
#include <driver_types.h>

namespace graphcache {

// The CUDA error that a status carries, or cudaSuccess if it carries none: it is ok, came from a check of our own
// arguments, or is a status that `fn` itself returned. Thread-safe.
cudaError_t cuda_error(const absl::Status& status);

}  // namespace graphcache
