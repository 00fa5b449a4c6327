// Calls that read or change the parameters of a template's nodes.

#include "params.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "attributes.h"
#include "function_calls.h"
#include "graph.h"
#include "memory.h"
#include "work.h"

namespace graphcache::hostrt {

cudaError_t read_kernel(const Call& call, const cudaKernelNodeParams* from, KernelParams* params) {
  if (from == nullptr) return cudaErrorInvalidValue;
  const Kernel* kernel = nullptr;
  if (const cudaError_t error = resolve_kernel(call, from->func, &kernel); error != cudaSuccess) return error;
  cudaError_t error = check_shape(from->gridDim, from->blockDim, from->sharedMemBytes,
                                  max_shared_bytes(call.state, *kernel, params->device));
  if (error != cudaSuccess) return error;
  const bool has_arguments = from->kernelParams != nullptr || from->extra != nullptr;
  if (!has_arguments && !kernel->parameters.empty()) return cudaErrorInvalidValue;
  error = read_arguments(call, *kernel, from->kernelParams, from->extra, &params->arguments);
  if (error != cudaSuccess) return error;
  params->kernel = kernel;
  params->grid = from->gridDim;
  params->block = from->blockDim;
  params->shared_bytes = from->sharedMemBytes;
  return cudaSuccess;
}

cudaError_t read_arguments(const Call& call, const Kernel& kernel, void* const* values, void* const* extra,
                           Arguments* arguments) {
  if (extra == nullptr) {
    arguments->assign(kernel, values);
    return cudaSuccess;
  }
  if (values != nullptr) return cudaErrorInvalidValue;
  const void* buffer = nullptr;
  const std::size_t* size = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const std::size_t*>(extra[1]);
    } else {
      return cudaErrorInvalidValue;
    }
  }
  if (buffer == nullptr || size == nullptr) return cudaErrorInvalidValue;
  if (*size < kernel.argument_bytes || *size > kernel.padded_bytes()) {
    return call.misuse(cudaErrorInvalidValue, kernel.name + " has arguments of " +
                                                  std::to_string(kernel.argument_bytes) + " bytes, and the buffer " +
                                                  std::to_string(*size));
  }
  arguments->assign_packed(kernel, buffer, *size);
  return cudaSuccess;
}

void write_kernel(const KernelParams& params, cudaKernelNodeParams* to) {
  std::memset(static_cast<void*>(to), 0, sizeof *to);
  to->func = const_cast<void*>(params.kernel->function);
  to->gridDim = params.grid;
  to->blockDim = params.block;
  to->sharedMemBytes = params.shared_bytes;
  // Owned by the node (facts 16).
  const bool has_parameters = !params.kernel->parameters.empty();
  to->extra = params.arguments.extra();
  to->kernelParams = has_parameters && to->extra == nullptr ? params.arguments.pointers() : nullptr;
}

cudaError_t take_copy(const cudaMemcpy3DParms* from, CopyParams* params) {
  if (from == nullptr) return cudaErrorInvalidValue;
  if (from->srcArray != nullptr || from->dstArray != nullptr) return cudaErrorNotSupported;
  const auto offset = [](const cudaPitchedPtr& memory, const cudaPos& pos) {
    return (pos.z * memory.ysize + pos.y) * memory.pitch + pos.x;
  };
  if (from->dstPtr.ptr == nullptr || from->srcPtr.ptr == nullptr) return cudaErrorInvalidValue;
  CopyParams copy{static_cast<char*>(from->dstPtr.ptr) + offset(from->dstPtr, from->dstPos),
                  static_cast<const char*>(from->srcPtr.ptr) + offset(from->srcPtr, from->srcPos), from->extent.width,
                  from->kind};
  copy.height = from->extent.height;
  copy.depth = from->extent.depth;
  copy.destination_pitches = {from->dstPtr.pitch, from->dstPtr.ysize};
  copy.source_pitches = {from->srcPtr.pitch, from->srcPtr.ysize};
  *params = copy;
  return cudaSuccess;
}

