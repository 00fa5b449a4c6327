// The C++ ways of workload.h: many_keys WAY.
//
//   direct     every kernel launched
//   by_hand    an executable for each key, in a map; what any way with an executable for each key comes to
//   cache      cache.run, default options
//   cache_own  cache.run, Options::share = false
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <unordered_map>

#include "../kernels.h"
#include "../launch.h"
#include "graphcache/graphcache.h"
#include "graphcache/version.h"
#include "workload.h"

namespace {

cudaError_t enqueue(const peers::Work& work, int key, cudaStream_t stream) {
  const int n = peers::elements(key);
  for (int i = 0; i < peers::kKernels; ++i) {
    const cudaError_t error = graphcache::test::launch(graphcache::test::add, dim3(static_cast<unsigned>(key + 1)),
                                                       dim3(peers::kBlock), stream, work.data, n, 1.0f);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaGraphExec_t captured(const peers::Work& work, int key) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PEERS_CHECK(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
  PEERS_CHECK(enqueue(work, key, work.stream));
  PEERS_CHECK(cudaStreamEndCapture(work.stream, &graph));
  PEERS_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  PEERS_CHECK(cudaGraphDestroy(graph));
  return exec;
}

int measure_cache(const char* way, const peers::Work& work, graphcache::Share share) {
  graphcache::Options options;
  options.share = share;
  graphcache::Cache cache(options);
  return peers::measure(way, graphcache::kVersion, work, [&](int key) {
    const auto done = cache.run(graphcache::key("many_keys", key), work.stream,
                                [&](cudaStream_t stream) { return enqueue(work, key, stream); });
    if (done.ok()) return;
    std::fprintf(stderr, "%s\n", done.status().ToString().c_str());
    std::exit(1);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view way = argc == 2 ? argv[1] : "";
  const peers::Work work;
  PEERS_CHECK(enqueue(work, 0, work.stream));  // loads the kernel
  work.clear();
  if (way == "direct") {
    return peers::measure("direct", "", work, [&](int key) { PEERS_CHECK(enqueue(work, key, work.stream)); });
  }
  if (way == "by_hand") {
    std::unordered_map<int, cudaGraphExec_t> execs;
    return peers::measure("by_hand", "", work, [&](int key) {
      const auto [found, is_new] = execs.try_emplace(key);
      if (is_new) found->second = captured(work, key);
      PEERS_CHECK(cudaGraphLaunch(found->second, work.stream));
    });
  }
  if (way == "cache" || way == "cache_own")
    return measure_cache(argv[1], work, way == "cache" ? graphcache::Share::kAlways : graphcache::Share::kNever);
  std::fprintf(stderr, "usage: many_keys direct|by_hand|cache|cache_own\n");
  return 2;
}
