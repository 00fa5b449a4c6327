// expect: graphcache: argument 1 of launch.* does not convert
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, graphcache::Slot<float*> data, graphcache::Slot<const float*> constant) {
#ifdef FIXED
  static_cast<void>(constant);
  rec.launch(scale, {dim3(1), dim3(32)}, data, 32, 2.0f);
#else
  static_cast<void>(data);
  rec.launch(scale, {dim3(1), dim3(32)}, constant, 32, 2.0f);
#endif
}
