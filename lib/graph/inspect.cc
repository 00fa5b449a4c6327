#include "graph/inspect.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda/errors.h"
#include "graph/template.h"

namespace graphcache {
namespace {

struct Range {
  const char* begin = nullptr;
  std::size_t size = 0;
};

// Empty if it cannot be known. To ask takes the main thread a file.
Range stack_of_this_thread() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* begin = nullptr;
  std::size_t size = 0;
  const bool known = pthread_attr_getstack(&attributes, &begin, &size) == 0;
  pthread_attr_destroy(&attributes);
  return known ? Range{static_cast<const char*>(begin), size} : Range{};
}

class Inspection {
 public:
  explicit Inspection(const void* frame) : frame_(frame) {}

  // What cannot be read is passed over, except for an error that has cost the context.
  CallResult read(const std::vector<cudaGraphNode_t>& nodes) {
    for (const cudaGraphNode_t node : nodes) {
      if (const CallResult done = read(node); is_fatal(done.error)) return done;
    }
    return {};
  }

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
    std::sort(sources_.begin(), sources_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < sources_.size(); ++i) {
      const Range& before = sources_[i - 1];
      if (before.begin + before.size > sources_[i].begin && is_pageable(before) && is_pageable(sources_[i])) {
        return absl::FailedPreconditionError(
            "two copies read the same pageable memory, and a launch of the graph would read it once, when fn has "
            "ended: give each copy a source of its own, or use memory of cudaMallocHost");
      }
    }
    return absl::OkStatus();
  }

 private:
  CallResult read(cudaGraphNode_t node) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    const CallResult found{"cudaGraphNodeGetType", cudaGraphNodeGetType(node, &type)};
    if (found.error != cudaSuccess) return found;
    switch (type) {
      case cudaGraphNodeTypeMemcpy: {
        cudaMemcpy3DParms params = {};
        const CallResult done{"cudaGraphMemcpyNodeGetParams", cudaGraphMemcpyNodeGetParams(node, &params)};
        if (done.error == cudaSuccess) add(params);
        return done;
      }
      case cudaGraphNodeTypeMemAlloc: {
        cudaMemAllocNodeParams params = {};
        const CallResult done{"cudaGraphMemAllocNodeGetParams", cudaGraphMemAllocNodeGetParams(node, &params)};
        if (done.error == cudaSuccess) allocated_.push_back({static_cast<const char*>(params.dptr), params.bytesize});
        return done;
      }
      case cudaGraphNodeTypeMemFree: {
        void* memory = nullptr;
        const CallResult done{"cudaGraphMemFreeNodeGetParams", cudaGraphMemFreeNodeGetParams(node, &memory)};
        if (done.error == cudaSuccess) freed_.push_back(static_cast<const char*>(memory));
        return done;
      }
      case cudaGraphNodeTypeGraph: {
        cudaGraph_t child = nullptr;
        const CallResult got{"cudaGraphChildGraphNodeGetGraph", cudaGraphChildGraphNodeGetGraph(node, &child)};
        if (got.error != cudaSuccess) return got;
        std::vector<cudaGraphNode_t> nodes;
        const CallResult listed = list_nodes(child, &nodes);
        return listed.error == cudaSuccess ? read(nodes) : listed;
      }
      default:
        return {};
    }
  }

  void add(const cudaMemcpy3DParms& copy) {
    const void* const source = copy.srcPtr.ptr;
    uses_local_ = uses_local_ || is_local(source) || is_local(copy.dstPtr.ptr);
    if (source == nullptr || copy.kind == cudaMemcpyDeviceToDevice || copy.kind == cudaMemcpyDeviceToHost) return;
    const std::size_t rows = std::max<std::size_t>(copy.extent.height, 1) * std::max<std::size_t>(copy.extent.depth, 1);
    sources_.push_back({static_cast<const char*>(source),
                        rows == 1 ? copy.extent.width : rows * std::max(copy.srcPtr.pitch, copy.extent.width)});
  }

  // Stacks grow down: what `fn` had lies below the frame of who called it.
  bool is_local(const void* address) const {
    return std::less<>()(address, frame_) && is_on_this_threads_stack(address);
  }

  // Memory that the graph allocates is unknown to the runtime before the first launch.
  bool is_pageable(const Range& memory) const {
    for (const Range& own : allocated_) {
      if (memory.begin >= own.begin && memory.begin < own.begin + own.size) return false;
    }
    cudaPointerAttributes attributes = {};
    return cudaPointerGetAttributes(&attributes, memory.begin) == cudaSuccess &&
           attributes.type == cudaMemoryTypeUnregistered;
  }

  const void* const frame_;
  bool uses_local_ = false;
  std::vector<Range> sources_;  // Of copies that may come from the host.
  std::vector<Range> allocated_;
  std::vector<const char*> freed_;
};

}  // namespace

absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, const void* frame, bool* leaves_memory) {
  const LastErrorGuard last_error;
  Inspection inspection(frame);
  if (const CallResult done = inspection.read(nodes); done.error != cudaSuccess) {
    return cuda_failure(done.call, done.error);
  }
  *leaves_memory = inspection.leaves_memory();
  return inspection.unfit();
}

bool is_on_this_threads_stack(const void* address) {
  static thread_local const Range stack = stack_of_this_thread();
  return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(stack.begin) < stack.size;
}

}  // namespace graphcache
