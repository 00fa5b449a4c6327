// What most of hostrt includes, precompiled where Meson is told -Db_pch=true.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "state.h"
