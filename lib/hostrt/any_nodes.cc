// Calls on nodes of any type. Each one forwards to the call for the node's own type and is counted as that call. So
// call counts and armed failures do not depend on which of the two a program uses. Conditional nodes have no such call:
// see conditional_nodes.cc.

#include "any_nodes.h"

#include <algorithm>

#include "graph.h"
#include "params.h"

// A toolkit header may mark the calls for one node type as deprecated. This file still forwards to them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace graphcache::hostrt {
namespace {

cudaKernelNodeParams kernel_of(const cudaGraphNodeParams& any) {
  const auto& from = any.kernel;
  return {from.func,
          dim3(from.gridDim.x, from.gridDim.y, from.gridDim.z),
          dim3(from.blockDim.x, from.blockDim.y, from.blockDim.z),
          from.sharedMemBytes,
          from.kernelParams,
          from.extra};
}

cudaMemsetParams fill_of(const cudaGraphNodeParams& any) {
  const auto& from = any.memset;
  return {from.dst, from.pitch, from.value, from.elementSize, from.width, from.height};
}

cudaHostNodeParams host_of(const cudaGraphNodeParams& any) { return {any.host.fn, any.host.userData}; }

// The calls on host nodes do not know the sync mode, so it is set separately.
void set_sync_mode([[maybe_unused]] cudaGraphNode_t node, [[maybe_unused]] const cudaGraphNodeParams& any) {
#if CUDART_VERSION >= 13020
  const Locked world;
  std::get<HostParams>(world->nodes.find(node)->params).sync_mode = any.host.syncMode;
#endif
}

cudaError_t add_allocation(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                           std::size_t count, cudaGraphNodeParams* any) {
  auto& alloc = any->alloc;
  cudaMemAllocNodeParams params = {alloc.poolProps, alloc.accessDescs, alloc.accessDescCount, alloc.bytesize, nullptr};
  const cudaError_t error = cudaGraphAddMemAllocNode(node, graph, dependencies, count, &params);
  if (error == cudaSuccess) alloc.dptr = params.dptr;
  return error;
}

}  // namespace

