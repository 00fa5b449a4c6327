// What a watcher of CUDA calls (graphcache/detail/diagnose.h) reports about one capture: the call that broke it, and
// the work that it misses. Without a watcher this costs nothing.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <vector>

#include "graph/recorder_calls.h"
#include "graphcache/detail/diagnose.h"

namespace graphcache {

// The watcher that is linked into the program (hostrt), else libgraphcache_diagnose.so, which is loaded from where
// GRAPHCACHE_DIAGNOSE says, if that has a slash, else from where the loader finds it. Null: `*why` says why.
const detail::DiagnoseInterface* find_diagnoser(std::string* why);

struct Diagnosis {
  struct Fault {
    std::string call;  // Its name.
    std::string text;  // "cudaMalloc, called by load(Model&) in this thread after kernel a(float*)"
    cudaError_t error = cudaSuccess;
    bool in_other_thread = false;
    bool broke = false;  // Whether the capture was lost; else the call was refused and left it whole.
  };
  std::optional<Fault> fault;
  // "kernel a(float*) was launched by bar() on stream 0 (the legacy stream)", each once.
  std::vector<std::string> strays;
};

// Names the call at fault in what is said of a capture that broke, or of `fn` if the call was refused and `fn` failed
// by its error.
void explain(const Diagnosis& diagnosis, const RecorderCalls& calls, absl::Status* capture, absl::Status* fn);

// Watches a capture that this thread is about to begin, until the end is called, which is due before the capture's.
class Watch {
 public:
  // `diagnoser` may be null.
  Watch(const detail::DiagnoseInterface* diagnoser, cudaStream_t stream)
      : diagnoser_(diagnoser), watch_(diagnoser != nullptr ? diagnoser->begin(stream) : nullptr) {}
  ~Watch() { end(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void end() {
    if (watch_ != nullptr) ask();
  }
  // After the end.
  Diagnosis& diagnosis() { return diagnosis_; }

 private:
  void ask();

  const detail::DiagnoseInterface* const diagnoser_;
  void* watch_;
  Diagnosis diagnosis_;
};

}  // namespace graphcache
