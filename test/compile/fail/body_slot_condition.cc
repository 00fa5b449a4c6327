// expect: graphcache: a slot cannot be used inside a conditional body
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

void enqueue(graphcache::Recorder& rec, graphcache::Slot<const unsigned*> condition, const unsigned* inner) {
#ifdef FIXED
  if_node(rec, condition, [&](graphcache::Body& body) { if_node(body, inner, [](graphcache::Body&) {}); });
#else
  static_cast<void>(inner);
  if_node(rec, condition, [&](graphcache::Body& body) { if_node(body, condition, [](graphcache::Body&) {}); });
#endif
}
