// The calls that begin, end and inspect a capture.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "capture.h"
#include "graph.h"

namespace graphcache::hostrt {
namespace {

// What a capture follows. Here a node may be named twice.
cudaError_t read_followed(const Call& call, const Graph& graph, const cudaGraphNode_t* nodes,
                          const cudaGraphEdgeData* data, std::size_t count, std::vector<Edge>* edges) {
  if (nodes == nullptr && count != 0) return cudaErrorInvalidValue;
  std::set<cudaGraphNode_t> seen;
  for (std::size_t i = 0; i < count; ++i) {
    if (!seen.insert(nodes[i]).second) continue;
    std::vector<Edge> one;
    const cudaError_t error = read_dependencies(call, graph, nodes + i, data != nullptr ? data + i : nullptr, 1, &one);
    if (error != cudaSuccess) return error;
    edges->push_back(one.front());
  }
  return cudaSuccess;
}

// Begins a capture into a new graph, or into the given graph behind the given nodes.
cudaError_t begin(const Call& call, cudaStream_t handle, cudaStreamCaptureMode mode, Graph* graph = nullptr,
                  const cudaGraphNode_t* behind = nullptr, const cudaGraphEdgeData* data = nullptr,
                  std::size_t count = 0) {
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  if (stream->capture != nullptr) return cudaErrorIllegalState;  // the capture under way stays valid
  if (conflicts_with_legacy(call.state, *stream, true)) return cudaErrorStreamCaptureImplicit;
  if (stream->is_legacy) return cudaErrorStreamCaptureUnsupported;  // facts 1
  std::vector<Edge> edges;
  const cudaError_t error = graph != nullptr ? read_followed(call, *graph, behind, data, count, &edges) : cudaSuccess;
  if (error != cudaSuccess) return error;
  auto owned = std::make_unique<Capture>();
  Capture& capture = *owned;
  capture.id = ++call.state.last_capture_id;
  capture.mode = mode;
  capture.thread = call.thread.id;
  capture.origin = stream;
  capture.graph = graph != nullptr ? graph : &create_graph(call.state);
  capture.graph->capture = &capture;
  capture.graph->device = stream->device;
  capture.streams.push_back(stream);
  call.state.captures.emplace(capture.id, std::move(owned));
  stream->capture = &capture;
  stream->next = std::move(edges);
  return cudaSuccess;
}

cudaError_t begin_to_graph(const Call& call, cudaStream_t handle, cudaGraph_t graph_handle,
                           const cudaGraphNode_t* dependencies, const cudaGraphEdgeData* data, std::size_t count,
                           cudaStreamCaptureMode mode) {
  Graph* const graph = find_graph(call, graph_handle);
  if (graph == nullptr) return cudaErrorInvalidValue;
  if (graph->capture != nullptr) return cudaErrorIllegalState;
  return begin(call, handle, mode, graph, dependencies, data, count);
}

// All captured work must lead to the end of the origin stream; other work would be lost.
bool has_unjoined_work(const Capture& capture) {
  std::vector<bool> is_joined(capture.graph->nodes.size(), false);
  std::vector<const Node*> open;
  const auto reach = [&](const std::vector<Edge>& edges) {
    for (const Edge& edge : edges) {
      if (is_joined[edge.from->position]) continue;
      is_joined[edge.from->position] = true;
      open.push_back(edge.from);
    }
  };
  reach(capture.origin->next);
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    reach(node->dependencies);
  }
  const auto is_unjoined = [&](const Edge& edge) { return !is_joined[edge.from->position]; };
  return std::any_of(capture.abandoned.begin(), capture.abandoned.end(), is_unjoined) ||
         std::any_of(capture.streams.begin(), capture.streams.end(), [&](const Stream* stream) {
           return std::any_of(stream->next.begin(), stream->next.end(), is_unjoined);
         });
}

cudaError_t check_end(const Call& call, const Capture& capture) {
  if (capture.invalidated) return cudaErrorStreamCaptureInvalidated;
  if (capture.mode != cudaStreamCaptureModeRelaxed && capture.thread != call.thread.id) {
    return cudaErrorStreamCaptureWrongThread;
  }
  return has_unjoined_work(capture) ? cudaErrorStreamCaptureUnjoined : cudaSuccess;
}

// Exit nodes get the order of the dependencies (facts 22).
void order_exits(std::vector<Node*>& exits, const std::vector<Edge>& dependencies) {
  for (const Edge& edge : dependencies) {
    const auto exit = std::find(exits.begin(), exits.end(), edge.from);
    if (exit != exits.end()) std::rotate(exit, exit + 1, exits.end());
  }
}

// `injected` is the error of an armed failure, or cudaSuccess. A stream that began a capture is no longer capturing
// afterwards, whatever the result (facts 3).
cudaError_t end(const Call& call, cudaStream_t handle, cudaGraph_t* out, cudaError_t injected) {
  if (out != nullptr) *out = nullptr;
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  Capture* capture = stream->capture;
  if (capture == nullptr && injected != cudaSuccess) return injected;
  if (conflicts_with_legacy(call.state, *stream, true)) return cudaErrorStreamCaptureImplicit;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != stream) {
    invalidate(call.state, *capture);
    return cudaErrorStreamCaptureUnmatched;
  }
  const cudaError_t error = injected != cudaSuccess ? injected : check_end(call, *capture);
  if (error == cudaSuccess && out != nullptr) {
    *out = capture->graph->handle;
    order_exits(capture->graph->exits, stream->next);
    capture->graph->capture = nullptr;
    capture->graph = nullptr;  // the caller owns it from now on
  }
  end_capture(call.state, *capture);
  return error;
}

