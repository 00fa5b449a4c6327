// cuda_error(): the CUDA error behind a status.
//
//   absl::StatusOr<graphcache::Outcome> outcome = cache.run(...);
//   if (graphcache::cuda_error(outcome.status()) == cudaErrorMemoryAllocation) ...
//
// Functions of the library that can fail return an absl::Status or absl::StatusOr. If a CUDA call failed, the status
// contains the CUDA error, and its message names the call, the error and the label of the key.
#pragma once

#include <absl/status/status.h>
#include <driver_types.h>

namespace graphcache {

// Returns the CUDA error that a status contains, also one that `fn` returned. Returns cudaSuccess if it contains none,
// for example because it is ok, or because `fn` made it. Thread-safe.
cudaError_t cuda_error(const absl::Status& status);

}  // namespace graphcache
