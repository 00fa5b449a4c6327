#include "cuda/capture_advice.h"

#include <initializer_list>

namespace graphcache {
namespace {

bool has_any(std::string_view call, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (call.find(part) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorStreamCaptureUnsupported:
      return ". A capture forbids this call: move allocations, synchronizations and queries out of fn, or use "
             "cudaMallocAsync on rec.stream() and free the memory in fn";
    case cudaErrorStreamCaptureInvalidated:
      return ". An earlier call of fn, or of another thread, broke the capture, such as a launch that CUDA "
             "refuses, an allocation, a synchronization, or a use of the legacy default stream: move it out of fn, or "
             "take graphcache::capture_gate around it in the other thread";
    case cudaErrorStreamCaptureMerge:
      return ". A stream of the capture waited for one of another capture: let each capture wait for its own events "
             "alone";
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorIllegalState:
      return ". fn ended the capture of its stream: leave that to the cache";
    case cudaErrorStreamCaptureUnjoined:
      return ". fn has work on another stream that rec.stream() does not wait for: record an event there and let "
             "rec.stream() wait for it before fn returns";
    case cudaErrorStreamCaptureIsolation:
      return ". fn waits for an event that was recorded before its capture: let the run's stream wait for it before "
             "the run";
    case cudaErrorStreamCaptureImplicit:
      return ". The legacy default stream was used while a blocking stream was captured: in fn, pass rec.stream() to "
             "every launch and copy; run on a stream made with cudaStreamNonBlocking if other threads use the legacy "
             "stream";
    case cudaErrorCapturedEvent:
      return ". The host queried or waited for an event that was recorded in a capture: do that after the run";
    case cudaErrorStreamCaptureWrongThread:
      return ". A thread other than that of the run ended the capture: leave that to the cache";
    default:
      return "";
  }
}

// Matches names of the runtime and of the driver: cudaFreeHost, cuMemHostAlloc, cuMemAlloc_v2.
const char* advice(std::string_view call, cudaError_t error, bool in_other_thread) {
  if (in_other_thread) {
    return ". Take graphcache::capture_gate around this call in the other thread";
  }
  if (has_any(call, {"EndCapture"})) return ". Leave the end of the capture to the cache";
  const bool is_forbidden = error == cudaErrorStreamCaptureUnsupported || error == cudaErrorCapturedEvent;
  if (is_forbidden && has_any(call, {"Synchronize"})) return ". A capture forbids this call: synchronize after the run";
  if (is_forbidden && has_any(call, {"Query"})) return ". A capture forbids this call: query after the run";
  if (is_forbidden && has_any(call, {"Malloc", "Alloc", "Free"})) {
    return ". A capture forbids this call: move the allocation out of fn, or use cudaMallocAsync on rec.stream() and "
           "free the memory in fn";
  }
  if (error == cudaErrorStreamCaptureImplicit && has_any(call, {"Memcpy", "Memset"}) && !has_any(call, {"Async"})) {
    return ". It uses the legacy default stream while a blocking stream is captured: use cudaMemcpyAsync or "
           "cudaMemsetAsync on rec.stream()";
  }
  return advice(error);
}

}  // namespace graphcache