struct InfoRequest {
  cudaStreamCaptureStatus* status;
  unsigned long long* id;
  cudaGraph_t* graph;
  const cudaGraphNode_t** nodes;
  const cudaGraphEdgeData** edges;
  std::size_t* count;
};

cudaError_t info(const Call& call, cudaStream_t handle, const InfoRequest& out) {
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (out.status == nullptr || (out.edges != nullptr && out.nodes == nullptr)) return cudaErrorInvalidValue;
  if (conflicts_with_legacy(call.state, *stream, false)) return cudaErrorStreamCaptureImplicit;
  const Capture* capture = stream->capture;
  // Only the status is written unless the capture is active.
  if (capture == nullptr || capture->invalidated) {
    *out.status = capture == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  }
  const bool is_annotated =
      std::any_of(stream->next.begin(), stream->next.end(), [](const Edge& edge) { return !is_plain(edge.data); });
  if (out.nodes != nullptr && out.edges == nullptr && is_annotated) return cudaErrorLossyQuery;  // facts 7
  stream->reported_nodes.clear();
  stream->reported_edges.clear();
  for (const Edge& edge : stream->next) {
    stream->reported_nodes.push_back(edge.from->handle);
    stream->reported_edges.push_back(edge.data);
  }
  *out.status = cudaStreamCaptureStatusActive;
  if (out.id != nullptr) *out.id = capture->id;
  if (out.graph != nullptr) *out.graph = capture->graph->handle;
  if (out.nodes != nullptr) *out.nodes = stream->reported_nodes.data();
  if (out.edges != nullptr) *out.edges = stream->reported_edges.data();
  if (out.count != nullptr) *out.count = stream->next.size();
  return cudaSuccess;
}

