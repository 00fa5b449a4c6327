// graphcache: an in-process cache of CUDA graphs, keyed by launch configuration. This header includes the whole library
// except graphcache/body.h (conditional nodes), graphcache/format.h (needs fmt) and graphcache/hostrt.h (the CUDA
// runtime on the CPU, for tests).
#pragma once

#if __cplusplus < 201703L
#error "graphcache needs C++17 or later: compile with -std=c++17"
#endif

#include "graphcache/advice.h"         // IWYU pragma: export
#include "graphcache/buckets.h"        // IWYU pragma: export
#include "graphcache/cache.h"          // IWYU pragma: export
#include "graphcache/capture_gate.h"   // IWYU pragma: export
#include "graphcache/explain.h"        // IWYU pragma: export
#include "graphcache/history.h"        // IWYU pragma: export
#include "graphcache/key.h"            // IWYU pragma: export
#include "graphcache/launch_config.h"  // IWYU pragma: export
#include "graphcache/listener.h"       // IWYU pragma: export
#include "graphcache/manifest.h"       // IWYU pragma: export
#include "graphcache/observe.h"        // IWYU pragma: export
#include "graphcache/options.h"        // IWYU pragma: export
#include "graphcache/params.h"         // IWYU pragma: export
#include "graphcache/recorder.h"       // IWYU pragma: export
#include "graphcache/stats.h"          // IWYU pragma: export
#include "graphcache/status.h"         // IWYU pragma: export
#include "graphcache/values.h"         // IWYU pragma: export
#include "graphcache/version.h"        // IWYU pragma: export
