// Copies and fills in one to three dimensions.

#include "capture.h"
#include "params.h"
#include "schedule.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

bool is_empty(const CopyParams& copy) { return copy.bytes == 0 || copy.height == 0 || copy.depth == 0; }
bool is_empty(const FillParams& fill) { return fill.width == 0 || fill.height == 0; }

CopyParams rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t width,
                std::size_t height, cudaMemcpyKind kind) {
  CopyParams copy{dst, src, width, kind};
  copy.height = height;
  copy.destination_pitches.row = dst_pitch;
  copy.source_pitches.row = src_pitch;
  return copy;
}

// "Constant value to set": only its low byte counts, and a node reports it that way.
FillParams rows(void* address, std::size_t pitch, int value, std::size_t width, std::size_t height) {
  return {address, static_cast<unsigned>(value) & 0xff, 1, width, height, pitch};
}

// Empty copies and fills add no node. They are allowed anywhere, but those of boxes only where work is.
cudaError_t enqueue(const Call& call, const CopyParams& params, cudaStream_t handle) {
  const bool is_box = call.function == Function::kMemcpy3D || call.function == Function::kMemcpy3DAsync;
  const bool has_rows = call.function == Function::kMemcpy2D || call.function == Function::kMemcpy2DAsync;
  if (is_empty(params) && !is_box) return cudaSuccess;
  cudaError_t error = is_empty(params) ? cudaSuccess : check_rows(params);
  if (error != cudaSuccess) return error;
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  error = admit_as_work(call.state, *stream);
  if (error != cudaSuccess || is_empty(params)) return error;
  error = check_copy(params.destination, params.source, params.kind);
  if (error == cudaSuccess && (has_rows || is_box)) error = check_pitches(params, is_box);
  if (error != cudaSuccess) return error;
  CopyParams copy = params;
  if (copy.is_flat()) copy.destination_pitches = copy.source_pitches = {};
  return submit(call, *stream, copy);
}

cudaError_t enqueue(const Call& call, const FillParams& params, cudaStream_t handle) {
  if (is_empty(params)) return cudaSuccess;
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = admit_as_work(call.state, *stream); error != cudaSuccess) return error;
  // A capture accepts a fill of pageable memory; instantiation then fails.
  if (!has_extent(params) || (stream->capture == nullptr && is_pageable(call.state, params.destination))) {
    return cudaErrorInvalidValue;
  }
  return submit(call, *stream, params);
}

// Which devices the memory is on follows from its addresses.
template <typename Copy>
[[gnu::always_inline]] inline cudaError_t between_devices(Function function, int to, int from, const Copy& copy) {
  return enter(function, [&](const Call& call) {
    return call.state.has_device(to) && call.state.has_device(from) ? copy(call) : cudaErrorInvalidDevice;
  });
}

// The synchronous calls use the legacy stream or, in a program with per-thread default streams, that of the thread.
// While another stream is capturing they are allowed in every mode, unless the legacy stream has to wait for that one.
// Their own stream must not be capturing, except for empty calls. The host does not wait for a fill.
template <typename Params>
cudaError_t do_at_once(const Call& call, const Params& params, cudaStream_t handle) {
  Stream& stream = *find_stream(call, handle);
  if (stream.capture != nullptr && !is_empty(params)) {
    if (const cudaError_t error = refuse_capture(call.state, stream); error != cudaSuccess) return error;
  }
  const cudaError_t error = enqueue(call, params, handle);
  if (error == cudaSuccess && std::is_same_v<Params, CopyParams>) finish(call.state, stream);
  return error;
}

template <typename Params>
[[gnu::always_inline]] inline cudaError_t at_once(Function function, const Params& params, cudaStream_t handle) {
  return enter(function, [&](const Call& call) { return do_at_once(call, params, handle); });
}

template <typename Params>
[[gnu::always_inline]] inline cudaError_t in_order(Function function, const Params& params, cudaStream_t handle) {
  return enter(function, [&](const Call& call) { return enqueue(call, params, handle); });
}

