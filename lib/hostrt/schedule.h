// When work runs: at once, unless a held stream is in front of it or execution is deferred. All functions expect the
// state to be locked.
//
// A held stream keeps what it is given in its queue. Work elsewhere that has to come behind held work waits, too: work
// behind cudaStreamWaitEvent, in the legacy stream beside a blocking one, in another launch of the same executable. It
// all comes down to marks in queues and to waiting for marks. Deferred, every stream keeps what it is given, and pieces
// of work (an operation, or one node of a graph) run in an order drawn by lot. While no stream is held and execution is
// not deferred, every queue is empty.
//
// Work that fails ends everything: State::lost says so, and what waits is dropped.

#ifndef GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_
#define GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_

#include <memory>

#include "state.h"

namespace graphcache::hostrt {

// Whether work may wait in queues now.
bool is_lazy(const State& state);

// Puts work behind what the stream was given before, and runs what may run now.
void enqueue(State& state, Stream& stream, Operation operation);

void hold(State& state, Stream& stream);
void release(State& state, Stream& stream);

void defer(State& state, std::uint64_t seed);
// What the environment asks for: GRAPHCACHE_HOSTRT_SEED.
void defer_as_wanted(State& state);

// The lot: a number below `bound`.
std::uint64_t draw(State& state, std::uint64_t bound);

// Lets some time pass: deferred, a few pieces of work run.
void progress(State& state);

// A mark behind the work that the stream has now; 0, which is always passed, when all of it has run.
std::uint64_t mark(State& state, Stream& stream);
bool has_passed(const State& state, std::uint64_t mark);

// The stream's later work waits for the mark.
void wait_for(const State& state, Stream& stream, std::uint64_t mark);

// What the legacy stream's use does even without work: its blocking streams' later work waits for what they have now.
void order_blocking_streams(State& state, Stream& legacy);

// Whether all work that a waiting host would wait for has run. The legacy stream stands for the blocking ones, too.
bool is_idle(State& state, const Stream& stream);

// What a waiting host needs: runs the work, releasing every stream that holds it up.
void finish(State& state, Stream& stream);
void finish(State& state, std::uint64_t mark);

inline constexpr int kAllDevices = -1;
void finish_device(State& state, int device);

// A stream whose handle is gone: it ends when its work has.
void retire(State& state, std::unique_ptr<Stream> stream);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_
