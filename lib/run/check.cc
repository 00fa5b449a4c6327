// Checks of a stream before work is captured or enqueued on it.
#include <absl/strings/str_cat.h>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {
// Checks the stream before `fn` is called on it. The order matters: querying the device of a capturing stream breaks
// its capture (compat.h).
absl::Status Cache::Impl::check(const Request& request) {
  if (absl::Status lost = status(); !lost.ok()) return lost;
  if (const char* const unfit = request.call.unfit(request.call.fn); unfit != nullptr) {
    return absl::InvalidArgumentError(unfit);
  }
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(request.stream, &capturing);
  if (error != cudaSuccess) return cuda_failure("cudaStreamIsCapturing", error);
  if (capturing != cudaStreamCaptureStatusNone) {
    return cuda_failure("the stream is already capturing, and Options::inline_in_foreign_capture is false",
                        cudaErrorStreamCaptureUnsupported);
  }
  if (!is_of_current_device(request.stream) && known_streams_.contains(request.stream)) return absl::OkStatus();
  if (absl::Status other = check_device(request.stream); !other.ok()) return other;
  known_streams_.insert(request.stream);
  return absl::OkStatus();
}

absl::Status Cache::Impl::check_device(cudaStream_t stream) const {
  int device = -1;
  if (is_of_current_device(stream)) {
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
      return cuda_failure("cudaGetDevice", error);
    }
  } else {
    DeviceGuard current(options_.device);  // Older toolkits compare with this device (compat.h).
    if (!current.status().ok()) return current.status();
    if (const CallResult queried = stream_device(stream, &device); queried.error != cudaSuccess) {
      return cuda_failure(queried.call, queried.error);
    }
  }
  if (device == options_.device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      stream == cudaStreamPerThread ? "cudaStreamPerThread belongs to the current device, which is "
      : stream == cudaStreamLegacy  ? "the legacy stream belongs to the current device, which is "
                                    : "the stream belongs to ",
      device < 0 ? "another device" : absl::StrCat("device ", device), "; the cache is of device ", options_.device));
}

bool Cache::Impl::is_in_foreign_capture(const Request& request) const {
  if (request.stream == cudaStreamLegacy) return false;
  LastErrorGuard last_error;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(request.stream, &capturing) == cudaSuccess && capturing == cudaStreamCaptureStatusActive;
}

}  // namespace graphcache
