// Graph: a graph that the program made itself, by a framework that captures or by adding nodes. An `fn` that takes
// nothing and returns one gives its key that graph:
//
//   cache.run(graphcache::key("decode", batch), stream, [&] {
//     return graphcache::Graph{.graph = torch_graph.raw_cuda_graph(), .owner = pool_and_tensors};
//   });
//
// Values that change are bound to arguments of kernels:
//
//   cache.run(key, stream, graphcache::params(rate, data), [&] {
//     return graphcache::Graph{.graph = build(),
//                              .bound = {graphcache::bind(node, 3, 0), graphcache::bind("load(float const*)", 0, 1)},
//                              .give_away = true};
//   });
//
// The cache calls such an `fn` outside of captures, with its device current, so `fn` may synchronize and capture. It
// calls it whenever it has no graph for the key, and in each direct run, which may be the same run. So each call must
// return a graph of the same work. Everything else is as for an `fn` that enqueues work, except:
//   - A direct run calls `fn`, instantiates the graph, launches it, and destroys it.
//   - If `fn` fails, so does the run. It is not called again. A run of its own key inside it fails, except in
//     direct runs and in disabled caches.
//   - In a capture by other code the run fails: add the graph there as a child node. Inside another run's `fn`, that
//     outer run becomes a direct one.
//   - Verify mode does not check the key.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace graphcache {

// An argument of one kernel node, or of all nodes of one kernel, that is a slot. bind() makes it.
struct BoundArgument {
  cudaGraphNode_t node = nullptr;  // A node of the graph. Null: all nodes of `kernel`.
  std::string kernel;              // The name of the kernel; see bind(). Must not be empty if `node` is null.
  int argument = 0;                // The index of the argument among the kernel's parameters, from 0.
  int slot = 0;                    // The index of the value in the params of a run, from 0. Both have the same size.
};
// Binds an argument of one node to a value of the params.
inline BoundArgument bind(cudaGraphNode_t node, int argument, int slot) { return {node, {}, argument, slot}; }
// Binds an argument of all nodes of a kernel to a value of the params. `kernel` is its name in GraphNode::name, such as
// "scale(float*, float const*, int, float)", or this name without its parameters or template arguments. A leading
// "kernel " or "void " makes no difference. Nodes inside child graphs cannot be bound.
inline BoundArgument bind(std::string kernel, int argument, int slot) {
  return {nullptr, std::move(kernel), argument, slot};
}

struct Graph {
  // A graph with at least one node. Its work is of the cache's device.
  cudaGraph_t graph = nullptr;
  // The arguments that are slots. An argument that cannot be bound makes the run fail with InvalidArgument.
  std::vector<BoundArgument> bound = {};
  // What the graph needs to live: memory that its nodes use, a pool, the object that made it. It is kept as by
  // Recorder::keep().
  std::shared_ptr<void> owner = nullptr;
  // False: the cache makes a clone, and the graph stays with the caller, unchanged. Until the run returns, it must
  // exist, and no other thread may use it.
  //
  // True: the cache takes the graph, also if the run fails. This is for graphs that CUDA cannot clone: those with
  // conditional nodes or nodes that allocate.
  bool give_away = false;
};

}  // namespace graphcache
