// Headers that most of the library includes. Precompiled with -Db_pch=true.
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "run/run.h"
