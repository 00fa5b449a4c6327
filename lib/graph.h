// Owning handles of graphs and executables, and what a template keeps of its slot nodes.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "errors.h"
#include "graphcache/recorder.h"

namespace graphcache {

// While it lives, calls of this thread that a capture in global mode forbids other threads are allowed and leave that
// capture whole (law 9, fact 2).
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() : exchanged_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}
  ~RelaxedCaptureMode() {
    if (exchanged_) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  const bool exchanged_;
};

// Destroys a handle and leaves the last-error slot as it was. A failing destruction is nobody's error: it has nothing
// left to lose, and at the end of a process the runtime may be gone first (fact 34).
template <class Handle>
void destroy_quietly(Handle handle, cudaError_t (*destroy)(Handle)) {
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  destroy(handle);
}

// Owns a handle. Never to be destroyed while this thread is inside a capture (fact 6): see retire.h.
template <class Handle, cudaError_t (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) destroy_quietly(handle_, Destroy);
  }

  Handle get() const { return handle_; }
  // Gives the handle up without destroying it, as is due after a fatal error (fact 32).
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Handle handle_ = nullptr;
};

using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

// One argument or field of a slot node that follows a slot.
struct Binding {
  unsigned char* target;  // In the node's fields.
  std::uint32_t size;     // Of the target.
  std::uint32_t offset;   // Of the slot's value in the run's values.
  detail::Convert convert;
};

// The fields of a node as bytes that bindings can point into, and the calls' structures are filled from.
struct KernelFields {
  dim3 grid, block;
  std::size_t shared_bytes;
};
struct MemcpyFields {
  void* dst;
  const void* src;
  std::size_t bytes;
};
struct MemsetFields {
  void* dst;
  int value;
  std::size_t bytes;
};

// A node that holds values of slots. It is the shadow of what the executable holds for it: an executable has no
// getters, and setting a node's parameters sets all of them (fact 13).
struct SlotNode {
  cudaGraphNode_t node = nullptr;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  const void* kernel = nullptr;             // The host symbol of a kernel node.
  CUfunction function = nullptr;            // The driver's handle of it, or null if it cannot be had.
  cudaMemcpyKind kind = cudaMemcpyDefault;  // Of a memcpy node.
  bool enabled = true;                      // In the executable: a copy or set of 0 bytes is disabled there.
  std::unique_ptr<unsigned char[]> fields;  // One of the structures above, then a kernel's arguments.
  std::vector<void*> arguments;             // Pointers to the latter, as a launch takes them.
  std::vector<Binding> bindings;

  template <class Fields>
  Fields& as() const {
    return *reinterpret_cast<Fields*>(fields.get());
  }
};

// What was captured: the graph, its slot nodes, and the values that these hold in it.
struct Template {
  Graph graph;
  std::size_t node_count = 0;
  std::vector<SlotNode> slot_nodes;
  std::vector<unsigned char> values;
};

// Device memory of an executable: 1.3 to 2.2 KiB a node, measured (facts, "Costs").
inline constexpr std::size_t kExecutableBytesPerNode = 2048;

}  // namespace graphcache
