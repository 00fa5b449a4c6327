#include "graph/template.h"

#include <atomic>

namespace graphcache {
namespace {

// Hold this mutex while cloning or instantiating the graph. The result shares it.
const Kin& kin_of(OwnedGraph& graph) {
  Kin& kin = graph.get_deleter().kin;
  if (kin == nullptr) kin = std::make_shared<Mutex>();
  return kin;
}

}  // namespace

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

cudaError_t clone(OwnedGraph& original, OwnedGraph* out) {
  const Kin& kin = kin_of(original);
  MutexLock lock(*kin);
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaGraphClone(&graph, original.get());
  if (error == cudaSuccess) *out = OwnedGraph(graph, {kin});
  return error;
}

cudaError_t instantiate(OwnedGraph& base, unsigned long long flags, GraphExec* out) {
  const Kin& kin = kin_of(base);
  MutexLock lock(*kin);
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, base.get(), flags);
  if (error == cudaSuccess) *out = GraphExec(executable, {kin});
  return error;
}

CallResult list_nodes(cudaGraph_t graph, std::vector<cudaGraphNode_t>* nodes) {
  std::size_t count = 0;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &count);
  if (error == cudaSuccess) {
    nodes->resize(count);
    if (count != 0) error = cudaGraphGetNodes(graph, nodes->data(), &count);
  }
  return {"cudaGraphGetNodes", error};
}

CallResult Template::clone(Template* out) {
  Template copy;
  if (const cudaError_t error = graphcache::clone(graph, &copy.graph); error != cudaSuccess) {
    return {"cudaGraphClone", error};
  }
  const CallResult listed = copy.list_nodes();
  if (is_fatal(listed.error)) copy.graph.release();  // Handles are dropped, not destroyed.
  if (listed.error == cudaSuccess) *out = std::move(copy);
  return listed;
}

}  // namespace graphcache
