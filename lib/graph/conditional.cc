// Conditional nodes, captured and in direct runs.
#include "graph/conditional.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "condition_image.h"
#include "cuda/compat.h"
#include "graph/condition.h"
#include "graph/inspect.h"
#include "graph/recording.h"
#include "graphcache/body.h"

namespace graphcache {

Conditions::Conditions(cudaStreamCaptureMode mode)
    : mode_(mode), code_(condition_image, {condition::kSetName, condition::kSetKeptName}) {}

void Conditions::abandon() {
  code_.abandon();
  streams_.abandon();
}

namespace detail {
namespace {

const char* name_of(ConditionalKind kind) {
  switch (kind) {
    case ConditionalKind::kIf:
      return "rec.if_node";
    case ConditionalKind::kWhile:
      return "rec.while_node";
    case ConditionalKind::kSwitch:
      break;
  }
  return "rec.switch_node";
}

// Returns nothing if this toolkit has no such type.
std::optional<cudaGraphConditionalNodeType> type_of(const Conditional& node) {
#if CUDART_VERSION >= 12080
  if (node.kind == ConditionalKind::kSwitch) return cudaGraphCondTypeSwitch;
#else
  if (node.kind == ConditionalKind::kSwitch || node.count > 1) return std::nullopt;
#endif
  return node.kind == ConditionalKind::kWhile ? cudaGraphCondTypeWhile : cudaGraphCondTypeIf;
}

// Returns null for a node that CUDA allows in a body, else a name for it.
const char* name_if_forbidden(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeHost:
      return "a host function";
    case cudaGraphNodeTypeMemAlloc:
      return "an allocation (cudaMallocAsync)";
    case cudaGraphNodeTypeMemFree:
      return "a free (cudaFreeAsync)";
    case cudaGraphNodeTypeWaitEvent:
    case cudaGraphNodeTypeEventRecord:
      return "an event of another stream or graph";
    case cudaGraphNodeTypeExtSemaphoreSignal:
    case cudaGraphNodeTypeExtSemaphoreWait:
      return "a semaphore";
    default:
      return nullptr;
  }
}

CallResult find_pageable_copy(cudaGraphNode_t node, bool* found) {
  cudaMemcpy3DParms copy = {};
  CallResult done = copy_params(node, &copy);
  const auto look = [&](const void* memory, cudaMemcpyKind of_device) {
    if (done.error != cudaSuccess || *found || memory == nullptr) return;
    if (copy.kind != cudaMemcpyDeviceToDevice && copy.kind != of_device) done = find_pageable(memory, found);
  };
  look(copy.srcPtr.ptr, cudaMemcpyDeviceToHost);
  look(copy.dstPtr.ptr, cudaMemcpyHostToDevice);
  return done;
}

}  // namespace

// The capture of a body on a stream of its own, which is ended when the scope is left. If a capture straight into a
// body's graph breaks, the driver frees that graph and later crashes on the node (docs/semantics.md). So each part of a
// body, up to the next conditional node in it, is captured as a separate graph and becomes a child graph of the body.
class Recording::BodyCapture {
 public:
  BodyCapture(Recording& recording, const Added& added, unsigned index)
      : recording_(recording),
        outermost_(recording.outermost()),
        around_(outermost_.body_),
        number_(added.number),
        index_(index),
        graph_(added.bodies[index]) {
    LastErrorGuard last_error;
    const DeviceGuard current(recording.setter_.device());
    CallResult done = current.result();
    if (done.error == cudaSuccess) {
      RelaxedCaptureMode relaxed;  // allows the creation of a stream
      loan_.emplace(recording.setter_.conditions().streams());
      done = loan_->result();
    }
    if (done.error == cudaSuccess) {
      prepare();
      begin_part();
    } else {
      refuse(done);
    }
    outermost_.body_ = this;  // Nothing below throws.
  }
  ~BodyCapture() {
    if (is_open_) end_capture();
    outermost_.body_ = around_;
  }
  BodyCapture(const BodyCapture&) = delete;
  BodyCapture& operator=(const BodyCapture&) = delete;

  cudaStream_t stream() const { return loan_->get(); }
  unsigned long long id() const { return id_; }
  cudaGraph_t graph() const { return graph_; }
  // The node that the body's next node depends on, or null.
  const cudaGraphNode_t* last() const { return last_ != nullptr ? &last_ : nullptr; }
  void append(cudaGraphNode_t node) { last_ = node; }

  // Reserves a place for the next part's graph, because memory may run out later.
  void prepare() {
    next_part_ = outermost_.parts_.size();
    outermost_.parts_.emplace_back();
  }

