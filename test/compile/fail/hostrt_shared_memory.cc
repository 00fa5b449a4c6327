// expect: hostrt has no memory that the threads of a block share
#include <graphcache/hostrt.h>

void sum(float* out) {
#ifdef FIXED
  float of_block[32] = {};
#else
  __shared__ float of_block[32];
#endif
  *out = of_block[0];
}
