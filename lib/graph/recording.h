#pragma once

#include <absl/base/attributes.h>
#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "graph/capture.h"
#include "graph/recorder_calls.h"
#include "graph/template.h"
#include "graph/write.h"
#include "graphcache/detail/call.h"

namespace graphcache {

// The recording whose capture this thread is inside of, or null. A nested run checks it before it launches, because a
// graph launch into a capturing stream fails and breaks the capture (docs/semantics.md). The visibility ensures that a
// program has one such variable, whatever flags its parts are compiled with. The Python module has its own.
[[gnu::visibility("default")]] ABSL_CONST_INIT inline thread_local detail::Recording* active_recording = nullptr;

namespace detail {

// Everything that a Recorder writes to while `fn` runs.
class Recording {
 public:
  enum class Mode {
    kDirect,   // `fn` enqueues on the stream.
    kCapture,  // `fn` is captured as a graph of its own, whose slot nodes are kept.
    kInlined,  // `fn` is captured as part of another run's graph.
  };

  // `stream` is the run's stream.
  Recording(cudaStream_t stream, const Call& call, Mode mode, Setter& setter) noexcept;
  Recording(const Recording&) = delete;

  // Calls `fn`. Returns its result, else the first failure of its recorder's calls, else an error that it left in the
  // last-error slot. That slot is the only sign of a failed <<<>>> launch, whose node is then missing. A fatal error
  // takes precedence.
  absl::Status invoke();

  // A library's kernel is the recorder's own: its call has begun.
  void launch(cudaStream_t stream, const void* kernel, bool of_library, const LaunchShape& shape, const ArgView* args,
              std::size_t count);
  void memcpy(cudaStream_t stream, ArgView dst, ArgView src, ArgView bytes, cudaMemcpyKind kind);
  void memset(cudaStream_t stream, ArgView dst, ArgView value, ArgView bytes);
  void write(cudaStream_t stream, void* device, std::size_t bytes, const ArgView& value);
  void keep(std::shared_ptr<const void> owner, std::size_t bytes);

  // A recorder throws nothing of its own. If memory runs out, the call fails like any other.
  template <class F>
  void or_fail(F&& call) {
    try {
      call();
    } catch (const std::bad_alloc&) {
      fail(out_of_memory());
    }
  }

  // Makes the run fail; later calls of the recorder do nothing. The first failure is kept.
  void fail(absl::Status why) { status_.Update(std::move(why)); }
  // The same for a mistake in the use of the recorder.
  void fail_as_misused(absl::Status why) {
    captured_.is_misuse |= status_.ok();
    fail(std::move(why));
  }
  // Records that `fn` has thrown an exception that is an order to stop.
  void stop() { is_stopped_ = true; }
  bool is_stopped() const { return is_stopped_; }
  // Describes what broke the capture, whose end failed with `error`.
  absl::Status end_failed(cudaError_t error) const;
  const RecorderCalls& calls() const { return calls_; }
  // Prevents the capture from being kept, with the reason. The first reason is kept, except that a fatal one replaces
  // it.
  void refuse_capture(const absl::Status& why) { add_failure(&refused_, why); }
  const absl::Status& refused() const { return refused_; }

  // Id of the capture that the run's stream is part of, or 0. While a part is captured, the id of the part's capture.
  unsigned long long capture_id() { return outermost().capture_id_; }
  bool has_broken_part() const { return has_broken_part_; }

  // What `fn` leaves, as far as the recorder's calls say it.
  Captured& captured() { return captured_; }
  // Completes the captured slot nodes, once the graph's nodes are listed. Fails if one is missing from these, or if the
  // driver does not report how to set it.
  absl::Status find_slots();
  // Objects that must be released outside of the capture.
  void keep_until_over(Objects objects) { captured_.until_over.splice(captured_.until_over.end(), objects); }

 private:
  friend class ConditionalCalls;  // lib/conditional, which no file of the core includes.

  // The graph's nodes use this code or memory of the library.
  void need(std::shared_ptr<void> what);
  // The recording whose capture this one is part of.
  Recording& outermost() { return mode_ == Mode::kInlined && active_recording != nullptr ? *active_recording : *this; }

  // Writes an argument's value for this run into the block of fields. If the argument is a slot, the field follows it.
  // Makes the run fail if the slot belongs to another call of `fn`.
  void take(SlotNode& node, const ArgView& arg, std::size_t field);
  bool may_enqueue(cudaStream_t stream, const char* call, const void* kernel = nullptr);
  // Whether the capture that this recording writes to is no longer intact.
  bool is_capture_broken();
  // Describes a CUDA call that failed. If an earlier call had broken the capture, names that error, as far as it is
  // known, and the recorder calls between which it occurred.
  absl::Status broken(std::string_view call, cudaError_t error) const;
  // The call has succeeded. Keeps the node just captured on `stream` if one of its fields follows a slot.
  void keep_node(cudaStream_t stream, SlotNode node, cudaGraphNodeType type);
  // Whether the run has not failed and there is work for so many bytes. Makes it fail if no memory has them.
  bool is_work(const char* call, const ArgView& arg, std::size_t bytes);
  // Makes the run fail if a kernel that accesses this memory would lose the context (docs/semantics.md).
  bool reaches(const char* call, const void* memory);

  const cudaStream_t stream_;
  const Call& call_;
  const Mode mode_;
  Setter& setter_;
  // Of the capture that is written to: the run's, or that of a part of the graph, such as a body of a conditional node.
  cudaStream_t capture_stream_ = stream_;
  unsigned long long capture_id_ = 0;
  absl::Status status_;
  absl::Status refused_;
  RecorderCalls calls_;
  const LastErrorGuard* errors_ = nullptr;  // Errors that `fn` has left in the last-error slot; set while `fn` runs.
  cudaError_t left_behind_ = cudaSuccess;   // The error that was left when the last call of the recorder began.
  bool is_stopped_ = false;
  Captured captured_;
  Slots& slots_ = captured_.content.slots;
  std::vector<cudaGraphNode_t> slot_nodes_;  // The handles of slots_.nodes.
  bool in_part_ = false;                     // Whether a part is recorded, whose nodes stay as they were recorded.
  bool has_broken_part_ = false;
  std::shared_ptr<void> parts_;  // What lib/conditional has for this recording. Destroyed first, after the capture.
};

}  // namespace detail

}  // namespace graphcache
