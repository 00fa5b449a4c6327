// expect: graphcache: with params, fn must take a graphcache::Recorder& and one graphcache::Slot<T> for each
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void run(graphcache::Cache& cache, cudaStream_t stream, float* data, float factor) {
#ifdef FIXED
  using Factor = graphcache::Slot<float>;
#else
  using Factor = float;
#endif
  static_cast<void>(cache.run(graphcache::key("scale"), stream, graphcache::params(factor),
                              [&](graphcache::Recorder& rec, Factor slot) {
                                rec.launch(scale, {1, 32}, data, 32, slot);
                              }));
}
