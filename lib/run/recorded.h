// What an entry has while it is not cold.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/handles.h"
#include "exec/executable.h"
#include "exec/graveyard.h"
#include "exec/updated_executable.h"
#include "graph/describe.h"
#include "graph/found_values.h"
#include "graph/template.h"
#include "policy/policy.h"
#include "store/entry.h"

namespace graphcache {

// Guarded by the entry's lock.
struct Recorded : EntryGraphs {
  std::shared_ptr<Content> content;
  std::shared_ptr<Objects> kept;           // What the content keeps alive, or null.
  Template graph;                          // The template, or empty while it is the executable's base.
  std::unique_ptr<Executable> executable;  // Null unless the entry is live.
  std::list<Grave> grave;                  // In which the executable will wait for its destruction.
  LaunchStream stream;                     // The stream on which the entry last ran or was to run.
  int unverified = 0;                      // Number of hits since one was verified.
  std::unique_ptr<FoundValues> values;     // Null if `fn` gets none.
  std::optional<Signature> signature;      // With values, once the graph was read for them.
  cudaStream_t recorded_on = nullptr;      // The stream of the run that recorded it.

  const Template& readable() const { return graph.empty() ? executable->base() : graph; }
};

// Of an entry that is not cold.
inline Recorded& recorded(const Entry& entry) { return static_cast<Recorded&>(*entry.graphs); }
// The entry's executable, or null.
inline Executable* executable_of(const Entry& entry) {
  return entry.graphs == nullptr ? nullptr : recorded(entry).executable.get();
}
inline std::unique_ptr<Executable> take_executable(Entry& entry) {
  entry.exec = nullptr;
  return std::move(recorded(entry).executable);
}

// What the policy needs to know of a graph that has not been read.
inline GraphFacts facts_of(const Content& content) {
  // An updater node needs a clone, and CUDA cannot clone a graph with conditional nodes.
  const bool is_clonable = content.conditional_count == 0;
  return {.shape = content.shape,
          .bytes = estimated_device_bytes(content.node_count, content.conditional_count),
          .slot_kernels = is_clonable && content.is_settled ? UpdatedExecutable::writable_nodes(content.slots) : 0};
}

}  // namespace graphcache
