#include "misuse.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "state.h"

namespace graphcache::hostrt {
namespace {

constexpr std::size_t kKeptMessages = 64;

// The object that two calls must not use at once: the graph of a node, else the object itself.
const void* root_of(const State& state, const void* handle) {
  const Node* node = state.nodes.find(handle);
  return node != nullptr ? node->graph->handle : handle;
}

void add_destroyed(const Graph& graph, std::vector<const void*>* written) {
  written->push_back(graph.handle);
  written->push_back(graph.original);
  for (const Node* node : graph.nodes) {
    for_each_inner(node->params, [&](const Graph& inner) { add_destroyed(inner, written); });
  }
}

const void* find_shared(const State& state, const Entry& entry, const Presence& other) {
  const void* shared = nullptr;
  for (const void* mine : entry.objects) {
    for (const void* theirs : other.objects) {
      if (mine != nullptr && theirs != nullptr && root_of(state, mine) == root_of(state, theirs)) shared = mine;
    }
  }
  return shared;
}

// The result may contain graphs that no longer exist.
std::vector<const void*> find_written(const State& state, const Entry& entry) {
  switch (entry.function) {
    case Function::kGraphClone:
    case Function::kGraphInstantiate:
    case Function::kGraphInstantiateWithFlags:
      return {entry.objects[0]};
    case Function::kGraphAddChildGraphNode:
      return {entry.objects[1]};
    case Function::kGraphExecDestroy: {
      const Executable* executable = state.executables.find(entry.objects[0]);
      return {executable != nullptr ? executable->base : nullptr};
    }
    case Function::kGraphDestroy: {
      std::vector<const void*> written;
      if (const Graph* graph = state.graphs.find(entry.objects[0])) add_destroyed(*graph, &written);
      return written;
    }
    default:
      return {};
  }
}

bool writes_to_any(const State& state, const Presence& other, const std::vector<const void*>& written) {
  if (written.empty()) return false;
  // The other call may write to an object that the current one has destroyed.
  const std::vector<const void*> theirs = find_written(state, {other.function, other.objects[0], other.objects[1]});
  return std::find_first_of(written.begin(), written.end(), theirs.begin(), theirs.end()) != written.end();
}

}  // namespace

void report_misuse(State& state, const Place& here, const std::string& what, std::initializer_list<Involved> involved) {
  std::string message = std::string(here.function) + ": " + what + "\n  here: " + to_string(here);
  for (const auto& [role, place] : involved) {
    if (place.is_known() && !(place == here)) message += std::string("\n  ") + role + ": " + to_string(place);
  }
  if (++state.misuses == 1 || state.abort_on_misuse) {
    std::fprintf(stderr, "graphcache hostrt: misuse: %s\n", message.c_str());
  }
  state.last_misuse = message;
  if (state.misuse_log.size() < kKeptMessages) state.misuse_log.push_back(message);
  if (state.abort_on_misuse) std::abort();
}

std::vector<const void*> written_graphs(const State& state, const Entry& entry) {
  std::vector<const void*> written = find_written(state, entry);
  std::erase_if(written, [&](const void* graph) { return state.graphs.find(graph) == nullptr; });
  return written;
}

void report_overlaps(State& state, const Thread& thread, const Entry& entry, const std::vector<const void*>& written) {
  Presences& records = presences();
  const std::size_t used = records.used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < used; ++i) {
    const Presence& other = records.all[i];
    if (&other == thread.presence || !other.is_inside.load(std::memory_order_acquire)) continue;
    const char* what = nullptr;
    if (const void* shared = find_shared(state, entry, other)) {
      what = state.executables.was_given_out(shared) ? "executable graph used by two threads at once"
                                                     : "graph used by two threads at once";
    } else if (writes_to_any(state, other, written)) {
      what = "related graphs or executables made or destroyed by two threads at once";
    } else {
      continue;
    }
    report_misuse(state, state.endings.here, what,
                  {{"meanwhile", {name_of(other.function), 0, other.thread, other.address}}});
  }
}

cudaError_t Call::misuse(cudaError_t error, const std::string& what, std::initializer_list<Involved> involved) const {
  report_misuse(state, state.endings.here, what, involved);
  return error;
}

}  // namespace graphcache::hostrt
