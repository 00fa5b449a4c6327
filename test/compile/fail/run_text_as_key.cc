// expect: graphcache: the arguments are a graphcache::Key, such as graphcache::key
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream);

void run(graphcache::Cache& cache, cudaStream_t stream) {
  const auto fn = [](cudaStream_t on) { enqueue(on); };
#ifdef FIXED
  static_cast<void>(cache.run(graphcache::key("step"), stream, fn));
#else
  static_cast<void>(cache.run("step", stream, fn));
#endif
}
