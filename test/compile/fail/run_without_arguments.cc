// expect: graphcache: the arguments are a graphcache::Key, such as graphcache::key
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream);

void run(graphcache::Cache& cache) {
#ifdef FIXED
  static_cast<void>(cache.run(graphcache::key("step"), [](cudaStream_t on) { enqueue(on); }));
#else
  static_cast<void>(cache.run());
#endif
}
