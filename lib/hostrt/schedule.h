// When work runs: at once, unless a held stream comes before it or execution is deferred. All functions expect the
// state to be locked.
//
// A held stream keeps its work in a queue. Work on other streams that must follow held work waits as well: behind
// cudaStreamWaitEvent, in the legacy stream beside a blocking stream, in another launch of the same executable. All of
// these are marks in queues and waits for marks. In deferred execution, every stream queues its work, and pieces of
// work (an operation, or one node of a graph) run in random order. While no stream is held and execution is not
// deferred, every queue is empty.
//
// An error in work is fatal: State::lost is set, and queued work is dropped.

#ifndef GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_
#define GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_

#include <memory>

#include "state.h"

namespace graphcache::hostrt {

// As an error in work does. Not called while work runs.
void lose_context(State& state, cudaError_t error);

// Whether work may wait in queues now.
bool is_lazy(const State& state);

// Adds work to the end of the stream and runs what may run now.
void enqueue(State& state, Stream& stream, Operation operation);

void hold(State& state, Stream& stream);
void release(State& state, Stream& stream);

void defer(State& state, std::uint64_t seed);
// Applies the environment variable GRAPHCACHE_HOSTRT_SEED.
void defer_as_wanted(State& state);

// A random number below `bound`.
std::uint64_t draw(State& state, std::uint64_t bound);

// In deferred execution, runs a few pieces of work, as if time had passed.
void progress(State& state);

// A mark after the work that the stream has now; 0, which counts as passed, if all of it has run.
std::uint64_t mark(State& state, Stream& stream);
bool has_passed(const State& state, std::uint64_t mark);

// Makes the stream's later work wait for the mark.
void wait_for(const State& state, Stream& stream, std::uint64_t mark);

// Any use of the legacy stream makes later work of its blocking streams wait for their present work.
void order_blocking_streams(State& state, Stream& legacy);

// Whether all work that a waiting host would wait for has run. The legacy stream includes the blocking streams.
bool is_idle(State& state, const Stream& stream);

// Called when the host waits: runs the work, releasing every held stream that blocks it.
void finish(State& state, Stream& stream);
void finish(State& state, std::uint64_t mark);

inline constexpr int kAllDevices = -1;
void finish_device(State& state, int device);

// Keeps a stream whose handle has been destroyed until its work has run.
void retire(State& state, std::unique_ptr<Stream> stream);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_