cudaError_t check_rows(const cudaMemcpy3DParms* box) {
  CopyParams copy;
  const bool is_copy = take_copy(box, &copy) == cudaSuccess;
  return is_copy && copy.bytes != 0 && copy.height != 0 && copy.depth != 0 ? check_rows(copy) : cudaSuccess;
}

cudaError_t read_copy(const cudaMemcpy3DParms* from, CopyParams* params) {
  CopyParams copy;
  cudaError_t error = take_copy(from, &copy);
  if (error != cudaSuccess) return error;
  if (copy.bytes == 0 || copy.height == 0 || copy.depth == 0) return cudaErrorInvalidValue;
  error = check_rows(copy);
  if (error == cudaSuccess) error = check_copy(copy.destination, copy.source, copy.kind);
  if (error == cudaSuccess) error = check_pitches(copy, /*is_box=*/true);
  if (error != cudaSuccess) return error;
  if (copy.is_flat()) copy.destination_pitches = copy.source_pitches = {};
  *params = copy;
  return cudaSuccess;
}

void write_copy(const CopyParams& params, cudaMemcpy3DParms* to) {
  // What the real runtime sets for a one-dimensional copy: addresses, extent and kind. Pitches stay 0.
  std::memset(static_cast<void*>(to), 0, sizeof *to);
  to->srcPtr = {const_cast<void*>(params.source), params.source_pitches.row, 0, params.source_pitches.slice};
  to->dstPtr = {params.destination, params.destination_pitches.row, 0, params.destination_pitches.slice};
  to->extent = {params.bytes, params.height, params.depth};
  to->kind = params.kind;
}

bool is_of_device(const State& state, const CopyParams& copy) {
  const MemoryKind to = memory_kind(state, copy.destination), from = memory_kind(state, copy.source);
  const auto any_is = [&](MemoryKind kind) { return to == kind || from == kind; };
  const auto is_kind = [&](cudaMemcpyKind a, cudaMemcpyKind b) { return copy.kind == a || copy.kind == b; };
  if (any_is(MemoryKind::kPageable)) return false;
  if (from == MemoryKind::kManaged && is_kind(cudaMemcpyHostToDevice, cudaMemcpyHostToHost)) return false;
  if (to == MemoryKind::kManaged && is_kind(cudaMemcpyDeviceToHost, cudaMemcpyHostToHost)) return false;
  return any_is(MemoryKind::kManaged) || !any_is(MemoryKind::kPinned);
}

cudaError_t read_fill(const cudaMemsetParams* from, FillParams* params) {
  if (from == nullptr) return cudaErrorInvalidValue;
  const FillParams fill{from->dst, from->value, from->elementSize, from->width, from->height, from->pitch};
  const cudaError_t error = check_fill(fill);
  if (error == cudaSuccess) *params = fill;
  return error;
}

cudaError_t read_host(const cudaHostNodeParams* from, HostParams* params) {
  if (from == nullptr || from->fn == nullptr) return cudaErrorInvalidValue;
  *params = HostParams{from->fn, from->userData};
  return cudaSuccess;
}

std::optional<std::pair<int, int>> devices_of(const State& state, const CopyParams& copy) {
  const auto device_at = [&](const void* end, MemoryKind kind) {
    return memory_kind(state, end) == kind ? device_of_known(state, end) : std::nullopt;
  };
  const std::optional<int> to = device_at(copy.destination, MemoryKind::kDevice);
  const std::optional<int> from = device_at(copy.source, MemoryKind::kDevice);
  if (to && from) return std::pair(*to, *from);
  for (const std::optional<int>& device :
       {to, from, device_at(copy.source, MemoryKind::kManaged), device_at(copy.destination, MemoryKind::kManaged),
        device_at(copy.source, MemoryKind::kPinned)}) {
    if (device) return std::pair(*device, *device);
  }
  return std::nullopt;
}

