#include "cuda/errors.h"

#include <absl/strings/cord.h>
#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>

#include "cuda/handles.h"
#include "graphcache/detail/call.h"
#include "graphcache/status.h"

namespace graphcache {
namespace {

constexpr char kPayload[] = "graphcache/cuda_error";
constexpr std::size_t kMaxKeyBytes = 256;  // Limit for a key's text in a message.

absl::StatusCode code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDeviceFunction:
      return absl::StatusCode::kInvalidArgument;
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNotSupported:
      return absl::StatusCode::kUnimplemented;
    default:
      return is_capture_error(error) ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInternal;
  }
}

const char* advice_on_fatal(cudaError_t error) {
  switch (error) {
    case cudaErrorInitializationError:
      return "; a process that was forked from one that has used CUDA cannot use it: fork before the first CUDA call "
             "and the first run, or start a new program";
    case cudaErrorCudartUnloading:
      return "";
    case cudaErrorContextIsDestroyed:
      return "; after cudaDeviceReset, Cache::clear() lets the cache begin anew";
    default:
      return "; the CUDA context is lost, and all that it had: start a new process. Work that was enqueued before may "
             "be the cause; compute-sanitizer names it";
  }
}

// Latches an error by a call that fails with it and has no other effect where the device is in use. Returns whether
// there is one.
bool latch(cudaError_t error) {
  int value = 0;
  void* memory = nullptr;
  cudaFunction_t function = nullptr;
  RelaxedCaptureMode relaxed;
  switch (error) {
    case cudaErrorInvalidValue:
      cudaGetDevice(nullptr);
      break;
    case cudaErrorMemoryAllocation:
      cudaMalloc(&memory, SIZE_MAX / 2);
      break;
    case cudaErrorInvalidDeviceFunction:
      cudaGetFuncBySymbol(&function, &value);
      break;
    case cudaErrorInvalidDevice:
      cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, -1);
      break;
    case cudaErrorInvalidResourceHandle:
      cudaEventQuery(nullptr);
      break;
    default:
      break;
  }
  return cudaPeekAtLastError() == error;
}

// What guards of this thread have left in the slot in the place of an older error.
thread_local constinit struct {
  std::uint64_t times = 0;
  cudaError_t by = cudaSuccess;  // The last one.
} replaced;

}  // namespace

absl::Status out_of_memory() noexcept try {
  return absl::ResourceExhaustedError("out of host memory");
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("");  // allocates nothing
}

const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorStreamCaptureUnsupported:
      return ". A capture forbids this call: move allocations, synchronizations, queries and graph launches out of "
             "fn, or use cudaMallocAsync on rec.stream() and free the memory in fn";
    case cudaErrorStreamCaptureInvalidated:
      return ". An earlier call of fn, or of another thread, broke the capture, such as a launch that CUDA "
             "refuses, an allocation, a synchronization, or a use of the legacy default stream: move it out of fn, or "
             "take graphcache::capture_gate around it in the other thread";
    case cudaErrorStreamCaptureMerge:
      return ". A stream of the capture waited for one of another capture: let each capture wait for its own events "
             "alone";
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureWrongThread:
      return ". fn, or another thread, ended the capture of the run: leave that to the cache";
    case cudaErrorIllegalState:
      return ". fn, or another thread, began or ended a capture: leave that to the cache, or return a graph from fn "
             "(graph.h). Or fn used an external event outside of captures";
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
    default:
      return "";
  }
}

absl::Status cuda_failure(std::string_view call, cudaError_t error, const char* verb, const char* advice) noexcept try {
  absl::Status status(code_of(error),
                      absl::StrCat(std::string(call), verb, cudaGetErrorName(error), " (", cudaGetErrorString(error),
                                   ")", is_fatal(error) ? advice_on_fatal(error) : advice));
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(error))));
  return status;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

absl::Status failure_of_fn(std::string_view call, cudaError_t error, bool is_watched) noexcept {
  const absl::Status failed = cuda_failure(call, error, ": ", advice(error));
  const bool names_no_call = error == cudaErrorStreamCaptureUnsupported || error == cudaErrorStreamCaptureInvalidated;
  return is_watched && names_no_call ? with_more(failed, ". ", "GRAPHCACHE_DIAGNOSE=1 names the call") : failed;
}

absl::Status with_text(const absl::Status& status, absl::string_view text) {
  absl::Status made(status.code(), text);
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) { made.SetPayload(type, payload); });
  return made;
}

