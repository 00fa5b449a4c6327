// Calls on graph nodes of any type.

#ifndef GRAPHCACHE_LIB_HOSTRT_ANY_NODES_H_
#define GRAPHCACHE_LIB_HOSTRT_ANY_NODES_H_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace graphcache::hostrt {

// cudaGraphAddNode for every type except conditional nodes. Do not call this inside enter().
cudaError_t add_any(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                    const cudaGraphEdgeData* data, std::size_t count, cudaGraphNodeParams* any);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_ANY_NODES_H_
