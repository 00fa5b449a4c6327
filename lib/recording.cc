#include "recording.h"

#include <absl/strings/str_cat.h>

#include <atomic>
#include <cstring>
#include <string>

#include "compat.h"
#include "errors.h"

namespace graphcache {

constinit thread_local detail::Recording* active_recording = nullptr;

namespace detail {
namespace {

std::uint64_t next_recording_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// The driver's function behind a host symbol. Setting a kernel node's parameters through the driver costs half of what
// the runtime takes, which looks the symbol up each time (tried: 0.145 against 0.29 us).
CUfunction function_of(const void* kernel) {
  LastErrorGuard last_error;
  cudaFunction_t function = nullptr;
  return cudaGetFuncBySymbol(&function, kernel) == cudaSuccess ? function : nullptr;
}

}  // namespace

Recording::Recording(cudaStream_t stream, const Call& call, Mode mode)
    : stream_(stream), call_(call), mode_(mode), id_(next_recording_id()) {
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
  Recorder recorder(this, stream_);
  absl::Status status = call_.invoke(call_.fn, recorder, id_);
  status.Update(status_);
  if (const cudaError_t error = last_error.caused(); status.ok() && error != cudaSuccess) {
    status = cuda_failure("a CUDA call of fn", error);
  }
  return status;
}

bool Recording::resolve(const ArgView& arg, void* field) {
  if (!arg.is_slot()) {
    std::memcpy(field, arg.bytes, arg.size);
    return true;
  }
  if (arg.recording != id_) {
    fail(
        absl::InvalidArgumentError("a slot was used that belongs to another run: a slot is valid only inside the call "
                                   "of fn that it was passed to"));
    return false;
  }
  const unsigned char* value = call_.values + arg.offset;
  if (arg.convert != nullptr) {
    arg.convert(value, field);
  } else {
    std::memcpy(field, value, arg.size);
  }
  return true;
}

// Work on a stream outside the capture would run now, and never again on a replay.
bool Recording::may_enqueue(cudaStream_t stream) {
  if (!status_.ok()) return false;
  if (mode_ == Mode::kDirect || stream == stream_) return true;
  LastErrorGuard last_error;
  CaptureInfo info;
  const cudaError_t error = capture_info(stream, &info);
  if (error != cudaSuccess) {
    fail(cuda_failure("cudaStreamGetCaptureInfo", error));
  } else if (info.status != cudaStreamCaptureStatusActive || info.id != capture_id_) {
    fail(
        absl::InvalidArgumentError("Recorder::on was given a stream that is not part of the run's capture: fork it "
                                   "first, by cudaEventRecord on the run's stream and cudaStreamWaitEvent"));
  }
  return status_.ok();
}

// The node that a call has just captured is what the stream's next node would depend on. Asking for it, instead of
// adding a node by hand, keeps one way of enqueuing for captured and direct runs, and what a captured node inherits
// from its stream: its priority (fact 9) and annotated edges.
void Recording::keep(cudaStream_t stream, SlotNode node, cudaGraphNodeType type) {
  LastErrorGuard last_error;  // A failure here is none of `fn`'s.
  CaptureInfo info;
  if (const cudaError_t error = capture_info(stream, &info); error != cudaSuccess) {
    return refuse_capture(cuda_failure("cudaStreamGetCaptureInfo", error));
  }
  cudaGraphNodeType found = cudaGraphNodeTypeEmpty;
  if (info.dependency_count == 1) {
    node.node = info.dependencies[0];
    if (const cudaError_t error = cudaGraphNodeGetType(node.node, &found); error != cudaSuccess) {
      return refuse_capture(cuda_failure("cudaGraphNodeGetType", error));
    }
  }
  if (found != type) return refuse_capture(absl::InternalError("a call with slots was captured without its node"));
  node.type = type;
  slot_nodes_.push_back(std::move(node));
}

// A copy or set of no bytes is captured as no node (tried), so a later run would have none to give its bytes to.
void Recording::skip_empty(const ArgView& bytes) {
  if (mode_ == Mode::kCapture && bytes.is_slot()) {
    refuse_capture(absl::FailedPreconditionError("a copy or set whose size is a slot has 0 bytes in this run"));
  }
}

bool Recording::take(SlotNode& node, const ArgView& arg, void* field) {
  if (arg.is_slot()) node.bindings.push_back({static_cast<unsigned char*>(field), arg.size, arg.offset, arg.convert});
  return resolve(arg, field);
}

void Recording::launch(cudaStream_t stream, const void* kernel, const LaunchShape& shape, const ArgView* args,
                       std::size_t count) {
  if (!may_enqueue(stream)) return;
  constexpr std::size_t kAlignment = alignof(std::max_align_t);
  std::size_t size = align_up(sizeof(KernelFields), kAlignment);
  for (std::size_t i = 0; i < count; ++i) size += align_up(args[i].size, kAlignment);

  SlotNode node;
  node.kernel = kernel;
  node.fields.reset(new unsigned char[size]());
  KernelFields& fields = *new (node.fields.get()) KernelFields();
  bool resolved = take(node, shape.grid.view(), &fields.grid) && take(node, shape.block.view(), &fields.block) &&
                  take(node, shape.shared_bytes.view(), &fields.shared_bytes);
  unsigned char* at = node.fields.get() + align_up(sizeof(KernelFields), kAlignment);
  for (std::size_t i = 0; i < count && resolved; ++i) {
    resolved = take(node, args[i], at);
    node.arguments.push_back(at);
    at += align_up(args[i].size, kAlignment);
  }
  if (!resolved) return;

  const cudaError_t error =
      cudaLaunchKernel(kernel, fields.grid, fields.block, node.arguments.data(), fields.shared_bytes, stream);
  if (error != cudaSuccess) return fail(cuda_failure("cudaLaunchKernel", error));
  if (mode_ != Mode::kCapture || node.bindings.empty()) return;
  node.function = function_of(kernel);
  keep(stream, std::move(node), cudaGraphNodeTypeKernel);
}

void Recording::memcpy(cudaStream_t stream, ArgView dst, ArgView src, ArgView bytes, cudaMemcpyKind kind) {
  if (!may_enqueue(stream)) return;
  SlotNode node;
  node.kind = kind;
  node.fields.reset(new unsigned char[sizeof(MemcpyFields)]);
  MemcpyFields& fields = *new (node.fields.get()) MemcpyFields();
  if (!take(node, dst, &fields.dst) || !take(node, src, &fields.src) || !take(node, bytes, &fields.bytes)) return;
  if (fields.bytes == 0) return skip_empty(bytes);
  const cudaError_t error = cudaMemcpyAsync(fields.dst, fields.src, fields.bytes, kind, stream);
  if (error != cudaSuccess) return fail(cuda_failure("cudaMemcpyAsync", error));
  if (mode_ == Mode::kCapture && !node.bindings.empty()) keep(stream, std::move(node), cudaGraphNodeTypeMemcpy);
}

void Recording::memset(cudaStream_t stream, ArgView dst, ArgView value, ArgView bytes) {
  if (!may_enqueue(stream)) return;
  SlotNode node;
  node.fields.reset(new unsigned char[sizeof(MemsetFields)]);
  MemsetFields& fields = *new (node.fields.get()) MemsetFields();
  if (!take(node, dst, &fields.dst) || !take(node, value, &fields.value) || !take(node, bytes, &fields.bytes)) return;
  if (fields.bytes == 0) return skip_empty(bytes);
  const cudaError_t error = cudaMemsetAsync(fields.dst, fields.value, fields.bytes, stream);
  if (error != cudaSuccess) return fail(cuda_failure("cudaMemsetAsync", error));
  if (mode_ == Mode::kCapture && !node.bindings.empty()) keep(stream, std::move(node), cudaGraphNodeTypeMemset);
}

}  // namespace detail

namespace {

// A capture that ends, and whose graph is not lost, however the scope is left.
class CaptureScope {
 public:
  CaptureScope(cudaStream_t stream, detail::Recording& recording, bool* broke) : stream_(stream), broke_(broke) {
    active_recording = &recording;
  }
  ~CaptureScope() {
    if (!ended_) end();
  }

