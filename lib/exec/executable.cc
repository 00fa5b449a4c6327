#include "exec/executable.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"

namespace graphcache {
namespace {

CallResult set_kernel_by_driver(cudaGraphExec_t exec, cudaGraphNode_t node, const CUDA_KERNEL_NODE_PARAMS& params) {
  // Error codes of the driver and of the runtime are the same numbers.
  return {"cudaGraphExecKernelNodeSetParams, by the driver",
          static_cast<cudaError_t>(driver().set_kernel_node(exec, node, &params)), /*latches=*/false};
}

// The runtime looks the symbol up on the current device, and refuses a node of another device than the cache's.
CallResult set_kernel_by_runtime(cudaGraphExec_t exec, cudaGraphNode_t node, const void* kernel,
                                 const KernelFields& fields, void** arguments, int device) {
  const LastErrorGuard last_error;  // A hit has no guard.
  const DeviceGuard current(device);
  if (const CallResult failed = current.result(); failed.error != cudaSuccess) {
    return {failed.call, failed.error, /*latches=*/false};
  }
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(kernel);
  params.gridDim = fields.grid;
  params.blockDim = fields.block;
  params.sharedMemBytes = static_cast<unsigned>(fields.shared_bytes);
  params.kernelParams = arguments;
  const CallResult done = patch_kernel(exec, node, params);
  return {done.call, done.error, /*latches=*/false};
}

UpdateRefusal refusal(cudaGraphExecUpdateResult result) {
  switch (result) {
    case cudaGraphExecUpdateErrorTopologyChanged:
      return UpdateRefusal::kTopology;
    case cudaGraphExecUpdateErrorNodeTypeChanged:
      return UpdateRefusal::kNodeType;
    case cudaGraphExecUpdateErrorFunctionChanged:
    case cudaGraphExecUpdateErrorUnsupportedFunctionChange:
      return UpdateRefusal::kFunction;
    case cudaGraphExecUpdateErrorParametersChanged:
      return UpdateRefusal::kParameters;
    case cudaGraphExecUpdateErrorAttributesChanged:
      return UpdateRefusal::kAttributes;
    case cudaGraphExecUpdateErrorNotSupported:
      return UpdateRefusal::kNotSupported;
    default:
      return UpdateRefusal::kOther;
  }
}

// Whether an update that failed with this error has left the executable unchanged (fact 20, docs/semantics.md).
bool applies_nothing(cudaError_t error) {
  return error == cudaErrorGraphExecUpdateFailure || error == cudaErrorNotSupported || error == cudaErrorInvalidValue;
}

// Whether this seems to be host memory that no runtime call has allocated or registered.
bool may_be_pageable(const void* memory) {
  const LastErrorGuard last_error;  // A hit has no guard.
  cudaPointerAttributes attributes = {};
  return cudaPointerGetAttributes(&attributes, memory) != cudaSuccess || attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

cudaError_t Executable::instantiate(Template& base, std::shared_ptr<const Content> content, unsigned long long flags,
                                    Scratch& scratch, std::unique_ptr<Executable>* out) {
  driver();
  // Allocated first, because this may throw.
  std::unique_ptr<Executable> executable(new Executable(scratch));
  executable->hold(std::move(content));
  if (const cudaError_t error = graphcache::instantiate(base.graph, flags, &executable->exec_); error != cudaSuccess) {
    return error;
  }
  executable->base_ = std::move(base);
  base = {};
  *out = std::move(executable);
  return cudaSuccess;
}

// Sets the shadow to the content as captured.
void Executable::hold(std::shared_ptr<const Content> content) {
  replace_content(std::move(content));
  slots_ = content_->slots;
  values_ = content_->values;
}

void Executable::replace_content(std::shared_ptr<const Content> content) {
  if (kept_ != nullptr) formers_.push_back(std::move(kept_));
  content_ = std::move(content);
  kept_ = content_->kept.lock();
}

// Writes the run's values into the node's fields. Returns true if any byte changed.
bool Executable::update_fields(const SlotNode& node, const unsigned char* values) {
  bool changed = false;
  for (std::uint32_t i = 0; i < node.binding_count; ++i) {
    const Binding& binding = slots_.bindings[node.first_binding + i];
    unsigned char* const target = slots_.fields.data() + binding.target;
    unsigned char room[detail::kMaxConvertedBytes];
    const unsigned char* const value = binding.bytes(values, room);
    if (std::memcmp(target, value, binding.size) != 0) {
      std::memcpy(target, value, binding.size);
      changed = true;
    }
  }
  return changed;
}

CallResult Executable::patch(const detail::Call& call, std::size_t* patched_nodes) {
  std::optional<bool> driver_usable;
  for (const SlotNode& node : slots_.nodes) {
    const CallResult result = patch_node(node, call, driver_usable, patched_nodes);
    if (result.error != cudaSuccess) return result;
  }
  values_.assign(call.values, call.values + call.values_size);
  return {};
}

CallResult Executable::patch_node(const SlotNode& node, const detail::Call& call, std::optional<bool>& driver_usable,
                                  std::size_t* patched_nodes) {
  if (!update_fields(node, call.values)) return {};
  const CallResult result = set_node(node, driver_usable);
  if (result.error == cudaSuccess) ++*patched_nodes;
  return result;
}

BroughtOver Executable::bring_over(const Template& from_graph, const Template& to_graph,
                                   std::shared_ptr<const Content> to, const detail::Call& call) {
  const std::shared_ptr<const Content> from = content_;
  const std::vector<unsigned char> values = values_;
  BroughtOver brought;
  brought.result = update_to(to_graph, std::move(to), call, &brought);
  if (brought.result.error == cudaSuccess || is_fatal(brought.result.error)) return brought;
  brought.whole = brought.refusal && applies_nothing(brought.result.error);
  if (brought.whole) return brought;
  BroughtOver restored;
  const detail::Call as_before{{}, nullptr, nullptr, values.data(), values.size()};
  const CallResult back = update_to(from_graph, from, as_before, &restored);
  brought.updates += restored.updates;
  brought.patched_nodes += restored.patched_nodes;
  brought.whole = back.error == cudaSuccess;
  if (is_fatal(back.error)) brought.result = back;
  return brought;
}

CallResult Executable::update_to(const Template& graph, std::shared_ptr<const Content> to, const detail::Call& call,
                                 BroughtOver* brought) {
  cudaGraphExecUpdateResultInfo info = {};
  const cudaError_t error = cudaGraphExecUpdate(exec_.get(), graph.graph.get(), &info);
  if (error != cudaSuccess) {
    brought->refusal = error == cudaErrorGraphExecUpdateFailure ? refusal(info.result) : UpdateRefusal::kOther;
    const auto node = std::find(graph.nodes.begin(), graph.nodes.end(), info.errorNode);
    if (node != graph.nodes.end()) brought->refused_node = static_cast<std::size_t>(node - graph.nodes.begin());
    return {"cudaGraphExecUpdate", error};
  }
  ++brought->updates;
  hold(std::move(to));
  return patch(call, &brought->patched_nodes);
}

bool Executable::by_driver(std::optional<bool>& driver_usable) {
  if (!driver_usable) driver_usable = driver().set_kernel_node != nullptr && has_context();
  return *driver_usable;
}

CallResult Executable::set_node(const SlotNode& node, std::optional<bool>& driver_usable) {
  switch (node.type) {
    case cudaGraphNodeTypeKernel:
      return set_kernel(node, driver_usable);
    case cudaGraphNodeTypeMemcpy:
      return set_memcpy(node);
    default:
      return set_memset(node);
  }
}

CallResult Executable::set_kernel(const SlotNode& node, std::optional<bool>& driver_usable) {
  const KernelFields& fields = slots_.as<KernelFields>(node);
  if (fields.shared_bytes > std::numeric_limits<unsigned>::max()) {
    return {"cudaGraphExecKernelNodeSetParams", cudaErrorInvalidValue, /*latches=*/false};
  }
  ArgumentPointers arguments;
  slots_.point_to_arguments(node, &arguments);
  const cudaGraphNode_t handle = base_.nodes[node.index];
  if (node.function == nullptr || !by_driver(driver_usable)) {
    return set_kernel_by_runtime(exec_.get(), handle, node.kernel, fields, arguments.data(), scratch_.device());
  }
  CUDA_KERNEL_NODE_PARAMS params =
      driver_params(fields.grid, fields.block, static_cast<unsigned>(fields.shared_bytes), arguments.data());
  if (node.foreign != nullptr) {
    params.kern = node.foreign;
    params.ctx = node.context;
  } else {
    params.func = node.function;
  }
  return set_kernel_by_driver(exec_.get(), handle, params);
}

// CUDA does not accept a copy or set of 0 bytes as a node's parameters (header: "Zero-length operations are not
// supported"), so the node gets one byte of scratch memory instead.
CallResult Executable::set_memcpy(const SlotNode& node) {
  constexpr const char* kCall = "cudaGraphExecMemcpyNodeSetParams1D";
  MemcpyFields fields = slots_.as<MemcpyFields>(node);
  if (fields.bytes == 0) {
    unsigned char* dst = nullptr;
    unsigned char* src = nullptr;
    if (const CallResult made = scratch_.bytes(node.dst_device, &dst); made.error != cudaSuccess) return made;
    if (const CallResult made = scratch_.bytes(node.src_device, &src); made.error != cudaSuccess) return made;
    fields = {dst, src + 1, 1};
  } else if ((node.dst_must_stay && may_be_pageable(fields.dst)) ||
             (node.src_must_stay && may_be_pageable(fields.src))) {
    // The call would succeed, and the launch would destroy the context (docs/semantics.md).
    return {kCall, cudaErrorInvalidValue, /*latches=*/false};
  }
  return {kCall, cudaGraphExecMemcpyNodeSetParams1D(exec_.get(), base_.nodes[node.index], fields.dst, fields.src,
                                                    fields.bytes, node.kind)};
}

CallResult Executable::set_memset(const SlotNode& node) {
  cudaMemsetParams params = slots_.as<cudaMemsetParams>(node);
  if (params.elementSize == 1) params.value = static_cast<unsigned char>(params.value);
  if (params.width == 0) {
    unsigned char* dst = nullptr;
    if (const CallResult made = scratch_.bytes(node.dst_device, &dst); made.error != cudaSuccess) return made;
    params.dst = dst;
    params.width = 1;
  }
  return patch_memset(exec_.get(), base_.nodes[node.index], params);
}

CallResult Scratch::bytes(int device, unsigned char** out) {
  const bool of_host = device == kHostMemory;
  MutexLock lock(mutex_);
  void* memory = of_host ? of_host_.get() : of_devices_[device].get();
  if (memory == nullptr) {
    const LastErrorGuard last_error;  // A hit has no guard.
    const DeviceGuard current(of_host ? device_ : device);
    if (const CallResult failed = current.result(); failed.error != cudaSuccess) {
      return {failed.call, failed.error, /*latches=*/false};
    }
    RelaxedCaptureMode relaxed;
    const cudaError_t error = of_host ? cudaMallocHost(&memory, 2) : cudaMalloc(&memory, 2);
    if (error != cudaSuccess) return {of_host ? "cudaMallocHost" : "cudaMalloc", error, /*latches=*/false};
    if (of_host) {
      of_host_ = Owned<void*, cudaFreeHost>(memory);
    } else {
      of_devices_[device] = Owned<void*, cudaFree>(memory);
    }
  }
  *out = static_cast<unsigned char*>(memory);
  return {};
}

void Scratch::abandon() {
  MutexLock lock(mutex_);
  of_host_.release();
  for (auto& [device, bytes] : of_devices_) bytes.release();
}

cudaError_t Executable::launch(const LaunchStream& stream) {
  const cudaError_t error = cudaGraphLaunch(exec_.get(), stream.handle);
  if (error != cudaSuccess) return error;
  in_place_ = true;
  stream_.follow(stream);
  return error;
}

CallResult Executable::put_in_place(cudaStream_t stream) {
  RelaxedCaptureMode relaxed;
  if (const CallResult uploaded = upload(stream); uploaded.error != cudaSuccess) return uploaded;
  stream_ = LaunchStream(stream);  // If the host cannot wait, the graveyard does.
  const cudaError_t error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return {"cudaStreamSynchronize", error};
  in_place_ = true;
  stream_ = {};  // Nothing of it is in flight.
  return {};
}

void Executable::abandon() {
  exec_.release();
  base_.graph.release();
}

}  // namespace graphcache
