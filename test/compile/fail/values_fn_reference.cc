// expect: graphcache: fn must take a cudaStream_t or a graphcache::Recorder&, and then the values
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream, float factor);

void run(graphcache::Cache& cache, cudaStream_t stream, float factor) {
#ifdef FIXED
  using Factor = const float&;
#else
  using Factor = float&;
#endif
  static_cast<void>(cache.run(graphcache::key("scale"), stream, graphcache::values(factor),
                              [](cudaStream_t on, Factor by) { enqueue(on, by); }));
}
