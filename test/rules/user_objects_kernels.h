// The kernel of user_objects_test.cc. kernels.h explains how host code sees kernels.
#pragma once

#include "../kernels.h"

namespace graphcache::test {

GRAPHCACHE_TEST_KERNEL void put_late(int* out, int value);  // *out = value, after some milliseconds

}  // namespace graphcache::test
