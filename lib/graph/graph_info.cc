#include "graph/graph_info.h"

#include <absl/strings/str_cat.h>
#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "graph/node_names.h"
#include "graph/signature.h"

namespace graphcache {
namespace {

// The ids by which profilers identify graphs and nodes, available from CUDA 13.1 on.
struct ToolsIds {
  CUresult (*of_node)(CUgraphNode, unsigned long long*);
  CUresult (*of_graph)(CUgraph, unsigned*);
  CUresult (*of_executable)(CUgraphExec, unsigned*);
};
const ToolsIds& tools_ids() {
  static const ToolsIds ids = [] {
    constexpr unsigned kSince = 13010;
    ToolsIds found;
    const auto set = [](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(driver_function(name, kSince));
    };
    set(found.of_node, "cuGraphNodeGetToolsId");
    set(found.of_graph, "cuGraphGetId");
    set(found.of_executable, "cuGraphExecGetId");
    return found;
  }();
  return ids;
}

template <class Number, class Handle>
std::optional<std::uint64_t> id_of(CUresult (*get)(Handle, Number*), Handle handle) {
  Number id = 0;
  const bool is_known = get != nullptr && handle != nullptr && get(handle, &id) == CUDA_SUCCESS;
  return is_known ? std::optional<std::uint64_t>(id) : std::nullopt;
}

// Not by absl::StrFormat, which aborts the process if memory runs out.
std::string text_of(const dim3& size) { return absl::StrCat(size.x, ", ", size.y, ", ", size.z); }

// Launch attributes by number, because older toolkits do not name all of them. Attributes of clusters alone cannot be
// read from kernels without a cluster dimension.
struct KnownAttribute {
  int id;
  const char* name;
  std::string (*text)(const CUlaunchAttributeValue&);
};
template <class T>
std::string number(const CUlaunchAttributeValue& value) {
  T number;
  std::memcpy(&number, &value, sizeof number);
  return absl::StrCat(number);
}
std::string three(const CUlaunchAttributeValue& value) {
  return text_of(dim3(value.clusterDim.x, value.clusterDim.y, value.clusterDim.z));
}
std::string domains(const CUlaunchAttributeValue& value) {
  std::array<std::uint8_t, 2> map;
  std::memcpy(map.data(), &value, sizeof map);
  return absl::StrCat(map[0], ", ", map[1]);
}
std::string window(const CUlaunchAttributeValue& value) {
  return absl::StrCat(value.accessPolicyWindow.num_bytes, " bytes, hit ratio ", value.accessPolicyWindow.hitRatio);
}
constexpr KnownAttribute kAttributes[] = {{1, "access policy window", window},
                                          {2, "cooperative", number<int>},
                                          {4, "cluster dimension", three},
                                          {5, "cluster scheduling policy", number<int>},
                                          {8, "priority", number<int>},
                                          {9, "memory synchronization domain map", domains},
                                          {10, "memory synchronization domain", number<int>},
                                          {11, "preferred cluster dimension", three},
                                          {13, "device-updatable", number<int>},
                                          {14, "shared memory carveout", number<unsigned>},
                                          {17, "portable cluster size mode", number<int>},
                                          {18, "shared memory mode", number<int>}};

class InfoReader {
 public:
  InfoReader(const Template& from, const Content& content, GraphInfo* info)
      : from_(from), slots_(content.slots), info_(*info) {}

  bool read() {
    std::optional<Reading> reading = read_all(from_);
    if (!reading) return false;
    reading_ = *std::move(reading);
    for (std::uint32_t i = 0; i < from_.nodes.size(); ++i) index_of_[from_.nodes[i]] = i;
    for (std::uint32_t i = 0; i < from_.nodes.size(); ++i) {
      if (!read(i)) return false;
    }
    return true;
  }

 private:
  bool read(std::uint32_t index) {
    const NodeContent& content = reading_.content.nodes[index];
    GraphNode& node = info_.nodes.emplace_back();
    node.type = content.type;
    node.name = kind_of(content);
    node.tools_id = id_of(tools_ids().of_node, from_.nodes[index]);
    const auto slot = std::lower_bound(slots_.nodes.begin(), slots_.nodes.end(), index,
                                       [](const SlotNode& other, std::uint32_t i) { return other.index < i; });
    slot_ = slot != slots_.nodes.end() && slot->index == index ? &*slot : nullptr;
    switch (content.type) {
      case cudaGraphNodeTypeKernel:
        read_kernel(index, content, &node);
        break;
      case cudaGraphNodeTypeMemcpy:
        if (content.size != 0) read_copy(as<cudaMemcpy3DParms>(content), &node);
        break;
      case cudaGraphNodeTypeMemset:
        if (content.size != 0) read_set(as<cudaMemsetParams>(content), &node);
        break;
      default:
        break;
    }
    return read_dependencies(from_.nodes[index], &node);
  }

