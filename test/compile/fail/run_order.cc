// expect: then a stream if there is one, then params\(\) or values\(\) if there are any, then fn
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
