// The rules of stream capture that several calls must obey. All functions expect the state to be locked.
//
// Where the documentation is silent, these functions do what driver 580 (CUDA 13.0) does. The rules in
// test/rules/rules_capture*_test.cc run on both.

#ifndef GRAPHCACHE_LIB_HOSTRT_CAPTURE_H_
#define GRAPHCACHE_LIB_HOSTRT_CAPTURE_H_

#include "state.h"

namespace graphcache::hostrt {

// Invalidates a capture: its graph is destroyed, and its streams stay in it until cudaStreamEndCapture.
void invalidate(State& state, Capture& capture);

// Takes every stream out of the capture and forgets it. Destroys its graph unless the caller has taken it.
void end_capture(State& state, Capture& capture);

// Call this before a stream is destroyed. A capture ends with its origin stream; the last node of a forked stream must
// still be joined by the other streams.
void leave_capture(State& state, Stream& stream);

// Checks whether the stream accepts work. On success, `*capture` is null if the work runs, else the capture that
// records it. An error is that of the capture at fault, which is invalidated where the real driver invalidates it.
cudaError_t admit_work(State& state, Stream& stream, Capture** capture);
// The same, for calls that are answered as work is.
cudaError_t admit_as_work(State& state, Stream& stream);

// For calls that cannot be captured at all (synchronisation, queries, graph launches): if the stream is capturing,
// invalidates the capture and returns an error.
cudaError_t refuse_capture(State& state, Stream& stream);

// Returns whether the legacy stream would have to wait for a blocking stream that is capturing. With `invalidates`,
// also invalidates the captures at fault.
bool conflicts_with_legacy(State& state, const Stream& stream, bool invalidates);

// For the calls that the header names "potentially unsafe". Whether they are prohibited depends on the modes of the
// captures and of the thread (facts 2). Invalidates the captures that prohibit the call.
cudaError_t refuse_unsafe(const Call& call);

// Counts work for strays() that is about to be enqueued, if the thread is capturing on another stream. `kernel` is the
// kernel of a launch, else null.
void note_stray(const Call& call, const Stream& stream, const Kernel* kernel = nullptr);

// Adds a node for captured work that depends on the stream's last nodes and becomes its only last node.
Node& add_captured_node(State& state, Stream& stream, NodeParams params);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_CAPTURE_H_
