// expect: graphcache: fn takes a value as an integer, an enumerator or a bool
#include <graphcache/graphcache.h>

auto run(graphcache::Cache& cache, float rate) {
#ifdef FIXED
  return cache.run(graphcache::key("k"), graphcache::values(rate), [](cudaStream_t, float) {});
#else
  return cache.run(graphcache::key("k"), graphcache::values(rate), [](cudaStream_t, int) {});
#endif
}
