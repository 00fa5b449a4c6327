// Devices: their properties, and waiting for all work of one.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "attributes.h"
#include "capture.h"
#include "schedule.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;
constexpr int kMultiprocessors = 1;
constexpr int kWarpSize = 32;
// of the cores and of the memory, in kHz; a made-up value, because hostrt does not model time
constexpr int kClockRate = 1'000'000;

cudaError_t properties(const Call& call, cudaDeviceProp* out, int device) {
  if (out == nullptr) return cudaErrorInvalidValue;
  if (!call.state.has_device(device)) return cudaErrorInvalidDevice;
  std::memset(static_cast<void*>(out), 0, sizeof *out);
  std::snprintf(out->name, sizeof out->name, "hostrt (CPU)");
  out->totalGlobalMem = kDeviceMemoryBytes;
  out->sharedMemPerBlock = kDefaultSharedBytes;
  out->sharedMemPerBlockOptin = kMaxSharedBytes;
  out->memPitch = kMaxPitch;
  out->warpSize = kWarpSize;
  out->maxThreadsPerBlock = kMaxThreadsPerBlock;
  out->maxThreadsDim[0] = kMaxThreadsPerBlock;
  out->maxThreadsDim[1] = kMaxThreadsPerBlock;
  out->maxThreadsDim[2] = kMaxBlockZ;
  out->maxGridSize[0] = kMaxGridX;
  out->maxGridSize[1] = kMaxGridYZ;
  out->maxGridSize[2] = kMaxGridYZ;
  out->major = kComputeMajor;
  out->minor = kComputeMinor;
  out->multiProcessorCount = kMultiprocessors;
  out->unifiedAddressing = 1;
  out->concurrentKernels = 1;
  out->streamPrioritiesSupported = 1;
  out->managedMemory = 1;
  out->concurrentManagedAccess = 1;
  out->memoryPoolsSupported = 1;
#if CUDART_VERSION < 13000
  out->clockRate = kClockRate;
  out->memoryClockRate = kClockRate;
#endif
  return cudaSuccess;
}

cudaError_t attribute(const Call& call, int* value, cudaDeviceAttr attribute, int device) {
  if (value == nullptr) return cudaErrorInvalidValue;
  if (!call.state.has_device(device)) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = kMaxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxBlockDimZ:
      *value = kMaxBlockZ;
      return cudaSuccess;
    case cudaDevAttrMaxGridDimX:
      *value = kMaxGridX;
      return cudaSuccess;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = kMaxGridYZ;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(kDefaultSharedBytes);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kMaxSharedBytes);
      return cudaSuccess;
    case cudaDevAttrMaxPitch:
      *value = static_cast<int>(kMaxPitch);
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = kWarpSize;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = kComputeMajor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kComputeMinor;
      return cudaSuccess;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrPageableMemoryAccess:  // Though its kernels can.
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeDefault;
      return cudaSuccess;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      *value = kClockRate;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

// Refused during any capture on the device, whatever the modes and threads (facts 4).
cudaError_t synchronize(const Call& call) {
  cudaError_t error = cudaSuccess;
  for (const auto& [id, capture] : call.state.captures) {
    const auto is_here = [&](const Stream* stream) { return stream->device == call.thread.device; };
    if (std::none_of(capture->streams.begin(), capture->streams.end(), is_here)) continue;
    invalidate(call.state, *capture);
    error = cudaErrorStreamCaptureUnsupported;
  }
  if (error != cudaSuccess) return error;
  finish_device(call.state, call.thread.device);
  return cudaSuccess;
}

template <typename Value>
[[gnu::always_inline]] inline cudaError_t give(Function function, Value* out, Value value) {
  return enter(function, [&](const Call&) {
    if (out == nullptr) return cudaErrorInvalidValue;
    *out = value;
    return cudaSuccess;
  });
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  return enter(Function::kGetDevice, [&](const Call& call) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = call.thread.device;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  return enter(Function::kSetDevice, [&](const Call& call) {
    if (!call.state.has_device(device)) return cudaErrorInvalidDevice;
    call.thread.device = device;
    call.thread.context = 0;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  return enter(Function::kGetDeviceCount, [&](const Call& call) {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = call.state.device_count;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp* prop, int device) {
  return enter(Function::kGetDeviceProperties, [&](const Call& call) { return properties(call, prop, device); });
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attr, int device) {
  return enter(Function::kDeviceGetAttribute, [&](const Call& call) { return attribute(call, value, attr, device); });
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return enter(Function::kDeviceGetStreamPriorityRange, [&](const Call&) {
    if (leastPriority != nullptr) *leastPriority = kLeastPriority;
    if (greatestPriority != nullptr) *greatestPriority = kGreatestPriority;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int* driverVersion) {
  return enter(Function::kDriverGetVersion, [&](const Call& call) {
    if (driverVersion == nullptr) return cudaErrorInvalidValue;
    *driverVersion = call.state.driver_version;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* runtimeVersion) {
  return give(Function::kRuntimeGetVersion, runtimeVersion, CUDART_VERSION);
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void) {
  return enter(Function::kDeviceSynchronize, [](const Call& call) { return synchronize(call); });
}

cudaError_t CUDARTAPI cudaDeviceReset(void) {
  return enter(Function::kDeviceReset, [](const Call& call) {
    finish_device(call.state, call.thread.device);
    end_device(call.state, call.thread.device);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  return enter(Function::kDeviceCanAccessPeer, [&](const Call& call) {
    if (!call.state.has_device(device) || !call.state.has_device(peerDevice)) return cudaErrorInvalidDevice;
    if (canAccessPeer == nullptr) return cudaErrorInvalidValue;
    *canAccessPeer = device != peerDevice ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) {
  return enter(Function::kDeviceEnablePeerAccess, [&](const Call& call) {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!call.state.has_device(peerDevice) || peerDevice == call.thread.device) return cudaErrorInvalidDevice;
    const bool is_new = call.state.peers.emplace(call.thread.device, peerDevice).second;
    return is_new ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t CUDARTAPI cudaDeviceDisablePeerAccess(int peerDevice) {
  return enter(Function::kDeviceDisablePeerAccess, [&](const Call& call) {
    if (!call.state.has_device(peerDevice)) return cudaErrorInvalidDevice;
    const bool was_enabled = call.state.peers.erase({call.thread.device, peerDevice}) != 0;
    return was_enabled ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
  });
}

cudaError_t CUDARTAPI cudaDeviceGraphMemTrim(int device) {
  return enter(Function::kDeviceGraphMemTrim, [&](const Call& call) {
    if (!call.state.has_device(device)) return cudaErrorInvalidDevice;
    trim_graph_memory(call.state, device);
    return cudaSuccess;
  });
}

}  // extern "C"
