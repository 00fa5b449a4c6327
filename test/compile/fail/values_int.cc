// expect: graphcache: argument 2 of values.* must be a floating-point number or a pointer to an object.*make it a slot
#include <graphcache/graphcache.h>

auto changing(float rate, int count) {
#ifdef FIXED
  static_cast<void>(count);
  return graphcache::values(rate);
#else
  return graphcache::values(rate, count);
#endif
}
