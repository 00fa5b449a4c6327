// expect: graphcache: with params, fn must take a graphcache::Recorder& and one graphcache::Slot<T> for each
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void run(graphcache::Cache& cache, cudaStream_t stream, float* data, float factor) {
#ifdef FIXED
  using FactorSlot = graphcache::Slot<float>;
#else
  using FactorSlot = graphcache::Slot<double>;
#endif
  static_cast<void>(cache.run(graphcache::key("scale"), stream, graphcache::params(factor),
                              [&](graphcache::Recorder& rec, FactorSlot slot) {
                                static_cast<void>(slot);
                                rec.launch(scale, {dim3(1), dim3(32)}, data, 32, factor);
                              }));
}
