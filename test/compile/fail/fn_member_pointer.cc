// expect: graphcache: objects of fn's type may call different functions
#include <graphcache/graphcache.h>

struct Model {
  void enqueue(int count, cudaStream_t stream);
};

struct Layer {
  Model& model;
  int counts[12];
#ifndef FIXED
  void (Model::*enqueue)(int count, cudaStream_t stream);
  void operator()(cudaStream_t stream) const { (model.*enqueue)(counts[0], stream); }
#else
  void operator()(cudaStream_t stream) const { model.enqueue(counts[0], stream); }
#endif
};

void run(graphcache::Cache& cache, cudaStream_t stream, Layer layer) {
  static_cast<void>(cache.run(graphcache::key("layer"), stream, layer));
}
