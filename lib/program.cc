#include "program.h"

#include <limits>
#include <optional>

#include "compat.h"
#include "errors.h"

namespace graphcache {
namespace {

// Writes the run's values into the node's fields; true if any byte of them changed.
bool update_fields(SlotNode& node, const unsigned char* values) {
  bool changed = false;
  for (const Binding& binding : node.bindings) {
    const unsigned char* value = values + binding.offset;
    unsigned char converted[detail::kMaxConvertedBytes];
    if (binding.convert != nullptr) {
      binding.convert(value, converted);
      value = converted;
    }
    if (std::memcmp(binding.target, value, binding.size) != 0) {
      std::memcpy(binding.target, value, binding.size);
      changed = true;
    }
  }
  return changed;
}

// The driver's calls, asked for once in the process, before the first hit that needs them.
struct Driver {
  CUresult (*set_kernel_node)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*);
  CUresult (*current_context)(CUcontext*);

  // The driver's calls need a current context, and crash without one (tried). The runtime gives a thread its context at
  // the thread's first runtime call, which a hit's patch may well be; and a user of the driver may take it away again.
  bool usable_in_this_thread() const {
    CUcontext context = nullptr;
    return set_kernel_node != nullptr && current_context != nullptr && current_context(&context) == CUDA_SUCCESS &&
           context != nullptr;
  }
};

const Driver& driver() {
  static const Driver driver = [] {
    LastErrorGuard last_error;
    Driver found;
    found.set_kernel_node =
        reinterpret_cast<decltype(found.set_kernel_node)>(driver_function("cuGraphExecKernelNodeSetParams"));
    found.current_context = reinterpret_cast<decltype(found.current_context)>(driver_function("cuCtxGetCurrent"));
    return found;
  }();
  return driver;
}

CallResult set_kernel_node_by_driver(cudaGraphExec_t exec, const SlotNode& node) {
  const KernelFields& fields = node.as<KernelFields>();
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.func = node.function;
  params.gridDimX = fields.grid.x;
  params.gridDimY = fields.grid.y;
  params.gridDimZ = fields.grid.z;
  params.blockDimX = fields.block.x;
  params.blockDimY = fields.block.y;
  params.blockDimZ = fields.block.z;
  params.sharedMemBytes = static_cast<unsigned>(fields.shared_bytes);
  params.kernelParams = const_cast<void**>(node.arguments.data());
  // The driver's codes are the runtime's, number by number.
  return {"cudaGraphExecKernelNodeSetParams, by the driver",
          static_cast<cudaError_t>(driver().set_kernel_node(exec, node.node, &params)), /*latches=*/false};
}

// The runtime looks the symbol up on the current device, so that must be the graph's.
CallResult set_kernel_node_by_runtime(cudaGraphExec_t exec, const SlotNode& node, int device) {
  const DeviceGuard current(device);
  const KernelFields& fields = node.as<KernelFields>();
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(node.kernel);
  params.gridDim = fields.grid;
  params.blockDim = fields.block;
  params.sharedMemBytes = static_cast<unsigned>(fields.shared_bytes);
  params.kernelParams = const_cast<void**>(node.arguments.data());
  return {"cudaGraphExecKernelNodeSetParams", cudaGraphExecKernelNodeSetParams(exec, node.node, &params)};
}

// A copy or set of 0 bytes is refused as a node's parameters (header: "Zero-length operations are not supported"); the
// node is disabled instead, and keeps the parameters it had.
CallResult set_enabled(cudaGraphExec_t exec, SlotNode& node, bool enabled) {
  if (node.enabled == enabled) return {};
  node.enabled = enabled;
  return {"cudaGraphNodeSetEnabled", cudaGraphNodeSetEnabled(exec, node.node, enabled ? 1 : 0)};
}

CallResult set_memcpy_node(cudaGraphExec_t exec, SlotNode& node) {
  const MemcpyFields& fields = node.as<MemcpyFields>();
  if (fields.bytes == 0) return set_enabled(exec, node, false);
  const cudaError_t error =
      cudaGraphExecMemcpyNodeSetParams1D(exec, node.node, fields.dst, fields.src, fields.bytes, node.kind);
  if (error != cudaSuccess) return {"cudaGraphExecMemcpyNodeSetParams1D", error};
  return set_enabled(exec, node, true);
}

CallResult set_memset_node(cudaGraphExec_t exec, SlotNode& node) {
  const MemsetFields& fields = node.as<MemsetFields>();
  if (fields.bytes == 0) return set_enabled(exec, node, false);
  cudaMemsetParams params = {};
  params.dst = fields.dst;
  params.value = static_cast<unsigned char>(fields.value);
  params.elementSize = 1;
  params.width = fields.bytes;
  params.height = 1;
  const cudaError_t error = cudaGraphExecMemsetNodeSetParams(exec, node.node, &params);
  if (error != cudaSuccess) return {"cudaGraphExecMemsetNodeSetParams", error};
  return set_enabled(exec, node, true);
}

}  // namespace

cudaError_t Executable::instantiate(Template& base, unsigned long long flags, int device,
                                    std::unique_ptr<Executable>* out) {
  if (!base.slot_nodes.empty()) driver();
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, base.graph.get(), flags);
  if (error == cudaSuccess) out->reset(new Executable(std::move(base), GraphExec(exec), device));
  return error;
}

CallResult Executable::set_node(SlotNode& node, std::optional<bool>& driver_usable) {
  switch (node.type) {
    case cudaGraphNodeTypeKernel:
      if (node.as<KernelFields>().shared_bytes > std::numeric_limits<unsigned>::max()) {
        return {"cudaGraphExecKernelNodeSetParams", cudaErrorInvalidValue, /*latches=*/false};
      }
      if (!driver_usable) driver_usable = driver().usable_in_this_thread();
      if (*driver_usable && node.function != nullptr) return set_kernel_node_by_driver(exec_.get(), node);
      driver_usable.reset();  // The runtime's call gives the thread its context.
      return set_kernel_node_by_runtime(exec_.get(), node, device_);
    case cudaGraphNodeTypeMemcpy:
      return set_memcpy_node(exec_.get(), node);
    default:
      return set_memset_node(exec_.get(), node);
  }
}

CallResult Executable::patch(const detail::Call& call, std::size_t* patched_nodes) {
  std::optional<bool> driver_usable;
  for (SlotNode& node : base_.slot_nodes) {
    if (!update_fields(node, call.values)) continue;
    if (const CallResult result = set_node(node, driver_usable); result.error != cudaSuccess) return result;
    ++*patched_nodes;
  }
  std::memcpy(base_.values.data(), call.values, call.values_size);
  return {};
}

void Executable::abandon() {
  exec_.release();
  base_.graph.release();
}

}  // namespace graphcache
