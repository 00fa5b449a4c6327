// Calls that set the parameters of single nodes of an executable graph. They do not change the template, so a later
// update from it restores its values (facts 13).

#include <optional>
#include <utility>

#include "device_nodes.h"
#include "exec.h"
#include "params.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

cudaError_t patch_copy(CopyParams& params, const CopyParams& wanted) {
  // "either the original or new memory operands are multidimensional"
  if (wanted.bytes == 0 || !params.is_flat() || !wanted.is_flat()) return cudaErrorInvalidValue;
  if (const cudaError_t error = check_copy(wanted.destination, wanted.source, wanted.kind); error != cudaSuccess) {
    return error;
  }
  if (!may_become(params, wanted)) return cudaErrorInvalidValue;
  move_copy(params, wanted);
  return cudaSuccess;
}

cudaError_t patch_fill(FillParams& params, const cudaMemsetParams* wanted) {
  FillParams fill;
  if (const cudaError_t error = read_fill(wanted, &fill); error != cudaSuccess) return error;
  if (!may_become(params, fill)) return cudaErrorInvalidValue;
  params = fill;
  return cudaSuccess;
}

}  // namespace

void move_copy(CopyParams& params, const CopyParams& wanted) {
  const CopyParams before = std::exchange(params, wanted);
  params.is_of_device = before.is_of_device;
  params.devices = before.devices;
}

cudaError_t patch_kernel(const Call& call, cudaGraphExec_t handle, cudaGraphNode_t node,
                         const cudaKernelNodeParams* wanted, bool on_current_device) {
  return patch<KernelParams>(call, handle, node, [&](KernelParams& params) {
    if (on_current_device && params.device != call.thread.device) return cudaErrorInvalidValue;
    const cudaError_t error = read_kernel(call, wanted, &params);
    if (error == cudaSuccess) patch_device_node(*find_executable(call, handle)->program->device_nodes, node, params);
    return error;
  });
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphExecKernelNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                                       const struct cudaKernelNodeParams* pNodeParams) {
  return enter({Function::kGraphExecKernelNodeSetParams, hGraphExec, node}, [&](const Call& call) {
    return patch_kernel(call, hGraphExec, node, pNodeParams, /*on_current_device=*/true);
  });
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                                       const struct cudaMemcpy3DParms* pNodeParams) {
  return enter({Function::kGraphExecMemcpyNodeSetParams, hGraphExec, node}, [&](const Call& call) {
    if (const cudaError_t error = check_rows(pNodeParams); error != cudaSuccess) return error;
    return patch<CopyParams>(call, hGraphExec, node, [&](CopyParams& params) {
      CopyParams copy;
      const cudaError_t error = read_copy(pNodeParams, &copy);
      return error != cudaSuccess ? error : patch_copy(params, copy);
    });
  });
}

cudaError_t CUDARTAPI cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t hGraphExec, cudaGraphNode_t node, void* dst,
                                                         const void* src, size_t count, enum cudaMemcpyKind kind) {
  return enter({Function::kGraphExecMemcpyNodeSetParams1D, hGraphExec, node}, [&](const Call& call) {
    return patch<CopyParams>(call, hGraphExec, node, [&](CopyParams& params) {
      return patch_copy(params, CopyParams{dst, src, count, kind});
    });
  });
}

cudaError_t CUDARTAPI cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                                       const struct cudaMemsetParams* pNodeParams) {
  return enter({Function::kGraphExecMemsetNodeSetParams, hGraphExec, node}, [&](const Call& call) {
    return patch<FillParams>(call, hGraphExec, node,
                             [&](FillParams& params) { return patch_fill(params, pNodeParams); });
  });
}

cudaError_t CUDARTAPI cudaGraphExecHostNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                                     const struct cudaHostNodeParams* pNodeParams) {
  return enter({Function::kGraphExecHostNodeSetParams, hGraphExec, node}, [&](const Call& call) {
    return patch<HostParams>(call, hGraphExec, node,
                             [&](HostParams& params) { return read_host(pNodeParams, &params); });
  });
}

}  // extern "C"
