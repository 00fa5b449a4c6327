// libgraphcache_diagnose.so: watches captures by CUPTI callbacks. CUPTI allows one subscriber. The component subscribes
// once per process and keeps the subscription, because unsubscribing or disabling callbacks is not safe while other
// threads call CUDA, and makes nothing faster that matters (docs/semantics.md). While no capture is watched, a callback
// only counts the calls that its thread is inside of.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "diagnose/cupti_work.h"
#include "diagnose/interface.h"
#include "diagnose/watch.h"

namespace graphcache::diagnose {
namespace {

struct Subscription {
  std::mutex mutex;
  CUpti_SubscriberHandle handle = nullptr;
  bool is_open = false;
  std::string refusal;
};

// Never destroyed, because CUPTI may call it until the process ends.
Subscription& subscription() {
  static auto& subscription = *new Subscription;
  return subscription;
}

struct Driver {
  CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
};

// The driver of this process.
const Driver& driver() {
  static const Driver driver = [] {
    Driver found;
    if (void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); library != nullptr) {
      found.is_capturing = reinterpret_cast<decltype(found.is_capturing)>(dlsym(library, "cuStreamIsCapturing"));
    }
    return found;
  }();
  return driver;
}

// A thread's calls under way.
struct Thread {
  int runtime_calls = 0;         // Nesting depth of runtime calls; the outermost one counts.
  int driver_calls = 0;          // Nesting depth of driver calls outside of those.
  bool is_querying = false;      // Inside a call by this file, or by the cache's log.
  const char* kernel = nullptr;  // The kernel that the driver launches within the runtime call.
};
constinit thread_local Thread thread;

CUstreamCaptureStatus capture_status(cudaStream_t stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  thread.is_querying = true;
  const CUresult result = driver().is_capturing(stream, &status);
  thread.is_querying = false;
  return result == CUDA_SUCCESS ? status : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

CaptureState state_of_capture(cudaStream_t stream, bool in_other_thread) {
  // The handle means another stream in this thread.
  if (in_other_thread && stream == cudaStreamPerThread) return CaptureState::kUnknown;
  switch (capture_status(stream)) {
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      return CaptureState::kActive;
    case CU_STREAM_CAPTURE_STATUS_NONE:
      return CaptureState::kOver;
    default:
      return CaptureState::kBroken;
  }
}

// A stream that is capturing puts its work into a graph. The legacy stream never captures, and a query of it may break
// a capture.
bool is_outside_of_captures(cudaStream_t stream) {
  return stream == cudaStreamLegacy || capture_status(stream) == CU_STREAM_CAPTURE_STATUS_NONE;
}

// In a program with per-thread default streams, "cudaMemcpyAsync_ptsz" is a call of cudaMemcpyAsync.
std::string plain_name(const char* name) {
  std::string_view text = name;
  for (const std::string_view end : {"_ptsz", "_ptds"}) {
    if (text.size() > end.size() && text.substr(text.size() - end.size()) == end) text.remove_suffix(end.size());
  }
  return std::string(text);
}

bool returns_an_earlier_error(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  return domain == CUPTI_CB_DOMAIN_RUNTIME_API && (id == CUPTI_RUNTIME_TRACE_CBID_cudaGetLastError_v3020 ||
                                                   id == CUPTI_RUNTIME_TRACE_CBID_cudaPeekAtLastError_v3020);
}

bool ends_capture(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
    return id == CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture || id == CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture_ptsz;
  }
  return id == CUPTI_RUNTIME_TRACE_CBID_cudaStreamEndCapture_v10000 ||
         id == CUPTI_RUNTIME_TRACE_CBID_cudaStreamEndCapture_ptsz_v10000;
}

// A call by the program has returned. Errors of the driver and of the runtime are the same numbers.
void returned(CUpti_CallbackDomain domain, CUpti_CallbackId id, const CUpti_CallbackData& data) {
  if (data.functionReturnValue == nullptr) return;  // cudaGetErrorName and the like return no error
  const auto error = static_cast<cudaError_t>(*static_cast<const int*>(data.functionReturnValue));
  const bool by_runtime = domain == CUPTI_CB_DOMAIN_RUNTIME_API;
  if (error != cudaSuccess ? !returns_an_earlier_error(domain, id) : ends_capture(domain, id)) {
    if (error == cudaErrorNotReady) return;
    failed({plain_name(data.functionName).c_str(), error, nullptr, by_runtime}, &state_of_capture);
    return;
  }
  cudaStream_t stream = nullptr;
  if (error != cudaSuccess || !watches_this_thread() || !stream_of_work(domain, id, data.functionParams, &stream)) {
    return;
  }
  const bool is_launch = std::strstr(data.functionName, "Kernel") != nullptr;
  const char* kernel = "";
  if (is_launch) {
    kernel = data.symbolName != nullptr ? data.symbolName : thread.kernel;
    if (kernel == nullptr) kernel = "of unknown name";
    launched(kernel);
  }
  if (is_outside_of_captures(stream)) {
    strayed({plain_name(data.functionName).c_str(), error, nullptr, by_runtime}, stream, kernel);
  }
}

// Counts calls under way. Returns true for one that the program makes itself, to the runtime or directly to the driver.
bool is_programs(CUpti_CallbackDomain domain, const CUpti_CallbackData& data) {
  const bool enters = data.callbackSite == CUPTI_API_ENTER;
  const bool is_runtime = domain == CUPTI_CB_DOMAIN_RUNTIME_API;
  if (!is_runtime && thread.runtime_calls != 0) {
    if (enters && data.symbolName != nullptr) thread.kernel = data.symbolName;
    return false;
  }
  int& calls = is_runtime ? thread.runtime_calls : thread.driver_calls;
  if (enters) {
    if (calls == 0) thread.kernel = nullptr;
    ++calls;
    return false;
  }
  if (calls == 0) return true;  // it was entered before the subscription
  return --calls == 0;
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* of_call) {
  if (thread.is_querying || (domain != CUPTI_CB_DOMAIN_RUNTIME_API && domain != CUPTI_CB_DOMAIN_DRIVER_API)) return;
  const auto& data = *static_cast<const CUpti_CallbackData*>(of_call);
  if (!is_programs(domain, data) || !watches_any()) return;
  try {
    returned(domain, id, data);
  } catch (const std::bad_alloc&) {  // not recorded in this case
  }
  thread.is_querying = true;  // Calls by the cache's log are not watched.
  tell();
  thread.is_querying = false;
}

const char* text_of(CUptiResult result) {
  const char* text = nullptr;
  return cuptiGetResultString(result, &text) == CUPTI_SUCCESS && text != nullptr ? text : "an unknown error";
}

const char* open_cupti() {
  Subscription& cupti = subscription();
  const std::lock_guard<std::mutex> lock(cupti.mutex);
  if (cupti.is_open) return nullptr;
  if (driver().is_capturing == nullptr) return "the driver of the process cannot report the state of captures";
  const char* call = "cuptiSubscribe";
  CUptiResult result = cuptiSubscribe(&cupti.handle, &on_call, nullptr);
  for (const CUpti_CallbackDomain domain : {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API}) {
    if (result != CUPTI_SUCCESS) break;
    call = "cuptiEnableDomain";
    result = cuptiEnableDomain(1, cupti.handle, domain);
  }
  cupti.is_open = result == CUPTI_SUCCESS;
  if (cupti.is_open) return nullptr;
  cupti.refusal = std::string(call) + ": " + text_of(result);
  return cupti.refusal.c_str();
}

void* begin_watch(cudaStream_t stream, void* to, void (*noticed)(void* to, const detail::WatchedCall*)) try {
  return begin(stream, to, noticed);
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace
}  // namespace graphcache::diagnose

extern "C" [[gnu::visibility("default")]] const graphcache::detail::DiagnoseInterface* graphcache_diagnose_v2() {
  static constexpr graphcache::detail::DiagnoseInterface interface = {
      &graphcache::diagnose::open_cupti, &graphcache::diagnose::begin_watch, &graphcache::diagnose::end};
  return &interface;
}
