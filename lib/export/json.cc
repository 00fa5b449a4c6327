#include "graphcache_export/json.h"
