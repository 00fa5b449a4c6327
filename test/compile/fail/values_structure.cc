// expect: graphcache: argument 1 of values.* must be a floating-point number or a pointer to an object
#include <graphcache/graphcache.h>

struct Point {
  float x, y;
};

#ifdef FIXED
auto changing(const Point& point) { return graphcache::values(point.x, point.y); }
#else
auto changing(const Point& point) { return graphcache::values(point); }
#endif
