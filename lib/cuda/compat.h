// The runtime calls whose signatures or names changed between CUDA 12.4, the oldest toolkit, and 13.5.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/driver.h"
#include "cuda/errors.h"

namespace graphcache {

// Whether the handle means another stream for each current device.
inline bool is_of_current_device(cudaStream_t stream) {
  return stream == cudaStreamPerThread || stream == cudaStreamLegacy;
}

struct CaptureInfo {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;  // Valid until the next call on the stream (fact 7).
  std::size_t dependency_count = 0;
};

// Always requests the edge data: without it, a capture with annotated edges returns cudaErrorLossyQuery (fact 7).
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

// The device of a stream. The stream must not be capturing, because cudaStreamGetDevice would fail and break the
// capture. Before CUDA 12.8 only the current device can be recognised; any other is reported as -1.
inline CallResult stream_device(cudaStream_t stream, int* device) {
#if CUDART_VERSION >= 12080
  return {"cudaStreamGetDevice", cudaStreamGetDevice(stream, device)};
#else
  if (const cudaError_t error = cudaGetDevice(device); error != cudaSuccess) return {"cudaGetDevice", error};
  cudaEvent_t event = nullptr;
  if (const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming); error != cudaSuccess) {
    return {"cudaEventCreateWithFlags", error};
  }
  const cudaError_t error = cudaEventRecord(event, stream);  // Fails if event and stream belong to different devices.
  cudaEventDestroy(event);
  if (error != cudaErrorInvalidResourceHandle) return {"cudaEventRecord", error};
  *device = -1;
  return {};
#endif
}

// Queries of nodes by the driver, which is much faster than the runtime (7 against 45 ns, 12 against 48 ns). Its types
// and edges are the same as the runtime's. REQUIRES: has_context().
inline cudaError_t node_type(cudaGraphNode_t node, cudaGraphNodeType* type) {
  constexpr unsigned kNewerType = 15;  // The largest value that this enumeration can represent in every toolkit.
  unsigned found = CU_GRAPH_NODE_TYPE_EMPTY;
  static_assert(sizeof found == sizeof(CUgraphNodeType) && sizeof found == sizeof(cudaGraphNodeType));
  const cudaError_t error = driver().node_type(node, reinterpret_cast<CUgraphNodeType*>(&found));
  *type = static_cast<cudaGraphNodeType>(std::min(found, kNewerType));
  return error;
}

// The nodes that a node depends on, and the edge data.
inline cudaError_t node_dependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies, cudaGraphEdgeData* edges,
                                     std::size_t* count) {
  static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));
  return driver().node_dependencies(node, dependencies, reinterpret_cast<CUgraphEdgeData*>(edges), count);
}

// ---- Parameters of nodes --------------------------------------------------------------------------------------------

// `sync_mode` is the cudaHostTaskSyncMode of the node, or 0 with a runtime or driver before CUDA 13.2.
inline CallResult host_params(cudaGraphNode_t node, cudaHostNodeParams* params, unsigned* sync_mode) {
  *sync_mode = 0;
#if CUDART_VERSION >= 13020
  if (driver().version >= 13020) {
    cudaGraphNodeParams any = {};
    const CallResult done{"cudaGraphNodeGetParams", cudaGraphNodeGetParams(node, &any)};
    if (done.error != cudaSuccess) return done;
    *params = {any.host.fn, any.host.userData};
    *sync_mode = any.host.syncMode;
    return done;
  }
#endif
  return {"cudaGraphHostNodeGetParams", cudaGraphHostNodeGetParams(node, params)};
}

// An allocation. Empty if there is none.
struct AddressRange {
  std::uint64_t begin = 0, size = 0;
  std::uint64_t id = 0;  // Its number, which no other one of the process gets.

  // A pointer to the end belongs to it as well.
  bool contains(std::uint64_t address) const { return size != 0 && address - begin <= size; }
};

// What a memory node allocates or frees. What is freed has no size.
inline CallResult node_memory(cudaGraphNode_t node, cudaGraphNodeType type, AddressRange* memory) {
  if (type == cudaGraphNodeTypeMemFree) {
    return {"cudaGraphMemFreeNodeGetParams", cudaGraphMemFreeNodeGetParams(node, &memory->begin)};
  }
  cudaMemAllocNodeParams params = {};
  const CallResult done{"cudaGraphMemAllocNodeGetParams", cudaGraphMemAllocNodeGetParams(node, &params)};
  *memory = {reinterpret_cast<std::uintptr_t>(params.dptr), params.bytesize};
  return done;
}

inline cudaError_t node_event(cudaGraphNode_t node, cudaGraphNodeType type, cudaEvent_t* event) {
  return type == cudaGraphNodeTypeWaitEvent ? cudaGraphEventWaitNodeGetEvent(node, event)
                                            : cudaGraphEventRecordNodeGetEvent(node, event);
}

inline cudaError_t add_dependency(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
#else
  return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

// A driver function in its form of a CUDA version, or null. Looking it up this way avoids linking against libcuda.
inline void* driver_function(const char* name, [[maybe_unused]] unsigned version = kOldestVersion) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
}

// Adds a node of a library's kernel. The caller sets `kern` of the parameters.
inline CallResult add_library_kernel(cudaGraphNode_t* node, cudaGraph_t graph, const CUDA_KERNEL_NODE_PARAMS& params) {
  return {"cudaGraphAddKernelNode", driver().add_kernel_node(node, graph, nullptr, 0, &params)};
}

// Launches a library's kernel, which the driver takes for a function of the stream's context. Works with runtimes
// before 12.8 as well, whose headers have no such launch.
inline CallResult launch_library_kernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared_bytes, cudaStream_t stream) {
  if (!has_context()) return {"cuLaunchKernel", cudaErrorDeviceUninitialized};
  return {"cuLaunchKernel",
          driver().launch_kernel(static_cast<CUfunction>(const_cast<void*>(kernel)), grid.x, grid.y, grid.z, block.x,
                                 block.y, block.z, static_cast<unsigned>(shared_bytes), stream, arguments, nullptr)};
}

}  // namespace graphcache