  // After a capture was broken, ending it is still due; it then returns an error and no graph (fact 3).
  cudaError_t end() {
    ended_ = true;
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    active_recording = nullptr;
    *broke_ = error != cudaSuccess;
    graph_ = Graph(graph);
    return error;
  }
  Graph take() { return std::move(graph_); }

 private:
  const cudaStream_t stream_;
  bool* const broke_;
  bool ended_ = false;
  Graph graph_;
};

}  // namespace

Captured capture(cudaStream_t stream, cudaStreamCaptureMode mode, const detail::Call& call, bool* broke) {
  Captured captured;
  LastErrorGuard last_error;  // What a broken capture leaves behind must not meet `fn` when it is called directly.
  const auto begin = std::chrono::steady_clock::now();
  if (const cudaError_t error = cudaStreamBeginCapture(stream, mode); error != cudaSuccess) {
    captured.capture = cuda_failure("cudaStreamBeginCapture", error);
    return captured;
  }
  detail::Recording recording(stream, call, detail::Recording::Mode::kCapture);
  CaptureScope scope(stream, recording, broke);
  captured.fn = recording.invoke();
  if (const cudaError_t error = scope.end(); error != cudaSuccess) {
    captured.capture = cuda_failure("cudaStreamEndCapture", error);
  }
  captured.time = std::chrono::steady_clock::now() - begin;

  captured.capture.Update(recording.refused());
  Template& content = captured.content;
  content.graph = scope.take();
  if (captured.capture.ok()) {
    const cudaError_t error = cudaGraphGetNodes(content.graph.get(), nullptr, &content.node_count);
    if (error != cudaSuccess) captured.capture = cuda_failure("cudaGraphGetNodes", error);
  }
  content.slot_nodes = recording.take_slot_nodes();
  content.values.assign(call.values, call.values + call.values_size);
  return captured;
}

absl::Status enqueue(cudaStream_t stream, const detail::Call& call) {
  return detail::Recording(stream, call, detail::Recording::Mode::kDirect).invoke();
}

absl::Status enqueue_inlined(cudaStream_t stream, const detail::Call& call) {
  return detail::Recording(stream, call, detail::Recording::Mode::kInlined).invoke();
}

}  // namespace graphcache
