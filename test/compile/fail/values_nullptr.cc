// expect: graphcache: argument 1 of values.* must be a floating-point number or a pointer to an object
#include <graphcache/graphcache.h>

#ifdef FIXED
auto changing() { return graphcache::values(static_cast<const float*>(nullptr)); }
#else
auto changing() { return graphcache::values(nullptr); }
#endif
