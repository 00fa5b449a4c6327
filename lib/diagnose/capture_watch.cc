// What a cache does with a watcher of CUDA calls (interface.h): it finds it, has it watch captures, and words what it
// reports. The rest of the library knows graph/watch.h alone.
#include <absl/strings/str_cat.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "diagnose/interface.h"
#include "graph/capture.h"
#include "graph/recorder_calls.h"
#include "graph/watch.h"
#include "graphcache/status.h"

// A weak reference, so that a program links without it.
extern "C" [[gnu::weak]] const graphcache::detail::DiagnoseInterface* graphcache_diagnose_v2();

namespace graphcache {
namespace {

constexpr char kFunction[] = "graphcache_diagnose_v2";
constexpr char kLibrary[] = "libgraphcache_diagnose.so";

using Provider = decltype(&graphcache_diagnose_v2);

std::string text_of_last_error() {
  const char* const error = dlerror();
  return error != nullptr ? error : "an unknown error of dlopen";
}

// The library is never unloaded, because CUPTI may call it until the process ends.
Provider load(std::string* why) {
  const char* const wanted = std::getenv("GRAPHCACHE_DIAGNOSE");
  const bool is_path = wanted != nullptr && std::strchr(wanted, '/') != nullptr;
  void* const library = dlopen(is_path ? wanted : kLibrary, RTLD_NOW | RTLD_LOCAL);
  void* const provider = library != nullptr ? dlsym(library, kFunction) : nullptr;
  if (provider == nullptr) *why = text_of_last_error();
  return reinterpret_cast<Provider>(provider);
}

struct Fault {
  std::string call;  // The name of the call.
  std::string text;  // "cudaMalloc, called by load(Model&) in this thread after kernel a(float*)"
  cudaError_t error = cudaSuccess;
  bool in_other_thread = false;
  // Whether the capture broke. If not, the call failed and left the capture intact.
  bool broke = false;
};

std::string name_of(cudaStream_t stream) {
  if (stream == cudaStreamLegacy || stream == nullptr) return "stream 0 (the legacy stream)";
  if (stream == cudaStreamPerThread) return "cudaStreamPerThread, which is not part of the capture";
  return absl::StrCat("stream 0x", absl::Hex(reinterpret_cast<std::uintptr_t>(stream)),
                      ", which is not part of the capture");
}

std::string kernel_of(const char* name) { return absl::StrCat("kernel ", readable(name)); }

Fault fault_of(const detail::WatchedCall& call) {
  std::string text = absl::StrCat(call.name, ", called");
  if (*call.caller != '\0') absl::StrAppend(&text, " by ", call.caller);
  absl::StrAppend(&text, call.in_other_thread != 0 ? " in another thread" : " in this thread");
  if (*call.last_kernel != '\0') {
    absl::StrAppend(&text, call.in_other_thread != 0 ? " after the run's " : " after ", kernel_of(call.last_kernel));
  }
  return {call.name, std::move(text), call.error, call.in_other_thread != 0, call.broke != 0};
}

bool has_any(std::string_view call, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (call.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// Advice by the call and the error, which continues a sentence. Matches names of the runtime and of the driver:
// cudaFreeHost, cuMemHostAlloc, cuMemAlloc_v2.
const char* advice_on_call(std::string_view call, cudaError_t error, bool in_other_thread) {
  if (has_any(call, {"BeginCapture", "EndCapture"})) {
    return ". Leave captures to the cache, or return a graph from fn (graph.h)";
  }
  if (in_other_thread) {
    return ". Take graphcache::capture_gate around this call in the other thread";
  }
  const bool is_forbidden = error == cudaErrorStreamCaptureUnsupported || error == cudaErrorCapturedEvent;
  if (is_forbidden && has_any(call, {"Synchronize"})) return ". A capture forbids this call: synchronize after the run";
  if (is_forbidden && has_any(call, {"Query"})) return ". A capture forbids this call: query after the run";
  if (is_forbidden && has_any(call, {"Malloc", "Alloc", "Free"})) {
    return ". A capture forbids this call: move the allocation out of fn, or use cudaMallocAsync on rec.stream() and "
           "free the memory in fn";
  }
  if (is_forbidden && has_any(call, {"GraphLaunch"})) {
    return ". A capture forbids this call: return the graph from fn (graph.h), or launch it outside of fn";
  }
  if (error == cudaErrorInvalidValue && has_any(call, {"WaitEvent"})) {
    return ". The event may last have been recorded in a capture: record it after that run, not in fn";
  }
  if (error == cudaErrorStreamCaptureImplicit && has_any(call, {"Memcpy", "Memset"}) && !has_any(call, {"Async"})) {
    return ". It uses the legacy default stream while a blocking stream is captured: use cudaMemcpyAsync or "
           "cudaMemsetAsync on rec.stream()";
  }
  return advice(error);
}

absl::Status failure_of(const Fault& fault, std::string_view text, cudaError_t error) {
  return cuda_failure(text, error, " returned ", advice_on_call(fault.call, error, fault.in_other_thread));
}

// What is known when the call has just returned to the watcher.
std::string text_of_break(const Fault& fault) {
  std::string text = absl::StrCat("the capture broke: ", fault.text);
  if (fault.error == cudaSuccess) {
    return absl::StrCat(text, ", ended the capture", advice_on_call(fault.call, fault.error, fault.in_other_thread));
  }
  text += ',';
  return std::string(message_of(failure_of(fault, text, fault.error)));
}

std::string stray_of(const detail::WatchedCall& call) {
  const bool is_launch = *call.kernel != '\0';
  std::string text =
      is_launch ? absl::StrCat(kernel_of(call.kernel), " was launched") : absl::StrCat(call.name, " was called");
  if (*call.caller != '\0') absl::StrAppend(&text, " by ", call.caller);
  absl::StrAppend(&text, " on ", name_of(call.stream));
  return text;
}

// Adds the name of the call at fault to `*capture` if the capture broke. If it did not, adds the name to `*fn` if `fn`
// failed with that call's error.
void explain(const Fault& fault, const RecorderCalls& calls, absl::Status* capture, absl::Status* fn) {
  absl::Status* const status = fault.broke ? capture : fn;
  const cudaError_t found = cuda_error(*status);
  if (status->ok() || (fault.broke ? is_fatal(found) : found != fault.error)) return;
  std::string text = fault.text;
  if (fault.broke) {
    text = absl::StrCat("the capture broke ", calls.any() ? calls.place(fault.error) : "in fn", ": ", text);
  }
  // A call may successfully end the capture as if it were its own. In that case the cache's own end has failed.
  absl::StrAppend(&text,
                  fault.error == cudaSuccess ? ", ended the capture, and the cache's own cudaStreamEndCapture" : ",");
  *status = failure_of(fault, text, fault.error != cudaSuccess ? fault.error : found);
}

class CaptureWatch final : public Watch {
 public:
  CaptureWatch(const detail::DiagnoseInterface& diagnoser, cudaStream_t stream, const TellBreak& tell)
      : diagnoser_(diagnoser), tell_(tell), watch_(nullptr) {
    watch_ = diagnoser_.begin(stream, this, [](void* to, const detail::WatchedCall* call) {
      CaptureWatch& watch = *static_cast<CaptureWatch*>(to);
      if (!watch.tell_ || !watch.has_begun_) return;
      try {
        const std::string text = text_of_break(fault_of(*call));
        watch.has_told_ = true;
        watch.tell_(text);
      } catch (const std::bad_alloc&) {
      }
    });
  }
  ~CaptureWatch() override { end(); }
  CaptureWatch(const CaptureWatch&) = delete;
  CaptureWatch& operator=(const CaptureWatch&) = delete;

  void began() override { has_begun_ = true; }

  // If memory runs out, the finding is not kept.
  void end() override {
    if (watch_ == nullptr) return;
    diagnoser_.end(
        std::exchange(watch_, nullptr), this,
        [](void* to, const detail::WatchedCall* call) {
          try {
            static_cast<CaptureWatch*>(to)->fault_ = fault_of(*call);
          } catch (const std::bad_alloc&) {
          }
        },
        [](void* to, const detail::WatchedCall* call) {
          try {
            std::vector<std::string>& strays = static_cast<CaptureWatch*>(to)->strays_;
            std::string text = stray_of(*call);
            if (std::find(strays.begin(), strays.end(), text) == strays.end()) strays.push_back(std::move(text));
          } catch (const std::bad_alloc&) {
          }
        });
  }

  void report(const RecorderCalls& calls, Captured* captured) override {
    if (fault_) explain(*fault_, calls, &captured->capture, &captured->fn);
    captured->strays = std::move(strays_);
    captured->was_told = has_told_;
  }

 private:
  const detail::DiagnoseInterface& diagnoser_;
  const TellBreak& tell_;
  std::atomic<bool> has_begun_{false};
  bool has_told_ = false;
  void* watch_;
  std::optional<Fault> fault_;
  std::vector<std::string> strays_;
};

}  // namespace

const detail::DiagnoseInterface* find_diagnoser(std::string* why) {
  const Provider provider = graphcache_diagnose_v2 != nullptr ? graphcache_diagnose_v2 : load(why);
  if (provider == nullptr) return nullptr;
  const detail::DiagnoseInterface* const found = provider();
  const char* const refused = found->open();
  if (refused == nullptr) return found;
  *why = refused;
  return nullptr;
}

std::unique_ptr<Watch> watch_capture(const detail::DiagnoseInterface* diagnoser, cudaStream_t stream,
                                     const TellBreak& tell) {
  return std::unique_ptr<Watch>(new (std::nothrow) CaptureWatch(*diagnoser, stream, tell));
}

}  // namespace graphcache
