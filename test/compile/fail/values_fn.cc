// expect: graphcache: fn must take a cudaStream_t or a graphcache::Recorder&, and then the values
#include <graphcache/graphcache.h>

void enqueue(cudaStream_t stream, float* data, float factor);

void run(graphcache::Cache& cache, cudaStream_t stream, float* data, float factor) {
  static_cast<void>(cache.run(graphcache::key("scale"), stream, graphcache::values(data, factor),
#ifdef FIXED
                              [](cudaStream_t on, float* to, float by) { enqueue(on, to, by); }));
#else
                              [](cudaStream_t on, float by, float* to) { enqueue(on, to, by); }));
#endif
}
