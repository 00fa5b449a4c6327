// The built-in traces. They are the same on every machine.
#pragma once

#include <vector>

#include "trace.h"

namespace graphcache::sim {

std::vector<Trace> generated_traces();

}  // namespace graphcache::sim
