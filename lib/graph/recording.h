// What a Recorder writes to while `fn` runs.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "graph/on_device.h"
#include "graph/recorder_calls.h"
#include "graph/template.h"
#include "graphcache/cache.h"
#include "graphcache/detail/hit.h"

namespace graphcache {
namespace detail {

// What a Recorder writes to while `fn` runs.
class Recording {
 public:
  enum class Mode {
    kDirect,   // Enqueued.
    kCapture,  // Captured as a graph of its own, whose slot nodes are kept.
    kInlined,  // Captured as part of another run's graph.
  };

  // `stream` is the run's.
  Recording(cudaStream_t stream, const Call& call, Mode mode, Setter& setter) noexcept;
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Calls `fn`. Returns what it returned, else the first failure of its recorder's calls, else an error that it left in
  // the last-error slot: a launch by <<<>>> says nowhere else that it failed, and its node is then missing. A fatal one
  // among them comes first.
  absl::Status invoke();

  void launch(cudaStream_t stream, const void* kernel, const LaunchShape& shape, const ArgView* args,
              std::size_t count);
  void memcpy(cudaStream_t stream, ArgView dst, ArgView src, ArgView bytes, cudaMemcpyKind kind);
  void memset(cudaStream_t stream, ArgView dst, ArgView value, ArgView bytes);
  const void* on_device(cudaStream_t stream, const ArgView& value);
  void conditional(cudaStream_t stream, const Conditional& node);

  // A recorder throws nothing of its own: memory that ran out is a failure of the call, like others.
  template <class F>
  void or_fail(F&& call) {
    try {
      call();
    } catch (const std::bad_alloc&) {
      fail(out_of_memory());
    }
  }

  // Later calls of the recorder do nothing, and the run fails. The first failure stays.
  void fail(absl::Status why) { status_.Update(std::move(why)); }
  // What broke the capture, whose end failed with `error`.
  absl::Status end_failed(cudaError_t error) const;
  const RecorderCalls& calls() const { return calls_; }
  // Says that what is captured must not be kept, and why. The first reason stays, except that a fatal one replaces it.
  void refuse_capture(const absl::Status& why) { add_failure(&refused_, why); }
  const absl::Status& refused() const { return refused_; }
  // Whether a size that is a slot was 0, so that a node is missing.
  bool has_empty_slot() const { return has_empty_slot_; }

  // Of the capture that the run's stream is part of, or 0; while a body is captured, of that capture.
  unsigned long long capture_id();
  // Whether the capture of a body of a conditional node broke.
  bool has_broken_body() const { return has_broken_body_; }

  const std::vector<cudaGraphNode_t>& slot_nodes() const { return slot_nodes_; }
  // The slot nodes that were captured, found among the graph's; false if one is missing.
  bool take_slots(const std::vector<cudaGraphNode_t>& nodes, Slots* slots);
  // What the graph needs for the values of on_device().
  DeviceValues take_device_values() { return std::move(device_values_); }
  // Its conditional nodes, and the code that sets their conditions.
  Conditionals take_conditionals() { return std::move(conditionals_); }
  const std::vector<std::shared_ptr<void>>& code_of_conditions() const { return code_of_conditions_; }

 private:
  class BodyCapture;
  // A conditional node that was captured.
  struct Added {
    cudaGraphNode_t node = nullptr;
    cudaGraph_t* bodies = nullptr;  // Of the node.
    std::size_t number = 0;         // Among the conditional nodes of the capture.
    cudaGraphConditionalHandle handle = 0;
    const unsigned* condition = nullptr;
    void* kept = nullptr;  // Where the node's first kernel leaves `condition`, or null if it stays.
    Conditions::Kernels kernels = {};
  };
  bool find_condition(const Conditional& node, const unsigned** at);
  void run_bodies(cudaStream_t stream, const Conditional& node);
  void capture_bodies(cudaStream_t stream, const Conditional& node);
  bool add_conditional(cudaStream_t stream, const Conditional& node, Added* added);
  CallResult add_node(cudaStream_t stream, const Conditional& node, cudaGraphConditionalNodeType type, Added* added);
  void set_condition(cudaStream_t stream, cudaKernel_t kernel, const ArgView* args, std::size_t count);
  void set_again(cudaStream_t stream, const Added& added);
  bool capture_body(const Conditional& node, const Added& added, unsigned index);
  // The recording whose capture this one is part of.
  Recording& outermost() { return mode_ == Mode::kInlined && active_recording != nullptr ? *active_recording : *this; }

  // Begins a node whose fields need so many bytes. Until keep(), or the next begin(), it is the last of the slots'.
  SlotNode begin(std::size_t fields_size);
  // Writes an argument's value for this run to a place in the block of fields, which follows the slot if it is one;
  // false if its slot belongs to another call of `fn`.
  bool take(SlotNode& node, const ArgView& arg, std::size_t field);
  bool may_enqueue(cudaStream_t stream, const char* call, const void* kernel = nullptr);
  // What is said of a CUDA call that failed. If an earlier one had broken the capture: which error that was, as far as
  // it is known, and between which calls of the recorder it happened.
  absl::Status broken(const char* call, cudaError_t error) const;
  // Keeps the node that was just captured on `stream`, if a field of it follows a slot.
  void keep(cudaStream_t stream, SlotNode node, cudaGraphNodeType type);
  void skip_empty(const ArgView& bytes);
  // The kind of memory at an address, and its device. Memory of unknown kind counts as managed memory, which gets the
  // most careful treatment.
  cudaPointerAttributes attributes_of(const void* memory) const;
  void launch(cudaStream_t stream, const Setter::Kernel& kernel, const LaunchShape& shape, const ArgView* args,
              std::size_t count);
  CallResult take_device_memory(cudaStream_t stream, std::size_t bytes, void** out);

  const cudaStream_t stream_;
  const Call& call_;
  const Mode mode_;
  const std::uint64_t id_;
  Setter& setter_;
  unsigned long long capture_id_ = 0;
  absl::Status status_;
  absl::Status refused_;
  RecorderCalls calls_;
  const LastErrorGuard* errors_ = nullptr;  // While `fn` runs: what its CUDA calls have left behind.
  cudaError_t left_behind_ = cudaSuccess;   // What they had left behind when the last call of the recorder began.
  bool has_empty_slot_ = false;
  Slots slots_;
  std::vector<cudaGraphNode_t> slot_nodes_;  // The handles of slots_.nodes.
  DeviceValues device_values_;               // Of a capture.
  std::vector<void*> lent_;                  // Of a direct run, in whose stream's order it is freed.
  bool in_body_ = false;                     // Whether a body of a conditional node is being called.
  // Of a capture: the body that is being captured, all that were, and the graphs that their parts were captured as.
  BodyCapture* body_ = nullptr;
  Conditionals conditionals_;
  std::vector<Graph> parts_;
  std::vector<std::shared_ptr<void>> code_of_conditions_;
  bool has_broken_body_ = false;
};

}  // namespace detail

}  // namespace graphcache
