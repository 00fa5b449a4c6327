#include "graph/describe.h"

#include <absl/types/span.h>
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "graph/attributes.h"
#include "graph/inspect.h"

namespace graphcache {
namespace {

// Bytes of a kernel node with one dependency and its priority, and of its arguments.
constexpr std::size_t kUsualSignature = 128, kUsualArguments = 64;

// Reads one graph. Its vectors are allocated once, at their usual size, because growing them takes as long as the
// reading.
class Reader {
 public:
  // With a reading, which has the content, reads as much as can be read of any graph.
  Reader(const Template& from, NodeContents* content, Reading* reading, bool knows_bodies = false,
         const Slots* slots = nullptr)
      : from_(from), content_(*content), reading_(reading), knows_bodies_(knows_bodies), slots_(slots) {}

  std::optional<Signature> read() {
    if (context_ == nullptr) return std::nullopt;
    content_.nodes.reserve(from_.nodes.size());
    content_.bytes.reserve(from_.nodes.size() * kUsualArguments);
    signature_.reserve(from_.nodes.size() * kUsualSignature);
    if (!read_nodes(from_.nodes)) return std::nullopt;
    for (const InnerNodes& inner : from_.inner) {
      if (reading_ != nullptr) break;
      signature_.append(inner.name);
      if (!read_nodes(inner.nodes)) return std::nullopt;
    }
    signature_.append(fixed_copies_);
    put(static_cast<std::uint32_t>(fixed_copies_.size()));
    content_.bytes.shrink_to_fit();
    if (reading_ != nullptr) reading_->sizes.assign(sizes_.begin(), sizes_.end());
    return std::move(signature_);
  }
  bool is_alone() const { return is_alone_; }

 private:
  struct Layout {
    std::uint32_t first_argument, argument_count, size;
    bool known;
  };

  // Reads the nodes of one graph, in which their dependencies are.
  bool read_nodes(const std::vector<cudaGraphNode_t>& nodes) {
    nodes_ = nodes;
    first_ = content_.nodes.size();
    index_of_.clear();
    put(static_cast<std::uint64_t>(nodes.size()));
    for (const cudaGraphNode_t node : nodes) {
      const std::size_t begin = signature_.size();
      if (reading_ != nullptr) reading_->parts.emplace_back();
      NodeContent& content = content_.nodes.emplace_back();
      content.is_inner = first_ != 0;
      // The driver's getter also works for kernels of other libraries, where the runtime's fails (fact 16). Most nodes
      // are kernels, so this saves the query of their type.
      content.readable = driver_.kernel_params(node, &content.kernel) == cudaSuccess;
      if (content.readable) {
        content.type = cudaGraphNodeTypeKernel;
      } else if (node_type(node, &content.type) != cudaSuccess) {
        return false;
      }
      put(content.type);
      if (!read_dependencies(node)) return false;
      if (reading_ != nullptr) reading_->parts.back().place = signature_.substr(begin);
      if (read_parameters(node, content) || reading_ != nullptr) continue;
      is_alone_ = true;
      content.readable = content.size != 0 || (content.type == cudaGraphNodeTypeConditional && knows_bodies_);
    }
    return true;
  }

