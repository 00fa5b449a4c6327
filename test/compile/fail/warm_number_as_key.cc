// expect: graphcache: the arguments are a graphcache::Key, such as graphcache::key
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream);

void warm(graphcache::Cache& cache, int size) {
  const auto fn = [](cudaStream_t on) { enqueue(on); };
#ifdef FIXED
  static_cast<void>(cache.warm(graphcache::key(size), fn));
#else
  static_cast<void>(cache.warm(size, fn));
#endif
}
