// What update_answers_test.cc launches; see kernels.h for how host code sees kernels.
#pragma once

#include "kernels.h"

namespace graphcache::test {

// How the kernel that wrote it was launched.
struct LaunchReport {
  int kernel, grid, block, shared_bytes, cluster, cooperative;
};

GRAPHCACHE_TEST_KERNEL void report_launch(LaunchReport* report);
GRAPHCACHE_TEST_KERNEL void report_launch_otherwise(LaunchReport* report);  // kernel = 2, and nothing else

}  // namespace graphcache::test
