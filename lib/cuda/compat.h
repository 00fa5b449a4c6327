// The runtime calls whose signatures or names changed between CUDA 12.4, the oldest toolkit, and 13.5.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

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

// Queries of nodes by the driver, which is much faster than the runtime (7 against 45 ns, 12 against 48 ns). Its codes,
// types and edges are the same as the runtime's. REQUIRES: has_context().
inline cudaError_t node_type(cudaGraphNode_t node, cudaGraphNodeType* type) {
  constexpr unsigned kNewerType = 15;  // The largest value that this enumeration can represent in every toolkit.
  unsigned found = CU_GRAPH_NODE_TYPE_EMPTY;
  static_assert(sizeof found == sizeof(CUgraphNodeType) && sizeof found == sizeof(cudaGraphNodeType));
  const CUresult result = driver().node_type(node, reinterpret_cast<CUgraphNodeType*>(&found));
  *type = static_cast<cudaGraphNodeType>(std::min(found, kNewerType));
  return static_cast<cudaError_t>(result);
}

// The nodes that a node depends on, and the edge data.
inline cudaError_t node_dependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies, cudaGraphEdgeData* edges,
                                     std::size_t* count) {
  static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));
  const auto get = driver().node_dependencies;
  if (get == nullptr) return cudaErrorCallRequiresNewerDriver;
  return static_cast<cudaError_t>(get(node, dependencies, reinterpret_cast<CUgraphEdgeData*>(edges), count));
}

// Adds a node of any type with plain edges from its dependencies.
inline cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                            std::size_t count, cudaGraphNodeParams* params) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddNode(node, graph, dependencies, nullptr, count, params);
#else
  return cudaGraphAddNode(node, graph, dependencies, count, params);
#endif
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

// What a memory node allocates or frees, in place of CUDA's structures. What is freed has no size.
struct Allocation {
  void* begin = nullptr;
  std::size_t size = 0;
};
inline CallResult node_memory(cudaGraphNode_t node, cudaGraphNodeType type, Allocation* memory) {
  if (type == cudaGraphNodeTypeMemFree) {
    return {"cudaGraphMemFreeNodeGetParams", cudaGraphMemFreeNodeGetParams(node, &memory->begin)};
  }
  cudaMemAllocNodeParams params = {};
  const CallResult done{"cudaGraphMemAllocNodeGetParams", cudaGraphMemAllocNodeGetParams(node, &params)};
  *memory = {params.dptr, params.bytesize};
  return done;
}

// Makes the stream's next node depend on this node alone.
inline cudaError_t set_capture_dependency(cudaStream_t stream, cudaGraphNode_t node) {
#if CUDART_VERSION >= 13000
  return cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies);
#else
  return cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamSetCaptureDependencies);
#endif
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
  const CUresult result = driver().add_kernel_node(node, graph, nullptr, 0, &params);
  return {"cudaGraphAddKernelNode", static_cast<cudaError_t>(result), /*latches=*/false};
}

// Kernels of libraries. A runtime before 12.8 can neither load them nor, by its headers, use those that the driver has
// loaded. There the driver is called, which has had all of this since 12.0 and returns the same error codes.
#if CUDART_VERSION >= 12080

// `of_library` says whether the symbol is a library's kernel.
inline cudaError_t launch_kernel(const void* symbol, bool, dim3 grid, dim3 block, void** arguments,
                                 std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(symbol, grid, block, arguments, shared_bytes, stream);
}

#else

using cudaLibrary_t = CUlibrary;

template <class Function, class... Args>
cudaError_t call_driver(Function* function, Args... args) {
  return static_cast<cudaError_t>(function(args...));
}

inline cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, CUjit_option* jit_options,
                                       void** jit_values, unsigned jit_count, CUlibraryOption* options, void** values,
                                       unsigned count) {
  return call_driver(driver().load_library, library, code, jit_options, jit_values, jit_count, options, values, count);
}

inline cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return call_driver(driver().unload_library, library); }

inline cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  return call_driver(driver().library_kernel, kernel, library, name);
}

inline cudaError_t launch_kernel(const void* symbol, bool of_library, dim3 grid, dim3 block, void** arguments,
                                 std::size_t shared_bytes, cudaStream_t stream) {
  if (!of_library) return cudaLaunchKernel(symbol, grid, block, arguments, shared_bytes, stream);
  return call_driver(driver().launch_kernel, function_of_library(symbol), grid.x, grid.y, grid.z, block.x, block.y,
                     block.z, static_cast<unsigned>(shared_bytes), stream, arguments, nullptr);
}

#endif

}  // namespace graphcache
