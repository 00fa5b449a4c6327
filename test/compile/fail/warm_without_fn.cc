// expect: graphcache: the arguments are a graphcache::Key, such as graphcache::key
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream);

void warm(graphcache::Cache& cache, cudaStream_t stream) {
#ifdef FIXED
  static_cast<void>(cache.warm(graphcache::key("step"), stream, enqueue));
#else
  static_cast<void>(cache.warm(graphcache::key("step"), stream));
#endif
}
