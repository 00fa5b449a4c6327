// expect: graphcache: argument 1 of launch.* does not convert
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, float* data, const char* text) {
#ifdef FIXED
  static_cast<void>(text);
  rec.launch(scale, {dim3(1), dim3(32)}, data, 32, 2.0f);
#else
  rec.launch(scale, {dim3(1), dim3(32)}, text, 32, 2.0f);
#endif
}
