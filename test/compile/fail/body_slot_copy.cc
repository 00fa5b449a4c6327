// expect: graphcache: a slot cannot be used inside a conditional body
#include <graphcache/graphcache.h>

void enqueue(graphcache::Recorder& rec, graphcache::Slot<float*> to, const unsigned* condition, float* data) {
#ifdef FIXED
  rec.memcpy(to, data, 4);
  rec.switch_node(condition, 2, [&](graphcache::Body& body, unsigned) { body.memset(data, 0, 4); });
#else
  rec.switch_node(condition, 2, [&](graphcache::Body& body, unsigned) { body.memcpy(to, data, 4); });
#endif
}
