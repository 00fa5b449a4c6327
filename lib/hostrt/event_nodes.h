// Event record and event wait nodes. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_EVENT_NODES_H_
#define GRAPHCACHE_LIB_HOSTRT_EVENT_NODES_H_

#include "state.h"

namespace graphcache::hostrt {

// A launch waits as a whole for the events that its nodes wait for, and records events behind its end: later than a
// real one may, never earlier. An event that was destroyed is a misuse.
cudaError_t wait_for_events(const Call& call, Stream& stream, const Program& program);
void record_events(State& state, Stream& stream, const Program& program);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_EVENT_NODES_H_
