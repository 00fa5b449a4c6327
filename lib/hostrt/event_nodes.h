// Event record and event wait nodes. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_EVENT_NODES_H_
#define GRAPHCACHE_LIB_HOSTRT_EVENT_NODES_H_

#include <memory>

#include "state.h"

namespace graphcache::hostrt {

// Whether the events of all such nodes exist. If one does not, a misuse is reported.
bool events_exist(const Call& call, const Program& program);

// Launches a program that has such nodes. Its nodes run one after the other, so that each event is waited for and
// recorded in its place. A wait node waits for what its event had recorded before the launch.
void enqueue_in_steps(State& state, Stream& stream, const std::shared_ptr<Program>& program);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_EVENT_NODES_H_
