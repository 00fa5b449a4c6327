// The kernels of the suites update_answers*_test.cc. kernels.h explains how host code sees kernels.
#pragma once

#include "../kernels.h"

namespace graphcache::test {

// How the kernel that wrote this was launched.
struct LaunchReport {
  int kernel, grid, block, shared_bytes, cluster, cooperative, value;
};

// The maximum size of arguments that fits with the others on every device (4 KiB).
struct Large {
  int numbers[1000];
};

GRAPHCACHE_TEST_KERNEL void report_launch(LaunchReport* report, int value);            // kernel = 1
GRAPHCACHE_TEST_KERNEL void report_launch_otherwise(LaunchReport* report, int value);  // kernel = 2
// Of all blocks; writes nothing else.
GRAPHCACHE_TEST_KERNEL void report_largest_cluster(LaunchReport* report, int value);

// Other layouts of arguments. These report only kernel and value; each comment says what.
GRAPHCACHE_TEST_KERNEL void report_narrow(LaunchReport* report);  // 3, -3
GRAPHCACHE_TEST_KERNEL void report_wide(char letter, LaunchReport* report, double real, Mixed mixed,
                                        int value);                           // 4, the sum of all numbers
GRAPHCACHE_TEST_KERNEL void report_large(Large large, LaunchReport* report);  // 5, the sum of all numbers

// p[i] = one of -2..2, by `seed`. Products of such matrices are exact in any order of summation, even in TF32.
GRAPHCACHE_TEST_KERNEL void fill_matrix(float* p, int n, int seed);  // in update_cublas_kernels.cu

}  // namespace graphcache::test
