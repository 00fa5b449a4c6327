#include "graph/inspect.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "graph/template.h"

namespace graphcache {
namespace {

struct Range {
  const char* begin = nullptr;
  std::size_t size = 0;
};

// Empty if it cannot be determined. For the main thread, the query reads a file. With an unlimited stack size the range
// it returns reaches down into other memory, so only the upper part is used.
Range stack_of_this_thread() {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* begin = nullptr;
  std::size_t size = 0;
  const bool known = pthread_attr_getstack(&attributes, &begin, &size) == 0;
  pthread_attr_destroy(&attributes);
  if (!known) return {};
  const std::size_t used = std::min(size, kMaxBytes);
  return {static_cast<const char*>(begin) + (size - used), used};
}

class Inspection {
 public:
  Inspection(const void* frame, const std::vector<cudaGraphNode_t>& slot_nodes)
      : frame_(frame), slot_nodes_(slot_nodes) {
    std::sort(slot_nodes_.begin(), slot_nodes_.end());
  }

  // Skips nodes that cannot be read, except if the error has destroyed the context.
  CallResult read(const std::vector<cudaGraphNode_t>& nodes) {
    for (const cudaGraphNode_t node : nodes) {
      if (const CallResult done = read(node); is_fatal(done.error)) return done;
    }
    return {};
  }

  std::uint64_t shape() const { return shape_; }

  bool leaves_memory() {
    std::sort(freed_.begin(), freed_.end());
    return std::any_of(allocated_.begin(), allocated_.end(), [&](const Range& memory) {
      return !std::binary_search(freed_.begin(), freed_.end(), memory.begin);
    });
  }

  absl::Status unfit() {
    if (uses_local_) {
      return absl::FailedPreconditionError(
          "a copy has a local variable of fn at one end, and a launch of the graph would use it after fn has returned: "
          "pass the value as a slot, or copy from memory that outlives the run");
    }
    std::sort(sources_.begin(), sources_.end());
    for (std::size_t i = 1; i < sources_.size(); ++i) {
      if (sources_[i - 1] == sources_[i] && is_pageable(sources_[i])) {
        return absl::FailedPreconditionError(
            "two copies read the same pageable memory, and a launch of the graph would read it once, when fn has "
            "ended: give each copy a source of its own, or use memory from cudaMallocHost");
      }
    }
    return absl::OkStatus();
  }

 private:
  CallResult read(cudaGraphNode_t node) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    const CallResult found{"cudaGraphNodeGetType", node_type(node, by_driver_, &type)};
    if (found.error != cudaSuccess) return found;
    shape_ = (shape_ + static_cast<std::uint64_t>(type) + 1) * 0x9e3779b97f4a7c15;
    switch (type) {
      case cudaGraphNodeTypeMemcpy: {
        cudaMemcpy3DParms params = {};
        const CallResult done = copy_params(node, &params);
        if (done.error == cudaSuccess) add(params, has_slots(node));
        return done;
      }
      case cudaGraphNodeTypeMemAlloc: {
        void* memory = nullptr;
        std::size_t bytes = 0;
        const CallResult done = allocated_memory(node, &memory, &bytes);
        if (done.error == cudaSuccess) allocated_.push_back({static_cast<const char*>(memory), bytes});
        return done;
      }
      case cudaGraphNodeTypeMemFree: {
        void* memory = nullptr;
        const CallResult done = freed_memory(node, &memory);
        if (done.error == cudaSuccess) freed_.push_back(static_cast<const char*>(memory));
        return done;
      }
      case cudaGraphNodeTypeGraph: {
        cudaGraph_t child = nullptr;
        const CallResult got = child_graph(node, &child);
        if (got.error != cudaSuccess) return got;
        std::vector<cudaGraphNode_t> nodes;
        const CallResult listed = list_nodes(child, &nodes);
        return listed.error == cudaSuccess ? read(nodes) : listed;
      }
      default:
        return {};
    }
  }

  bool has_slots(cudaGraphNode_t node) const {
    return std::binary_search(slot_nodes_.begin(), slot_nodes_.end(), node);
  }

  void add(const cudaMemcpy3DParms& copy, bool has_slots) {
    uses_local_ = uses_local_ || is_local(copy.srcPtr.ptr) || is_local(copy.dstPtr.ptr);
    const bool may_be_hosts = copy.kind != cudaMemcpyDeviceToDevice && copy.kind != cudaMemcpyDeviceToHost;
    // `fn` does not change the memory that a slot points to.
    if (has_slots || copy.srcPtr.ptr == nullptr || !may_be_hosts) return;
    const std::size_t row = copy.srcPos.z * copy.srcPtr.ysize + copy.srcPos.y;
    sources_.push_back(static_cast<const char*>(copy.srcPtr.ptr) + row * copy.srcPtr.pitch + copy.srcPos.x);
  }

  // Stacks grow down, so local variables of `fn` are below its caller's frame.
  bool is_local(const void* address) const {
    return std::less<>()(address, frame_) && is_on_this_threads_stack(address);
  }

  // The runtime does not know memory that the graph allocates before the first launch.
  bool is_pageable(const char* memory) const {
    for (const Range& own : allocated_) {
      if (memory >= own.begin && memory < own.begin + own.size) return false;
    }
    return graphcache::is_pageable(memory);
  }

  const bool by_driver_ = has_context();
  const void* const frame_;
  std::vector<cudaGraphNode_t> slot_nodes_;  // sorted
  std::uint64_t shape_ = 0;
  bool uses_local_ = false;
  std::vector<const char*> sources_;  // sources of copies that may come from host memory
  std::vector<Range> allocated_;
  std::vector<const char*> freed_;
};

}  // namespace

absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, const std::vector<cudaGraphNode_t>& slot_nodes,
                     const void* frame, Content* content) {
  const LastErrorGuard last_error;
  Inspection inspection(frame, slot_nodes);
  if (const CallResult done = inspection.read(nodes); done.error != cudaSuccess) {
    return cuda_failure(done.call, done.error);
  }
  content->leaves_memory = inspection.leaves_memory();
  content->shape = inspection.shape();
  return frame == nullptr ? absl::OkStatus() : inspection.unfit();
}

bool is_pageable(const void* memory) {
  cudaPointerAttributes attributes = {};
  return cudaPointerGetAttributes(&attributes, memory) == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered;
}

bool is_on_this_threads_stack(const void* address) {
  static thread_local const Range stack = stack_of_this_thread();
  return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(stack.begin) < stack.size;
}

}  // namespace graphcache
