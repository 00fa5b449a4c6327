// cuda_error(): the CUDA error behind a status.
//
//   absl::StatusOr<graphcache::Outcome> outcome = cache.run(...);
//   if (graphcache::cuda_error(outcome.status()) == cudaErrorMemoryAllocation) ...
//
// Every function of the library that can fail returns an absl::Status or an absl::StatusOr. If a CUDA call failed, the
// status contains the CUDA error, and its message names the call, the error and the label of the key.
#pragma once

#include <absl/status/status.h>
#include <driver_types.h>

namespace graphcache {

// Returns the CUDA error that a status contains. Returns cudaSuccess if it contains none: if it is ok, reports an
// invalid argument, or was returned by `fn` itself. Thread-safe.
cudaError_t cuda_error(const absl::Status& status);

}  // namespace graphcache
