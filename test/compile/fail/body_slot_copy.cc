// expect: graphcache: a slot cannot be used inside a conditional body
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

void enqueue(graphcache::Recorder& rec, graphcache::Slot<float*> to, const unsigned* condition, float* data) {
#ifdef FIXED
  rec.memcpy(to, data, 4);
  switch_node(rec, condition, 2, [&](graphcache::Body& body, unsigned) { body.memset(data, 0, 4); });
#else
  switch_node(rec, condition, 2, [&](graphcache::Body& body, unsigned) { body.memcpy(to, data, 4); });
#endif
}
