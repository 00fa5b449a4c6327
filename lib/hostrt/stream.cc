// Streams outside of captures: creating, destroying, waiting, querying.

#include <utility>

#include "attributes.h"
#include "capture.h"
#include "schedule.h"

namespace graphcache::hostrt {
namespace {

cudaError_t create(const Call& call, cudaStream_t* out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) return cudaErrorInvalidValue;
  auto owned = std::make_unique<Stream>();
  Stream& stream = *owned;
  stream.id = ++call.state.last_stream_id;
  stream.device = call.thread.device;
  stream.flags = flags;
  stream.priority = clamp_priority(priority);
  stream.handle = reinterpret_cast<cudaStream_t>(call.state.streams.add(std::move(owned)));
  *out = stream.handle;
  return cudaSuccess;
}

cudaError_t destroy(const Call& call, cudaStream_t handle) {
  // The implicit streams cannot be destroyed, and their handles are not in the table.
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return cudaErrorInvalidResourceHandle;
  }
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  leave_capture(call.state, *stream);
  retire(call.state, call.state.streams.remove(handle));
  return cudaSuccess;
}

// The capture checks that synchronize and query share.
cudaError_t admit_wait(const Call& call, Stream* stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_capture(call.state, *stream); error != cudaSuccess) return error;
  return refuse_unsafe(call);
}

cudaError_t synchronize(const Call& call, cudaStream_t handle) {
  Stream* stream = find_stream(call, handle);
  if (const cudaError_t error = admit_wait(call, stream); error != cudaSuccess) return error;
  finish(call.state, *stream);
  end_uploads(call.state, *stream);
  return cudaSuccess;
}

cudaError_t query(const Call& call, cudaStream_t handle) {
  Stream* stream = find_stream(call, handle);
  if (const cudaError_t error = admit_wait(call, stream); error != cudaSuccess) return error;
  progress(call.state);
  return is_idle(call.state, *stream) ? cudaSuccess : cudaErrorNotReady;
}

// `admit(state, stream)` returns an error if a capture forbids the call.
template <typename Value, typename Admit, typename Read>
[[gnu::always_inline]] inline cudaError_t read(Function function, cudaStream_t handle, Value* out, Admit&& admit,
                                               Read&& value_of) {
  return enter(function, [&](const Call& call) {
    Stream* const stream = find_stream(call, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = admit(call.state, *stream); error != cudaSuccess) return error;
    if (out == nullptr) return cudaErrorInvalidValue;
    *out = value_of(*stream);
    return cudaSuccess;
  });
}

cudaError_t admit_always(State&, Stream&) { return cudaSuccess; }

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* pStream) {
  return enter(Function::kStreamCreate, [&](const Call& call) { return create(call, pStream, cudaStreamDefault, 0); });
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
  return enter(Function::kStreamCreateWithFlags, [&](const Call& call) { return create(call, pStream, flags, 0); });
}

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags, int priority) {
  return enter(Function::kStreamCreateWithPriority,
               [&](const Call& call) { return create(call, pStream, flags, priority); });
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  return enter(Function::kStreamDestroy, [&](const Call& call) { return destroy(call, stream); });
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  return enter(Function::kStreamSynchronize, [&](const Call& call) { return synchronize(call, stream); });
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) {
  return enter(Function::kStreamQuery, [&](const Call& call) { return query(call, stream); });
}

cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t hStream, int* priority) {
  return read(Function::kStreamGetPriority, hStream, priority, admit_as_work,
              [](const Stream& stream) { return stream.priority; });
}

cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t hStream, unsigned int* flags) {
  return read(Function::kStreamGetFlags, hStream, flags, refuse_capture,
              [](const Stream& stream) { return stream.flags; });
}

#if CUDART_VERSION >= 12080
cudaError_t CUDARTAPI cudaStreamGetDevice(cudaStream_t hStream, int* device) {
  return read(Function::kStreamGetDevice, hStream, device, refuse_capture,
              [](const Stream& stream) { return stream.device; });
}
#endif

cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t hStream, unsigned long long* streamId) {
  return read(Function::kStreamGetId, hStream, streamId, admit_always, [](const Stream& stream) { return stream.id; });
}

}  // extern "C"
