// Events, and waiting for them, which extends a capture to more streams.

#include <algorithm>
#include <utility>

#include "capture.h"
#include "schedule.h"

namespace graphcache::hostrt {
namespace {

constexpr unsigned kKnownFlags = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;

// The capture that the event was recorded in, if it is still active.
Capture* capture_of(const State& state, const Event& event) {
  if (event.capture_id == 0) return nullptr;
  const auto found = state.captures.find(event.capture_id);
  return found == state.captures.end() || found->second->invalidated ? nullptr : found->second.get();
}

bool is_from_ended_capture(const State& state, const Event& event) {
  return event.capture_id != 0 && capture_of(state, event) == nullptr;
}

cudaError_t create(const Call& call, cudaEvent_t* out, unsigned flags) {
  const bool needs_no_timing = (flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0;
  if (out == nullptr || (flags & ~kKnownFlags) != 0 || needs_no_timing) return cudaErrorInvalidValue;
  auto owned = std::make_unique<Event>();
  Event& event = *owned;
  event.device = call.thread.device;
  event.flags = flags;
  event.handle = reinterpret_cast<cudaEvent_t>(call.state.events.add(std::move(owned)));
  *out = event.handle;
  return cudaSuccess;
}

cudaError_t record(const Call& call, cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  Event* event = find_event(call, handle);
  Stream* stream = find_stream(call, stream_handle);
  if (event == nullptr || stream == nullptr || event->device != stream->device) return cudaErrorInvalidResourceHandle;
  Capture* capture = nullptr;
  if (const cudaError_t error = admit_work(call.state, *stream, &capture); error != cudaSuccess) return error;
  // This flag means something only in a capture: it adds a node that records the event.
  if (flags == cudaEventRecordExternal) {
    if (capture == nullptr) return cudaErrorIllegalState;
    add_captured_node(call.state, *stream, EventRecordParams{handle});
    return cudaSuccess;
  }
  event->recorded = true;
  event->capture_id = capture != nullptr ? capture->id : 0;
  event->captured = capture != nullptr ? stream->next : std::vector<Edge>();
  event->mark = capture != nullptr ? 0 : mark(call.state, *stream);
  return cudaSuccess;
}

// The checks that query and synchronize share. A captured event belongs to its capture, whatever the modes. Once that
// capture has ended, the event counts as never recorded.
cudaError_t admit_wait(const Call& call, const Event* event) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (Capture* capture = capture_of(call.state, *event)) {
    invalidate(call.state, *capture);
    return cudaErrorCapturedEvent;
  }
  return is_from_ended_capture(call.state, *event) ? cudaErrorInvalidValue : refuse_unsafe(call);
}

cudaError_t query(const Call& call, cudaEvent_t handle) {
  const Event* event = find_event(call, handle);
  if (const cudaError_t error = admit_wait(call, event); error != cudaSuccess) return error;
  progress(call.state);
  return has_passed(call.state, event->mark) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t synchronize(const Call& call, cudaEvent_t handle) {
  const Event* event = find_event(call, handle);
  if (const cudaError_t error = admit_wait(call, event); error != cudaSuccess) return error;
  finish(call.state, event->mark);
  return cudaSuccess;
}

void join_capture(Stream& stream, Capture& capture, const std::vector<Edge>& dependencies) {
  if (stream.capture == nullptr) {
    stream.capture = &capture;
    capture.streams.push_back(&stream);
    stream.next.clear();
  }
  for (const Edge& edge : dependencies) {
    if (std::find(stream.next.begin(), stream.next.end(), edge) == stream.next.end()) stream.next.push_back(edge);
  }
}

cudaError_t wait_for_captured(State& state, Stream& stream, const Event& event, Capture& capture) {
  if (stream.is_legacy) {
    invalidate(state, capture);
    return cudaErrorStreamCaptureImplicit;  // the legacy stream cannot join a capture (facts 1)
  }
  if (stream.capture != nullptr && stream.capture != &capture) {
    invalidate(state, *stream.capture);
    invalidate(state, capture);
    return cudaErrorStreamCaptureMerge;
  }
  if (capture.invalidated) return cudaErrorStreamCaptureInvalidated;
  join_capture(stream, capture, event.captured);
  return cudaSuccess;
}

cudaError_t wait_on_stream(const Call& call, cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags) {
  Stream* stream = find_stream(call, stream_handle);
  const Event* event = find_event(call, handle);
  if (stream == nullptr || event == nullptr) return cudaErrorInvalidResourceHandle;
  if ((flags & ~unsigned{cudaEventWaitExternal}) != 0) return cudaErrorInvalidValue;
  Capture* own = nullptr;
  if (const cudaError_t error = admit_work(call.state, *stream, &own); error != cudaSuccess) return error;
  if (is_from_ended_capture(call.state, *event)) {
    if (own != nullptr) invalidate(call.state, *own);
    return cudaErrorInvalidValue;
  }
  // This flag means something only in a capture: it adds a node that waits for the event.
  if (flags == cudaEventWaitExternal) {
    if (own == nullptr) return cudaErrorIllegalState;
    add_captured_node(call.state, *stream, EventWaitParams{handle});
    return cudaSuccess;
  }
  if (Capture* capture = capture_of(call.state, *event)) {
    return wait_for_captured(call.state, *stream, *event, *capture);
  }
  if (own != nullptr && event->recorded) {
    invalidate(call.state, *own);
    return cudaErrorStreamCaptureIsolation;
  }
  if (!event->recorded) return cudaSuccess;  // "a functional no-op"
  // "When an action is taken in the legacy stream such as a kernel launch or cudaStreamWaitEvent()": this holds even if
  // the event is complete.
  if (stream->is_legacy) order_blocking_streams(call.state, *stream);
  wait_for(call.state, *stream, event->mark);
  return cudaSuccess;
}

cudaError_t elapsed(const Call& call, float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Event* first = find_event(call, start);
  const Event* last = find_event(call, end);
  if (milliseconds == nullptr) return cudaErrorInvalidValue;
  if (first == nullptr || last == nullptr || first->device != last->device) return cudaErrorInvalidResourceHandle;
  for (const Event* event : {first, last}) {
    if (capture_of(call.state, *event) != nullptr) return cudaErrorCapturedEvent;  // the capture stays valid
    if (is_from_ended_capture(call.state, *event)) return cudaErrorInvalidValue;
    if ((event->flags & cudaEventDisableTiming) != 0 || !event->recorded) return cudaErrorInvalidResourceHandle;
  }
  if (!has_passed(call.state, first->mark) || !has_passed(call.state, last->mark)) return cudaErrorNotReady;
  *milliseconds = 0;  // hostrt does not model time
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  return enter(Function::kEventCreate, [&](const Call& call) { return create(call, event, cudaEventDefault); });
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return enter(Function::kEventCreateWithFlags, [&](const Call& call) { return create(call, event, flags); });
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return enter(Function::kEventRecord,
               [&](const Call& call) { return record(call, event, stream, cudaEventRecordDefault); });
}

cudaError_t CUDARTAPI cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return enter(Function::kEventRecordWithFlags, [&](const Call& call) {
    if ((flags & ~unsigned{cudaEventRecordExternal}) != 0) return cudaErrorInvalidValue;
    return record(call, event, stream, flags);
  });
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
  return enter(Function::kEventQuery, [&](const Call& call) { return query(call, event); });
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  return enter(Function::kEventSynchronize, [&](const Call& call) { return synchronize(call, event); });
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return enter(Function::kEventElapsedTime, [&](const Call& call) { return elapsed(call, ms, start, end); });
}

#if CUDART_VERSION >= 12080 && CUDART_VERSION < 13000
cudaError_t CUDARTAPI cudaEventElapsedTime_v2(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return enter(Function::kEventElapsedTime, [&](const Call& call) { return elapsed(call, ms, start, end); });
}
#endif

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  return enter(Function::kEventDestroy, [&](const Call& call) {
    if (find_event(call, event) == nullptr) return cudaErrorInvalidResourceHandle;
    call.state.events.remove(event);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return enter(Function::kStreamWaitEvent,
               [&](const Call& call) { return wait_on_stream(call, stream, event, flags); });
}

}  // extern "C"
