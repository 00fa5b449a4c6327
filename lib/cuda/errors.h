// CUDA errors: as statuses, by kind, and the last-error slot that they latch in.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <string_view>

#include "graphcache/key.h"

namespace graphcache {

// The status for host memory that ran out. It has no message if there is no memory even for that.
absl::Status out_of_memory() noexcept;

// "cudaGraphLaunch: cudaErrorX (text)", carrying the error (cuda_error() reads it). out_of_memory() if that cannot be
// had.
absl::Status cuda_failure(std::string_view call, cudaError_t error) noexcept;

// The same of a call of `fn`'s. The message of a capture's error ends with what to do.
absl::Status failure_of_fn(std::string_view call, cudaError_t error) noexcept;

// Of a call that is known: `text` says it, and `call` is its name. The message ends with what to do about that call.
absl::Status failure_of_call(std::string_view text, std::string_view call, cudaError_t error,
                             bool in_other_thread) noexcept;

// The same status with the key's text before its message. Of a text of more than 256 bytes the message has the first
// 256, and the key's label before them. Without memory for that, the status as it is.
absl::Status with_key(const absl::Status& status, const Key& key) noexcept;

// Abseil's own string_view may be another type.
inline std::string_view message_of(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// Which runtime call was made last, and what it returned.
struct CallResult {
  const char* call = "";
  cudaError_t error = cudaSuccess;
  bool latches = true;  // Whether its error may stand in the last-error slot: those of the driver do not.
};

// Errors after which the process has no usable context (fact 32): handles are dropped, not destroyed.
bool is_fatal(cudaError_t error);

// Adds a failure to a status. The first failure stays, except that a fatal one replaces it.
void add_failure(absl::Status* status, const absl::Status& why);

// Errors that say that a stream's capture is in the way, or that a capture broke.
bool is_capture_error(cudaError_t error);

// Keeps the thread's last-error slot as it was found (law 4, fact 31). The slot can only be read and emptied, never
// filled: an error that was there before and has been overwritten is not restored, but the slot is then not emptied
// either, so that the caller still finds that something failed.
class LastErrorGuard {
 public:
  LastErrorGuard() : found_(cudaPeekAtLastError()) {}
  ~LastErrorGuard() { settle(); }
  LastErrorGuard(const LastErrorGuard&) = delete;
  LastErrorGuard& operator=(const LastErrorGuard&) = delete;

  // The error that was latched since the guard was made or last settled, or cudaSuccess.
  cudaError_t caused() const {
    const cudaError_t now = cudaPeekAtLastError();
    return now == found_ ? cudaSuccess : now;
  }
  void settle() {
    if (found_ == cudaSuccess && cudaPeekAtLastError() != cudaSuccess) cudaGetLastError();
  }

 private:
  cudaError_t found_;
};

// Makes a device current while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  const CallResult& result() const { return result_; }
  absl::Status status() const {
    return result_.error == cudaSuccess ? absl::OkStatus() : cuda_failure(result_.call, result_.error);
  }
  // Before the end, and also if another device than that one is current by now.
  CallResult put_back();

 private:
  int before_ = -1;
  bool changed_ = false;
  CallResult result_;
};

}  // namespace graphcache
