// The runtime calls whose signatures or names changed between CUDA 12.4, the oldest toolkit, and 13.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace graphcache {

struct CaptureInfo {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;  // Valid until the next call on the stream (fact 7).
  std::size_t dependency_count = 0;
};

// The edge data is always asked for: without it, a capture with annotated edges gives cudaErrorLossyQuery (fact 7).
inline cudaError_t capture_info(cudaStream_t stream, CaptureInfo* info) {
  const cudaGraphEdgeData* edges = nullptr;
#if CUDART_VERSION >= 13000
  return cudaStreamGetCaptureInfo(stream, &info->status, &info->id, &info->graph, &info->dependencies, &edges,
                                  &info->dependency_count);
#else
  return cudaStreamGetCaptureInfo_v3(stream, &info->status, &info->id, &info->graph, &info->dependencies, &edges,
                                     &info->dependency_count);
#endif
}

// The device of a stream that is not capturing: on one that is, cudaStreamGetDevice fails and breaks the capture
// (tried). Before 12.8 only whether it is the current device can be found out; any other is reported as -1.
inline cudaError_t stream_device(cudaStream_t stream, int* device) {
#if CUDART_VERSION >= 12080
  return cudaStreamGetDevice(stream, device);
#else
  cudaError_t error = cudaGetDevice(device);
  cudaEvent_t event = nullptr;
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return error;
  error = cudaEventRecord(event, stream);  // Refused if event and stream belong to different devices.
  cudaEventDestroy(event);
  if (error == cudaErrorInvalidResourceHandle) {
    *device = -1;
    return cudaSuccess;
  }
  return error;
#endif
}

// The nodes that a node depends on, and the data of the edges.
inline cudaError_t node_dependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies, cudaGraphEdgeData* edges,
                                     std::size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependencies(node, dependencies, edges, count);
#else
  return cudaGraphNodeGetDependencies_v2(node, dependencies, edges, count);
#endif
}

inline cudaError_t add_dependency(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
#else
  return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

// A function of the driver, in its form of a CUDA version, or null. This way nothing links against libcuda.
inline void* driver_function(const char* name, [[maybe_unused]] unsigned version = 12000) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
}

}  // namespace graphcache
