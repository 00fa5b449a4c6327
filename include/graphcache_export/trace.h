// chrome_trace(): the events of an EventRing as a trace for chrome://tracing and Perfetto.
#pragma once

#include <string>
#include <vector>

#include "graphcache/observe.h"

namespace graphcache {

// Returns JSON in the Trace Event Format, with one row for each thread. Events without duration are instant
// events ("ph": "i"); all others are complete events ("ph": "X"). Times are in microseconds since the first event.
// Throws std::bad_alloc.
std::string chrome_trace(const std::vector<KeptEvent>& events);

}  // namespace graphcache
