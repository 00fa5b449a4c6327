#include "graphcache_export/trace.h"
