// expect: graphcache: a slot cannot be used inside a conditional body
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, graphcache::Slot<float> factor, const unsigned* condition, float* data) {
#ifdef FIXED
  rec.launch(scale, {dim3(1), dim3(32)}, data, 32, factor);
  if_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale, {dim3(1), dim3(32)}, data, 32, 2.0f); });
#else
  if_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale, {dim3(1), dim3(32)}, data, 32, factor); });
#endif
}
