// What the program and its plug-ins share.
#pragma once

#include <graphcache/graphcache.h>

void launch_store(cudaStream_t stream, int value);  // Of the program: stores the value where the program reads it.
cudaGraph_t store_graph(int value);                 // Of the program: a graph that does that.

// The same code in every module, which therefore may have a place in each.
inline absl::StatusOr<graphcache::Outcome> run_shared(graphcache::Cache& cache, int value) {
  return cache.run(graphcache::key("shared", value), [value](cudaStream_t stream) { launch_store(stream, value); });
}

// The functions of a plug-in, by the number of a way to run.
using Run = bool (*)(graphcache::Cache& cache, int way);
inline constexpr int kWays = 10;