cudaError_t add_any(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                    const cudaGraphEdgeData* data, std::size_t count, cudaGraphNodeParams* any) {
  if (data != nullptr && !std::all_of(data, data + count, is_plain)) return cudaErrorNotSupported;
  switch (any->type) {
    case cudaGraphNodeTypeKernel: {
      const cudaKernelNodeParams params = kernel_of(*any);
      return cudaGraphAddKernelNode(node, graph, dependencies, count, &params);
    }
    case cudaGraphNodeTypeMemcpy: {
      CopyParams copy;
      if (const cudaError_t error = read_copy(&any->memcpy.copyParams, &copy); error != cudaSuccess) return error;
      if (!copy.is_flat()) {
        return cudaGraphAddMemcpyNode(node, graph, dependencies, count, &any->memcpy.copyParams);
      }
      return cudaGraphAddMemcpyNode1D(node, graph, dependencies, count, copy.destination, copy.source, copy.bytes,
                                      copy.kind);
    }
    case cudaGraphNodeTypeMemset: {
      const cudaMemsetParams params = fill_of(*any);
      return cudaGraphAddMemsetNode(node, graph, dependencies, count, &params);
    }
    case cudaGraphNodeTypeHost: {
      const cudaHostNodeParams params = host_of(*any);
      const cudaError_t error = cudaGraphAddHostNode(node, graph, dependencies, count, &params);
      if (error == cudaSuccess) set_sync_mode(*node, *any);
      return error;
    }
    case cudaGraphNodeTypeGraph:
      return cudaGraphAddChildGraphNode(node, graph, dependencies, count, any->graph.graph);
    case cudaGraphNodeTypeEmpty:
      return cudaGraphAddEmptyNode(node, graph, dependencies, count);
    case cudaGraphNodeTypeWaitEvent:
      return cudaGraphAddEventWaitNode(node, graph, dependencies, count, any->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
      return cudaGraphAddEventRecordNode(node, graph, dependencies, count, any->eventRecord.event);
    case cudaGraphNodeTypeMemAlloc:
      return add_allocation(node, graph, dependencies, count, any);
    case cudaGraphNodeTypeMemFree:
      return cudaGraphAddMemFreeNode(node, graph, dependencies, count, any->free.dptr);
    default:
      return cudaErrorNotSupported;
  }
}

namespace {

cudaError_t set(cudaGraphNode_t node, const cudaGraphNodeParams& any) {
  switch (any.type) {
    case cudaGraphNodeTypeKernel: {
      const cudaKernelNodeParams params = kernel_of(any);
      return cudaGraphKernelNodeSetParams(node, &params);
    }
    case cudaGraphNodeTypeMemcpy: {
      CopyParams copy;
      if (const cudaError_t error = read_copy(&any.memcpy.copyParams, &copy); error != cudaSuccess) return error;
      if (!copy.is_flat()) return cudaGraphMemcpyNodeSetParams(node, &any.memcpy.copyParams);
      return cudaGraphMemcpyNodeSetParams1D(node, copy.destination, copy.source, copy.bytes, copy.kind);
    }
    case cudaGraphNodeTypeMemset: {
      const cudaMemsetParams params = fill_of(any);
      return cudaGraphMemsetNodeSetParams(node, &params);
    }
    case cudaGraphNodeTypeHost: {
      const cudaHostNodeParams params = host_of(any);
      const cudaError_t error = cudaGraphHostNodeSetParams(node, &params);
      if (error == cudaSuccess) set_sync_mode(node, any);
      return error;
    }
    case cudaGraphNodeTypeWaitEvent:
      return cudaGraphEventWaitNodeSetEvent(node, any.eventWait.event);
    case cudaGraphNodeTypeEventRecord:
      return cudaGraphEventRecordNodeSetEvent(node, any.eventRecord.event);
    default:
      return cudaErrorNotSupported;
  }
}

cudaError_t patch(cudaGraphExec_t executable, cudaGraphNode_t node, const cudaGraphNodeParams& any) {
  switch (any.type) {
    case cudaGraphNodeTypeKernel: {
      const cudaKernelNodeParams params = kernel_of(any);
      return cudaGraphExecKernelNodeSetParams(executable, node, &params);
    }
    case cudaGraphNodeTypeMemcpy:
      return cudaGraphExecMemcpyNodeSetParams(executable, node, &any.memcpy.copyParams);
    case cudaGraphNodeTypeMemset: {
      const cudaMemsetParams params = fill_of(any);
      return cudaGraphExecMemsetNodeSetParams(executable, node, &params);
    }
    case cudaGraphNodeTypeHost: {
      const cudaHostNodeParams params = host_of(any);
      return cudaGraphExecHostNodeSetParams(executable, node, &params);
    }
    case cudaGraphNodeTypeGraph:
      return cudaGraphExecChildGraphNodeSetParams(executable, node, any.graph.graph);
    case cudaGraphNodeTypeWaitEvent:
      return cudaGraphExecEventWaitNodeSetEvent(executable, node, any.eventWait.event);
    case cudaGraphNodeTypeEventRecord:
      return cudaGraphExecEventRecordNodeSetEvent(executable, node, any.eventRecord.event);
    default:
      return cudaErrorNotSupported;
  }
}

#if CUDART_VERSION >= 13020

bool driver_has_getter() {
  const Locked world;
  return world->driver_version >= 13020;
}

// A node that no longer exists counts as a kernel node: the call on kernel nodes then reports what is wrong.
cudaGraphNodeType type_of(cudaGraphNode_t handle, unsigned* sync_mode) {
  const Locked world;
  const Node* const node = world->nodes.find(handle);
  if (node == nullptr) return cudaGraphNodeTypeKernel;
  const auto* const host = std::get_if<HostParams>(&node->params);
  *sync_mode = host != nullptr ? host->sync_mode : 0;
  return type_of(*node);
}

void put(const cudaKernelNodeParams& from, cudaGraphNodeParams* any) {
  any->kernel.func = from.func;
  any->kernel.gridDim = from.gridDim;
  any->kernel.blockDim = from.blockDim;
  any->kernel.sharedMemBytes = from.sharedMemBytes;
  any->kernel.kernelParams = from.kernelParams;
  any->kernel.extra = from.extra;
  any->kernel.functionType = cudaKernelFunctionTypeDeviceEntry;
}

void put(const cudaMemsetParams& from, cudaGraphNodeParams* any) {
  any->memset.dst = from.dst;
  any->memset.pitch = from.pitch;
  any->memset.value = from.value;
  any->memset.elementSize = from.elementSize;
  any->memset.width = from.width;
  any->memset.height = from.height;
}

void put(const cudaMemAllocNodeParams& from, cudaGraphNodeParams* any) {
  any->alloc.poolProps = from.poolProps;
  any->alloc.accessDescs = from.accessDescs;
  any->alloc.accessDescCount = from.accessDescCount;
  any->alloc.bytesize = from.bytesize;
  any->alloc.dptr = from.dptr;
}

template <class Params>
cudaError_t get(cudaError_t (*read)(cudaGraphNode_t, Params*), cudaGraphNode_t node, cudaGraphNodeParams* any) {
  Params params = {};
  const cudaError_t error = read(node, &params);
  if (error == cudaSuccess) put(params, any);
  return error;
}

cudaError_t get(cudaGraphNode_t node, cudaGraphNodeParams* any) {
  unsigned sync_mode = 0;
  *any = {};
  any->type = type_of(node, &sync_mode);
  switch (any->type) {
    case cudaGraphNodeTypeKernel:
      return get<cudaKernelNodeParams>(cudaGraphKernelNodeGetParams, node, any);
    case cudaGraphNodeTypeMemcpy:
      return cudaGraphMemcpyNodeGetParams(node, &any->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
      return get<cudaMemsetParams>(cudaGraphMemsetNodeGetParams, node, any);
    case cudaGraphNodeTypeHost: {
      cudaHostNodeParams params = {};
      const cudaError_t error = cudaGraphHostNodeGetParams(node, &params);
      any->host.fn = params.fn;
      any->host.userData = params.userData;
      any->host.syncMode = sync_mode;
      return error;
    }
    case cudaGraphNodeTypeGraph:
      any->graph.ownership = cudaGraphChildGraphOwnershipInvalid;
      return cudaGraphChildGraphNodeGetGraph(node, &any->graph.graph);
    case cudaGraphNodeTypeEmpty:
      return cudaSuccess;
    case cudaGraphNodeTypeWaitEvent:
      return cudaGraphEventWaitNodeGetEvent(node, &any->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
      return cudaGraphEventRecordNodeGetEvent(node, &any->eventRecord.event);
    case cudaGraphNodeTypeMemAlloc:
      return get<cudaMemAllocNodeParams>(cudaGraphMemAllocNodeGetParams, node, any);
    case cudaGraphNodeTypeMemFree:
      return cudaGraphMemFreeNodeGetParams(node, &any->free.dptr);
    default:
      return cudaErrorNotSupported;
  }
}

#endif

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

// Errors that these functions return themselves are latched as well.

extern "C" {

cudaError_t CUDARTAPI cudaGraphNodeSetParams(cudaGraphNode_t node, struct cudaGraphNodeParams* nodeParams) {
  const CallerScope caller(__builtin_return_address(0));
  return latch(this_thread(), nodeParams != nullptr ? set(node, *nodeParams) : cudaErrorInvalidValue);
}

cudaError_t CUDARTAPI cudaGraphExecNodeSetParams(cudaGraphExec_t graphExec, cudaGraphNode_t node,
                                                 struct cudaGraphNodeParams* nodeParams) {
  const CallerScope caller(__builtin_return_address(0));
  return latch(this_thread(), nodeParams != nullptr ? patch(graphExec, node, *nodeParams) : cudaErrorInvalidValue);
}

#if CUDART_VERSION >= 13020
cudaError_t CUDARTAPI cudaGraphNodeGetParams(cudaGraphNode_t node, struct cudaGraphNodeParams* nodeParams) {
  const CallerScope caller(__builtin_return_address(0));
  if (!driver_has_getter()) return latch(this_thread(), cudaErrorCallRequiresNewerDriver);
  return latch(this_thread(), nodeParams != nullptr ? get(node, nodeParams) : cudaErrorInvalidValue);
}
#endif

}  // extern "C"
