// Launch attributes of kernel nodes.

#ifndef GRAPHCACHE_LIB_HOSTRT_ATTRIBUTES_H_
#define GRAPHCACHE_LIB_HOSTRT_ATTRIBUTES_H_

#include "objects.h"

namespace graphcache::hostrt {

inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;

// Priorities out of range are not an error: the nearest one is taken.
int clamp_priority(int priority);

bool has_attribute(const KernelParams& params, cudaLaunchAttributeID id);

// Attributes that hostrt cannot honour give cudaErrorNotSupported, unknown ones cudaErrorInvalidValue.
cudaError_t set_attribute(KernelParams& params, cudaLaunchAttributeID id, const cudaLaunchAttributeValue& value);

// Zeros for an attribute that was never set.
cudaError_t get_attribute(const KernelParams& params, cudaLaunchAttributeID id, cudaLaunchAttributeValue* value);

// Set for good once it is set; "neither the graph nor its instantiated version can be passed to cudaGraphExecUpdate".
bool is_device_updatable(const KernelParams& params);

// {1, 1, 1} without clusters.
dim3 cluster_size(const KernelParams& params);

void set_priority(KernelParams& params, int priority);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_ATTRIBUTES_H_
