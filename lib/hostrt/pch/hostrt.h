// Headers that most of hostrt includes. Precompiled with -Db_pch=true.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "state.h"
