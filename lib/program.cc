#include "program.h"

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

using SetKernelNode = CUresult (*)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*);

// Asked for once in the process, before the first hit that needs it. Null: the runtime's own call serves.
SetKernelNode driver_set_kernel_node() {
  static const auto function = [] {
    LastErrorGuard last_error;
    return reinterpret_cast<SetKernelNode>(driver_function("cuGraphExecKernelNodeSetParams"));
  }();
  return function;
}

cudaError_t set_kernel_node(cudaGraphExec_t exec, const SlotNode& node) {
  const KernelFields& fields = node.as<KernelFields>();
  void** const arguments = const_cast<void**>(node.arguments.data());
  const SetKernelNode driver = driver_set_kernel_node();
  if (node.function != nullptr && driver != nullptr) {
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = node.function;
    params.gridDimX = fields.grid.x;
    params.gridDimY = fields.grid.y;
    params.gridDimZ = fields.grid.z;
    params.blockDimX = fields.block.x;
    params.blockDimY = fields.block.y;
    params.blockDimZ = fields.block.z;
    params.sharedMemBytes = static_cast<unsigned>(fields.shared_bytes);
    params.kernelParams = arguments;
    // The driver's codes are the runtime's, number by number.
    return static_cast<cudaError_t>(driver(exec, node.node, &params));
  }
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(node.kernel);
  params.gridDim = fields.grid;
  params.blockDim = fields.block;
  params.sharedMemBytes = static_cast<unsigned>(fields.shared_bytes);
  params.kernelParams = arguments;
  return cudaGraphExecKernelNodeSetParams(exec, node.node, &params);
}

// A copy or set of 0 bytes is refused as a node's parameters (header: "Zero-length operations are not supported"); the
// node is disabled instead, and keeps the parameters it had.
cudaError_t set_enabled(cudaGraphExec_t exec, SlotNode& node, bool enabled) {
  if (node.enabled == enabled) return cudaSuccess;
  node.enabled = enabled;
  return cudaGraphNodeSetEnabled(exec, node.node, enabled ? 1 : 0);
}

cudaError_t set_memcpy_node(cudaGraphExec_t exec, SlotNode& node) {
  const MemcpyFields& fields = node.as<MemcpyFields>();
  if (fields.bytes == 0) return set_enabled(exec, node, false);
  const cudaError_t error =
      cudaGraphExecMemcpyNodeSetParams1D(exec, node.node, fields.dst, fields.src, fields.bytes, node.kind);
  return error == cudaSuccess ? set_enabled(exec, node, true) : error;
}

cudaError_t set_memset_node(cudaGraphExec_t exec, SlotNode& node) {
  const MemsetFields& fields = node.as<MemsetFields>();
  if (fields.bytes == 0) return set_enabled(exec, node, false);
  cudaMemsetParams params = {};
  params.dst = fields.dst;
  params.value = static_cast<unsigned char>(fields.value);
  params.elementSize = 1;
  params.width = fields.bytes;
  params.height = 1;
  const cudaError_t error = cudaGraphExecMemsetNodeSetParams(exec, node.node, &params);
  return error == cudaSuccess ? set_enabled(exec, node, true) : error;
}

cudaError_t set_node(cudaGraphExec_t exec, SlotNode& node) {
  switch (node.type) {
    case cudaGraphNodeTypeKernel:
      return set_kernel_node(exec, node);
    case cudaGraphNodeTypeMemcpy:
      return set_memcpy_node(exec, node);
    default:
      return set_memset_node(exec, node);
  }
}

}  // namespace

cudaError_t Executable::instantiate(Template& base, unsigned long long flags, std::unique_ptr<Executable>* out) {
  if (!base.slot_nodes.empty()) driver_set_kernel_node();
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, base.graph.get(), flags);
  if (error == cudaSuccess) out->reset(new Executable(std::move(base), GraphExec(exec)));
  return error;
}

cudaError_t Executable::patch(const detail::Call& call, std::size_t* patched_nodes) {
  for (SlotNode& node : base_.slot_nodes) {
    if (!update_fields(node, call.values)) continue;
    if (const cudaError_t error = set_node(exec_.get(), node); error != cudaSuccess) return error;
    ++*patched_nodes;
  }
  std::memcpy(base_.values.data(), call.values, call.values_size);
  return cudaSuccess;
}

void Executable::abandon() {
  exec_.release();
  base_.graph.release();
}

}  // namespace graphcache