  // Work enqueued in the body must not run now, so a failed begin is tried once more.
  bool begin_part() {
    LastErrorGuard last_error;
    part_ = next_part_;
    const cudaStreamCaptureMode mode = recording_.setter_.conditions().mode();
    CallResult done{"cudaStreamBeginCapture", cudaStreamBeginCapture(stream(), mode)};
    if (done.error != cudaSuccess) {
      refuse(done);
      if (is_fatal(done.error) || cudaStreamBeginCapture(stream(), mode) != cudaSuccess) return false;
    }
    is_open_ = true;
    CaptureInfo info;
    done = {"cudaStreamGetCaptureInfo", capture_info(stream(), &info)};
    id_ = info.id;
    return done.error == cudaSuccess || refuse(done);
  }

  bool end_part() {
    bool done = false;
    recording_.or_fail([&] { done = is_open_ && add_part(); });
    return done;
  }

 private:
  bool add_part() {
    LastErrorGuard last_error;
    if (!end_capture()) return false;
    const cudaGraph_t part = outermost_.parts_[part_].get();
    std::vector<cudaGraphNode_t> nodes;
    CallResult done = list_nodes(part, &nodes);
    if (done.error != cudaSuccess) return refuse(done);
    if (nodes.empty()) return true;
    if (!may_hold(nodes)) return false;
    cudaGraphNode_t child = nullptr;
    done = add_child_graph(&child, graph_, last(), last() != nullptr ? 1 : 0, part);
    if (done.error != cudaSuccess) return refuse(done);
    append(child);
    cudaGraph_t embedded = nullptr;
    done = child_graph(child, &embedded);
    if (done.error == cudaSuccess) done = list_nodes(embedded, &nodes);
    if (done.error != cudaSuccess) return refuse(done);
    outermost_.conditionals_.bodies.push_back({number_, index_, std::move(nodes)});
    return true;
  }

  // The graph is kept until the outermost capture has ended (law 9).
  bool end_capture() {
    is_open_ = false;
    LastErrorGuard last_error;
    cudaGraph_t part = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream(), &part);
    if (error == cudaSuccess) {
      outermost_.parts_[part_] = Graph(part);
      return true;
    }
    outermost_.has_broken_body_ = true;
    outermost_.refuse_capture(
        failure_of_fn("the capture of the body of a conditional node, cudaStreamEndCapture", error));
    return false;
  }

  // Checks this here, because the instantiation would fail without a reason.
  bool may_hold(const std::vector<cudaGraphNode_t>& nodes) {
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      CallResult done{"cudaGraphNodeGetType", cudaGraphNodeGetType(node, &type)};
      bool is_pageable_copy = false;
      if (done.error == cudaSuccess && type == cudaGraphNodeTypeMemcpy) {
        done = find_pageable_copy(node, &is_pageable_copy);
      }
      if (done.error != cudaSuccess) return refuse(done);
      const char* const name = is_pageable_copy ? "a copy from or to pageable memory" : name_if_forbidden(type);
      if (name == nullptr) continue;
      outermost_.refuse_capture(absl::FailedPreconditionError(
          absl::StrCat("the body of a conditional node holds ", name, ", which CUDA does not allow there")));
      return false;
    }
    return true;
  }

  bool refuse(const CallResult& failed) {
    outermost_.refuse_capture(cuda_failure(failed.call, failed.error));
    return false;
  }

  Recording& recording_;
  Recording& outermost_;
  BodyCapture* const around_;
  const std::size_t number_;
  const unsigned index_;
  const cudaGraph_t graph_;  // The graph of the node's body.
  std::optional<OwnStreams::Loan> loan_;
  unsigned long long id_ = 0;
  // Indices in the outermost recording's graphs of the part that is being captured and of the next part.
  std::size_t part_ = 0, next_part_ = 0;
  bool is_open_ = false;
  cudaGraphNode_t last_ = nullptr;
};

// A run made in a body is part of the body's capture.
unsigned long long Recording::capture_id() {
  const BodyCapture* const body = outermost().body_;
  return body != nullptr ? body->id() : capture_id_;
}

bool Recording::is_capture_broken() {
  const BodyCapture* const body = outermost().body_;
  CaptureInfo info;
  const cudaError_t error = capture_info(body != nullptr ? body->stream() : stream_, &info);
  return error != cudaSuccess || info.status != cudaStreamCaptureStatusActive || info.id != capture_id();
}

void Recording::conditional(cudaStream_t stream, const Conditional& node) {
  if (!may_enqueue(stream, name_of(node.kind)) || node.count == 0) return;
  if (mode_ == Mode::kDirect) {
    run_bodies(stream, node);
  } else {
    capture_bodies(stream, node);
  }
}

