#include "graph/inspect.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

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
  Inspection(const Content& content, const void* place)
      : slots_(content.slots), place_(place), kept_(content.kept_memory) {}

  // Notes nodes that cannot be read, and fails only if the error has destroyed the context. `slot_nodes` are those of
  // the nodes.
  CallResult read(const std::vector<cudaGraphNode_t>& nodes, const std::vector<SlotNode>& slot_nodes) {
    auto slot_node = slot_nodes.begin();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!is_in_child_) index_ = i;
      const bool has_slots = slot_node != slot_nodes.end() && slot_node->index == i;
      const CallResult done = read(nodes[i], has_slots ? &*slot_node++ : nullptr);
      if (is_fatal(done.error)) return done;
      if (done.error != cudaSuccess) unread_ = done;
    }
    return {};
  }

  // Fills in what the content says of its nodes.
  void describe(Content* content) {
    content->shape = shape_;
    content->conditional_count = conditionals_;
    content->leaves_memory = leaves_memory();
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
    if (unread_.error != cudaSuccess) return cuda_failure(unread_.call, unread_.error);
    return absl::OkStatus();
  }

 private:
  bool leaves_memory() {
    std::sort(freed_.begin(), freed_.end());
    return std::any_of(allocated_.begin(), allocated_.end(), [&](const AddressRange& memory) {
      return !std::binary_search(freed_.begin(), freed_.end(), memory.begin);
    });
  }

  CallResult read(cudaGraphNode_t node, const SlotNode* slot_node) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    const CallResult found{"cudaGraphNodeGetType", node_type(node, by_driver_, &type)};
    if (found.error != cudaSuccess) return found;
    shape_ = (shape_ + static_cast<std::uint64_t>(type) + 1) * 0x9e3779b97f4a7c15;
    switch (type) {
      case cudaGraphNodeTypeMemcpy: {
        cudaMemcpy3DParms params = {};
        const CallResult done = copy_params(node, &params);
        if (done.error == cudaSuccess) add(params, slot_node);
        return done;
      }
      case cudaGraphNodeTypeHost: {
        cudaHostNodeParams params = {};
        unsigned sync_mode = 0;
        const CallResult done = host_params(node, &params, &sync_mode);
        if (done.error == cudaSuccess) lends_to_host_function_ = lends_to_host_function_ || may_be_gone(params);
        return done;
      }
      case cudaGraphNodeTypeMemAlloc: {
        void* memory = nullptr;
        std::size_t bytes = 0;
        const CallResult done = allocated_memory(node, &memory, &bytes);
        if (done.error == cudaSuccess) allocated_.push_back({reinterpret_cast<std::uintptr_t>(memory), bytes});
        return done;
      }
      case cudaGraphNodeTypeMemFree: {
        void* memory = nullptr;
        const CallResult done = freed_memory(node, &memory);
        if (done.error == cudaSuccess) freed_.push_back(reinterpret_cast<std::uintptr_t>(memory));
        return done;
      }
      case cudaGraphNodeTypeGraph: {
        cudaGraph_t child = nullptr;
        const CallResult got = child_graph(node, &child);
        if (got.error != cudaSuccess) return got;
        std::vector<cudaGraphNode_t> nodes;
        const CallResult listed = list_nodes(child, &nodes);
        if (listed.error != cudaSuccess) return listed;
        const bool around = std::exchange(is_in_child_, true);
        const CallResult done = read(nodes, /*slot_nodes=*/{});
        is_in_child_ = around;
        return done;
      }
      case cudaGraphNodeTypeConditional:
        ++conditionals_;
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
    bool pageable = false;
    const CallResult done = find_pageable(memory, &pageable);
    if (done.error != cudaSuccess) unread_ = done;
    return pageable;
  }

  void add(const cudaMemcpy3DParms& copy, const SlotNode* slot_node) {
    const auto add_raw = [&](const cudaPitchedPtr& memory, const cudaPos& at, std::size_t field) {
      const bool is_slot = slot_node != nullptr && slots_.binding(*slot_node, slot_node->fields + field) != nullptr;
      if (is_slot || memory.ptr == nullptr) return;  // An array has no pointer.
      const std::size_t row = at.z * memory.ysize + at.y;
      const char* const begin = static_cast<const char*>(memory.ptr) + row * memory.pitch + at.x;
      copies_pageable_ = copies_pageable_ || (!is_own(begin) && !is_kept(begin) && is_pageable_memory(begin));
    };
    add_raw(copy.srcPtr, copy.srcPos, offsetof(MemcpyFields, src));
    add_raw(copy.dstPtr, copy.dstPos, offsetof(MemcpyFields, dst));
  }

  // Whether an earlier node allocates this memory, which the runtime does not know before the first launch. A later
  // node may have got the address of memory that fn has freed.
  bool is_own(const char* memory) const {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    return std::any_of(allocated_.begin(), allocated_.end(),
                       [&](const AddressRange& own) { return at - own.begin < own.size; });
  }

  bool is_kept(const void* memory) const {
    const std::less<> is_before;
    return std::any_of(kept_.begin(), kept_.end(), [&](const KeptMemory& kept) {
      const void* const end = static_cast<const char*>(kept.begin) + kept.bytes;
      return kept.first_node <= index_ &&
             (memory == kept.begin || (!is_before(memory, kept.begin) && is_before(memory, end)));
    });
  }

  const bool by_driver_ = has_context();
  const Slots& slots_;
  const void* const place_;  // an address in the module of `fn`
  const std::vector<KeptMemory>& kept_;
  std::size_t index_ = 0;  // Index of the node that is read, or of the child graph's node that it is in.
  bool is_in_child_ = false;
  std::uint64_t shape_ = 0;
  std::size_t conditionals_ = 0;
  bool copies_pageable_ = false;
  CallResult unread_;  // what the last node that could not be read has returned
  bool lends_to_host_function_ = false;
  std::vector<AddressRange> allocated_;
  std::vector<std::uint64_t> freed_;
};

}  // namespace

absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, Content* content) {
  return inspect(nodes, nullptr, content);
}

absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, const void* place, Content* content) {
  const LastErrorGuard last_error;
  Inspection inspection(*content, place);
  if (const CallResult done = inspection.read(nodes, content->slots.nodes); done.error != cudaSuccess) {
    return cuda_failure(done.call, done.error);
  }
  inspection.describe(content);
  return place == nullptr ? absl::OkStatus() : inspection.unfit();
}

CallResult find_pageable(const void* memory, bool* pageable) {
  cudaPointerAttributes attributes = {};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, memory);
  *pageable = error == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered;
  return {"cudaPointerGetAttributes", error};
}

AddressRange stack_of_this_thread() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* begin = nullptr;
  std::size_t size = 0;
  const bool is_known = pthread_attr_getstack(&attributes, &begin, &size) == 0;
  pthread_attr_destroy(&attributes);
  return is_known ? AddressRange{reinterpret_cast<std::uintptr_t>(begin), size} : AddressRange{};
}

bool is_on_this_threads_stack(const void* address) {
  static thread_local const AddressRange stack = stack_of_this_thread();
  const auto offset_of = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) - stack.begin; };
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
