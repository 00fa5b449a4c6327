// expect: graphcache: argument 2 of values.* must be a floating-point number or a pointer to an object
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

#ifdef FIXED
auto changing(float* data) { return graphcache::values(data, 1.5f); }
#else
auto changing(float* data) { return graphcache::values(data, scale); }
#endif
