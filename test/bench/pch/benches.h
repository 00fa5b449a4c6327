// Headers that most benchmarks on a GPU include. Precompiled with -Db_pch=true.
#include <absl/status/statusor.h>
#include <absl/strings/str_format.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
