// expect: graphcache: the arguments are a graphcache::Key, such as graphcache::key
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream, float* data);

void run(graphcache::Cache& cache, cudaStream_t stream, float* data) {
  const auto fn = [](cudaStream_t on, float* to) { enqueue(on, to); };
#ifdef FIXED
  static_cast<void>(cache.run(graphcache::key("step"), stream, graphcache::values(data), fn));
#else
  static_cast<void>(cache.run(graphcache::key("step"), graphcache::values(data), stream, fn));
#endif
}
