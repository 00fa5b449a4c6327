// Making and taking apart graphs, for capture and for the explicit calls. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_GRAPH_H_
#define GRAPHCACHE_LIB_HOSTRT_GRAPH_H_

#include <utility>
#include <vector>

#include "state.h"

namespace graphcache::hostrt {

Graph& create_graph(State& state);

// Ends the graph's handle and those of its nodes.
void destroy_graph(State& state, Graph& graph);

// The dependencies must be nodes of the same graph, each at most once.
Node& add_node(State& state, Graph& graph, NodeParams params, const std::vector<Edge>& dependencies);

// Checks handles of dependencies as the cudaGraphAdd... calls do. `data` may be null.
cudaError_t read_dependencies(const Call& call, const Graph& graph, const cudaGraphNode_t* nodes,
                              const cudaGraphEdgeData* data, std::size_t count, std::vector<Edge>* dependencies);

// Hands out an array in the manner of the query calls: without arrays, `*count` becomes the number of elements; with
// arrays, as many as fit are written, the rest is filled with nulls and `*count` becomes the number written.
// `write(i)` writes element i, `clear(i)` fills place i.
template <typename Write, typename Clear>
void hand_out(bool has_arrays, std::size_t available, std::size_t* count, Write&& write, Clear&& clear) {
  if (has_arrays) {
    const std::size_t places = *count;
    for (std::size_t i = 0; i < places && i < available; ++i) write(i);
    for (std::size_t i = available; i < places; ++i) clear(i);
    *count = available < places ? available : places;
  } else {
    *count = available;
  }
}

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_GRAPH_H_