cudaError_t update_dependencies(const Call& call, cudaStream_t handle, const cudaGraphNode_t* nodes,
                                const cudaGraphEdgeData* data, std::size_t count, unsigned flags) {
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (conflicts_with_legacy(call.state, *stream, false)) return cudaErrorStreamCaptureImplicit;
  if (stream->capture == nullptr) return cudaErrorIllegalState;
  if (stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (flags != cudaStreamAddCaptureDependencies && flags != cudaStreamSetCaptureDependencies) {
    return cudaErrorInvalidValue;
  }
  std::vector<Edge> edges;
  const cudaError_t error = read_followed(call, *stream->capture->graph, nodes, data, count, &edges);
  if (error != cudaSuccess) return error;
  if (flags == cudaStreamSetCaptureDependencies) stream->next.clear();
  for (const Edge& edge : edges) {
    if (std::find(stream->next.begin(), stream->next.end(), edge) == stream->next.end()) stream->next.push_back(edge);
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return enter(Function::kStreamBeginCapture, [&](const Call& call) { return begin(call, stream, mode); });
}

cudaError_t CUDARTAPI cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies,
                                                    const cudaGraphEdgeData* dependencyData, size_t numDependencies,
                                                    enum cudaStreamCaptureMode mode) {
  return enter({Function::kStreamBeginCaptureToGraph, graph}, [&](const Call& call) {
    return begin_to_graph(call, stream, graph, dependencies, dependencyData, numDependencies, mode);
  });
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph) {
  return enter(
      Function::kStreamEndCapture, [&](const Call& call) { return end(call, stream, pGraph, cudaSuccess); },
      [&](const Call& call, cudaError_t error) { return end(call, stream, pGraph, error); });
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* pCaptureStatus) {
  return enter(Function::kStreamIsCapturing, [&](const Call& call) {
    const Stream* found = find_stream(call, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (pCaptureStatus == nullptr) return cudaErrorInvalidValue;
    if (conflicts_with_legacy(call.state, *found, false)) return cudaErrorStreamCaptureImplicit;
    *pCaptureStatus = found->capture == nullptr     ? cudaStreamCaptureStatusNone
                      : found->capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus* captureStatus_out,
                                               unsigned long long* id_out, cudaGraph_t* graph_out,
                                               const cudaGraphNode_t** dependencies_out,
                                               const cudaGraphEdgeData** edgeData_out, size_t* numDependencies_out) {
#else
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus* captureStatus_out,
                                               unsigned long long* id_out, cudaGraph_t* graph_out,
                                               const cudaGraphNode_t** dependencies_out, size_t* numDependencies_out) {
  return enter(Function::kStreamGetCaptureInfo, [&](const Call& call) {
    return info(call, stream, {captureStatus_out, id_out, graph_out, dependencies_out, nullptr, numDependencies_out});
  });
}

cudaError_t CUDARTAPI cudaStreamGetCaptureInfo_v3(cudaStream_t stream, enum cudaStreamCaptureStatus* captureStatus_out,
                                                  unsigned long long* id_out, cudaGraph_t* graph_out,
                                                  const cudaGraphNode_t** dependencies_out,
                                                  const cudaGraphEdgeData** edgeData_out, size_t* numDependencies_out) {
#endif
  return enter(Function::kStreamGetCaptureInfo, [&](const Call& call) {
    return info(call, stream,
                {captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out, numDependencies_out});
  });
}

#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                          const cudaGraphEdgeData* dependencyData,
                                                          size_t numDependencies, unsigned int flags) {
#else
cudaError_t CUDARTAPI cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                          size_t numDependencies, unsigned int flags) {
  return enter(Function::kStreamUpdateCaptureDependencies, [&](const Call& call) {
    return update_dependencies(call, stream, dependencies, nullptr, numDependencies, flags);
  });
}

cudaError_t CUDARTAPI cudaStreamUpdateCaptureDependencies_v2(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                             const cudaGraphEdgeData* dependencyData,
                                                             size_t numDependencies, unsigned int flags) {
#endif
  return enter(Function::kStreamUpdateCaptureDependencies, [&](const Call& call) {
    return update_dependencies(call, stream, dependencies, dependencyData, numDependencies, flags);
  });
}

cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  return enter(Function::kThreadExchangeStreamCaptureMode, [&](const Call& call) {
    if (mode == nullptr) return cudaErrorInvalidValue;
    std::swap(*mode, call.thread.capture_mode);
    return cudaSuccess;
  });
}

}  // extern "C"
