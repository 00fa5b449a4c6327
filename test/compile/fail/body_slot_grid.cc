// expect: graphcache: a slot cannot be used inside a conditional body
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, graphcache::Slot<unsigned> grid, const unsigned* condition, float* data) {
#ifdef FIXED
  rec.launch(scale, {grid, 32}, data, 32, 2.0f);
  while_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale, {1, 32}, data, 32, 2.0f); });
#else
  while_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale, {grid, 32}, data, 32, 2.0f); });
#endif
}
