#include "graph.h"

namespace graphcache {

CallResult Template::list_nodes() {
  std::size_t count = 0;
  cudaError_t error = cudaGraphGetNodes(graph.get(), nullptr, &count);
  if (error == cudaSuccess) {
    nodes.resize(count);
    if (count != 0) error = cudaGraphGetNodes(graph.get(), nodes.data(), &count);
  }
  return {"cudaGraphGetNodes", error};
}

CallResult Template::clone(Template* out) const {
  cudaGraph_t cloned = nullptr;
  if (const cudaError_t error = cudaGraphClone(&cloned, graph.get()); error != cudaSuccess) {
    return {"cudaGraphClone", error};
  }
  Template copy;
  copy.graph = Graph(cloned);
  const CallResult listed = copy.list_nodes();
  if (is_fatal(listed.error)) copy.graph.release();  // Handles are dropped now, not destroyed.
  if (listed.error == cudaSuccess) *out = std::move(copy);
  return listed;
}

}  // namespace graphcache
