// Checks a cache's options.
#pragma once

#include <absl/status/status.h>

#include <climits>

#include "graphcache/options.h"

namespace graphcache {

// Used as Options::device: an invalid device, where -1 does not mean the current one.
inline constexpr int kMinusOne = INT_MIN;

// Fills in verify_every from the environment. Returns an error if the options are invalid. Makes no CUDA call.
absl::Status check(Options& options);

}  // namespace graphcache