  template <class... T>
  void put(const T&... values) {
    static_assert((... && (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T>)),
                  "padding must not get in");
    (signature_.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  }

  bool read_parameters(cudaGraphNode_t node, NodeContent& content) {
    content.bytes = static_cast<std::uint32_t>(content_.bytes.size());
    content.readable = content.readable || content.type != cudaGraphNodeTypeKernel;
    switch (content.type) {
      case cudaGraphNodeTypeKernel:
        return read_kernel(node, content);
      case cudaGraphNodeTypeMemcpy:
        return read_memcpy(node, content);
      case cudaGraphNodeTypeMemset:
        return read_memset(node, content);
      case cudaGraphNodeTypeHost:
        return read_host(node, content);
      case cudaGraphNodeTypeEmpty:
        return true;
      case cudaGraphNodeTypeEventRecord:
      case cudaGraphNodeTypeWaitEvent: {
        cudaEvent_t event = nullptr;
        if (node_event(node, content.type, &event) != cudaSuccess) return false;
        keep(content, event);
        return true;
      }
      case cudaGraphNodeTypeMemAlloc:
      case cudaGraphNodeTypeMemFree: {
        AddressRange memory;
        if (node_memory(node, content.type, &memory).error == cudaSuccess) keep(content, memory);
        if (content.type == cudaGraphNodeTypeMemAlloc) allocated_.push_back(memory);
        return false;
      }
      default:
        return false;
    }
  }

  // Dependencies are read in the order of the array, because an update pairs nodes by it (fact 22).
  bool read_dependencies(cudaGraphNode_t node) {
    std::size_t count = dependencies_.size();
    if (node_dependencies(node, dependencies_.data(), edges_.data(), &count) != cudaSuccess) return false;
    if (count == dependencies_.size()) {  // The arrays may have been too small.
      dependencies_.resize(2 * count);
      edges_.resize(2 * count);
      return read_dependencies(node);
    }
    put(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const std::optional<std::uint32_t> index = index_of(dependencies_[i]);
      if (!index) return false;
      if (reading_ != nullptr) reading_->parts.back().dependencies.push_back(*index);
      put(*index, edges_[i].from_port, edges_[i].to_port, edges_[i].type);
    }
    return true;
  }

  // Index of the node that is being read or of one that it depends on, which is mostly the previous node.
  std::optional<std::uint32_t> index_of(cudaGraphNode_t node) {
    const std::size_t here = content_.nodes.size() - 1 - first_;
    if (here > 0 && nodes_[here - 1] == node) return static_cast<std::uint32_t>(here - 1);
    if (index_of_.empty()) {
      index_of_.reserve(nodes_.size());
      for (std::uint32_t i = 0; i < nodes_.size(); ++i) index_of_[nodes_[i]] = i;
    }
    const auto found = index_of_.find(node);
    return found != index_of_.end() ? std::optional(found->second) : std::nullopt;
  }

  template <class T>
  void keep(NodeContent& content, const T& params) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(&params);
    content_.bytes.insert(content_.bytes.end(), bytes, bytes + sizeof params);
    content.size = sizeof params;
  }

  bool read_kernel(cudaGraphNode_t node, NodeContent& content) {
    CUDA_KERNEL_NODE_PARAMS& params = content.kernel;
    // A green context's node takes no function (docs/semantics.md).
    if (params.kern != nullptr && params.ctx != context_) params.func = nullptr;
    // These belong to the node.
    void** const arguments = std::exchange(params.kernelParams, nullptr);
    void** const packed = std::exchange(params.extra, nullptr);
    // An update between two contexts fails.
    if (reading_ == nullptr) put(content.readable ? params.ctx : context_);
    content.grid_updatable = true;
    if (!read_attributes(node, &content.grid_updatable) && reading_ == nullptr) return false;
    if (!content.readable) return true;
    const bool has_arguments = arguments != nullptr || packed != nullptr;
    const Layout layout = layout_of(params, has_arguments);
    content.readable = layout.known && (has_arguments || layout.argument_count == 0);
    if (!content.readable) return true;
    content.first_argument = layout.first_argument;
    content.argument_count = layout.argument_count;
    content.size = layout.size;
    // The device can write only nodes of the updater node's own device.
    content.updatable = params.ctx == context_;
    content.grid_updatable = content.grid_updatable && content.updatable;
    content_.bytes.resize(content.bytes + layout.size);
    unsigned char* const bytes = content_.bytes.data() + content.bytes;
    if (arguments == nullptr && packed != nullptr) {
      content.readable = unpack(packed, bytes, layout.size);
      content.updatable = content.updatable && content.readable;
      return true;
    }
    for (std::uint32_t i = 0; i < layout.argument_count; ++i) {
      const std::uint32_t at = layout.first_argument + i;
      std::memcpy(bytes + content_.arguments[at], arguments[i], sizes_[at]);
    }
    return true;
  }

