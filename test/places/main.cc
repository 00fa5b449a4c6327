// places PLUGIN1 PLUGIN2: runs the work of plug-ins that store 1 and 2, by types of the same names, in one cache.
// Prints what is wrong.
#include <cuda_runtime_api.h>
#include <device_launch_parameters.h>
#include <dlfcn.h>
#include <graphcache/graphcache.h>
#include <graphcache/hostrt.h>

#include <cstdio>

#include "plugin.h"

namespace {

int faults = 0;
int* place = nullptr;

void store(int* to, int value) { *to = value; }

void expect(bool is_right, const char* what, int way = 0) {
  if (is_right) return;
  std::printf("wrong: %s, way %d\n", what, way);
  ++faults;
}

int stored() {
  int value = 0;
  cudaDeviceSynchronize();
  cudaMemcpy(&value, place, sizeof value, cudaMemcpyDeviceToHost);
  cudaMemset(place, 0, sizeof value);
  cudaDeviceSynchronize();
  return value;
}

struct Plugin {
  explicit Plugin(const char* path) : library(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (library != nullptr) run = reinterpret_cast<Run>(dlsym(library, "run"));
    if (run == nullptr) std::printf("%s\n", dlerror());
    expect(run != nullptr, path);
  }
  template <class F>
  F* find(const char* name) const {
    return reinterpret_cast<F*>(dlsym(library, name));
  }
  void* library;
  Run run = nullptr;
};

// Both plug-ins are loaded at the same time.
void side_by_side(const char* const* paths) {
  graphcache::Cache cache;
  const Plugin one(paths[0]), two(paths[1]);
  if (faults != 0) return;
  for (int round = 0; round < 3; ++round) {
    for (int way = 0; way < kWays; ++way) {
      expect(one.run(cache, way) && stored() == 1, "side by side, the first", way);
      expect(two.run(cache, way) && stored() == 2, "side by side, the second", way);
    }
  }
  expect(cache.stats().captures == 2 * kWays, "each place is captured once");
  const auto shared = one.find<bool(graphcache::Cache&)>("shared");
  for (int round = 0; round < 2; ++round) {
    expect(shared(cache) && stored() == 77, "an inline function, in a plug-in");
    expect(run_shared(cache, 77).ok() && stored() == 77, "an inline function, in the program");
  }
  dlclose(one.library);
  dlclose(two.library);
}

// One is unloaded before the other is loaded, perhaps at the same address.
void one_after_the_other(const char* const* paths) {
  graphcache::Cache cache;
  for (int i = 0; i < 4; ++i) {
    const Plugin plugin(paths[i % 2]);
    if (plugin.run == nullptr) return;
    expect(plugin.find<bool(int*)>("run_own_kernel")(place) && stored() == 1 + i % 2, "a kernel of the plug-in");
    for (int way = 0; way < kWays; ++way) {
      if (way == 5 || way == 9) continue;  // A function pointer is its address alone.
      for (int round = 0; round < 2; ++round) {
        expect(plugin.run(cache, way) && stored() == 1 + i % 2, "one after the other", way);
      }
    }
    dlclose(plugin.library);
  }
}

// A plug-in's graph and the program's, for one key: neither runs the other's.
void own_graphs(const char* path) {
  const Plugin plugin(path);
  if (plugin.run == nullptr) return;
  graphcache::Cache cache;
  const auto run = [&] {
    return cache.run(graphcache::key("graph"),
                     [] { return graphcache::Graph{.graph = store_graph(5), .give_away = true}; });
  };
  for (int round = 0; round < 3; ++round) {
    expect(plugin.run(cache, 7) && stored() == 1, "the graph of a plug-in");
    expect(run().ok() && stored() == 5, "the graph of the program");
  }
  expect(cache.entries().size() == 2 && cache.stats().captures == 2, "each has an entry");
  expect(cache.erase(graphcache::key("graph")) && cache.entries().empty(), "a key is erased at all places");
  dlclose(plugin.library);
}

}  // namespace

GRAPHCACHE_HOST_KERNEL(store)

void launch_store(cudaStream_t stream, int value) {
  void* arguments[] = {&place, &value};
  cudaLaunchKernel(reinterpret_cast<const void*>(&store), 1, 1, arguments, 0, stream);
}

cudaGraph_t store_graph(int value) {
  void* arguments[] = {&place, &value};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(&store);
  params.gridDim = params.blockDim = dim3(1);
  params.kernelParams = arguments;
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t node = nullptr;
  cudaGraphCreate(&graph, 0);
  cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params);
  return graph;
}

int main(int count, char** arguments) {
  if (count != 3) return 2;
  cudaMalloc(reinterpret_cast<void**>(&place), sizeof *place);
  one_after_the_other(arguments + 1);
  side_by_side(arguments + 1);
  own_graphs(arguments[1]);
  return faults == 0 ? 0 : 1;
}
