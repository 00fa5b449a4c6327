// Launches of kernels by the runtime API, because <<<>>> needs nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace graphcache::test {

// What a launch of a shape that cannot be returns. A runtime before 13.0 checks it before the driver does.
inline constexpr cudaError_t kBadShape =
    CUDART_VERSION >= 13000 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;

// What a launch of something that is no kernel returns.
inline constexpr cudaError_t kNoKernel =
    CUDART_VERSION > 12040 ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction;

// kernel<<<grid, block, 0, stream>>>(values...).
template <class... P>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream,
                   std::type_identity_t<P>... values) {
  void* arguments[] = {static_cast<void*>(&values)..., nullptr};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, 0, stream);
}

// The same in clusters of this many blocks, unless that is 0.
template <class... P>
cudaError_t launch_in_clusters(void (*kernel)(P...), dim3 grid, dim3 block, dim3 cluster, cudaStream_t stream,
                               std::type_identity_t<P>... values) {
  cudaLaunchAttribute attribute;
  std::memset(&attribute, 0, sizeof attribute);  // some launches fail if other bytes are set (fact 26)
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster.x == 0 ? 0 : 1;
  void* arguments[] = {static_cast<void*>(&values)..., nullptr};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}

// The runtime's query, whose name changed in CUDA 13. The library's is by the driver (cuda/compat.h).
inline cudaError_t dependencies_by_runtime(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                                           cudaGraphEdgeData* edges, std::size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependencies(node, dependencies, edges, count);
#else
  return cudaGraphNodeGetDependencies_v2(node, dependencies, edges, count);
#endif
}

}  // namespace graphcache::test
