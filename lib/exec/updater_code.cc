#include "exec/updater_code.h"

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "updater_image.h"

namespace graphcache {

Updater::Updater() : code_(updater_image) {}

CallResult can_set_grid(cudaGraphNode_t node, cudaKernel_t plain, Probed* probed, bool* can) {
  *can = false;
  for (const CUlaunchAttributeID id : {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE}) {
    CUlaunchAttributeValue value;
    bool is_set = false;
    if (driver().read_attribute(node, id, &value, &is_set) != CUDA_SUCCESS || is_set) return {};
  }
  CUDA_KERNEL_NODE_PARAMS params = {};
  if (driver().kernel_params(node, &params) != CUDA_SUCCESS) return {};
  const void* const function = params.func != nullptr ? static_cast<const void*>(params.func) : params.kern;
  if (const auto known = probed->find(function); known != probed->end()) {
    *can = known->second;
    return {};
  }
  // CUDA offers no query for kernels that use the device runtime (dynamic parallelism), so we probe: we try to set the
  // kernel into a node of a scratch executable. A node whose kernel did not use the device runtime refuses a kernel
  // that does (cudaGraphExecKernelNodeSetParams).
  LastErrorGuard last_error;
  cudaGraph_t graph = nullptr;
  if (const cudaError_t error = cudaGraphCreate(&graph, 0); error != cudaSuccess) return {"cudaGraphCreate", error};
  OwnedGraph owned(graph);
  CUDA_KERNEL_NODE_PARAMS nothing = driver_params(dim3(1), dim3(1), 0, nullptr);
  nothing.kern = plain;
  cudaGraphNode_t plain_node = nullptr;
  cudaGraphExec_t executable = nullptr;
  CallResult done = add_library_kernel(&plain_node, graph, nothing);
  if (done.error == cudaSuccess) done = {"cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0)};
  GraphExec probe(executable);
  if (done.error == cudaSuccess) {
    const auto answer = static_cast<cudaError_t>(driver().set_kernel_node(executable, plain_node, &params));
    *can = answer == cudaSuccess;
    if (is_fatal(answer) || answer == cudaErrorMemoryAllocation)
      done = {"cudaGraphExecKernelNodeSetParams, by the driver", answer, false};
  }
  if (done.error == cudaSuccess) probed->emplace(function, *can);
  if (is_fatal(done.error)) {
    owned.release();
    probe.release();
  }
  return done;
}

}  // namespace graphcache
