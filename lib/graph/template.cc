#include "graph/template.h"

#include <atomic>

#include "cuda/compat.h"
#include "cuda/driver.h"

namespace graphcache {
namespace {

// Makes a clone or an executable of a graph while it holds the graph's mutex, which the result shares.
template <class Handle, class Make>
cudaError_t make_kin(OwnedGraph& of, Handle* out, const Make& make) {
  Kin& kin = of.get_deleter().kin;
  if (kin == nullptr) kin = std::make_shared<Mutex>();
  MutexLock lock(*kin);
  typename Handle::pointer made = nullptr;
  const cudaError_t error = make(&made);
  if (error == cudaSuccess) *out = Handle(made, {kin});
  return error;
}

}  // namespace

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

cudaError_t clone(OwnedGraph& original, OwnedGraph* out) {
  return make_kin(original, out, [&](cudaGraph_t* graph) { return cudaGraphClone(graph, original.get()); });
}

cudaError_t instantiate(OwnedGraph& base, unsigned long long flags, GraphExec* out) {
  return make_kin(base, out, [&](cudaGraphExec_t* exec) { return cudaGraphInstantiate(exec, base.get(), flags); });
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

bool Slots::update_fields(const SlotNode& node, const unsigned char* values) {
  bool changed = false;
  for (const Binding& binding : bindings_of(node)) changed |= binding.write(values, fields.data() + binding.target);
  return changed;
}

bool Slots::differs(const SlotNode& node, const unsigned char* values) const {
  unsigned char room[detail::kMaxConvertedBytes];
  return std::ranges::any_of(bindings_of(node), [&](const Binding& binding) {
    return std::memcmp(fields.data() + binding.target, binding.bytes(values, room), binding.size) != 0;
  });
}

SlotNode Slots::begin(std::size_t fields_size) {
  const SlotNode none;
  const SlotNode& last = nodes.empty() ? none : nodes.back();
  arguments.resize(last.first_argument + last.argument_count);
  bindings.resize(last.first_binding + last.binding_count);
  fields.resize(last.fields + last.fields_size);
  SlotNode node;
  node.fields = static_cast<std::uint32_t>(detail::align_up(fields.size(), alignof(std::max_align_t)));
  node.fields_size = static_cast<std::uint32_t>(fields_size);
  node.first_argument = static_cast<std::uint32_t>(arguments.size());
  node.first_binding = static_cast<std::uint32_t>(bindings.size());
  fields.resize(node.fields + fields_size);
  return node;
}

namespace {

CallResult each_copy_in(cudaGraphNode_t node, std::uint32_t index, Template::UseCopy use) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CallResult done{"cudaGraphNodeGetType", node_type(node, &type)};
  if (done.error == cudaSuccess && type == cudaGraphNodeTypeMemcpy) return use(node, index);
  if (done.error != cudaSuccess || type != cudaGraphNodeTypeGraph) return done;
  cudaGraph_t child = nullptr;
  done = {"cudaGraphChildGraphNodeGetGraph", cudaGraphChildGraphNodeGetGraph(node, &child)};
  std::vector<cudaGraphNode_t> nodes;
  if (done.error == cudaSuccess) done = list_nodes(child, &nodes);
  for (const cudaGraphNode_t inner : nodes) {
    if (done.error == cudaSuccess) done = each_copy_in(inner, index, use);
  }
  return done;
}

}  // namespace

CallResult Template::each_copy(const Content& content, UseCopy use) const {
  CallResult done;
  for (const std::uint32_t i : content.copies) {
    if (done.error == cudaSuccess) done = each_copy_in(nodes[i], i, use);
  }
  for (const InnerNodes& body : inner) {
    for (const cudaGraphNode_t node : body.nodes) {
      if (done.error == cudaSuccess) done = each_copy_in(node, kInner, use);
    }
  }
  return done;
}

CallResult Template::order_sinks() {
  // cudaGraphGetEdges would take 60 times as long for 2,000 nodes.
  std::vector<cudaGraphNode_t> sinks;
  for (const cudaGraphNode_t node : nodes) {
    std::size_t count = 0;
    const cudaError_t error = driver().node_dependents(node, nullptr, nullptr, &count);
    if (error == cudaErrorCallRequiresNewerDriver) return {};  // Then there are no updates.
    if (error != cudaSuccess) return {"cudaGraphNodeGetDependentNodes", error};
    if (count == 0) sinks.push_back(node);
  }
  if (sinks.size() < 2) return {};
  // When the node goes that depends on them, they become sinks in its order.
  cudaGraphNode_t end = nullptr;
  const cudaError_t error = cudaGraphAddEmptyNode(&end, graph.get(), sinks.data(), sinks.size());
  if (error != cudaSuccess) return {"cudaGraphAddEmptyNode", error};
  return {"cudaGraphDestroyNode", cudaGraphDestroyNode(end)};
}

CallResult Template::clone(Template* out) {
  Template copy;
  copy.values = values;
  if (const cudaError_t error = graphcache::clone(graph, &copy.graph); error != cudaSuccess) {
    return {"cudaGraphClone", error};
  }
  const CallResult listed = copy.list_nodes();
  if (is_fatal(listed.error)) copy.graph.release();  // Handles are dropped, not destroyed.
  if (listed.error == cudaSuccess) *out = std::move(copy);
  return listed;
}

}  // namespace graphcache
