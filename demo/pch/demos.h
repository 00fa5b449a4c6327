// Headers that most demos include. Precompiled with -Db_pch=true.
#include <absl/flags/flag.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_format.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
