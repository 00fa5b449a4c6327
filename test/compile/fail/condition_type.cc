// expect: graphcache: the condition of a node is a pointer to an unsigned number
#include <graphcache/graphcache.h>

void enqueue(graphcache::Recorder& rec, const unsigned* condition, const float* wrong) {
  static_cast<void>(condition);
  static_cast<void>(wrong);
#ifdef FIXED
  rec.if_node(condition, [](graphcache::Body&) {});
#else
  rec.if_node(wrong, [](graphcache::Body&) {});
#endif
}
