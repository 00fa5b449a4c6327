// expect: graphcache: the arguments are a graphcache::Key, such as graphcache::key
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream);

void run(graphcache::Cache& cache, cudaStream_t stream) {
  const auto fn = [](cudaStream_t on) { enqueue(on); };
#ifdef FIXED
  auto step = cache.prepare(graphcache::key("step"), fn);
#else
  auto step = cache.prepare("step", fn);
#endif
  static_cast<void>(step.run(stream));
}