namespace {

// Memory that is not known may be of any device.
template <class Devices>
bool may_become(const Devices& before, const Devices& after) {
  return !before || !after || *before == *after;
}

}  // namespace

bool may_become(const CopyParams& old, const CopyParams& wanted) {
  if (!old.is_flat() || !wanted.is_flat()) {
    return old.destination == wanted.destination && old.source == wanted.source && old.bytes == wanted.bytes &&
           old.kind == wanted.kind && old.height == wanted.height && old.depth == wanted.depth &&
           old.destination_pitches == wanted.destination_pitches && old.source_pitches == wanted.source_pitches;
  }
  // Memory of another device is not noticed where nothing changes.
  const bool stays = old.destination == wanted.destination && old.source == wanted.source && old.bytes == wanted.bytes;
  return old.kind == wanted.kind && (stays || may_become(old.devices, devices_of(state(), wanted)));
}

bool may_become(const FillParams& old, const FillParams& wanted) {
  const auto before = device_of_known(state(), old.destination), after = device_of_known(state(), wanted.destination);
  if (!may_become(before, after)) return false;
  if (old.height == 1 && wanted.height == 1) return true;
  return old.height == wanted.height && old.width == wanted.width && old.pitch == wanted.pitch &&
         old.element_bytes == wanted.element_bytes;
}