// Finds the address of the condition in this run. Returns false if it is a slot of another run.
bool Recording::find_condition(const Conditional& node, const unsigned** at) {
  bool found = false;
  or_fail([&] {
    SlotNode none = begin(sizeof(void*));
    found = take(none, node.condition, none.fields);
    if (found) *at = slots_.as<const unsigned*>(none);
  });
  return found;
}

// Reads the condition on the host, which waits for the stream.
void Recording::run_bodies(cudaStream_t stream, const Conditional& node) {
  const unsigned* condition = nullptr;
  if (!find_condition(node, &condition)) return;
  do {
    unsigned value = 0;
    {
      LastErrorGuard last_error;
      RelaxedCaptureMode relaxed;
      CallResult done{"cudaMemcpyAsync", cudaMemcpyAsync(&value, condition, sizeof value, cudaMemcpyDefault, stream)};
      if (done.error == cudaSuccess) done = {"cudaStreamSynchronize", cudaStreamSynchronize(stream)};
      if (done.error != cudaSuccess) {
        return or_fail([&] { fail(cuda_failure(absl::StrCat(name_of(node.kind), ", ", done.call), done.error)); });
      }
    }
    const unsigned index = node.kind == ConditionalKind::kSwitch ? value : value == 0;
    if (index >= node.count) return;
    const bool around = std::exchange(in_body_, true);
    const absl::Cleanup leave = [&] { in_body_ = around; };
    Body body(this, stream);
    node.call(node.bodies, body, index);
    // A loop whose work is not enqueued would not end.
  } while (node.kind == ConditionalKind::kWhile && status_.ok() && errors_->caused() == cudaSuccess);
}

void Recording::capture_bodies(cudaStream_t stream, const Conditional& node) {
  Added added;
  bool is_added = false;
  or_fail([&] { is_added = add_conditional(stream, node, &added); });
  if (!is_added) return;
  for (unsigned i = 0; i < node.count; ++i) {
    if (!capture_body(node, added, i)) return;
  }
  // Work on the node's stream must be before or after the node.
  LastErrorGuard last_error;
  CaptureInfo info;
  if (const cudaError_t error = capture_info(stream, &info); error != cudaSuccess) {
    return outermost().refuse_capture(cuda_failure("cudaStreamGetCaptureInfo", error));
  }
  if (info.status != cudaStreamCaptureStatusActive) return;  // The end of the capture reports more.
  const bool is_last = outermost().body_ != nullptr ? info.dependency_count == 0
                                                    : info.dependency_count == 1 && info.dependencies[0] == added.node;
  if (!is_last) {
    or_fail([&] {
      fail_as_misused(absl::InvalidArgumentError(absl::StrCat(
          name_of(node.kind), ": its body enqueued work on the stream that the node is on: use Body::stream()")));
    });
  }
  calls_.end();
}

// Adds a node with empty bodies, preceded by the kernel that sets its condition. If CUDA refuses this, a direct run may
// still work.
bool Recording::add_conditional(cudaStream_t stream, const Conditional& node, Added* added) {
  LastErrorGuard last_error;
  Recording& outer = outermost();
  const auto refused = [&](const CallResult& result) {
    outer.refuse_capture(cuda_failure(absl::StrCat(name_of(node.kind), ", ", result.call), result.error));
    return false;
  };
  const auto wrong = [&](const char* what) {
    fail_as_misused(absl::InvalidArgumentError(absl::StrCat(name_of(node.kind), what)));
    return false;
  };
  if (mode_ == Mode::kInlined && active_recording == nullptr) {
    return wrong(" was called in a capture by other code: the cache cannot know how long its graph will be launched");
  }
  if (outer.body_ != nullptr && stream != outer.body_->stream()) {
    return wrong(" was called in a body, but on a stream other than the body's: join that stream first");
  }
  const std::optional<cudaGraphConditionalNodeType> type = type_of(node);
  if (!type) return refused({"which needs CUDA 12.8", cudaErrorNotSupported});
  const DeviceGuard current(setter_.device());
  if (current.result().error != cudaSuccess) return refused(current.result());
  CallResult done = setter_.conditions().load(&added->kernels);
  if (done.error != cudaSuccess) return refused(done);
  std::shared_ptr<void> code = setter_.conditions().code();
  std::vector<std::shared_ptr<void>>& codes = outer.code_of_conditions_;  // Nested runs may belong to several caches.
  if (std::find(codes.begin(), codes.end(), code) == codes.end()) codes.push_back(std::move(code));

  CaptureInfo info;
  done = {"cudaStreamGetCaptureInfo", capture_info(stream, &info)};
  if (done.error != cudaSuccess) return refused(done);
  if (info.status != cudaStreamCaptureStatusActive) return false;  // The end of the capture reports more.
  const cudaGraph_t graph = outer.body_ != nullptr ? outer.body_->graph() : info.graph;
  done = {"cudaGraphConditionalHandleCreate", cudaGraphConditionalHandleCreate(&added->handle, graph, 0, 0)};
  if (done.error != cudaSuccess) return refused(done);
  if (node.kind == ConditionalKind::kWhile && node.condition.is_slot() && mode_ == Mode::kCapture) {
    done = take_device_memory(stream, sizeof(void*), &added->kept);
    if (done.error != cudaSuccess) return refused(done);
  }
  if (!find_condition(node, &added->condition)) return false;
  const Arg<cudaGraphConditionalHandle> handle(added->handle);
  const Arg<void*> kept(added->kept);
  const ArgView args[] = {handle.view(), node.condition, kept.view()};
  set_condition(stream, added->kernels[Conditions::kSet], args, 3);
  if (!status_.ok()) return false;

  done = add_node(stream, node, *type, added);
  if (done.error != cudaSuccess) return refused(done);
  added->number = outer.conditionals_.nodes.size();
  outer.conditionals_.nodes.push_back({*type, added->handle});
  return outer.refused().ok() && status_.ok();
}

