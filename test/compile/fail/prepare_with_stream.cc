// expect: Pass the stream to Step::run
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream);

void run(graphcache::Cache& cache, cudaStream_t stream) {
  const auto fn = [](cudaStream_t on) { enqueue(on); };
#ifdef FIXED
  auto step = cache.prepare(graphcache::key("step"), fn);
  static_cast<void>(step.run(stream));
#else
  cache.prepare(graphcache::key("step"), stream, fn);
#endif
}
