// The kernel of green_contexts_test.cc. kernels.h explains how host code sees kernels.
#pragma once

#include "../kernels.h"

namespace graphcache::test {

// Block i stores its multiprocessor's number in to[i], and adds `value` to *sum. It spins, so that the blocks use all
// multiprocessors that they may use.
GRAPHCACHE_TEST_KERNEL void where(unsigned* to, int* sum, int value);

}  // namespace graphcache::test
