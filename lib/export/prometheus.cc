#include "graphcache_export/prometheus.h"
