#include "graph/inspect.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "graph/template.h"

namespace graphcache {
namespace {

// The shared object or executable that has this address in its code or its static data, or null.
const void* module_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

class Inspection {
 public:
  Inspection(const void* place, Content* content) : place_(place), content_(*content) {}

  // Fills in what the content says of its nodes. Notes nodes that cannot be read, and fails only if the error has
  // destroyed the context.
  CallResult read(const std::vector<cudaGraphNode_t>& nodes, bool is_child = false) {
    for (std::uint32_t i = 0; i < nodes.size(); ++i) {
      if (!is_child) index_ = i;
      const CallResult done = read(nodes[i], is_child ? nullptr : content_.slots.node(i));
      if (is_fatal(done.error)) return done;
      if (done.error != cudaSuccess) unread_ = done;
    }
    return {};
  }

  bool has_memory_nodes() const { return !content_.allocated.empty() || !freed_.empty(); }
  // Whether a node that was read allocates memory that none of them frees. An address may be allocated and freed more
  // than once.
  bool leaves_memory() {
    constexpr auto kBegin = &AddressRange::begin;
    std::ranges::sort(content_.allocated, {}, kBegin);
    std::ranges::sort(freed_, {}, kBegin);
    return !std::ranges::includes(freed_, content_.allocated, {}, kBegin, kBegin);
  }

  absl::Status unfit() const {
    if (lends_to_host_function_) {
      return absl::FailedPreconditionError(
          "a host function has its data on a stack or in other pageable host memory, and each launch of the graph "
          "would use it after fn has returned: use static data, memory from cudaMallocHost or cudaHostRegister that "
          "lives as long as the key's entry, or an object that is kept by Recorder::keep");
    }
    if (copies_pageable_) {
      return absl::FailedPreconditionError(
          "a copy has pageable host memory, or freed memory, at one end, and each launch of the graph would use it "
          "after fn has returned: pass the pointer as a slot, use memory from cudaMallocHost or cudaHostRegister, or "
          "keep the memory before the copy, by Recorder::keep of a container or of shared_ptr<void>(owner, memory)");
    }
    return unread_.status();
  }

 private:
  CallResult read(cudaGraphNode_t node, const SlotNode* slot_node) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    const CallResult found{"cudaGraphNodeGetType", node_type(node, &type)};
    if (found.error != cudaSuccess) return found;
    content_.shape = (content_.shape + static_cast<std::uint64_t>(type) + 1) * 0x9e3779b97f4a7c15;
    switch (type) {
      case cudaGraphNodeTypeMemcpy: {
        cudaMemcpy3DParms params = {};
        const CallResult done{"cudaGraphMemcpyNodeGetParams", cudaGraphMemcpyNodeGetParams(node, &params)};
        if (done.error == cudaSuccess) add(params, slot_node);
        if (content_.copies.empty() || content_.copies.back() != index_) content_.copies.push_back(index_);
        return done;
      }
      case cudaGraphNodeTypeHost: {
        cudaHostNodeParams params = {};
        unsigned sync_mode = 0;
        const CallResult done = host_params(node, &params, &sync_mode);
        if (done.error == cudaSuccess) lends_to_host_function_ = lends_to_host_function_ || may_be_gone(params);
        return done;
      }
      case cudaGraphNodeTypeMemAlloc:
      case cudaGraphNodeTypeMemFree: {
        AddressRange memory;
        const CallResult done = node_memory(node, type, &memory);
        if (done.error == cudaSuccess)
          (type == cudaGraphNodeTypeMemFree ? freed_ : content_.allocated).push_back(memory);
        return done;
      }
      case cudaGraphNodeTypeGraph: {
        cudaGraph_t child = nullptr;
        const CallResult got{"cudaGraphChildGraphNodeGetGraph", cudaGraphChildGraphNodeGetGraph(node, &child)};
        if (got.error != cudaSuccess) return got;
        std::vector<cudaGraphNode_t> nodes;
        const CallResult listed = list_nodes(child, &nodes);
        return listed.error != cudaSuccess ? listed : read(nodes, /*is_child=*/true);
      }
      case cudaGraphNodeTypeConditional:
        ++content_.conditional_count;
        return {};
      default:
        return {};
    }
  }

  // Whether the data of a host function may be gone when the graph is launched. Functions of other modules are those of
  // libraries such as NCCL, which keep their data by user objects.
  bool may_be_gone(const cudaHostNodeParams& params) {
    constexpr std::uintptr_t kLeast = std::uintptr_t{1} << 16;  // smaller ones are numbers
    const void* const data = params.userData;
    if (reinterpret_cast<std::uintptr_t>(data) < kLeast || is_kept(data)) return false;
    if (is_on_a_stack(data)) return true;
    return module_of(reinterpret_cast<const void*>(params.fn)) == module_of(place_) && module_of(data) == nullptr &&
           is_pageable_memory(data);
  }

