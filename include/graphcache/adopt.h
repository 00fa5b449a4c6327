// Graphs that somebody else made: a framework that captures by itself, or a program that adds nodes by hand.
//
//   cudaGraph_t graph = torch_graph.raw_cuda_graph();
//   absl::Status status = cache.adopt(graphcache::key("decode", batch), graph, {.owner = pool_and_tensors});
//   ...
//   cache.run(graphcache::key("decode", batch), stream);   // replays it
//
// From then on the key is like one that the cache has captured: its executable is made by the first run (kRestored, or
// kSwitched if a sibling has one), shared with siblings, evicted and restored. It has no `fn`, and this is what
// differs:
//
//   - Its graph is kept until the key is erased, and does not count for Options::max_templates. The key has one
//     executable, whatever Options::executables_per_key is.
//   - A run that could not have an executable calls `fn` directly. For an adopted key it makes an executable for this
//     one launch, with the same EagerReason. If even that fails, the run does, and nothing was enqueued.
//   - It cannot run inside a capture of somebody else: add the graph there as a child node. Inside another run's `fn`,
//     it makes that run a direct one.
//   - Verify mode has nothing to compare it with, and background threads do not make its executable.
//
// Values that change are slots, as those of a captured key. Here they are bound to the arguments of kernels:
//
//   cache.adopt(key, graph, graphcache::params(rate, data),
//               {.bound = {graphcache::bind(node, 3, 0), graphcache::bind("load(float const*, float*)", 0, 1)}});
//   cache.run(key, stream, graphcache::params(rate, data), graphcache::adopted);
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/recorder.h"

namespace graphcache {

// An argument of kernels that follows a slot. Made by bind().
struct BoundArgument {
  cudaGraphNode_t node = nullptr;  // Of the graph that is adopted. Null: of all kernels of this name.
  std::string kernel;
  int argument = 0;  // Its index among the kernel's parameters, from 0.
  int slot = 0;      // The index of the value in the params of a run, from 0. It has the size of the argument.
};
inline BoundArgument bind(cudaGraphNode_t node, int argument, int slot) { return {node, {}, argument, slot}; }
// `kernel` is the name as GraphNode::name has it, such as "scale(float*, float const*, int, float)", or that name up to
// its parameters or template arguments. A leading "kernel " or "void " may be there or not. Nodes inside child graphs
// have no slots.
inline BoundArgument bind(std::string kernel, int argument, int slot) {
  return {nullptr, std::move(kernel), argument, slot};
}

// How Cache::adopt() takes a graph.
struct Adoption {
  // What the graph needs: memory that its nodes use, a pool, the object that made it. Null if it needs nothing. The
  // cache keeps it until the key is erased and no work of the device is in flight, for which erase(), clear() and the
  // destructor wait. If a run of the key is under way when it is erased, nobody waits behind that run's launch: the
  // next erase(), clear() or run that is no hit waits before its own work, and releases the owner. No lock of the cache
  // is held while the owner is released, so it may call the cache.
  std::shared_ptr<void> owner = nullptr;
  // False: the cache makes a clone, and the graph stays the caller's, who may use or destroy it at any time after
  // adopt() has returned. `owner` may do so, too. During adopt() no other thread may use it.
  // True: the graph is the cache's once adopt() has returned ok. This is the way for graphs that CUDA cannot clone,
  // those with conditional nodes and with nodes that allocate. Memory that the graph allocates and does not free is
  // the program's to free before the next run of the key.
  bool take_graph = false;
  std::vector<BoundArgument> bound = {};
};

namespace detail {
inline absl::Status no_adopted_graph() {
  return absl::NotFoundError("no graph was adopted for this key with values of these types: call Cache::adopt first");
}
// What stands for an adopted graph in the place of `fn`. It is called where there is none.
struct AdoptedFn {
  template <class... Slots>
  absl::Status operator()(Recorder&, const Slots&...) const {
    return no_adopted_graph();
  }
};
// Where a value is among those of a run.
struct ValuePlace {
  std::size_t offset;
  std::size_t size;
};
}  // namespace detail

// In the place of `fn`, in Cache::run(), warm() and prepare(): the graph that was adopted for the key.
inline constexpr detail::AdoptedFn adopted{};

}  // namespace graphcache
