// chrome_trace(): the last events of a cache as a trace for chrome://tracing and Perfetto.
#pragma once

#include <string>
#include <vector>

#include "graphcache/events.h"

namespace graphcache {

// Returns JSON in the Trace Event Format, with one row for each thread. Evictions and dropped templates are instant
// events ("ph": "i"); all others are complete events ("ph": "X"). Times are in microseconds since the first event.
// Throws std::bad_alloc.
std::string chrome_trace(const std::vector<CacheEvent>& events);

}  // namespace graphcache
