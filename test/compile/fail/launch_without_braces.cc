// expect: graphcache: launch.* takes grid and block in braces: rec.launch\(kernel, \{grid, block\}, args...\)
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, graphcache::Slot<float> factor, float* data) {
#ifdef FIXED
  rec.launch(scale, {1, 32}, data, 32, factor);
#else
  rec.launch(scale, 1, 32, data, 32, factor);
#endif
}
