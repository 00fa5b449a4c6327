// Reports of calls whose effect real CUDA leaves undefined. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_MISUSE_H_
#define GRAPHCACHE_LIB_HOSTRT_MISUSE_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "place.h"
#include "presence.h"

namespace graphcache::hostrt {

struct State;
struct Thread;

// A place and its role in a misuse, such as "destroyed".
struct Involved {
  const char* role;
  Place place;
};

// Counts a misuse by the call at `here` and keeps its message, which names the known places.
void report_misuse(State& state, const Place& here, const std::string& what,
                   std::initializer_list<Involved> involved = {});

// The graphs that a call writes to because something is, or was, cloned or instantiated from them (fact 35). Graphs
// that no longer exist are left out. Call this before the body of the call, which may destroy the objects.
std::vector<const void*> written_graphs(const State& state, const Entry& entry);

// Reports calls of other threads that overlap this one and name the same graph object, or write to a graph that this
// one has written to.
void report_overlaps(State& state, const Thread& thread, const Entry& entry, const std::vector<const void*>& written);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_MISUSE_H_
