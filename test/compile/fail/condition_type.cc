// expect: graphcache: the condition of a node is a pointer to an unsigned number
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

void enqueue(graphcache::Recorder& rec, const unsigned* condition, const float* wrong) {
  static_cast<void>(condition);
  static_cast<void>(wrong);
#ifdef FIXED
  if_node(rec, condition, [](graphcache::Body&) {});
#else
  if_node(rec, wrong, [](graphcache::Body&) {});
#endif
}
