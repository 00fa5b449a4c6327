// The runtime calls whose signatures or names changed between CUDA 12.4, the oldest toolkit, and 13.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/driver.h"
#include "cuda/errors.h"

namespace graphcache {

// Whether the handle stands for another stream under each current device.
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
inline CallResult stream_device(cudaStream_t stream, int* device) {
#if CUDART_VERSION >= 12080
  return {"cudaStreamGetDevice", cudaStreamGetDevice(stream, device)};
#else
  if (const cudaError_t error = cudaGetDevice(device); error != cudaSuccess) return {"cudaGetDevice", error};
  cudaEvent_t event = nullptr;
  if (const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming); error != cudaSuccess) {
    return {"cudaEventCreateWithFlags", error};
  }
  const cudaError_t error = cudaEventRecord(event, stream);  // Refused if event and stream belong to different devices.
  cudaEventDestroy(event);
  if (error != cudaErrorInvalidResourceHandle) return {"cudaEventRecord", error};
  *device = -1;
  return {};
#endif
}

// What the driver tells of nodes, and the runtime in a multiple of the time (tried: 7 and 45 ns, 12 and 48 ns). The
// driver's codes, types and edges are the runtime's. `by_driver`: see has_context().
inline cudaError_t node_type(cudaGraphNode_t node, bool by_driver, cudaGraphNodeType* type) {
  const auto get = driver().node_type;
  if (!by_driver || get == nullptr) return cudaGraphNodeGetType(node, type);
  CUgraphNodeType found = CU_GRAPH_NODE_TYPE_EMPTY;
  const CUresult result = get(node, &found);
  *type = static_cast<cudaGraphNodeType>(found);
  return static_cast<cudaError_t>(result);
}

// The nodes that a node depends on, and the data of the edges.
inline cudaError_t node_dependencies(cudaGraphNode_t node, bool by_driver, cudaGraphNode_t* dependencies,
                                     cudaGraphEdgeData* edges, std::size_t* count) {
  static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));
  if (const auto get = driver().node_dependencies; by_driver && get != nullptr) {
    return static_cast<cudaError_t>(get(node, dependencies, reinterpret_cast<CUgraphEdgeData*>(edges), count));
  }
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependencies(node, dependencies, edges, count);
#else
  return cudaGraphNodeGetDependencies_v2(node, dependencies, edges, count);
#endif
}

// A node of any type behind others, which plain edges lead from.
inline cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                            std::size_t count, cudaGraphNodeParams* params) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddNode(node, graph, dependencies, nullptr, count, params);
#else
  return cudaGraphAddNode(node, graph, dependencies, count, params);
#endif
}

// From now on the stream's next node depends on this one alone.
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

// Kernels of libraries. Before 12.8 the runtime loads none, nor do its headers say that it takes those which the driver
// has loaded: the driver, which has had all of this since 12.0, does it. Its codes are the runtime's, number by number.
#if CUDART_VERSION >= 12080

inline cudaError_t add_library_kernel(cudaGraphNode_t* node, cudaGraph_t graph, const cudaKernelNodeParams& params) {
  return cudaGraphAddKernelNode(node, graph, nullptr, 0, &params);
}

// `function`: of a kernel of a library, as the driver takes it; else null.
inline cudaError_t launch_kernel(const void* symbol, CUfunction, dim3 grid, dim3 block, void** arguments,
                                 std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(symbol, grid, block, arguments, shared_bytes, stream);
}

#else

using cudaLibrary_t = CUlibrary;

template <class Function, class... Args>
cudaError_t call_driver(Function* function, Args... args) {
  return function != nullptr ? static_cast<cudaError_t>(function(args...)) : cudaErrorCallRequiresNewerDriver;
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

inline cudaError_t add_library_kernel(cudaGraphNode_t* node, cudaGraph_t graph, const cudaKernelNodeParams& params) {
  CUDA_KERNEL_NODE_PARAMS wanted =
      driver_params(params.gridDim, params.blockDim, params.sharedMemBytes, params.kernelParams);
  wanted.kern = static_cast<CUkernel>(params.func);
  return call_driver(driver().add_kernel_node, node, graph, nullptr, std::size_t{0}, &wanted);
}

inline cudaError_t launch_kernel(const void* symbol, CUfunction function, dim3 grid, dim3 block, void** arguments,
                                 std::size_t shared_bytes, cudaStream_t stream) {
  if (function == nullptr) return cudaLaunchKernel(symbol, grid, block, arguments, shared_bytes, stream);
  return call_driver(driver().launch_kernel, function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                     static_cast<unsigned>(shared_bytes), stream, arguments, nullptr);
}

#endif

}  // namespace graphcache
