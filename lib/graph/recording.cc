#include "graph/recording.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "cuda/this_thread.h"
#include "graph/fields.h"
#include "graph/inspect.h"
#include "graph/outside.h"
#include "graph/setter.h"
#include "graphcache/status.h"
#include "setter_image.h"

namespace graphcache::detail {
namespace {

constexpr std::size_t kAlignment = alignof(std::max_align_t);

}  // namespace

Recording::Recording(cudaStream_t stream, const Call& call, Mode mode, Setter& setter) noexcept
    : stream_(stream), call_(call), mode_(mode), setter_(setter) {
  if (mode_ == Mode::kDirect) return;
  LastErrorGuard last_error;
  CaptureInfo info;
  if (const cudaError_t error = capture_info(stream, &info); error != cudaSuccess) {
    refuse_capture(cuda_failure("cudaStreamGetCaptureInfo", error));
    if (mode_ == Mode::kInlined) fail(refused_);
  }
  capture_id_ = info.id;
}

absl::Status Recording::invoke() {
  LastErrorGuard last_error;
  DeviceGuard device(setter_.device());
  if (!device.status().ok()) return device.status();
  Recorder recorder(this, stream_);
  errors_ = &last_error;
  const auto leave = [&] {
    errors_ = nullptr;
    left_behind_ = last_error.caused();
  };
  absl::Cleanup threw = [&] {
    leave();
    call_.threw = true;
    device.put_back();
  };
  absl::Status status = [&] {
    const AsOutside may_be_cancelled;
    return call_.callee->invoke(call_.fn, recorder, captured_.content.id, call_.values);
  }();
  std::move(threw).Cancel();
  leave();
  add_failure(&status, status_);
  if (const cudaError_t error = last_error.caused(); error != cudaSuccess) {
    add_failure(&status, failure_of_fn("a CUDA call of fn", error));
  }
  add_failure(&status, device.put_back().status());
  return status;
}

void Recording::take(SlotNode& node, const ArgView& arg, std::size_t field) {
  unsigned char* const target = slots_.fields.data() + field;
  if (!arg.is_slot()) {
    std::memcpy(target, arg.bytes, arg.size);
  } else if (in_part_) {
    fail_as_misused(absl::InvalidArgumentError(
        "a slot was used inside the body of a conditional node, whose nodes stay as they were recorded: write "
        "the slot to device memory by Recorder::write outside of the body, and pass that memory"));
  } else if (arg.recording != captured_.content.id) {
    fail_as_misused(
        absl::InvalidArgumentError("a slot was used that belongs to another run: a slot is valid only inside the call "
                                   "of fn that it was passed to"));
  } else {
    slots_.bindings.push_back({static_cast<std::uint32_t>(field), arg.size, arg.offset, arg.convert});
    ++node.binding_count;
    slots_.bindings.back().write(call_.values, target);
  }
}

absl::Status Recording::end_failed(cudaError_t error) const {
  const bool is_known = !is_fatal(error) && cuda_error(status_) != cudaSuccess;
  return is_known ? status_ : broken("cudaStreamEndCapture", error);
}

absl::Status Recording::broken(std::string_view call, cudaError_t error) const {
  if (mode_ != Mode::kCapture || error != cudaErrorStreamCaptureInvalidated) return failure_of_fn(call, error);
  const bool is_cause = left_behind_ != cudaSuccess && left_behind_ != error;
  return failure_of_fn(
      absl::StrCat("the capture broke ", calls_.place(), ": ", is_cause ? "a CUDA call of fn" : std::string(call)),
      is_cause ? left_behind_ : error);
}

bool Recording::is_capture_broken() {
  const DeviceGuard current(setter_.device());  // cudaStreamPerThread is of the current device.
  CaptureInfo info;
  const cudaError_t error = capture_info(outermost().capture_stream_, &info);
  return error != cudaSuccess || info.status != cudaStreamCaptureStatusActive || info.id != capture_id();
}

// Work on a stream outside the capture would run now, and never again on a replay.
bool Recording::may_enqueue(cudaStream_t stream, const char* call, const void* kernel) {
  if (!status_.ok() || (in_part_ && !outermost().refused().ok())) return false;
  calls_.begin(call, kernel);
  if (errors_ != nullptr) left_behind_ = errors_->caused();
  if (mode_ == Mode::kDirect && active_recording != nullptr) {
    active_recording->refuse_capture(absl::FailedPreconditionError(
        "fn used the recorder of the run around it, whose slots the graph of this run could not follow"));
  }
  const bool is_runs_stream = stream == stream_ && !is_of_current_device(stream);
  if (mode_ == Mode::kDirect || (is_runs_stream && !in_part_)) return true;
  LastErrorGuard last_error;
  CaptureInfo info;
  const cudaError_t error = capture_info(stream, &info);
  if (error != cudaSuccess) {
    fail(cuda_failure("cudaStreamGetCaptureInfo", error));
  } else if (info.status == cudaStreamCaptureStatusInvalidated) {
    return true;  // The call will fail and report that the capture is broken.
  } else if (info.status == cudaStreamCaptureStatusActive && info.id == capture_id()) {
    return true;
  } else if (stream != stream_ && is_capture_broken()) {  // A fork of it has failed.
    fail(broken(call, cudaErrorStreamCaptureInvalidated));
  } else {
    fail_as_misused(absl::InvalidArgumentError(
        in_part_
            ? std::string("a recorder was used inside the body of a conditional node: use the body, whose stream is "
                          "another one, and fork further streams from that one")
            : absl::StrCat(stream == stream_ ? "fn has made another device current, and the recorder was called on "
                                               "cudaStreamPerThread, which now belongs to that device and"
                                             : "Recorder::on was given a stream that",
                           " is not part of the run's capture: fork it first, by cudaEventRecord on the run's stream "
                           "and cudaStreamWaitEvent")));
  }
  return status_.ok();
}

// The node that a call has just captured is what the stream's next node would depend on, so the stream is queried for
// it. The alternative, adding a node by hand, would need separate code for captures and direct runs, and would lose
// what a captured node inherits from its stream: priority (fact 9) and annotated edges.
void Recording::keep_node(cudaStream_t stream, SlotNode node, cudaGraphNodeType type) {
  if (mode_ != Mode::kCapture || node.binding_count == 0) return;
  LastErrorGuard last_error;  // An error here is not one of `fn`.
  CaptureInfo info;
  if (const cudaError_t error = capture_info(stream, &info); error != cudaSuccess) {
    return refuse_capture(cuda_failure("cudaStreamGetCaptureInfo", error));
  }
  cudaGraphNode_t handle = nullptr;
  cudaGraphNodeType found = cudaGraphNodeTypeEmpty;
  if (info.dependency_count == 1) {
    handle = info.dependencies[0];
    if (const cudaError_t error = cudaGraphNodeGetType(handle, &found); error != cudaSuccess) {
      return refuse_capture(cuda_failure("cudaGraphNodeGetType", error));
    }
  }
  if (found != type) return refuse_capture(absl::InternalError("a call with slots was captured without its node"));
  node.type = type;
  slots_.nodes.push_back(node);
  slot_nodes_.push_back(handle);
}

// Nodes are listed in the order in which they were captured (docs/semantics.md), so the search for each starts after
// the previous one and wraps around if needed.
//
// Runs set kernels by the driver's handles. That costs 0.145 us, against 0.29 us by the runtime, which looks up the
// symbol each time. Unlike cudaGetFuncBySymbol, the driver also knows kernels of libraries and leaves the last error
// alone.
absl::Status Recording::find_slots() {
  const std::vector<cudaGraphNode_t>& nodes = captured_.graph.nodes;
  auto at = nodes.begin();
  for (std::size_t i = 0; i < slot_nodes_.size(); ++i) {
    auto found = std::find(at, nodes.end(), slot_nodes_[i]);
    if (found == nodes.end()) found = std::find(nodes.begin(), at, slot_nodes_[i]);
    if (found == nodes.end() || *found != slot_nodes_[i]) {
      return absl::InternalError("a node with slots is not part of the captured graph");
    }
    at = found;
    SlotNode& node = slots_.nodes[i];
    node.index = static_cast<std::uint32_t>(found - nodes.begin());
    if (node.type != cudaGraphNodeTypeKernel) continue;
    CUDA_KERNEL_NODE_PARAMS params = {};
    const cudaError_t error = driver().kernel_params(*found, &params);
    if (error != cudaSuccess) {
      return cuda_failure("a kernel with slots, cudaGraphKernelNodeGetParams by the driver", error);
    }
    find_kernel(params, &node);
    if (node.function == nullptr && node.foreign == nullptr) {
      return absl::FailedPreconditionError(
          "the driver does not report the function of a kernel with slots, so no run could set its arguments");
    }
    // The driver takes a green context's handle only once it has given it out.
    CUcontext of_stream = nullptr;
    if (node.foreign != nullptr) (void)driver().stream_context(stream_, &of_stream);
  }
  std::ranges::sort(slots_.nodes, {}, &SlotNode::index);
  return absl::OkStatus();
}

// A copy or set of 0 bytes adds no node to the capture, so later runs would have no node for their bytes.
bool Recording::is_work(const char* call, const ArgView& arg, std::size_t bytes) {
  if (!status_.ok()) return false;  // A slot has no value here.
  if (bytes == 0 && mode_ == Mode::kCapture && arg.is_slot()) {
    captured_.empty_slot = true;
    refuse_capture(absl::FailedPreconditionError("a copy or set whose size is a slot has 0 bytes in this run"));
  }
  if (bytes > kMostBytes) {
    fail_as_misused(absl::InvalidArgumentError(absl::StrCat(call, ": the size is negative, or more than 2^63 bytes")));
  }
  return bytes != 0 && status_.ok();
}

bool Recording::reaches(const char* call, const void* memory) {
  if (!PointerAttributes(memory).is_pageable()) return true;
  // Memory of an allocation node counts as pageable as well, but the host cannot read it.
  if (memory != nullptr && !is_host_memory(reinterpret_cast<std::uintptr_t>(memory))) return true;
  LastErrorGuard last_error;
  int can = 0;
  if (cudaDeviceGetAttribute(&can, cudaDevAttrPageableMemoryAccess, setter_.device()) == cudaSuccess && can != 0) {
    return true;
  }
  fail_as_misused(
      cuda_failure(absl::StrCat(call, ": the device cannot access this memory; use device, managed or pinned memory"),
                   cudaErrorInvalidValue));
  return false;
}

void Recording::launch(cudaStream_t stream, const void* kernel, bool of_library, const LaunchShape& shape,
                       const ArgView* args, std::size_t count) {
  if (!of_library && !may_enqueue(stream, "rec.launch", kernel)) return;
  const std::size_t header = first_byte(cudaGraphNodeTypeKernel);
  std::size_t size = header;
  for (std::size_t i = 0; i < count; ++i) size += align_up(args[i].size, kAlignment);

  SlotNode node = slots_.begin(size);
  slots_.as<KernelFields>(node) = {};
  take(node, shape.grid.view(), node.fields + offsetof(KernelFields, grid));
  take(node, shape.block.view(), node.fields + offsetof(KernelFields, block));
  take(node, shape.shared_bytes.view(), node.fields + offsetof(KernelFields, shared_bytes));
  std::size_t at = node.fields + header;
  for (std::size_t i = 0; i < count; ++i) {
    take(node, args[i], at);
    slots_.arguments.push_back(static_cast<std::uint32_t>(at));
    ++node.argument_count;
    at += align_up(args[i].size, kAlignment);
  }
  if (!status_.ok()) return;

  const KernelFields fields = slots_.as<KernelFields>(node);
  ArgumentPointers arguments = slots_.pointers_to_arguments(node);
  const CallResult done =
      of_library
          ? launch_library_kernel(kernel, fields.grid, fields.block, arguments.data(), fields.shared_bytes, stream)
          : CallResult{"cudaLaunchKernel", cudaLaunchKernel(kernel, fields.grid, fields.block, arguments.data(),
                                                            fields.shared_bytes, stream)};
  if (calls_.end(done.error); done.error != cudaSuccess) {
    const auto text_of = [](const dim3& of) { return absl::StrCat("(", of.x, ", ", of.y, ", ", of.z, ")"); };
    return fail(broken(absl::StrCat(calls_.last(), ", grid ", text_of(fields.grid), ", block ", text_of(fields.block),
                                    ", ", fields.shared_bytes, " bytes of shared memory: ", done.call),
                       done.error));
  }
  keep_node(stream, node, cudaGraphNodeTypeKernel);
}

void Recording::write(cudaStream_t stream, void* device, std::size_t bytes, const ArgView& value) {
  if (!may_enqueue(stream, "rec.write")) return;
  if (mode_ == Mode::kInlined && active_recording == nullptr) {
    return fail_as_misused(absl::FailedPreconditionError(
        "Recorder::write was called in a capture by other code: its graph may outlive the cache, whose code it needs"));
  }
  if (!reaches("Recorder::write", device)) return;
  cudaKernel_t kernel = nullptr;
  std::shared_ptr<void> code;
  {
    LastErrorGuard last_error;  // The recorder reports it.
    const DeviceGuard current(setter_.device());
    CallResult done = current.result();
    const char* const name = value.size <= setter::kSmall ? setter::kSmallName : setter::kLargeName;
    if (done.error == cudaSuccess) done = setter_.find(setter_image, name, &kernel, &code);
    if (done.error != cudaSuccess) {
      return fail(cuda_failure(absl::StrCat("Recorder::write, ", done.call), done.error));
    }
  }
  need(std::move(code));
  const Arg<void*> to(device);
  const ArgView args[] = {to.view(), value};
  launch(stream, kernel, /*of_library=*/true, {1, static_cast<unsigned>(bytes)}, args, 2);
}

void Recording::need(std::shared_ptr<void> what) {
  // Nested runs may belong to several caches.
  std::vector<std::shared_ptr<void>>& needs = outermost().captured_.content.needs;
  if (std::find(needs.begin(), needs.end(), what) == needs.end()) needs.push_back(std::move(what));
}

void Recording::keep(std::shared_ptr<const void> owner, std::size_t bytes) {
  Recording& of = outermost();
  Captured& captured = of.captured_;
  if (captured.kept == nullptr) captured.content.kept = captured.kept = std::make_shared<Objects>();
  std::size_t nodes = SIZE_MAX;
  if (mode_ != Mode::kDirect) {
    LastErrorGuard last_error;  // Without an answer, the memory is not promised.
    const DeviceGuard current(setter_.device());
    CaptureInfo info;
    if (capture_info(of.stream_, &info) != cudaSuccess || info.status != cudaStreamCaptureStatusActive ||
        cudaGraphGetNodes(info.graph, nullptr, &nodes) != cudaSuccess) {
      nodes = SIZE_MAX;
    }
  }
  captured.content.kept_memory.push_back({owner.get(), bytes, nodes});
  captured.kept->push_back(std::move(owner));
}

void Recording::memcpy(cudaStream_t stream, ArgView dst, ArgView src, ArgView bytes, cudaMemcpyKind kind) {
  if (!may_enqueue(stream, "rec.memcpy")) return;
  SlotNode node = slots_.begin(sizeof(cudaMemcpy3DParms));
  slots_.as<cudaMemcpy3DParms>(node).kind = kind;
  take(node, dst, node.fields + offsetof(cudaMemcpy3DParms, dstPtr.ptr));
  take(node, src, node.fields + offsetof(cudaMemcpy3DParms, srcPtr.ptr));
  take(node, bytes, node.fields + offsetof(cudaMemcpy3DParms, extent.width));
  const cudaMemcpy3DParms copy = slots_.as<cudaMemcpy3DParms>(node);
  const std::size_t size = copy.extent.width;
  if (!is_work("Recorder::memcpy", bytes, size)) return;
  const cudaError_t error = cudaMemcpyAsync(copy.dstPtr.ptr, copy.srcPtr.ptr, size, kind, stream);
  if (calls_.end(error); error != cudaSuccess) return fail(broken("cudaMemcpyAsync", error));
  if (mode_ == Mode::kCapture && node.binding_count != 0) {
    const PointerAttributes to(copy.dstPtr.ptr), from(copy.srcPtr.ptr);
    node.dst_device = device_of(to);
    node.src_device = device_of(from);
  }
  keep_node(stream, node, cudaGraphNodeTypeMemcpy);
}

void Recording::memset(cudaStream_t stream, ArgView dst, ArgView value, ArgView bytes) {
  if (!may_enqueue(stream, "rec.memset")) return;
  SlotNode node = slots_.begin(sizeof(cudaMemsetParams));
  slots_.as<cudaMemsetParams>(node).elementSize = 1;
  slots_.as<cudaMemsetParams>(node).height = 1;
  take(node, dst, node.fields + offsetof(cudaMemsetParams, dst));
  take(node, value, node.fields + offsetof(cudaMemsetParams, value));
  take(node, bytes, node.fields + offsetof(cudaMemsetParams, width));
  const cudaMemsetParams set = slots_.as<cudaMemsetParams>(node);
  if (!is_work("Recorder::memset", bytes, set.width) || !reaches("Recorder::memset", set.dst)) return;
  const cudaError_t error = cudaMemsetAsync(set.dst, static_cast<int>(set.value), set.width, stream);
  if (calls_.end(error); error != cudaSuccess) return fail(broken("cudaMemsetAsync", error));
  if (mode_ == Mode::kCapture && node.binding_count != 0) node.dst_device = device_of(PointerAttributes(set.dst));
  keep_node(stream, node, cudaGraphNodeTypeMemset);
}

}  // namespace graphcache::detail
