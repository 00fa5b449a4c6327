// expect: then a stream if there is one, then params\(\) or values\(\) if there are any, then fn
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream);

void warm(graphcache::Cache& cache, cudaStream_t stream) {
#ifdef FIXED
  static_cast<void>(cache.warm(graphcache::key("step"), stream, enqueue));
#else
  static_cast<void>(cache.warm(graphcache::key("step"), stream));
#endif
}
