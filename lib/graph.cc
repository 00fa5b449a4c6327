#include "graph.h"

#include <atomic>

namespace graphcache {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

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
