// One call of `fn`: captured from begin to end, whatever happens inside, or direct.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "graph/diagnose.h"
#include "graph/on_device.h"
#include "graph/template.h"
#include "graphcache/cache.h"

namespace graphcache {

struct Captured {
  absl::Status fn;       // What `fn` reports. Ok if it threw because its capture was broken.
  absl::Status capture;  // What broke the capture. Not ok: nothing was enqueued, and there is no template.
  // Whether the capture was refused because a copy or set whose size is a slot has 0 bytes in this run.
  bool empty_slot = false;
  Template graph;
  Content content;
  std::vector<std::string> strays;  // Work that the graph lacks (Diagnosis::strays), if somebody watched.
};

// Calls `fn` under a capture of `stream`. Afterwards the stream is not capturing, also if `fn` throws. An exception of
// `fn` passes only if the capture is whole: checked code throws what a call returns that a capture forbids. `diagnoser`
// watches, unless it is null.
Captured capture(cudaStream_t stream, cudaStreamCaptureMode mode, const detail::Call& call, Setter& setter,
                 const detail::DiagnoseInterface* diagnoser);

// The error that has cost the context, if there was one; the graph's handle is dropped then, not destroyed.
absl::Status take_fatal_error(Captured& captured);

// Calls `fn` directly, or inside another run's capture.
absl::Status enqueue(cudaStream_t stream, const detail::Call& call, Setter& setter);
absl::Status enqueue_inlined(cudaStream_t stream, const detail::Call& call, Setter& setter);

}  // namespace graphcache
