// expect: graphcache: fn must take a cudaStream_t or a graphcache::Recorder&, and then the values
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream, float* data, float factor);

void prepare(graphcache::Cache& cache, cudaStream_t stream, float* data, float factor) {
#ifdef FIXED
  static_cast<void>(cache.warm(graphcache::key("scale"), stream, graphcache::values(data, factor), enqueue));
#else
  static_cast<void>(cache.warm(graphcache::key("scale"), stream, graphcache::values(factor), enqueue));
#endif
}
