#include "misuse.h"

#include <cstdio>
#include <cstdlib>

#include "state.h"

namespace graphcache::hostrt {
namespace {

constexpr std::size_t kKeptMessages = 64;

// What two calls must not name at once: a graph for each of its nodes, else the object itself.
const void* root_of(const State& state, const void* handle) {
  const Node* node = state.nodes.find(handle);
  return node != nullptr ? node->graph->handle : handle;
}

}  // namespace

void report_misuse(State& state, const Place& here, const std::string& what, std::initializer_list<Involved> involved) {
  std::string message = std::string(here.function) + ": " + what + "\n  here: " + to_string(here);
  for (const auto& [role, place] : involved) {
    if (place.is_known() && !(place == here)) message += std::string("\n  ") + role + ": " + to_string(place);
  }
  ++state.misuses;
  state.last_misuse = message;
  if (state.misuse_log.size() < kKeptMessages) state.misuse_log.push_back(message);
  if (state.abort_on_misuse) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::abort();
  }
}

void report_overlaps(State& state, const Thread& thread, const Entry& entry) {
  Presences& records = presences();
  const std::size_t used = records.used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < used; ++i) {
    const Presence& other = records.all[i];
    if (&other == thread.presence || !other.is_inside.load(std::memory_order_acquire)) continue;
    const void* shared = nullptr;
    for (const void* mine : entry.objects) {
      for (const void* theirs : other.objects) {
        if (mine != nullptr && theirs != nullptr && root_of(state, mine) == root_of(state, theirs)) shared = mine;
      }
    }
    if (shared == nullptr) continue;
    const bool is_executable = state.executables.was_given_out(shared);
    report_misuse(state, state.endings.here,
                  std::string(is_executable ? "executable graph" : "graph") + " used by two threads at once",
                  {{"meanwhile", {name_of(other.function), 0, other.thread, other.address}}});
  }
}

cudaError_t Call::misuse(cudaError_t error, const std::string& what, std::initializer_list<Involved> involved) const {
  report_misuse(state, state.endings.here, what, involved);
  return error;
}

}  // namespace graphcache::hostrt
