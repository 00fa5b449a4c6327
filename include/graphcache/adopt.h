// Adoption: gives a key a graph that other code made, such as a framework that captures by itself, or a program that
// adds nodes by hand.
//
//   cudaGraph_t graph = torch_graph.raw_cuda_graph();
//   absl::Status status = cache.adopt(graphcache::key("decode", batch), graph, {.owner = pool_and_tensors});
//   ...
//   cache.run(graphcache::key("decode", batch), stream);   // replays it
//
// Values that change are slots. They are bound to arguments of kernels:
//
//   cache.adopt(key, graph, graphcache::params(rate, data),
//               {.bound = {graphcache::bind(node, 3, 0), graphcache::bind("load(float const*, float*)", 0, 1)}});
//   cache.run(key, stream, graphcache::params(rate, data), graphcache::adopted);
//
// The comment at Adoption says how adopted keys differ from others.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/recorder.h"

namespace graphcache {

// An argument of one kernel node, or of all nodes of one kernel, that is a slot. bind() makes it.
struct BoundArgument {
  cudaGraphNode_t node = nullptr;  // A node of the graph that is adopted. Null: all nodes of `kernel`.
  std::string kernel;              // The name of the kernel; see bind().
  int argument = 0;                // The index of the argument among the kernel's parameters, from 0.
  int slot = 0;                    // The index of the value in the params of a run, from 0. Both have the same size.
};
// Binds an argument of one node to a value of the params.
inline BoundArgument bind(cudaGraphNode_t node, int argument, int slot) { return {node, {}, argument, slot}; }
// Binds an argument of all nodes of a kernel to a value of the params. `kernel` is the name of the kernel in
// GraphNode::name, such as "scale(float*, float const*, int, float)", or this name without its parameters or template
// arguments. A leading "kernel " or "void " makes no difference. Nodes inside child graphs cannot be bound.
inline BoundArgument bind(std::string kernel, int argument, int slot) {
  return {nullptr, std::move(kernel), argument, slot};
}

// How Cache::adopt() takes a graph. Afterwards the key is like one that the cache has captured. Its first run makes its
// executable (kRestored, or kSwitched if a sibling has one), which is shared, evicted and restored as usual. But the
// key has no `fn`, so there are some differences:
//   - The graph is kept until the key is erased, and does not count for Options::max_templates.
//   - If a run cannot have an executable, a captured key would call `fn` directly. An adopted key makes an executable
//     for this one launch, and reports the same EagerReason. If even that fails, the run fails and has enqueued
//     nothing.
//   - It cannot run inside a capture by other code: add the graph there as a child node. If it runs inside another
//     run's `fn`, that outer run becomes a direct one.
//   - Verify mode does not check it.
struct Adoption {
  // What the graph needs to live: memory that its nodes use, a pool, the object that made it. Null if it needs nothing.
  //
  // The cache keeps it until the key is erased and no work of the device is in flight. erase(), clear() and the
  // destructor wait for that. If a run of the key is under way when the key is erased, the owner is released later: the
  // next erase(), clear(), or run that is not a hit waits before its own work, and releases it. No lock of the cache is
  // held meanwhile, so the owner's destructor may call the cache.
  std::shared_ptr<void> owner = nullptr;
  // False: the cache makes a clone, and the graph stays with the caller. After adopt() has returned, the caller or
  // `owner` may use or destroy it at any time. During adopt() no other thread may use it.
  //
  // True: the graph belongs to the cache once adopt() has returned ok. This is for graphs that CUDA cannot clone:
  // graphs with conditional nodes, and graphs with nodes that allocate. If the graph allocates memory that it does not
  // free, the program must free it before the next run of the key.
  bool take_graph = false;
  // The arguments that are slots.
  std::vector<BoundArgument> bound = {};
};

namespace detail {
inline absl::Status no_adopted_graph() {
  return absl::NotFoundError("no graph was adopted for this key with values of these types: call Cache::adopt first");
}
// Stands for an adopted graph in the place of `fn`. It is called only if there is no such graph.
struct AdoptedFn {
  template <class... Slots>
  absl::Status operator()(Recorder&, const Slots&...) const {
    return no_adopted_graph();
  }
};
// The place of adopted graphs with values of these kinds, in every module and by every compiler.
template <class... Ts>
constexpr std::uint64_t adopted_place() {
  std::uint64_t hash = 0xcbf29ce484222325;
  ((hash = (hash ^ (sizeof(Ts) << 3 | std::uint64_t{std::is_pointer_v<Ts>} << 2 |
                    std::uint64_t{std::is_floating_point_v<Ts>} << 1 | std::uint64_t{std::is_integral_v<Ts>})) *
           0x100000001b3),
   ...);
  return hash;
}
// Where a value is among the values of a run.
struct ValuePlace {
  std::size_t offset;
  std::size_t size;
};
}  // namespace detail

// Stands in the place of `fn` in Cache::run(), warm() and prepare(), for the graph that was adopted for the key.
inline constexpr detail::AdoptedFn adopted{};

}  // namespace graphcache
