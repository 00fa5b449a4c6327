// Headers that most suites on hostrt include. Precompiled with -Db_pch=true.
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