absl::Status with_key(const absl::Status& status, const Key& key) noexcept try {
  if (status.ok()) return status;
  std::string name = key.to_string(kMaxKeyBytes);
  if (name.size() > kMaxKeyBytes) {
    const std::string_view label = key.label();
    name = absl::StrCat("\"", absl::Utf8SafeCHexEscape({label.data(), label.size()}), "\": ", name);
  }
  return with_text(status, absl::StrCat("graphcache: key ", name, ": ", status.message()));
} catch (const std::bad_alloc&) {
  return status;
}

absl::Status exception_failure(absl::string_view who_threw) noexcept try {
  try {
    throw;
  } catch (const std::exception& error) {
    constexpr std::size_t kMost = 1024;
    return absl::UnknownError(absl::StrCat(who_threw, ": ", absl::NullSafeStringView(error.what()).substr(0, kMost)));
  } catch (...) {
    return absl::UnknownError(who_threw);
  }
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

absl::Status with_more(const absl::Status& status, absl::string_view separator, absl::string_view more) noexcept try {
  if (absl::StrContains(status.message(), more)) return status;
  const std::size_t both = more.find("; ");
  if (both != more.npos && absl::EndsWith(status.message(), more.substr(0, both))) more.remove_prefix(both + 2);
  return with_text(status, absl::StrCat(status.message(), separator, more));
} catch (const std::bad_alloc&) {
  return status;
}

cudaError_t cuda_error(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload ? static_cast<cudaError_t>(std::atoi(std::string(*payload).c_str())) : cudaSuccess;
}

absl::Status detail::fn_failure(cudaError_t error) {
  return error == cudaSuccess ? absl::OkStatus() : failure_of_fn("fn returned", error);
}

bool is_fatal(cudaError_t error) {
  const int code = static_cast<int>(error);
  switch (code) {
    case 3:    // cudaErrorInitializationError: the process was forked from one that has used CUDA
    case 4:    // cudaErrorCudartUnloading: the process ends (fact 34)
    case 214:  // cudaErrorECCUncorrectable
    case 220:  // cudaErrorNvlinkUncorrectable
    case 226:  // cudaErrorContained
    case 700:  // cudaErrorIllegalAddress
    case 702:  // cudaErrorLaunchTimeout
    case 709:  // cudaErrorContextIsDestroyed
    case 710:  // cudaErrorAssert
    case 721:  // cudaErrorTensorMemoryLeak
    case 810:  // cudaErrorMpsClientTerminated
    case 911:  // cudaErrorExternalDevice
      return true;
    default:
      return code >= 714 && code <= 719;  // hardware stack error ... cudaErrorLaunchFailure
  }
}

void add_failure(absl::Status* status, const absl::Status& why) {
  if (status->ok() || (is_fatal(cuda_error(why)) && !is_fatal(cuda_error(*status)))) *status = why;
}

bool is_capture_error(cudaError_t error) {
  return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
}

LastErrorGuard::LastErrorGuard() : found_(cudaPeekAtLastError()), times_(replaced.times) {}

cudaError_t LastErrorGuard::caused() const {
  const cudaError_t now = cudaPeekAtLastError();
  const bool is_replaced = found_ != cudaSuccess && replaced.times != times_ && replaced.by == now;
  return now == found_ || is_replaced ? cudaSuccess : now;
}

void LastErrorGuard::settle() {
  const cudaError_t now = cudaPeekAtLastError();
  if (now == found_ || now == cudaSuccess) return;
  if (found_ == cudaSuccess) {
    cudaGetLastError();
  } else if (!latch(found_)) {
    ++replaced.times;
    replaced.by = cudaPeekAtLastError();
  }
}

DeviceGuard::DeviceGuard(int device) {
  result_ = {"cudaGetDevice", cudaGetDevice(&before_)};
  if (result_.error != cudaSuccess || before_ == device) return;
  result_ = {"cudaSetDevice", cudaSetDevice(device)};
  changed_ = result_.error == cudaSuccess;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(before_);
}

CallResult DeviceGuard::put_back() {
  changed_ = false;
  int current = -1;
  const cudaError_t error = cudaGetDevice(&current);
  if (is_fatal(error)) return {"cudaGetDevice", error};
  const bool is_back = error == cudaSuccess && current == before_;
  return {"cudaSetDevice", is_back ? cudaSuccess : cudaSetDevice(before_)};
}

}  // namespace graphcache
