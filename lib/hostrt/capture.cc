#include "capture.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "diagnose.h"
#include "graph.h"

namespace graphcache::hostrt {
namespace {

void give_up_graph(State& state, Capture& capture) {
  Graph* const graph = std::exchange(capture.graph, nullptr);
  if (graph == nullptr) return;
  graph->capture = nullptr;
  // The conditional node stays and has no such body from now on.
  if (is_body(*graph)) forget_body(*graph);
  destroy_graph(state, *graph);
}

}  // namespace

void invalidate(State& state, Capture& capture) {
  if (capture.invalidated) return;
  capture.invalidated = true;
  give_up_graph(state, capture);
  capture.abandoned.clear();
  for (Stream* stream : capture.streams) stream->next.clear();
}

void end_capture(State& state, Capture& capture) {
  give_up_graph(state, capture);
  for (Stream* stream : capture.streams) {
    stream->capture = nullptr;
    stream->next.clear();
  }
  state.captures.erase(capture.id);
}

void leave_capture(State& state, Stream& stream) {
  Capture* capture = stream.capture;
  if (capture == nullptr) return;
  if (capture->origin == &stream) {
    end_capture(state, *capture);
    return;
  }
  capture->abandoned.insert(capture->abandoned.end(), stream.next.begin(), stream.next.end());
  std::erase(capture->streams, &stream);
  stream.capture = nullptr;
  stream.next.clear();
}

cudaError_t admit_work(State& state, Stream& stream, Capture** capture) {
  *capture = stream.capture;
  if (stream.capture != nullptr) {
    return stream.capture->invalidated ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  }
  return conflicts_with_legacy(state, stream, true) ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

cudaError_t admit_as_work(State& state, Stream& stream) {
  Capture* capture = nullptr;
  return admit_work(state, stream, &capture);
}

cudaError_t refuse_capture(State& state, Stream& stream) {
  if (stream.capture != nullptr) {
    invalidate(state, *stream.capture);
    return cudaErrorStreamCaptureUnsupported;
  }
  return conflicts_with_legacy(state, stream, true) ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

bool conflicts_with_legacy(State& state, const Stream& stream, bool invalidates) {
  if (!stream.is_legacy || state.captures.empty()) return false;
  bool conflicts = false;
  for (const auto& [id, capture] : state.captures) {
    const bool blocks = std::any_of(capture->streams.begin(), capture->streams.end(), [&](const Stream* member) {
      return member->is_blocking() && member->device == stream.device;
    });
    if (!blocks) continue;
    conflicts = true;
    if (invalidates) invalidate(state, *capture);
  }
  return conflicts;
}

cudaError_t refuse_unsafe(const Call& call) {
  if (call.state.captures.empty() || call.thread.capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (const auto& [id, capture] : call.state.captures) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool is_own = capture->thread == call.thread.id;
    const bool is_everybodys =
        capture->mode == cudaStreamCaptureModeGlobal && call.thread.capture_mode != cudaStreamCaptureModeThreadLocal;
    if (!is_own && !is_everybodys) continue;
    invalidate(call.state, *capture);
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

namespace {

std::string name_of(const Stream& stream) {
  if (stream.is_legacy) return "stream 0";
  if (stream.handle == cudaStreamPerThread) return "cudaStreamPerThread";
  std::ostringstream name;
  name << "stream " << static_cast<const void*>(stream.handle);
  return name.str();
}

}  // namespace

void note_stray(const Call& call, const Stream& stream, const Kernel* kernel) {
  const auto is_own = [&](const auto& entry) {
    return entry.second->thread == call.thread.id && !entry.second->invalidated;
  };
  State& state = call.state;
  if (std::none_of(state.captures.begin(), state.captures.end(), is_own)) return;
  ++state.strays;
  const std::string what = kernel != nullptr ? "kernel " + kernel->name + " was launched"
                                             : std::string(name_of(call.function)) + " was called";
  state.last_stray = what + " on " + name_of(stream) + " while this thread captures another stream: " +
                     (kernel != nullptr ? "it runs" : "its work runs") +
                     " now and never again\n  here: " + to_string(state.endings.here);
  note_stray(state, call.function, stream, kernel);
}

Node& add_captured_node(State& state, Stream& stream, NodeParams params) {
  Node& node = add_node(state, *stream.capture->graph, std::move(params), stream.next);
  stream.next.assign(1, Edge{&node, {}});
  return node;
}

}  // namespace graphcache::hostrt
