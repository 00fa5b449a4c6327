#include "graph/capture.h"

#include <absl/strings/cord.h>
#include <cxxabi.h>

#include <utility>

#include "cuda/errors.h"
#include "graph/inspect.h"
#include "graph/outside.h"
#include "graph/recording.h"
#include "graphcache/status.h"

namespace graphcache {
Captured capture(cudaStream_t stream, const detail::Call& call, Setter& setter,
                 const detail::DiagnoseInterface* diagnoser, const TellBreak& tell) {
  const CaptureSide no_breaking_calls(capture_gate(setter.device()));
  LastErrorGuard last_error;  // The error of a broken capture must not reach `fn` when it is called directly.
  const auto watch = diagnoser != nullptr ? watch_capture(diagnoser, stream, tell) : nullptr;
  if (const cudaError_t error = cudaStreamBeginCapture(stream, setter.mode()); error != cudaSuccess) {
    Captured none;
    none.capture = cuda_failure("cudaStreamBeginCapture", error);
    return none;
  }
  if (watch != nullptr) watch->began();
  detail::Recording recording(stream, call, detail::Recording::Mode::kCapture, setter);
  Captured& captured = recording.captured();
  active_recording = &recording;
  // A broken capture must be ended as well. That returns an error and no graph (fact 3).
  const auto end = [&] {
    if (watch != nullptr) watch->end();
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    active_recording = nullptr;
    captured.graph.graph = OwnedGraph(graph);
    return error;
  };
  cudaError_t error = cudaSuccess;
  try {
    captured.fn = recording.invoke();
    error = end();
  } catch (const abi::__forced_unwind&) {  // The thread is being cancelled.
    end();
    throw;
  } catch (...) {
    error = end();
    const bool is_intact = error == cudaSuccess && !recording.has_broken_part();
    if (recording.is_stopped() || (is_intact && !call.threw)) throw;
    call.threw = false;
    if (is_intact) {
      captured.thrown = std::current_exception();
      captured.fn = exception_failure("fn threw");
    }
  }
  if (error != cudaSuccess) captured.capture = recording.end_failed(error);
  if (watch != nullptr) watch->report(recording.calls(), &captured);
  add_failure(&captured.capture, recording.refused());
  if (captured.capture.ok()) captured.capture = captured.graph.list_nodes().status();
  if (!captured.capture.ok() || !captured.fn.ok()) return std::move(captured);
  Content& content = captured.content;
  captured.capture = recording.find_slots();
  if (captured.capture.ok()) captured.capture = inspect(captured.graph, call.site.type, &content);
  if (!captured.capture.ok()) return std::move(captured);
  content.values.assign(call.values, call.values + call.values_size);
  content.finds_values = call.gets_values();
  content.is_settled = !content.finds_values;
  if (content.finds_values) note_ranges(call, &content);
  return std::move(captured);
}

absl::Status Captured::failure() const {
  if (capture.ok()) return fn;
  const cudaError_t error = cuda_error(fn);
  const bool is_same = error != cudaSuccess && error == cuda_error(capture);
  if (fn.ok() || is_same || is_capture_error(error) || is_misuse) return capture;
  absl::Status both = with_more(fn, "; ", capture.message());
  if (error != cudaSuccess) return both;
  capture.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) { both.SetPayload(type, payload); });
  return both;
}

absl::Status take_fatal_error(Captured& captured) {
  for (const absl::Status& status : {captured.capture, captured.fn}) {
    if (!is_fatal(cuda_error(status))) continue;
    captured.graph.graph.release();
    return status;
  }
  return absl::OkStatus();
}

}  // namespace graphcache