namespace {

cudaError_t set_attribute(const Call& call, cudaGraphNode_t handle, cudaLaunchAttributeID id,
                          cudaLaunchAttributeValue* value) {
  KernelParams* params = params_of<KernelParams>(call, handle);
  if (params == nullptr || value == nullptr) return cudaErrorInvalidValue;
  const cudaError_t error = set_attribute(*params, id, *value);
  if (error == cudaSuccess && id == cudaLaunchAttributeDeviceUpdatableKernelNode) {
    hand_out_device_node(*find_node(call, handle), value);
  }
  return error;
}

cudaError_t get_attribute(const Call& call, cudaGraphNode_t handle, cudaLaunchAttributeID id,
                          cudaLaunchAttributeValue* out) {
  const KernelParams* params = params_of<KernelParams>(call, handle);
  if (params == nullptr || out == nullptr) return cudaErrorInvalidValue;
  const cudaError_t error = get_attribute(*params, id, out);
  if (error == cudaSuccess && id == cudaLaunchAttributeDeviceUpdatableKernelNode) {
    hand_out_device_node(*find_node(call, handle), out);
  }
  return error;
}

cudaError_t copy_attributes(const Call& call, cudaGraphNode_t to, cudaGraphNode_t from) {
  KernelParams* target = params_of<KernelParams>(call, to);
  const KernelParams* source = params_of<KernelParams>(call, from);
  if (target == nullptr || source == nullptr) return cudaErrorInvalidValue;
  // "Device-updatable kernel nodes also cannot have their attributes copied to/from another kernel node"
  if (is_device_updatable(*target) || is_device_updatable(*source)) return cudaErrorNotSupported;
  target->attributes = source->attributes;
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaGraphKernelNodeGetParams(cudaGraphNode_t node, struct cudaKernelNodeParams* pNodeParams) {
  return enter({Function::kGraphKernelNodeGetParams, node}, [&](const Call& call) {
    const KernelParams* params = params_of<KernelParams>(call, node);
    if (params == nullptr || pNodeParams == nullptr) return cudaErrorInvalidValue;
    write_kernel(*params, pNodeParams);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                   const struct cudaKernelNodeParams* pNodeParams) {
  return enter({Function::kGraphKernelNodeSetParams, node}, [&](const Call& call) {
    KernelParams* params = params_of<KernelParams>(call, node);
    return params != nullptr ? read_kernel(call, pNodeParams, params) : cudaErrorInvalidValue;
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeGetAttribute(cudaGraphNode_t hNode, cudaLaunchAttributeID attr,
                                                      cudaLaunchAttributeValue* value_out) {
  return enter({Function::kGraphKernelNodeGetAttribute, hNode},
               [&](const Call& call) { return get_attribute(call, hNode, attr, value_out); });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeSetAttribute(cudaGraphNode_t hNode, cudaLaunchAttributeID attr,
                                                      const cudaLaunchAttributeValue* value) {
  return enter({Function::kGraphKernelNodeSetAttribute, hNode}, [&](const Call& call) {
    // The parameter is const, but the handle of a device-updatable node is returned in it.
    return set_attribute(call, hNode, attr, const_cast<cudaLaunchAttributeValue*>(value));
  });
}

cudaError_t CUDARTAPI cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t hDst, cudaGraphNode_t hSrc) {
  return enter({Function::kGraphKernelNodeCopyAttributes, hDst, hSrc},
               [&](const Call& call) { return copy_attributes(call, hDst, hSrc); });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, struct cudaMemcpy3DParms* pNodeParams) {
  return enter({Function::kGraphMemcpyNodeGetParams, node}, [&](const Call& call) {
    const CopyParams* params = params_of<CopyParams>(call, node);
    if (params == nullptr || pNodeParams == nullptr) return cudaErrorInvalidValue;
    write_copy(*params, pNodeParams);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const struct cudaMemcpy3DParms* pNodeParams) {
  return enter({Function::kGraphMemcpyNodeSetParams, node}, [&](const Call& call) {
    if (const cudaError_t error = check_rows(pNodeParams); error != cudaSuccess) return error;
    CopyParams* params = params_of<CopyParams>(call, node);
    if (params == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = read_copy(pNodeParams, params);
    if (error == cudaSuccess) set_place(*params, call.state.endings.here);
    return error;
  });
}

cudaError_t CUDARTAPI cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* dst, const void* src, size_t count,
                                                     enum cudaMemcpyKind kind) {
  return enter({Function::kGraphMemcpyNodeSetParams1D, node}, [&](const Call& call) {
    CopyParams* params = params_of<CopyParams>(call, node);
    if (params == nullptr || count == 0) return cudaErrorInvalidValue;
    const cudaError_t error = check_copy(dst, src, kind);
    if (error != cudaSuccess) return error;
    *params = CopyParams{dst, src, count, kind};
    set_place(*params, call.state.endings.here);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphHostNodeGetParams(cudaGraphNode_t node, struct cudaHostNodeParams* pNodeParams) {
  return enter({Function::kGraphHostNodeGetParams, node}, [&](const Call& call) {
    const HostParams* params = params_of<HostParams>(call, node);
    if (params == nullptr || pNodeParams == nullptr) return cudaErrorInvalidValue;
    *pNodeParams = {params->function, params->data};
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphHostNodeSetParams(cudaGraphNode_t node, const struct cudaHostNodeParams* pNodeParams) {
  return enter({Function::kGraphHostNodeSetParams, node}, [&](const Call& call) {
    HostParams* params = params_of<HostParams>(call, node);
    return params != nullptr ? read_host(pNodeParams, params) : cudaErrorInvalidValue;
  });
}

cudaError_t CUDARTAPI cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const struct cudaMemsetParams* pNodeParams) {
  return enter({Function::kGraphMemsetNodeSetParams, node}, [&](const Call& call) {
    FillParams* params = params_of<FillParams>(call, node);
    return params != nullptr ? read_fill(pNodeParams, params) : cudaErrorInvalidValue;
  });
}

cudaError_t CUDARTAPI cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, struct cudaMemsetParams* pNodeParams) {
  return enter({Function::kGraphMemsetNodeGetParams, node}, [&](const Call& call) {
    const FillParams* params = params_of<FillParams>(call, node);
    if (params == nullptr || pNodeParams == nullptr) return cudaErrorInvalidValue;
    *pNodeParams = {params->destination,   params->pitch, params->value,
                    params->element_bytes, params->width, params->height};
    return cudaSuccess;
  });
}

}  // extern "C"
