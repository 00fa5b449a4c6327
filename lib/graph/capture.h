// Calls `fn` once: captured from begin to end whatever happens inside, or directly.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <string>
#include <vector>

#include "graph/template.h"
#include "graph/watch.h"
#include "graph/write.h"
#include "graphcache/capture_gate.h"
#include "graphcache/detail/call.h"

namespace graphcache {

// The side of a gate that captures hold: each from before its begin until after its end.
class CaptureSide {
 public:
  explicit CaptureSide(CaptureGate& gate);
  ~CaptureSide();
  CaptureSide(const CaptureSide&) = delete;

 private:
  CaptureGate& gate_;
  const bool takes_part_;
};

struct Captured {
  absl::Status fn;  // What `fn` reports. Ok if it threw because its capture was broken.
  // What `fn` threw, if its capture was intact. Then `fn` is not ok.
  std::exception_ptr thrown;
  bool is_refused = false;  // Whether a listener refused the capture, so that `fn` was not called.
  bool is_misuse = false;   // Whether the recorder was misused, which a direct call of `fn` may not notice.
  // What broke the capture. If not ok, nothing was enqueued and there is no template.
  absl::Status capture;
  // Whether the capture was refused because a copy or set whose size is a slot has 0 bytes in this run.
  bool empty_slot = false;
  Template graph;
  Content content;
  std::shared_ptr<Objects> kept;  // Null if the graph keeps nothing.
  Objects until_over;             // To be released when no lock is held.
  // Work that the graph misses, if it was watched: "kernel a(float*) was launched by bar() on stream 0 (the legacy
  // stream)". Each text appears once.
  std::vector<std::string> strays;
  // Whether `tell` was called with the call that broke the capture.
  bool was_told = false;

  // Why there is no graph that could be kept: what broke the capture, after an error of `fn`'s own.
  absl::Status failure() const;
  bool has_usable_graph() const { return failure().ok() && content.node_count != 0 && !content.leaves_memory; }
};

// Calls `fn` under a capture of `stream`. Afterwards the stream is not capturing, even if `fn` throws. Only exceptions
// that are orders to stop pass through (OrdersToStop). `diagnoser` watches the capture unless it is null. It calls
// `tell`, unless that is empty, when a call breaks the capture.
Captured capture(cudaStream_t stream, const detail::Call& call, Setter& setter,
                 const detail::DiagnoseInterface* diagnoser, const TellBreak& tell);

// Calls `fn`, which returns a graph. Bound arguments get the call's values. Exceptions of `fn` pass through.
Captured make_graph(const detail::Call& call, int of_device);

// Returns the error that destroyed the context, if there was one. The graph's handle is then dropped, not destroyed.
absl::Status take_fatal_error(Captured& captured);

}  // namespace graphcache
