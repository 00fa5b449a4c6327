// Makes a template of a graph that the program made itself (graphcache/graph.h).
#include <absl/cleanup/cleanup.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "cuda/errors.h"
#include "cuda/this_thread.h"
#include "graph/capture.h"
#include "graph/describe.h"
#include "graph/fields.h"
#include "graph/inspect.h"

namespace graphcache {
namespace {

template <class... Text>
absl::Status no_binding(std::size_t number, const Text&... why) {
  return absl::InvalidArgumentError(absl::StrCat("Graph::bound[", number, "]: ", why...));
}

// Whether `wanted` means a kernel of this readable name. Names of template kernels begin with their return type, void.
bool is_called(absl::string_view name, absl::string_view wanted) {
  absl::ConsumePrefix(&wanted, "kernel ");
  absl::ConsumePrefix(&wanted, "void ");
  absl::ConsumePrefix(&name, "void ");
  if (wanted.empty() || !absl::StartsWith(name, wanted)) return false;
  const absl::string_view rest = name.substr(wanted.size());
  return rest.empty() || rest.front() == '(' || rest.front() == '<';
}

// Binds arguments to slots.
class Binder {
 public:
  Binder(Template& graph, const Reading& reading, const detail::Call& call)
      : graph_(graph), reading_(reading), call_(call) {}

  // Finds the nodes that a binding names, and checks that the values fit. `nodes` are those of the program's graph.
  absl::Status add(std::size_t number, const BoundArgument& bound, const std::vector<cudaGraphNode_t>& nodes) {
    if (bound.slot < 0 || static_cast<std::size_t>(bound.slot) >= call_.places().size()) {
      return no_binding(number, "there is no value ", bound.slot, ": params has ", call_.places().size());
    }
    if (bound.node != nullptr) {
      const auto found = std::find(nodes.begin(), nodes.end(), bound.node);
      if (found == nodes.end()) return no_binding(number, "the node is not one of the graph's own");
      return add(number, bound, static_cast<std::uint32_t>(found - nodes.begin()));
    }
    if (bound.kernel.empty()) return no_binding(number, "it names neither a node nor a kernel");
    constexpr std::size_t kMostNames = 8;
    std::set<std::string> names;
    bool any = false;
    for (std::uint32_t i = 0; i < reading_.content.nodes.size(); ++i) {
      const NodeContent& node = reading_.content.nodes[i];
      if (node.type != cudaGraphNodeTypeKernel) continue;
      const std::string name = name_of(node.kernel);
      if (name == kUnknownName) {
        return no_binding(number, "the driver does not report the name of node ", i, ": bind by nodes");
      }
      if (names.size() < kMostNames) names.insert(name);
      if (!is_called(name, bound.kernel)) continue;
      any = true;
      if (absl::Status status = add(number, bound, i); !status.ok()) return status;
    }
    if (any) return absl::OkStatus();
    return no_binding(number, "no kernel is called ", bound.kernel, ": the graph has ",
                      names.empty() ? "none" : absl::StrJoin(names, ", "));
  }

