// One call of `fn`: captured from begin to end, whatever happens inside, or direct.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "graph/diagnose.h"
#include "graph/on_device.h"
#include "graph/recorder_calls.h"
#include "graph/template.h"
#include "graphcache/cache.h"

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

  // Later calls of the recorder do nothing, and the run fails. The first failure stays.
  void fail(absl::Status why) { status_.Update(std::move(why)); }
  // What broke the capture, whose end failed with `error`.
  absl::Status end_failed(cudaError_t error) const;
  const RecorderCalls& calls() const { return calls_; }
  // Says that what is captured must not be kept, and why. The first reason stays, but for a fatal one.
  void refuse_capture(const absl::Status& why) { add_failure(&refused_, why); }
  const absl::Status& refused() const { return refused_; }
  // Whether a size that is a slot was 0, so that a node is missing.
  bool has_empty_slot() const { return has_empty_slot_; }

  // Of the capture that the run's stream is part of, or 0.
  unsigned long long capture_id() const { return capture_id_; }

  // The slot nodes that were captured, found among the graph's; false if one is missing.
  bool take_slots(const std::vector<cudaGraphNode_t>& nodes, Slots* slots);
  // What the graph needs for the values of on_device().
  DeviceValues take_device_values() { return std::move(device_values_); }

 private:
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
  // Of what kind memory is and whose. What cannot be told counts as managed memory, which is handled with most care.
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
};

}  // namespace detail

// The recording whose capture this thread is inside of, or null. A run made inside it must know without launching: a
// launch into a capturing stream is refused and breaks the capture (fact 5).
extern constinit thread_local detail::Recording* active_recording;

struct Captured {
  absl::Status fn;       // What `fn` reports. Ok if it threw because its capture was broken.
  absl::Status capture;  // What broke the capture. Not ok: nothing was enqueued, and there is no template.
  // Whether the capture was refused because a copy or set whose size is a slot has 0 bytes in this run.
  bool empty_slot = false;
  Template graph;
  Content content;
  std::chrono::nanoseconds time{0};
  std::vector<std::string> strays;  // Work that the graph lacks (Diagnosis::strays), if somebody watched.
};

// Calls `fn` under a capture of `stream`. Afterwards the stream is not capturing, also if `fn` throws. An exception of
// `fn` passes only if the capture is whole: checked code throws what a call returns that a capture forbids. `diagnoser`
// watches, unless it is null.
Captured capture(cudaStream_t stream, cudaStreamCaptureMode mode, const detail::Call& call, Setter& setter,
                 const detail::DiagnoseInterface* diagnoser);

// The error that has cost the context, if there was one; the graph's handle is dropped then, not destroyed.
absl::Status take_fatal_error(Captured& captured);

// Calls `fn` directly, or inside another run's capture.
absl::Status enqueue(cudaStream_t stream, const detail::Call& call, Setter& setter);
absl::Status enqueue_inlined(cudaStream_t stream, const detail::Call& call, Setter& setter);

}  // namespace graphcache