[[gnu::always_inline]] inline cudaError_t box_at_once(const cudaMemcpy3DParms* box, cudaStream_t handle) {
  return enter(Function::kMemcpy3D, [&](const Call& call) {
    CopyParams copy;
    const cudaError_t error = take_copy(box, &copy);
    return error == cudaSuccess ? do_at_once(call, copy, handle) : error;
  });
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaMemcpy(void* dst, const void* src, size_t count, enum cudaMemcpyKind kind) {
  return at_once(Function::kMemcpy, CopyParams{dst, src, count, kind}, cudaStreamLegacy);
}

cudaError_t CUDARTAPI cudaMemcpyPeer(void* dst, int dstDevice, const void* src, int srcDevice, size_t count) {
  return between_devices(Function::kMemcpyPeer, dstDevice, srcDevice, [&](const Call& call) {
    return do_at_once(call, CopyParams{dst, src, count, cudaMemcpyDefault}, cudaStreamLegacy);
  });
}

cudaError_t CUDARTAPI cudaMemcpy2D(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                                   size_t height, enum cudaMemcpyKind kind) {
  return at_once(Function::kMemcpy2D, rows(dst, dpitch, src, spitch, width, height, kind), cudaStreamLegacy);
}

cudaError_t CUDARTAPI cudaMemcpy3D(const struct cudaMemcpy3DParms* p) { return box_at_once(p, cudaStreamLegacy); }

cudaError_t CUDARTAPI cudaMemset(void* devPtr, int value, size_t count) {
  return at_once(Function::kMemset, rows(devPtr, 0, value, count, 1), cudaStreamLegacy);
}

cudaError_t CUDARTAPI cudaMemset2D(void* devPtr, size_t pitch, int value, size_t width, size_t height) {
  return at_once(Function::kMemset2D, rows(devPtr, pitch, value, width, height), cudaStreamLegacy);
}

cudaError_t CUDARTAPI cudaMemcpy_ptds(void* dst, const void* src, size_t count, enum cudaMemcpyKind kind) {
  return at_once(Function::kMemcpy, CopyParams{dst, src, count, kind}, cudaStreamPerThread);
}

cudaError_t CUDARTAPI cudaMemcpy2D_ptds(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                                        size_t height, enum cudaMemcpyKind kind) {
  return at_once(Function::kMemcpy2D, rows(dst, dpitch, src, spitch, width, height, kind), cudaStreamPerThread);
}

cudaError_t CUDARTAPI cudaMemcpy3D_ptds(const struct cudaMemcpy3DParms* p) {
  return box_at_once(p, cudaStreamPerThread);
}

cudaError_t CUDARTAPI cudaMemset_ptds(void* devPtr, int value, size_t count) {
  return at_once(Function::kMemset, rows(devPtr, 0, value, count, 1), cudaStreamPerThread);
}

cudaError_t CUDARTAPI cudaMemset2D_ptds(void* devPtr, size_t pitch, int value, size_t width, size_t height) {
  return at_once(Function::kMemset2D, rows(devPtr, pitch, value, width, height), cudaStreamPerThread);
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* dst, const void* src, size_t count, enum cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return in_order(Function::kMemcpyAsync, CopyParams{dst, src, count, kind}, stream);
}

cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice, size_t count,
                                          cudaStream_t stream) {
  return between_devices(Function::kMemcpyPeerAsync, dstDevice, srcDevice, [&](const Call& call) {
    Stream* const on = find_stream(call, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = refuse_capture(call.state, *on); error != cudaSuccess) return error;
    return enqueue(call, CopyParams{dst, src, count, cudaMemcpyDefault}, stream);
  });
}

cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                                        size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return in_order(Function::kMemcpy2DAsync, rows(dst, dpitch, src, spitch, width, height, kind), stream);
}

cudaError_t CUDARTAPI cudaMemcpy3DAsync(const struct cudaMemcpy3DParms* p, cudaStream_t stream) {
  return enter(Function::kMemcpy3DAsync, [&](const Call& call) {
    CopyParams copy;
    const cudaError_t error = take_copy(p, &copy);
    return error == cudaSuccess ? enqueue(call, copy, stream) : error;
  });
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream) {
  return in_order(Function::kMemsetAsync, rows(devPtr, 0, value, count, 1), stream);
}

cudaError_t CUDARTAPI cudaMemset2DAsync(void* devPtr, size_t pitch, int value, size_t width, size_t height,
                                        cudaStream_t stream) {
  return in_order(Function::kMemset2DAsync, rows(devPtr, pitch, value, width, height), stream);
}

}  // extern "C"
