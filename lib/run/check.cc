// What is looked up and checked before work is captured or enqueued on a stream.
#include <absl/strings/str_cat.h>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {
namespace {

// Replaces Options::kCurrentDevice by the stream's device. Returns an error, and changes nothing, if there is no such
// device.
absl::Status find_device(cudaStream_t stream, int* device) {
  LastErrorGuard last_error;
  int found = *device, count = 0;
  CallResult done{"cudaGetDeviceCount", cudaGetDeviceCount(&count)};
  if (done.error == cudaSuccess && found == Options::kCurrentDevice) {
    // The query would break a capture of the stream (compat.h). There the stream is of the current device.
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    if (!is_of_current_device(stream)) done = {"cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &capturing)};
    if (done.error == cudaSuccess) {
      done = is_of_current_device(stream) || capturing != cudaStreamCaptureStatusNone
                 ? CallResult{"cudaGetDevice", cudaGetDevice(&found)}
                 : stream_device(stream, &found);
    }
  }
  if (done.error != cudaSuccess) return cuda_failure(done.call, done.error);
  if (found < 0 || found >= count) {
    return absl::InvalidArgumentError(absl::StrCat("Options::device is ", found, ", of ", count, " devices"));
  }
  *device = found;
  return absl::OkStatus();
}

}  // namespace

// The first run makes what needs CUDA, so that a process can make caches and then fork.
absl::Status Cache::Impl::begin(cudaStream_t stream) {
  if (has_begun()) return absl::OkStatus();
  if (!invalid_.ok()) return invalid_;
  MutexLock lock(begin_mutex_);
  if (has_begun()) return absl::OkStatus();
  if (is_fatal(cuda_error(not_begun_))) return not_begun_;
  if (not_begun_ = find_device(stream, &options_.device); !not_begun_.ok()) return not_begun_;
  device_ = std::make_unique<Device>(options_);
  if (enabled_ && options_.diagnose) find_diagnoser();
  is_usual_ =
      enabled_ && !options_.inline_in_foreign_capture && options_.verify_every == 0 && !audience_->wants_launches();
  has_begun_ = true;
  if (is_usual_) hits_->late_error = &device_->memory->late_error();
  return absl::OkStatus();
}

// Checks the stream before `fn` is called on it. The order matters: querying the device of a capturing stream breaks
// its capture (compat.h).
absl::Status Cache::Impl::check(const Request& request) {
  if (absl::Status lost = status(); !lost.ok()) return lost;
  if (const char* const unfit = request.call.unfit(); unfit != nullptr) {
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
