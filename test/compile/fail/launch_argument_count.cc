// expect: graphcache: launch.* needs exactly one argument for each parameter
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, float* data) {
#ifdef FIXED
  rec.launch(scale, {dim3(1), dim3(32)}, data, 32, 2.0f);
#else
  rec.launch(scale, {dim3(1), dim3(32)}, data, 32);
#endif
}
