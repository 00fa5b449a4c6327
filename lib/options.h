// What must hold of a cache's options.
#pragma once

#include <absl/status/status.h>

#include <climits>

#include "graphcache/options.h"

namespace graphcache {

// As Options::device: no device, where -1 is not meant to be the current one.
inline constexpr int kMinusOne = INT_MIN;

// Fills in the device, and verify_every from the environment. Not ok: the options make no sense.
absl::Status check(Options& options);

}  // namespace graphcache
