// expect: graphcache: .*floating-point.*slot.*quant
#include <graphcache/key.h>

#ifdef FIXED
graphcache::Key key = graphcache::key("scale", 3);
#else
graphcache::Key key = graphcache::key("scale", 1.5);
#endif
