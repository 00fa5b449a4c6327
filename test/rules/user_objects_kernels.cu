// The kernel of user_objects_test.cc. For GPUs only.
#include <cuda_runtime.h>

#include "user_objects_kernels.h"

namespace graphcache::test {

__global__ void put_late(int* out, int value) {
  const long long begin = clock64();
  while (clock64() - begin < 20'000'000) {
  }
  *out = value;
}

}  // namespace graphcache::test
