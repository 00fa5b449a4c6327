// expect: graphcache: a slot cannot be used inside a conditional body
#include <graphcache/graphcache.h>

void enqueue(graphcache::Recorder& rec, graphcache::Slot<const unsigned*> condition, const unsigned* inner) {
#ifdef FIXED
  rec.if_node(condition, [&](graphcache::Body& body) { body.if_node(inner, [](graphcache::Body&) {}); });
#else
  static_cast<void>(inner);
  rec.if_node(condition, [&](graphcache::Body& body) { body.if_node(condition, [](graphcache::Body&) {}); });
#endif
}
