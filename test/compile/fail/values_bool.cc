// expect: graphcache: argument 1 of values.* must be a floating-point number or a pointer to an object
#include <graphcache/graphcache.h>

#ifdef FIXED
using Value = double;
#else
using Value = bool;
#endif

auto changing(Value value) { return graphcache::values(value); }
