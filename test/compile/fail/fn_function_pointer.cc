// expect: graphcache: objects of fn's type may call different functions
#include <graphcache/graphcache.h>

struct Layer {
  int count;
#ifndef FIXED
  void (*enqueue)(int count, cudaStream_t stream) noexcept;
#else
  static void enqueue(int count, cudaStream_t stream) noexcept;
#endif
  void operator()(cudaStream_t stream) const { enqueue(count, stream); }
};

void run(graphcache::Cache& cache, cudaStream_t stream, Layer layer) {
  static_cast<void>(cache.run(graphcache::key("layer"), stream, layer));
}