  // Unpacks arguments that were passed as one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER).
  static bool unpack(void** packed, unsigned char* bytes, std::size_t size) {
    const void* buffer = nullptr;
    std::size_t buffer_size = 0;
    for (; *packed != CU_LAUNCH_PARAM_END; packed += 2) {
      if (packed[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = packed[1];
      if (packed[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) buffer_size = *static_cast<const std::size_t*>(packed[1]);
    }
    if (buffer == nullptr || buffer_size < size) return false;
    std::memcpy(bytes, buffer, size);
    return true;
  }

  // Queries the driver once for each function in the graph.
  Layout layout_of(const CUDA_KERNEL_NODE_PARAMS& params, bool has_arguments) {
    const void* const function = params.func != nullptr ? static_cast<const void*>(params.func) : params.kern;
    const auto [at, is_new] = layouts_.try_emplace(function);
    if (!is_new) return at->second;
    Layout layout{static_cast<std::uint32_t>(content_.arguments.size()), 0, 0, false};
    for (std::size_t i = 0;; ++i) {
      std::size_t offset = 0, size = 0;
      if (const cudaError_t error = query_parameter(params, i, &offset, &size); error != cudaSuccess) {
        // The driver returns the same error after the last parameter and on a failure. A count that is too small would
        // make it read too far. So the end is believed only if the error occurs twice, and if another query succeeds or
        // there are no arguments to read.
        const bool is_twice =
            error == cudaErrorInvalidValue && query_parameter(params, i, &offset, &size) == cudaErrorInvalidValue;
        layout.known =
            is_twice &&
            (!has_arguments || (known_kernel_ && query_parameter(*known_kernel_, 0, &offset, &size) == cudaSuccess));
        break;
      }
      if (!known_kernel_) known_kernel_ = params;
      content_.arguments.push_back(static_cast<std::uint32_t>(offset));
      sizes_.push_back(size);
      ++layout.argument_count;
      layout.size = static_cast<std::uint32_t>(offset + size);
    }
    return at->second = layout;
  }

  cudaError_t query_parameter(const CUDA_KERNEL_NODE_PARAMS& params, std::size_t i, std::size_t* offset,
                              std::size_t* size) const {
    if (params.func == nullptr && params.kern == nullptr) return cudaErrorNotSupported;
    return params.func != nullptr ? driver_.function_param_info(params.func, i, offset, size)
                                  : driver_.kernel_param_info(params.kern, i, offset, size);
  }

  // Reads all attributes, because an update refuses to change some and silently ignores others (fact 19).
  bool read_attributes(cudaGraphNode_t node, bool* grid_updatable) {
    bool is_fit = true, has_cluster = false;
    for (const KnownAttribute& known : kKnownAttributes) {
      if ((known.needs_cluster && !has_cluster) || known.since > driver_.version) continue;
      CUlaunchAttributeValue value;
      bool is_set = false;
      is_fit &= read_attribute(node, known.id, &value, &is_set);
      if (!is_set) continue;
      if (reading_ != nullptr) reading_->parts.back().attributes.push_back({&known, value});
      // Updates do not support such nodes, and the host's patches take effect one launch late.
      is_fit &= known.id != kDeviceUpdatable;
      has_cluster |= known.id == kClusterDimension;
      if (known.id == kClusterDimension || known.id == kCooperative) *grid_updatable = false;
    }
    // It is unknown what an update does with an attribute newer than this code.
    for (int id = kFirstUnknown; id <= kLastUnknown && driver_.version > kNewestVersion; ++id) {
      CUlaunchAttributeValue value;
      bool is_set = false;
      is_fit &= read_attribute(node, id, &value, &is_set) && !is_set;
    }
    put(0);
    return is_fit;
  }

  // Returns false if the attribute could not be read. It may be missing if the driver does not know it or the device
  // does not support it.
  bool read_attribute(cudaGraphNode_t node, int id, CUlaunchAttributeValue* value, bool* is_set) {
    const cudaError_t error = driver_.read_attribute(node, static_cast<CUlaunchAttributeID>(id), value, is_set);
    if (error == cudaErrorInvalidValue && id == kPreferredClusterDimension) return knows_one_cluster_size();
    if (error != cudaSuccess) return error == cudaErrorInvalidValue && id > kLastOfTheOldestDriver;
    if (!*is_set) return true;
    put(id);
    signature_.append(reinterpret_cast<const char*>(value), sizeof *value);
    return true;
  }

  // Preferred cluster sizes need compute capability 10.0. Driver 580 does not report them for a node. Driver 590 is
  // said not to report them either, on a device that has them (docs/semantics.md).
  static bool knows_one_cluster_size() {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major < 10;
  }

  // Adds where the memory is, which an update must not change (fact 23). Where a slot's was at the capture is known: it
  // may be gone. That of memory of the graph is another while a launch has allocated it.
  bool put_memory(const void* pointer, int SlotNode::*of_slot) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (std::ranges::any_of(allocated_, [&](const AddressRange& own) { return own.contains(address); })) return true;
    const auto index = static_cast<std::uint32_t>(content_.nodes.size() - 1);
    const SlotNode* const slot = slots_ != nullptr && first_ == 0 ? slots_->node(index) : nullptr;
    if (slot != nullptr && slot->*of_slot != kUnknownMemory) {
      put(slot->*of_slot);
      return true;
    }
    const PointerAttributes attributes(pointer);
    put(device_of(attributes));
    return attributes.query.error == cudaSuccess;
  }

  // One-dimensional copies may change their addresses and size, other copies nothing.
  bool read_memcpy(cudaGraphNode_t node, NodeContent& content) {
    cudaMemcpy3DParms params;
    std::memset(&params, 0, sizeof params);
    if (cudaGraphMemcpyNodeGetParams(node, &params) != cudaSuccess) return false;
    const bool flat = params.srcArray == nullptr && params.dstArray == nullptr && params.extent.height <= 1 &&
                      params.extent.depth <= 1;
    put(flat);
    keep(content, params);
    if (flat) {
      put(params.kind);
      return put_memory(params.srcPtr.ptr, &SlotNode::src_device) &&
             put_memory(params.dstPtr.ptr, &SlotNode::dst_device);
    }
    fixed_copies_.append(reinterpret_cast<const char*>(&params), sizeof params);
    return true;
  }

  bool read_memset(cudaGraphNode_t node, NodeContent& content) {
    cudaMemsetParams params;
    std::memset(&params, 0, sizeof params);
    if (cudaGraphMemsetNodeGetParams(node, &params) != cudaSuccess) return false;
    keep(content, params);
    if (!put_memory(params.dst, &SlotNode::dst_device)) return false;
    const bool flat = params.height <= 1;
    put(params.elementSize, flat);
    if (!flat) put(params.width, params.height, params.pitch);
    return true;
  }

  bool read_host(cudaGraphNode_t node, NodeContent& content) {
    cudaHostNodeParams params = {};
    unsigned sync_mode = 0;
    if (host_params(node, &params, &sync_mode).error != cudaSuccess) return false;
    put(sync_mode);
    keep(content, params);
    return true;
  }

  const Driver& driver_ = driver();
  // The context of the cache's device, which is current.
  const CUcontext context_ = has_context() ? current_context() : nullptr;
  const Template& from_;
  absl::Span<const cudaGraphNode_t> nodes_;  // Those of the graph that is being read,
  std::size_t first_ = 0;                    // and how many were read before.
  NodeContents& content_;
  Reading* const reading_ = nullptr;  // Set if any graph is to be read.
  const bool knows_bodies_;           // Whether all that conditional nodes hold is in Template::inner.
  const Slots* const slots_;
  bool is_alone_ = false;
  Signature signature_;
  std::string fixed_copies_;  // Goes to the end of the signature, followed by its size.
  std::unordered_map<cudaGraphNode_t, std::uint32_t> index_of_;  // Filled once it is needed.
  std::unordered_map<const void*, Layout> layouts_;
  std::vector<AddressRange> allocated_;                  // By the nodes so far.
  std::vector<std::size_t> sizes_;                       // Sizes of content_.arguments.
  std::optional<CUDA_KERNEL_NODE_PARAMS> known_kernel_;  // A kernel whose first parameter is known.
  std::vector<cudaGraphNode_t> dependencies_ = std::vector<cudaGraphNode_t>(8);
  std::vector<cudaGraphEdgeData> edges_ = std::vector<cudaGraphEdgeData>(8);
};

}  // namespace

std::optional<Signature> describe(const Template& from, Content* content) {
  LastErrorGuard last_error;
  NodeContents read;
  Reader reader(from, &read, nullptr, from.handles.size() == content->conditional_count, &content->slots);
  std::optional<Signature> signature = reader.read();
  static_cast<NodeContents&>(*content) = signature ? std::move(read) : NodeContents();
  content->is_alone = reader.is_alone();
  return signature;
}

std::string_view without_fixed_copies(const Signature& signature) {
  const std::size_t end = signature.size() - sizeof(std::uint32_t);
  const auto size = read_as<std::uint32_t>(signature.data() + end);
  return std::string_view(signature).substr(0, end - size);
}

Change change(const Content& from, const Content& to, std::uint32_t index) {
  const NodeContent& a = from.nodes[index];
  const NodeContent& b = to.nodes[index];
  if (!a.readable || !b.readable) return Change::kOther;
  const bool same = a.size == b.size && std::equal(from.bytes.begin() + a.bytes, from.bytes.begin() + a.bytes + a.size,
                                                   to.bytes.begin() + b.bytes);
  if (a.type != cudaGraphNodeTypeKernel) return same ? Change::kNone : Change::kOther;
  const CUDA_KERNEL_NODE_PARAMS& x = a.kernel;
  const CUDA_KERNEL_NODE_PARAMS& y = b.kernel;
  if (x.func != y.func || x.kern != y.kern || x.blockDimX != y.blockDimX || x.blockDimY != y.blockDimY ||
      x.blockDimZ != y.blockDimZ || x.sharedMemBytes != y.sharedMemBytes) {
    return Change::kOther;
  }
  if (x.gridDimX != y.gridDimX || x.gridDimY != y.gridDimY || x.gridDimZ != y.gridDimZ) return Change::kGrid;
  return same ? Change::kNone : Change::kArguments;
}

void put_captured(const Slots& slots, const SlotNode& node, void* params) {
  const auto put = [&](std::size_t offset, std::size_t size) {
    std::memcpy(static_cast<unsigned char*>(params) + offset, slots.fields.data() + node.fields + offset, size);
  };
  if (node.type == cudaGraphNodeTypeMemcpy) {
    put(offsetof(cudaMemcpy3DParms, dstPtr.ptr), sizeof(void*));
    put(offsetof(cudaMemcpy3DParms, srcPtr.ptr), sizeof(void*));
    put(offsetof(cudaMemcpy3DParms, extent.width), sizeof(std::size_t));
  } else {
    put(offsetof(cudaMemsetParams, dst), sizeof(void*));
    put(offsetof(cudaMemsetParams, value), sizeof(unsigned));
    put(offsetof(cudaMemsetParams, width), sizeof(std::size_t));
  }
}

std::optional<Reading> read_all(const Template& from, const Slots& slots) {
  LastErrorGuard last_error;
  Reading reading;
  if (!Reader(from, &reading.content, &reading).read()) return std::nullopt;
  for (const SlotNode& node : slots.nodes) {
    const NodeContent& read = reading.content.nodes[node.index];
    if (node.type == cudaGraphNodeTypeKernel || read.size == 0) continue;
    put_captured(slots, node, reading.content.bytes.data() + read.bytes);
  }
  return reading;
}

}  // namespace graphcache
