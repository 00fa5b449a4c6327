// expect: (cannot convert|no viable conversion|no matching function)
#include <graphcache/params.h>

void scale(float factor);

// What <<<>>> would do with a slot: bake its value of today into the graph.
void enqueue(graphcache::Slot<float> slot, float value) {
#ifdef FIXED
  static_cast<void>(slot);
  scale(value);
#else
  static_cast<void>(value);
  scale(slot);
#endif
}
