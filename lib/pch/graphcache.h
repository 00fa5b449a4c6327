// What most of the library includes, precompiled where Meson is told -Db_pch=true.
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "run/impl.h"
