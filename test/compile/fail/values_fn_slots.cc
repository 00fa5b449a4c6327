// expect: graphcache: fn must take a cudaStream_t or a graphcache::Recorder&, and then the values
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void run(graphcache::Cache& cache, cudaStream_t stream, float* data, float factor) {
#ifdef FIXED
  using Factor = float;
#else
  using Factor = graphcache::Slot<float>;
#endif
  static_cast<void>(cache.run(graphcache::key("scale"), stream, graphcache::values(factor),
                              [&](graphcache::Recorder& rec, Factor by) {
                                rec.launch(scale, {1, 32}, data, 32, by);
                              }));
}
