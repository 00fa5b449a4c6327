// What a watcher of CUDA calls (graphcache/detail/diagnose.h) reports about one capture: the call that broke it, and
// the work that it misses. Costs nothing without a watcher.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/recorder_calls.h"
#include "graphcache/detail/diagnose.h"

namespace graphcache {

// The watcher that is linked into the program (hostrt), else libgraphcache_diagnose.so. That library is loaded from the
// path in GRAPHCACHE_DIAGNOSE if it contains a slash, else from the loader's search path. If the result is null, `*why`
// says why.
const detail::DiagnoseInterface* find_diagnoser(std::string* why);

struct Diagnosis {
  struct Fault {
    std::string call;  // The name of the call.
    std::string text;  // "cudaMalloc, called by load(Model&) in this thread after kernel a(float*)"
    cudaError_t error = cudaSuccess;
    bool in_other_thread = false;
    // Whether the capture broke. If not, the call failed and left the capture intact.
    bool broke = false;
  };
  std::optional<Fault> fault;
  // For example "kernel a(float*) was launched by bar() on stream 0 (the legacy stream)". Each text appears once.
  std::vector<std::string> strays;
};

// Adds the name of the call at fault to `*capture` if the capture broke. If it did not, adds the name to `*fn` if `fn`
// failed with that call's error.
void explain(const Diagnosis& diagnosis, const RecorderCalls& calls, absl::Status* capture, absl::Status* fn);

// Gets the text that names the call which broke a capture, in the thread of that call and before it returns. Must not
// throw.
using TellBreak = std::function<void(std::string_view text)>;

// Watches a capture that this thread is about to begin. Call end() before the capture's end.
class Watch {
 public:
  // `diagnoser` may be null, and `tell` empty. If `tell` is called, has_told() is true after end().
  Watch(const detail::DiagnoseInterface* diagnoser, cudaStream_t stream, const TellBreak& tell);
  ~Watch() { end(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The capture has begun. Before that, nothing is told.
  void began() { has_begun_ = true; }
  void end() {
    if (watch_ != nullptr) end_watch();
  }
  // Valid after end().
  Diagnosis& diagnosis() { return diagnosis_; }
  bool has_told() const { return has_told_; }

 private:
  void end_watch();

  const detail::DiagnoseInterface* const diagnoser_;
  const TellBreak& tell_;
  std::atomic<bool> has_begun_{false};
  bool has_told_ = false;
  void* watch_;
  Diagnosis diagnosis_;
};

}  // namespace graphcache
