// A plug-in whose types have the names of another one's, and do other work: they store VALUE.
#include "plugin.h"

#include <graphcache/hostrt.h>

#include <functional>
#include <memory>
#include <type_traits>

struct Model {
  bool by_lambda(graphcache::Cache& cache) {
    return cache.run(graphcache::key("lambda"), [](cudaStream_t stream) { launch_store(stream, VALUE); }).ok();
  }
  bool by_function(graphcache::Cache& cache) {
    const std::function<void(cudaStream_t)> fn = [](cudaStream_t stream) { launch_store(stream, VALUE); };
    return cache.run(graphcache::key("function"), fn).ok();
  }
  bool by_slot(graphcache::Cache& cache) {
    return cache
        .run(graphcache::key("slot"), graphcache::params(VALUE),
             [](graphcache::Recorder& rec, graphcache::Slot<int>) { launch_store(rec.stream(), VALUE); })
        .ok();
  }
};

struct Functor {
  void operator()(cudaStream_t stream) const { launch_store(stream, VALUE); }
};

template <class T>
bool by_template(graphcache::Cache& cache) {
  return cache.run(graphcache::key("template"), [](cudaStream_t stream) { launch_store(stream, T{VALUE}); }).ok();
}

inline void work(cudaStream_t stream) { launch_store(stream, VALUE); }

inline bool by_step(graphcache::Cache& cache) {
  auto step = cache.prepare(graphcache::key("step"), Functor());
  return step.run().ok() && step.run().ok();
}

inline graphcache::Graph graph() { return {.graph = store_graph(VALUE), .give_away = true}; }

inline bool by_graph(graphcache::Cache& cache) {
  return cache.run(graphcache::key("graph"), [] { return graph(); }).ok();
}

inline bool by_function_of_graph(graphcache::Cache& cache) {
  const std::function<graphcache::Graph()> fn = [] { return graph(); };
  return cache.run(graphcache::key("function of graph"), fn).ok();
}

extern "C" [[gnu::visibility("default")]] bool run(graphcache::Cache& cache, int way) {
  switch (way) {
    case 0:
      return Model().by_lambda(cache);
    case 1:
      return Model().by_function(cache);
    case 2:
      return Model().by_slot(cache);
    case 3:
      return cache.run(graphcache::key("functor"), Functor()).ok();
    case 4:
      return by_template<int>(cache);
    case 5:
      return cache.run(graphcache::key("pointer"), &work).ok();
    case 6:
      return by_step(cache);
    case 7:
      return by_graph(cache);
    case 8:
      return by_function_of_graph(cache);
    default:
      return cache.run(graphcache::key("pointer to graph"), &graph).ok();
  }
}

extern "C" [[gnu::visibility("default")]] bool shared(graphcache::Cache& cache) { return run_shared(cache, 77).ok(); }

// Perhaps where the other plug-in's was, whose parameter has another type.
using Stored = std::conditional_t<VALUE == 1, int, double>;
static void store_as(int* to, Stored value) { *to = static_cast<int>(value); }
GRAPHCACHE_HOST_KERNEL(store_as)

extern "C" [[gnu::visibility("default")]] bool run_own_kernel(int* to) {
  Stored value = VALUE;
  void* arguments[] = {&to, &value};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&store_as), 1, 1, arguments, 0, nullptr) == cudaSuccess;
}
