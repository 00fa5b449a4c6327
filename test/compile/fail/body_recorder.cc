// expect: graphcache: a body takes a graphcache::Body& and returns nothing
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, const unsigned* condition, float* data) {
#ifdef FIXED
  while_node(rec, condition, [&](graphcache::Body& in) { in.launch(scale, {dim3(1), dim3(32)}, data, 32, 2.0f); });
#else
  while_node(rec, condition, [&](graphcache::Recorder& in) { in.launch(scale, {dim3(1), dim3(32)}, data, 32, 2.0f); });
#endif
}