CallResult Recording::add_node(cudaStream_t stream, const Conditional& node, cudaGraphConditionalNodeType type,
                               Added* added) {
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = added->handle;
  params.conditional.type = type;
  params.conditional.size = node.count;
  BodyCapture* const body = outermost().body_;
  CallResult done;
  if (body == nullptr) {
    CaptureInfo info;
    done = {"cudaStreamGetCaptureInfo", capture_info(stream, &info)};
    if (done.error != cudaSuccess) return done;
    done = {"cudaGraphAddNode",
            graphcache::add_node(&added->node, info.graph, info.dependencies, info.dependency_count, &params)};
    if (done.error != cudaSuccess) return done;
    done = {"cudaStreamUpdateCaptureDependencies", set_capture_dependency(stream, added->node)};
  } else {
    body->prepare();
    if (body->end_part()) {
      done = {"cudaGraphAddNode", graphcache::add_node(&added->node, body->graph(), body->last(), 1, &params)};
      if (done.error == cudaSuccess) body->append(added->node);
    } else {
      done = {"cudaGraphAddNode", cudaErrorMemoryAllocation};  // A broken capture has been recorded already.
    }
    body->begin_part();
  }
  added->bodies = params.conditional.phGraph_out;
  return done;
}

void Recording::set_condition(cudaStream_t stream, cudaKernel_t kernel, const ArgView* args, std::size_t count) {
  const void* const symbol = reinterpret_cast<const void*>(kernel);
  launch(stream, {symbol, function_of_library(symbol)}, {1, 1}, args, count);
}

// Returns false if the recording cannot be used any more.
bool Recording::capture_body(const Conditional& node, const Added& added, unsigned index) {
  const auto is_useful = [&] { return status_.ok() && outermost().refused().ok(); };
  std::optional<BodyCapture> capture;
  or_fail([&] { capture.emplace(*this, added, index); });
  if (!is_useful()) return false;
  {
    const bool around = std::exchange(in_body_, true);
    const absl::Cleanup leave = [&] { in_body_ = around; };
    Body body(this, capture->stream());
    node.call(node.bodies, body, index);
  }
  or_fail([&] {
    if (node.kind == ConditionalKind::kWhile && is_useful()) set_again(capture->stream(), added);
    capture->end_part();
  });
  return is_useful();
}

// Sets the condition for the next round of a loop.
void Recording::set_again(cudaStream_t stream, const Added& added) {
  LastErrorGuard last_error;  // The recorder reports errors.
  const Arg<cudaGraphConditionalHandle> handle(added.handle);
  const Arg<const void*> nothing(nullptr);
  if (added.kept != nullptr) {
    const Arg<const void*> kept(added.kept);
    const ArgView args[] = {handle.view(), kept.view()};
    set_condition(stream, added.kernels[Conditions::kSetKept], args, 2);
  } else {
    const Arg<const void*> condition(static_cast<const void*>(added.condition));
    const ArgView args[] = {handle.view(), condition.view(), nothing.view()};
    set_condition(stream, added.kernels[Conditions::kSet], args, 3);
  }
}

}  // namespace detail
}  // namespace graphcache
