// When work runs: at once, unless a held stream is in front of it. All functions expect the state to be locked.
//
// A held stream keeps what it is given in its queue. Work elsewhere that has to come behind held work waits, too: work
// behind cudaStreamWaitEvent, in the legacy stream beside a blocking one, in another launch of the same executable. It
// all comes down to marks in queues and to waiting for marks. While no stream is held, every queue is empty.

#ifndef GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_
#define GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_

#include "state.h"

namespace graphcache::hostrt {

// Puts work behind what the stream was given before, and drains the stream as far as nothing holds it. Like all below
// that run work, it returns the error of the work that it ran.
cudaError_t enqueue(State& state, Stream& stream, Operation operation);

void hold(State& state, Stream& stream);
cudaError_t release(State& state, Stream& stream);

// A mark behind the work that the stream has now; 0, which is always passed, when all of it has run.
std::uint64_t mark(State& state, Stream& stream);
bool has_passed(const State& state, std::uint64_t mark);

// The stream's later work waits for the mark.
void wait_for(const State& state, Stream& stream, std::uint64_t mark);

// Whether all work that a waiting host would wait for has run. The legacy stream stands for the blocking ones, too.
bool is_idle(State& state, const Stream& stream);

// What a waiting host needs: runs the work, releasing every stream that holds it up.
cudaError_t finish(State& state, Stream& stream);
cudaError_t finish(State& state, std::uint64_t mark);

inline constexpr int kAllDevices = -1;
cudaError_t finish_device(State& state, int device);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_SCHEDULE_H_
