// CUDA errors: their statuses, their kinds, and the last-error slot that they are latched in.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_replace.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "graphcache/key.h"

namespace graphcache {

// The status for a lack of host memory. It has no message if there is no memory for one.
absl::Status out_of_memory() noexcept;

// A status "cudaGraphLaunch: cudaErrorX (text)" that contains the error (see cuda_error()). `verb` stands between the
// call and the error, and `advice` ends the message unless the error is fatal. Returns out_of_memory() if the status
// cannot be created.
absl::Status cuda_failure(std::string_view call, cudaError_t error, const char* verb = ": ",
                          const char* advice = "") noexcept;

// The same for a call by `fn`. If it is an error of captures, the message ends with advice; where calls can be watched,
// also with how.
absl::Status failure_of_fn(std::string_view call, cudaError_t error, bool is_watched = true) noexcept;

// Advice about an error of captures, which continues a sentence. Empty for other errors.
const char* advice(cudaError_t error);

// The same status with another text. It shares nothing with the first one.
absl::Status with_text(const absl::Status& status, absl::string_view text);
// A copy for another thread. Abseil counts the owners of a status where ThreadSanitizer cannot see it, and would seem
// to free what the other thread has read.
inline absl::Status copy_of(const absl::Status& status) { return with_text(status, status.message()); }
// The same status with the key's text before its message. If the text has more than 256 bytes, the message contains the
// key's label and the first 256. Returns the status unchanged if memory runs out.
absl::Status with_key(const absl::Status& status, const Key& key) noexcept;
// The message of with_key() as one line for the log.
inline std::string line_of(const absl::Status& status, const Key& key) {
  return absl::StrReplaceAll(with_key(status, key).message(), {{"\n", " "}});
}
// The same status with what `more` says besides, behind its message. Unchanged if memory runs out.
absl::Status with_more(const absl::Status& status, absl::string_view separator, absl::string_view more) noexcept;

// Abseil's own string_view may be another type.
inline std::string_view message_of(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// The failure of something that threw the exception that is being handled, with its text.
absl::Status exception_failure(absl::string_view who_threw) noexcept;

// The last runtime call and its result.
struct CallResult {
  const char* call = "";
  cudaError_t error = cudaSuccess;

  absl::Status status() const { return error == cudaSuccess ? absl::OkStatus() : cuda_failure(call, error); }
};

// Errors after which the process has no usable context (fact 32). Handles must then be dropped, not destroyed.
bool is_fatal(cudaError_t error);

// Adds a failure to a status. The first failure is kept, except that a fatal one replaces it.
void add_failure(absl::Status* status, const absl::Status& why);

// Errors by which a call reports that a capture forbids it, or that a capture broke.
bool is_capture_error(cudaError_t error);

// Restores the thread's last-error slot (law 4, fact 31). CUDA can read and clear the slot, but not set it. So an error
// that was there before and has been overwritten comes back by a call that fails with it. Few errors have such a call.
// For the others the slot keeps the newer error, so that the caller still sees that something failed.
class LastErrorGuard {
 public:
  LastErrorGuard();
  ~LastErrorGuard() { settle(); }
  LastErrorGuard(const LastErrorGuard&) = delete;

  // The error that was latched since construction or the last settle(), or cudaSuccess. An error that a guard inside of
  // this one could not replace by the older one does not count.
  cudaError_t caused() const;
  void settle();

 private:
  const cudaError_t found_;
  const std::uint64_t times_;  // How often guards of this thread had left another error in the place of an older one.
};

// Makes a device current during its lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  const CallResult& result() const { return result_; }
  absl::Status status() const { return result_.status(); }
  // Restores the device early, even if another one is current by now.
  CallResult put_back();

 private:
  int before_ = -1;
  bool changed_ = false;
  CallResult result_;
};

}  // namespace graphcache
