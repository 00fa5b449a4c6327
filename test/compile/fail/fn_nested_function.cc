// expect: graphcache: objects of fn's type may call different functions
#include <graphcache/graphcache.h>

#include <functional>
#include <string>

struct Work {
  std::string name;
#ifndef FIXED
  std::function<void(cudaStream_t)> enqueue;
#else
  void enqueue(cudaStream_t stream) const;
#endif
};

struct Layer {
  const float* weights;
  Work work;
  void operator()(cudaStream_t stream) const { work.enqueue(stream); }
};

void run(graphcache::Cache& cache, cudaStream_t stream, const Layer& layer) {
  static_cast<void>(cache.run(graphcache::key("layer"), stream, layer));
}
