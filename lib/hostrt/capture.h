// The rules of stream capture that more than one call has to obey. All functions expect the state to be locked.
//
// What these functions do was read off a real driver (580, CUDA 13.0) wherever the documentation is silent; see the
// rules in test/rules_capture*_test.cc, which run on both.

#ifndef GRAPHCACHE_LIB_HOSTRT_CAPTURE_H_
#define GRAPHCACHE_LIB_HOSTRT_CAPTURE_H_

#include "state.h"

namespace graphcache::hostrt {

// Ends the validity of a capture: its graph is gone, its streams stay in it until cudaStreamEndCapture.
void invalidate(State& state, Capture& capture);

// Takes every stream out of the capture and forgets it; destroys its graph unless that was taken away before.
void end_capture(State& state, Capture& capture);

// Called when a stream is about to be destroyed. A capture ends with its origin; a forked stream's end stays to be
// joined by the others.
void leave_capture(State& state, Stream& stream);

// Asks whether work may be given to a stream. On success, `*capture` says what becomes of the work: null, it runs; else
// it becomes part of that capture. The errors are those of the capture at fault, which is invalidated where the real
// driver does so.
cudaError_t admit_work(State& state, Stream& stream, Capture** capture);

// For calls that cannot be captured at all (synchronisation, queries, graph launches): an error, and the end of the
// capture, when the stream captures.
cudaError_t refuse_capture(State& state, Stream& stream);

// True, with the captures at fault invalidated if `invalidates`, when the legacy stream would have to wait for a
// blocking stream that captures.
bool conflicts_with_legacy(State& state, const Stream& stream, bool invalidates);

// For the calls that the header calls "potentially unsafe": prohibited depending on the modes of captures and of the
// thread (facts 2). Invalidates what prohibits it.
cudaError_t refuse_unsafe(const Call& call);

// Counts work for strays() that is about to be enqueued, if the thread captures another stream. `kernel` is what is
// launched, if it is a kernel.
void note_stray(const Call& call, const Stream& stream, const Kernel* kernel = nullptr);

// Adds a node for captured work behind what the stream did last, and makes it what the stream did last.
Node& add_captured_node(State& state, Stream& stream, NodeParams params);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_CAPTURE_H_
