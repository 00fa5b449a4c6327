// Launch attributes of kernel nodes.

#ifndef GRAPHCACHE_LIB_HOSTRT_ATTRIBUTES_H_
#define GRAPHCACHE_LIB_HOSTRT_ATTRIBUTES_H_

#include "objects.h"

namespace graphcache::hostrt {

inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;

// Clamps the priority to the device's range; a priority out of range is not an error.
int clamp_priority(int priority);

bool has_attribute(const KernelParams& params, cudaLaunchAttributeID id);

// Returns cudaErrorNotSupported for attributes that hostrt does not implement, cudaErrorInvalidValue for unknown ones.
cudaError_t set_attribute(KernelParams& params, cudaLaunchAttributeID id, const cudaLaunchAttributeValue& value);

// Returns zeros for an attribute that was never set.
cudaError_t get_attribute(const KernelParams& params, cudaLaunchAttributeID id, cudaLaunchAttributeValue* value);

// Once set, this cannot be unset; "neither the graph nor its instantiated version can be passed to
// cudaGraphExecUpdate".
bool is_device_updatable(const KernelParams& params);

// Returns {1, 1, 1} for a kernel without clusters.
dim3 cluster_size(const KernelParams& params);

void set_priority(KernelParams& params, int priority);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_ATTRIBUTES_H_