  // Writes the call's values into the nodes and fills in the slots.
  absl::Status bind(Slots* slots) {
    for (const auto& [index, arguments] : bound_) {
      const NodeContent& content = reading_.content.nodes[index];
      SlotNode& node = add_slot_node(reading_.content, index, slots);
      if (node.function == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("node ", index, ", ", kind_of(content), ": the driver cannot set its arguments"));
      }
      for (const auto& [argument, slot] : arguments) {
        const detail::ValuePlace& place = call_.places()[slot];
        const std::uint32_t at = slots->arguments[node.first_argument + argument];
        slots->bindings.push_back(
            {at, static_cast<std::uint32_t>(place.size), static_cast<std::uint32_t>(place.offset), nullptr});
        std::memcpy(slots->fields.data() + at, call_.values + place.offset, place.size);
      }
      node.binding_count = static_cast<std::uint32_t>(arguments.size());

      ArgumentPointers pointers = slots->pointers_to_arguments(node);
      CUDA_KERNEL_NODE_PARAMS params = content.kernel;
      params.kernelParams = pointers.data();
      const cudaError_t error = driver().set_kernel_params(graph_.nodes[index], &params);
      if (error != cudaSuccess) return cuda_failure("cudaGraphKernelNodeSetParams", error);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status add(std::size_t number, const BoundArgument& bound, std::uint32_t index) {
    const NodeContent& node = reading_.content.nodes[index];
    const std::string what = absl::StrCat("node ", index, ", ", kind_of(node), ", ");
    if (node.type != cudaGraphNodeTypeKernel) return no_binding(number, what, "is no kernel");
    if (!node.readable) return no_binding(number, what, "has parameters that the driver does not report");
    if (bound.argument < 0 || static_cast<std::uint32_t>(bound.argument) >= node.argument_count) {
      return no_binding(number, what, "has no argument ", bound.argument, ": it has ", node.argument_count);
    }
    const auto argument = static_cast<std::uint32_t>(bound.argument);
    const auto slot = static_cast<std::uint32_t>(bound.slot);
    const std::size_t size = reading_.sizes[node.first_argument + argument];
    if (size != call_.places()[slot].size) {
      return no_binding(number, what, "argument ", argument, " has ", size, " bytes, and value ", slot, " has ",
                        call_.places()[slot].size);
    }
    if (!bound_[index].emplace(argument, slot).second) {
      return no_binding(number, what, "argument ", argument, " is bound twice");
    }
    return absl::OkStatus();
  }

  Template& graph_;
  const Reading& reading_;
  const detail::Call& call_;
  // The slot of each bound argument, by its node's index and its own.
  std::map<std::uint32_t, std::map<std::uint32_t, std::uint32_t>> bound_;
};

// Fills in the template and its content.
absl::Status take(const Graph& made, const detail::Call& call, Template* out, Content* content) {
  if (made.graph == nullptr) return absl::InvalidArgumentError("fn returned no graph");
  const LastErrorGuard last_error;
  std::vector<cudaGraphNode_t> nodes;
  if (absl::Status failed = list_nodes(made.graph, &nodes).status(); !failed.ok()) return failed;
  if (nodes.empty()) return absl::InvalidArgumentError("the graph that fn returned has no nodes");
  if (!made.give_away) {
    // CUDA records a clone in its original, where threads that use either one would collide (fact 35). So this clones
    // twice: the second clone is recorded only in the first, which is destroyed.
    cudaGraph_t between = nullptr;
    cudaError_t error = cudaGraphClone(&between, made.graph);
    OwnedGraph gone(between);
    if (error == cudaSuccess) error = clone(gone, &out->graph);
    const absl::Status why = cuda_failure("cudaGraphClone", error);
    if (error == cudaErrorNotSupported) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the graph that fn returned cannot be cloned, so give it away by Graph::give_away: ", why.message()));
    }
    if (error != cudaSuccess) return why;
  }
  if (absl::Status failed = out->list_nodes().status(); !failed.ok()) return failed;
  if (absl::Status status = inspect(*out, /*place=*/nullptr, content); !status.ok()) return status;
  content->values.assign(call.values, call.values + call.values_size);
  if (made.bound.empty()) return absl::OkStatus();
  const std::optional<Reading> reading = read_all(*out, content->slots);
  if (!reading) return absl::InvalidArgumentError("the nodes of the graph cannot be read, so nothing can be bound");
  Binder binder(*out, *reading, call);
  for (std::size_t i = 0; i < made.bound.size(); ++i) {
    if (absl::Status status = binder.add(i, made.bound[i], nodes); !status.ok()) return status;
  }
  return binder.bind(&content->slots);
}

}  // namespace

Captured make_graph(const detail::Call& call, int of_device) {
  Captured made;
  made.is_misuse = true;  // `fn` is not called again, directly.
  LastErrorGuard last_error;
  DeviceGuard device(of_device);
  if (made.fn = device.status(); !made.fn.ok()) return made;
  absl::Cleanup threw = [&] { call.threw = true; };
  const absl::StatusOr<Graph> graph = [&] {
    const detail::AsOutside may_be_cancelled;
    return call.callee->make(call.fn);
  }();
  std::move(threw).Cancel();
  made.fn = graph.status();
  if (graph.ok() && graph->give_away) made.graph.graph = OwnedGraph(graph->graph);
  if (graph.ok() && graph->owner != nullptr) {
    made.kept = std::make_shared<Objects>();
    made.kept->push_back(graph->owner);
    made.content.kept = made.kept;
  }
  if (const cudaError_t error = last_error.caused(); error != cudaSuccess) {
    add_failure(&made.fn, cuda_failure("a CUDA call of fn", error));
  }
  add_failure(&made.fn, device.put_back().status());
  if (made.fn.ok()) made.capture = take(*graph, call, &made.graph, &made.content);
  return made;
}

}  // namespace graphcache
