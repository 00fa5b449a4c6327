#include "attributes.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "graphcache/hostrt.h"
#include "state.h"

namespace graphcache::hostrt {
namespace {

enum class Support { kStored, kIgnored, kRefused, kUnknown };

Support support_of(cudaLaunchAttributeID id) {
  switch (static_cast<int>(id)) {
    case cudaLaunchAttributeIgnore:
      return Support::kIgnored;
    case cudaLaunchAttributeAccessPolicyWindow:
    case cudaLaunchAttributeCooperative:
    case cudaLaunchAttributeClusterDimension:
    case cudaLaunchAttributeClusterSchedulingPolicyPreference:
    case cudaLaunchAttributePriority:
    case cudaLaunchAttributeMemSyncDomainMap:
    case cudaLaunchAttributeMemSyncDomain:
    case cudaLaunchAttributeDeviceUpdatableKernelNode:
    case 14:  // cudaLaunchAttributePreferredSharedMemoryCarveout, since CUDA 12.5
      return Support::kStored;
    case 17:  // cudaLaunchAttributePortableClusterSizeMode
    case 18:  // cudaLaunchAttributeSharedMemoryMode
      return state().driver_version >= 13020 ? Support::kStored : Support::kUnknown;
    case kFutureAttribute:
      return state().driver_version >= kFutureDriver ? Support::kStored : Support::kUnknown;
    case cudaLaunchAttributeProgrammaticEvent:
    case 11:  // cudaLaunchAttributePreferredClusterDimension, since CUDA 12.8; nodes do not report it (driver 580)
    case 12:  // cudaLaunchAttributeLaunchCompletionEvent, since CUDA 12.3
      return Support::kRefused;
    default:
      return Support::kUnknown;
  }
}

template <typename Attributes>
auto find(Attributes& attributes, cudaLaunchAttributeID id) {
  return std::find_if(attributes.begin(), attributes.end(), [id](const LaunchAttribute& a) { return a.id == id; });
}

// "Can only be set to 0 or 1", and "once opted-in to this functionality, a node cannot opt out". Unused bytes of the
// value must be zero (facts 26).
cudaError_t check_updatable(const KernelParams& params, const cudaLaunchAttributeValue& value) {
  const int wanted = value.deviceUpdatableKernelNode.deviceUpdatable;
  if (wanted != 0 && wanted != 1) return cudaErrorInvalidValue;
  const auto unused = std::begin(value.pad) + sizeof value.deviceUpdatableKernelNode;
  if (std::any_of(unused, std::end(value.pad), [](char byte) { return byte != 0; })) return cudaErrorInvalidValue;
  return wanted == 0 && is_device_updatable(params) ? cudaErrorNotSupported : cudaSuccess;
}

}  // namespace

int clamp_priority(int priority) { return std::clamp(priority, kGreatestPriority, kLeastPriority); }

bool has_attribute(const KernelParams& params, cudaLaunchAttributeID id) {
  return find(params.attributes, id) != params.attributes.end();
}

cudaError_t set_attribute(KernelParams& params, cudaLaunchAttributeID id, const cudaLaunchAttributeValue& value) {
  switch (support_of(id)) {
    case Support::kIgnored:
      return cudaSuccess;
    case Support::kRefused:
      return cudaErrorNotSupported;
    case Support::kUnknown:
      return cudaErrorInvalidValue;
    case Support::kStored:
      break;
  }
  if (id == cudaLaunchAttributeDeviceUpdatableKernelNode) {
    if (const cudaError_t error = check_updatable(params, value); error != cudaSuccess) return error;
  }
  if (id == cudaLaunchAttributeClusterDimension) {
    const auto& [x, y, z] = value.clusterDim;
    const bool fits =
        x != 0 && y != 0 && z != 0 && params.grid.x % x == 0 && params.grid.y % y == 0 && params.grid.z % z == 0;
    if (!fits && (x | y | z) != 0) return cudaErrorInvalidClusterSize;
  }
  auto found = find(params.attributes, id);
  if (found == params.attributes.end()) found = params.attributes.insert(found, LaunchAttribute{id, {}});
  std::memcpy(&found->value, &value, sizeof value);
  if (id == cudaLaunchAttributePriority) found->value.priority = clamp_priority(value.priority);
  return cudaSuccess;
}

cudaError_t get_attribute(const KernelParams& params, cudaLaunchAttributeID id, cudaLaunchAttributeValue* value) {
  if (support_of(id) != Support::kStored) return cudaErrorInvalidValue;
  std::memset(value, 0, sizeof *value);
  const auto found = find(params.attributes, id);
  if (found != params.attributes.end()) std::memcpy(value, &found->value, sizeof *value);
  return cudaSuccess;
}

bool is_device_updatable(const KernelParams& params) {
  const auto found = find(params.attributes, cudaLaunchAttributeDeviceUpdatableKernelNode);
  return found != params.attributes.end() && found->value.deviceUpdatableKernelNode.deviceUpdatable != 0;
}

dim3 cluster_size(const KernelParams& params) {
  const auto found = find(params.attributes, cudaLaunchAttributeClusterDimension);
  if (found == params.attributes.end() || found->value.clusterDim.x == 0) return dim3(1, 1, 1);
  return dim3(found->value.clusterDim.x, found->value.clusterDim.y, found->value.clusterDim.z);
}

void set_priority(KernelParams& params, int priority) {
  cudaLaunchAttributeValue value;
  std::memset(&value, 0, sizeof value);
  value.priority = priority;
  set_attribute(params, cudaLaunchAttributePriority, value);
}

}  // namespace graphcache::hostrt
