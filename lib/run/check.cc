// What must hold of a stream before work is captured or enqueued on it.
#include <absl/strings/str_cat.h>

#include "cuda/compat.h"
#include "run/run.h"

namespace graphcache {

// Checks the stream before `fn` is called on it. The order matters: querying the device of a capturing stream breaks
// its capture (compat.h).
absl::Status Run::check() {
  if (absl::Status lost = core_.status(); !lost.ok()) return lost;
  if (const char* const unfit = call_.unfit(); unfit != nullptr) return absl::InvalidArgumentError(unfit);
  if (absl::Status other = core_.check_context(); !other.ok()) return other;
  if (absl::Status unfit = Core::check_capture(stream_); !unfit.ok()) return unfit;
  return check_device();
}

// The stream is of the current device, or does not capture.
absl::Status Run::check_device() {
  const int wanted = core_.options.device;
  int device = -1;
  if (is_of_current_device(stream_)) {
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return cuda_failure("cudaGetDevice", error);
  } else {
    if (core_.known_streams.contains(stream_)) return absl::OkStatus();
    DeviceGuard current(wanted);  // Older toolkits compare with this device (compat.h).
    if (!current.status().ok()) return current.status();
    const CallResult queried = stream_device(stream_, &device);
    if (queried.error != cudaSuccess) return cuda_failure(queried.call, queried.error);
  }
  if (device != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        stream_ == cudaStreamPerThread ? "cudaStreamPerThread belongs to the current device, which is "
        : stream_ == cudaStreamLegacy  ? "the legacy stream belongs to the current device, which is "
                                       : "the stream belongs to ",
        device < 0 ? "another device" : absl::StrCat("device ", device), "; the cache is of device ", wanted));
  }
  core_.known_streams.insert(stream_);
  return absl::OkStatus();
}

bool Run::is_in_foreign_capture() const {
  if (stream_ == cudaStreamLegacy) return false;
  LastErrorGuard last_error;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream_, &capturing) == cudaSuccess && capturing == cudaStreamCaptureStatusActive;
}

}  // namespace graphcache
