// Calls by which nodes are added to a graph or a capture, whose signatures changed between CUDA 12.4 and 13.5.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace graphcache {

// Adds a node of any type with plain edges from its dependencies.
inline cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                            std::size_t count, cudaGraphNodeParams* params) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddNode(node, graph, dependencies, nullptr, count, params);
#else
  return cudaGraphAddNode(node, graph, dependencies, count, params);
#endif
}

// Makes the stream's next node depend on this node alone.
inline cudaError_t set_capture_dependency(cudaStream_t stream, cudaGraphNode_t node) {
#if CUDART_VERSION >= 13000
  return cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies);
#else
  return cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamSetCaptureDependencies);
#endif
}

}  // namespace graphcache