  // False, and noted, if the kind of memory cannot be found out.
  bool is_pageable_memory(const void* memory) {
    const PointerAttributes attributes(memory);
    if (attributes.query.error != cudaSuccess) unread_ = attributes.query;
    return attributes.is_pageable();
  }

  void add(const cudaMemcpy3DParms& copy, const SlotNode* slot_node) {
    const auto add_raw = [&](const cudaPitchedPtr& memory, const cudaPos& at, std::size_t field) {
      // An array has no pointer.
      if (content_.slots.binding(slot_node, field) != nullptr || memory.ptr == nullptr) return;
      const std::size_t row = at.z * memory.ysize + at.y;
      const char* const begin = static_cast<const char*>(memory.ptr) + row * memory.pitch + at.x;
      // The runtime does not know memory of an earlier node before the first launch. A later node may have got the
      // address of memory that fn has freed.
      copies_pageable_ =
          copies_pageable_ || (!content_.allocates(begin) && !is_kept(begin) && is_pageable_memory(begin));
    };
    add_raw(copy.srcPtr, copy.srcPos, offsetof(cudaMemcpy3DParms, srcPtr.ptr));
    add_raw(copy.dstPtr, copy.dstPos, offsetof(cudaMemcpy3DParms, dstPtr.ptr));
  }

  bool is_kept(const void* memory) const {
    return std::any_of(content_.kept_memory.begin(), content_.kept_memory.end(),
                       [&](const KeptMemory& kept) { return kept.first_node <= index_ && kept.contains(memory, 1); });
  }

  const void* const place_;  // an address in the module of `fn`
  Content& content_;
  std::uint32_t index_ = 0;  // Index of the node that is read, or of the child graph's node that it is in.
  bool copies_pageable_ = false;
  CallResult unread_;  // what the last node that could not be read has returned
  bool lends_to_host_function_ = false;
  std::vector<AddressRange> freed_;
};

}  // namespace

absl::Status inspect(Template& graph, const void* place, Content* content) {
  const LastErrorGuard last_error;
  if (!has_context()) return cuda_failure("cuCtxGetCurrent", cudaErrorDeviceUninitialized);
  content->node_count += graph.nodes.size();  // Those in bodies have been counted.
  Inspection inspection(place, content);
  absl::Status status = inspection.read(graph.nodes).status();
  if (status.ok() && !inspection.has_memory_nodes()) status = graph.order_sinks().status();
  content->leaves_memory = inspection.leaves_memory();
  return place == nullptr || !status.ok() ? status : inspection.unfit();
}

PointerAttributes::PointerAttributes(const void* memory) : cudaPointerAttributes{} {
  const LastErrorGuard last_error;  // A hit has no guard.
  query = {"cudaPointerGetAttributes", cudaPointerGetAttributes(this, memory)};
  if (query.error == cudaSuccess) return;
  type = cudaMemoryTypeManaged;
  cudaGetDevice(&device);
}

int device_of(const PointerAttributes& memory) {
  const bool is_devices = memory.type == cudaMemoryTypeDevice || memory.type == cudaMemoryTypeManaged;
  return is_devices ? memory.device : memory.is_pageable() ? kPageableMemory : kHostMemory;
}

const AddressRange& stack_of_this_thread() {
  static thread_local const AddressRange stack = []() -> AddressRange {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
    void* begin = nullptr;
    std::size_t size = 0;
    const bool is_known = pthread_attr_getstack(&attributes, &begin, &size) == 0;
    pthread_attr_destroy(&attributes);
    return is_known ? AddressRange{reinterpret_cast<std::uintptr_t>(begin), size} : AddressRange{};
  }();
  return stack;
}

bool is_on_this_threads_stack(const void* address) {
  const AddressRange& stack = stack_of_this_thread();
  const auto offset_of = [&](const void* at) { return reinterpret_cast<std::uintptr_t>(at) - stack.begin; };
  const std::uintptr_t here = offset_of(__builtin_frame_address(0)), there = offset_of(address);
  // The range of an unlimited stack reaches down into other memory. Frames that have ended are just below this one.
  constexpr std::uintptr_t kEnded = std::uintptr_t{64} << 20;
  return there < stack.size && (here >= stack.size || here < kEnded || there >= here - kEnded);
}

bool is_on_a_stack(const void* address) {
  constexpr std::uintptr_t kNear = std::uintptr_t{256} << 10;
  if (is_on_this_threads_stack(address)) return true;
  const void* const here = __builtin_frame_address(0);
  const auto distance = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(here);
  return !is_on_this_threads_stack(here) && distance + kNear < 2 * kNear;
}

}  // namespace graphcache