  void read_kernel(std::uint32_t index, const NodeContent& content, GraphNode* node) {
    const CUDA_KERNEL_NODE_PARAMS& kernel = content.kernel;
    node->grid = dim3(kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ);
    node->block = dim3(kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ);
    node->shared_bytes = kernel.sharedMemBytes;
    node->grid_is_slot = follows(offsetof(KernelFields, grid), sizeof(dim3));
    node->block_is_slot = follows(offsetof(KernelFields, block), sizeof(dim3));
    node->shared_is_slot = follows(offsetof(KernelFields, shared_bytes), sizeof(std::size_t));
    for (const KnownAttribute& known : kAttributes) {
      CUlaunchAttributeValue value;
      bool is_set = false;
      if (driver().kernel_attribute != nullptr) {
        driver().read_attribute(from_.nodes[index], static_cast<CUlaunchAttributeID>(known.id), &value, &is_set);
      }
      if (is_set) node->attributes.push_back({known.name, known.text(value)});
    }
    if (!content.readable) return;
    for (std::uint32_t i = 0; i < content.argument_count; ++i) {
      const std::uint32_t at = content.first_argument + i;
      const bool is_slot = slot_ != nullptr && i < slot_->argument_count &&
                           follows_at(slots_.arguments[slot_->first_argument + i], reading_.sizes[at]);
      add(absl::StrCat("argument ", i), bytes(content) + reading_.content.arguments[at], reading_.sizes[at], is_slot,
          node);
    }
  }

  void read_copy(const cudaMemcpy3DParms& copy, GraphNode* node) {
    add("destination", copy.dstPtr.ptr, offsetof(MemcpyFields, dst), node);
    add("source", copy.srcPtr.ptr, offsetof(MemcpyFields, src), node);
    add("bytes", copy.extent.width, offsetof(MemcpyFields, bytes), node);
  }
  void read_set(const cudaMemsetParams& set, GraphNode* node) {
    add("destination", set.dst, offsetof(MemsetFields, dst), node);
    add("value", set.value, offsetof(MemsetFields, value), node);
    add("bytes", set.width * set.elementSize, offsetof(MemsetFields, bytes), node);
  }

  bool read_dependencies(cudaGraphNode_t handle, GraphNode* node) {
    std::size_t count = 0;
    if (node_dependencies(handle, /*by_driver=*/true, nullptr, nullptr, &count) != cudaSuccess) return false;
    std::vector<cudaGraphNode_t> nodes(count);
    std::vector<cudaGraphEdgeData> edges(count);
    if (node_dependencies(handle, /*by_driver=*/true, nodes.data(), edges.data(), &count) != cudaSuccess) return false;
    for (const cudaGraphNode_t dependency : nodes) node->dependencies.push_back(index_of_[dependency]);
    return true;
  }

  // Whether part of a field of the node follows a slot.
  bool follows(std::size_t field, std::size_t size) const {
    return slot_ != nullptr && follows_at(slot_->fields + field, size);
  }
  bool follows_at(std::size_t begin, std::size_t size) const {
    const auto first = slots_.bindings.begin() + slot_->first_binding;
    return std::any_of(first, first + slot_->binding_count, [&](const Binding& binding) {
      return binding.target < begin + size && begin < binding.target + binding.size;
    });
  }

  template <class T>
  void add(std::string name, const T& value, std::size_t field, GraphNode* node) {
    add(std::move(name), reinterpret_cast<const unsigned char*>(&value), sizeof value, follows(field, sizeof value),
        node);
  }
  static void add(std::string name, const unsigned char* bytes, std::size_t size, bool is_slot, GraphNode* node) {
    node->arguments.push_back({std::move(name), {bytes, bytes + size}, is_slot});
  }

  const unsigned char* bytes(const NodeContent& content) const { return reading_.content.bytes.data() + content.bytes; }
  template <class Params>
  Params as(const NodeContent& content) const {
    Params params;
    std::memcpy(&params, bytes(content), sizeof params);
    return params;
  }

  const Template& from_;
  const Slots& slots_;
  GraphInfo& info_;
  Reading reading_;
  const SlotNode* slot_ = nullptr;  // The slot node that is being read, or null if the node holds no slots.
  std::unordered_map<cudaGraphNode_t, std::uint32_t> index_of_;
};

}  // namespace

bool read_graph_info(const Template& from, const Content& content, cudaGraphExec_t executable, GraphInfo* info) {
  const LastErrorGuard last_error;
  if (!has_context()) return false;
  info->graph_id = id_of(tools_ids().of_graph, from.graph.get());
  info->executable_id = id_of(tools_ids().of_executable, executable);
  return InfoReader(from, content, info).read();
}

}  // namespace graphcache
