// What must hold of a cache's options.
#pragma once

#include <absl/status/status.h>

#include "graphcache/options.h"

namespace graphcache {

// Fills in the device, and verify_every from the environment. Not ok: the options make no sense.
absl::Status check(Options& options);

}  // namespace graphcache
