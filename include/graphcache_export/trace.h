// The last events of a cache as a trace for chrome://tracing and Perfetto.
#pragma once

#include <string>
#include <vector>

#include "graphcache/events.h"

namespace graphcache {

// JSON in the Trace Event Format, one row a thread: complete events ("ph": "X") for what lasts, instant ones ("i") for
// evictions and dropped templates. Times are in microseconds from the first event on. Throws std::bad_alloc.
std::string chrome_trace(const std::vector<CacheEvent>& events);

}  // namespace graphcache
