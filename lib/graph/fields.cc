#include "graph/fields.h"

#include <absl/strings/str_cat.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "graph/recorder_calls.h"

namespace graphcache {
namespace {

constexpr std::size_t kNone = SIZE_MAX;  // No slot can go there.

// Indexed by cudaGraphNodeType.
constexpr const char* kKinds[] = {"kernel",
                                  "copy",
                                  "set",
                                  "host function",
                                  "child graph",
                                  "empty node",
                                  "event wait",
                                  "event",
                                  "signal",
                                  "wait for a signal",
                                  "allocation",
                                  "free",
                                  "batch",
                                  "condition",
                                  "batch of copies",
                                  "node of a newer type"};
static_assert(cudaGraphNodeTypeEmpty == 5 && cudaGraphNodeTypeMemFree == 11);

}  // namespace

std::string name_of(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  const char* name = nullptr;
  const cudaError_t error =
      kernel.func != nullptr ? driver().function_name(&name, kernel.func) : driver().kernel_name(&name, kernel.kern);
  return error == cudaSuccess ? readable(name) : kUnknownName;
}

std::string kind_of(const NodeContent& node) {
  if (node.type == cudaGraphNodeTypeKernel) return absl::StrCat("kernel ", name_of(node.kernel));
  const auto type = static_cast<std::size_t>(node.type);
  return type < std::size(kKinds) ? kKinds[type] : absl::StrCat("node of type ", type);
}

std::vector<Field> fields_of(const Reading& reading, const Slots& slots, std::uint32_t index) {
  using Kind = Field::Kind;
  const NodeContent& node = reading.content.nodes[index];
  const SlotNode* const slot_node = slots.node(index);
  std::vector<Field> fields;
  // `target` is the field's offset in the slot node's block.
  const auto add_bytes = [&](Kind kind, std::string name, const char* shown, const void* value, std::size_t size,
                             std::size_t target) {
    fields.push_back({kind, std::move(name), shown, std::string(static_cast<const char*>(value), size),
                      slots.binding(slot_node, target)});
  };
  const auto add = [&](Kind kind, const char* name, const char* shown, const auto& value, std::size_t target = kNone) {
    add_bytes(kind, name, shown, &value, sizeof value, target);
  };

  if (node.type == cudaGraphNodeTypeKernel) {
    const CUDA_KERNEL_NODE_PARAMS& kernel = node.kernel;
    const std::array grid = {kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ};
    const std::array block = {kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ};
    add(Kind::kShape, "the grid", nullptr, grid, offsetof(KernelFields, grid));
    add(Kind::kShape, "the block", nullptr, block, offsetof(KernelFields, block));
    add(Kind::kNumber, "dynamic shared memory", nullptr, kernel.sharedMemBytes, offsetof(KernelFields, shared_bytes));
    if (!node.readable) return fields;
    for (std::uint32_t i = 0; i < node.argument_count; ++i) {
      const std::uint32_t at = node.first_argument + i;
      const bool may_follow = slot_node != nullptr && i < slot_node->argument_count;
      add_bytes(Kind::kBytes, absl::StrCat("argument ", i), "",
                reading.content.bytes.data() + node.bytes + reading.content.arguments[at], reading.sizes[at],
                may_follow ? slots.arguments[slot_node->first_argument + i] - slot_node->fields : kNone);
    }
    return fields;
  }
  if (node.size == 0) return fields;  // Its parameters could not be read.
  switch (node.type) {
    case cudaGraphNodeTypeMemcpy: {
      const auto copy = reading.content.params<cudaMemcpy3DParms>(node);
      add(Kind::kAddress, "the target", "destination", copy.dstPtr.ptr, offsetof(cudaMemcpy3DParms, dstPtr.ptr));
      add(Kind::kAddress, "the source", "source", copy.srcPtr.ptr, offsetof(cudaMemcpy3DParms, srcPtr.ptr));
      add(Kind::kNumber, "the size", "bytes", copy.extent.width, offsetof(cudaMemcpy3DParms, extent.width));
      // Copies of one row have no pitches.
      const std::size_t height = copy.extent.height, depth = copy.extent.depth;
      const bool has_rows = height > 1 || depth > 1;
      const std::size_t dst_pitch = has_rows ? copy.dstPtr.pitch : 0, src_pitch = has_rows ? copy.srcPtr.pitch : 0;
      const struct {
        cudaArray_t dst, src;
        cudaPos dst_at, src_at;
        std::size_t dst_pitch, src_pitch, height, depth;
      } rest = {copy.dstArray, copy.srcArray, copy.dstPos, copy.srcPos, dst_pitch, src_pitch, height, depth};
      add(Kind::kOther, "its arrays, positions, pitches or numbers of rows", nullptr, rest);
      // The kind follows from the memory at both ends, so it means nothing where an end is a slot.
      if (fields[0].slot != nullptr || fields[1].slot != nullptr) break;
      add(Kind::kNumber, "the kind (cudaMemcpyKind)", nullptr, copy.kind);
      break;
    }
    case cudaGraphNodeTypeMemset: {
      const auto set = reading.content.params<cudaMemsetParams>(node);
      add(Kind::kAddress, "the target", "destination", set.dst, offsetof(cudaMemsetParams, dst));
      add(Kind::kNumber, "the value", "value", set.value, offsetof(cudaMemsetParams, value));
      add(Kind::kNumber, "the size", "bytes", set.width * set.elementSize, offsetof(cudaMemsetParams, width));
      if (fields.back().slot != nullptr) break;
      add(Kind::kNumber, "the size of an element", nullptr, set.elementSize);
      add(Kind::kNumber, "the height", nullptr, set.height);
      if (set.height > 1) add(Kind::kNumber, "the pitch", nullptr, set.pitch);
      break;
    }
    case cudaGraphNodeTypeHost: {
      const auto host = reading.content.params<cudaHostNodeParams>(node);
      add(Kind::kAddress, "the function", nullptr, host.fn);
      add(Kind::kAddress, "its data", nullptr, host.userData);
      break;
    }
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
      add(Kind::kBytes, "the event", nullptr, reading.content.params<cudaEvent_t>(node));
      break;
    case cudaGraphNodeTypeMemAlloc:
      add(Kind::kNumber, "the size", nullptr, reading.content.params<AddressRange>(node).size);
      break;
    case cudaGraphNodeTypeMemFree:
      add(Kind::kAddress, "its memory", nullptr, reading.content.params<AddressRange>(node).begin);
      break;
    default:
      break;
  }
  return fields;
}

bool read_graph_info(const Template& from, const Content& content, GraphInfo* info) {
  const LastErrorGuard last_error;
  const std::optional<Reading> reading = read_all(from, content.slots);
  if (!reading) return false;
  for (std::uint32_t i = 0; i < from.nodes.size(); ++i) {
    const NodeContent& of = reading->content.nodes[i];
    const std::vector<Field> fields = fields_of(*reading, content.slots, i);
    GraphNode& node = info->nodes.emplace_back();
    node.type = of.type;
    node.name = kind_of(of);
    node.dependencies = reading->parts[i].dependencies;
    if (of.type == cudaGraphNodeTypeKernel) {
      node.grid = dim3(of.kernel.gridDimX, of.kernel.gridDimY, of.kernel.gridDimZ);
      node.block = dim3(of.kernel.blockDimX, of.kernel.blockDimY, of.kernel.blockDimZ);
      node.shared_bytes = of.kernel.sharedMemBytes;
      node.grid_is_slot = fields[0].slot != nullptr;
      node.block_is_slot = fields[1].slot != nullptr;
      node.shared_is_slot = fields[2].slot != nullptr;
      for (const auto& [known, value] : reading->parts[i].attributes) {
        node.attributes.push_back({known->name, known->text(value)});
      }
    }
    for (const Field& field : fields) {
      if (field.shown == nullptr) continue;
      node.arguments.push_back({*field.shown == '\0' ? field.name : field.shown,
                                {field.value.begin(), field.value.end()},
                                field.slot != nullptr});
    }
  }
  return true;
}

void find_kernel(const CUDA_KERNEL_NODE_PARAMS& params, SlotNode* node) {
  node->function = params.func;
  if (node->function == nullptr) {  // A library's kernel. The function is that in the current context.
    RelaxedCaptureMode relaxed;
    if (driver().kernel_function(&node->function, params.kern) != cudaSuccess) node->function = nullptr;
  }
  node->context = params.ctx;
  node->is_of_device = params.ctx == current_context();
  if (!node->is_of_device) node->foreign = params.kern;
}

SlotNode& add_slot_node(const NodeContents& content, std::uint32_t index, Slots* slots) {
  const NodeContent& of = content.nodes[index];
  SlotNode& node = slots->nodes.emplace_back(slots->begin(first_byte(of.type) + of.size));
  node.index = index;
  node.type = of.type;
  const auto at = static_cast<std::uint32_t>(node.fields + first_byte(of.type));
  std::memcpy(slots->fields.data() + at, content.bytes.data() + of.bytes, of.size);
  if (of.type != cudaGraphNodeTypeKernel) return node;
  const CUDA_KERNEL_NODE_PARAMS& kernel = of.kernel;
  find_kernel(kernel, &node);
  slots->as<KernelFields>(node) = {{kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ},
                                   {kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ},
                                   kernel.sharedMemBytes};
  node.argument_count = of.argument_count;
  for (std::uint32_t i = 0; i < of.argument_count; ++i) {
    slots->arguments.push_back(at + content.arguments[of.first_argument + i]);
  }
  return node;
}

}  // namespace graphcache
