// Launches of kernels.

#ifndef GRAPHCACHE_LIB_HOSTRT_LAUNCH_H_
#define GRAPHCACHE_LIB_HOSTRT_LAUNCH_H_

#include "state.h"

namespace graphcache::hostrt {

struct LaunchRequest {
  const void* function;
  dim3 grid;
  dim3 block;
  void** arguments;
  void** extra;  // the arguments as one buffer
  std::size_t shared_bytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

cudaError_t launch(const Call& call, const LaunchRequest& request);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_LAUNCH_H_
