// Conditional nodes, captured and in direct runs.
#include "conditional/conditional.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "condition_image.h"
#include "conditional/condition.h"
#include "cuda/compat.h"
#include "graph/inspect.h"
#include "graph/recording.h"
#include "graphcache/body.h"
#include "graphcache/status.h"

namespace graphcache {
namespace detail {
namespace {

const char* name_of(ConditionalKind kind) {
  switch (kind) {
    case ConditionalKind::kIf:
      return "if_node";
    case ConditionalKind::kWhile:
      return "while_node";
    case ConditionalKind::kSwitch:
      break;
  }
  return "switch_node";
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
  CallResult done{"cudaGraphMemcpyNodeGetParams", cudaGraphMemcpyNodeGetParams(node, &copy)};
  const auto look = [&](const void* memory, cudaMemcpyKind of_device) {
    if (done.error != cudaSuccess || *found || memory == nullptr) return;
    if (copy.kind == cudaMemcpyDeviceToDevice || copy.kind == of_device) return;
    const PointerAttributes attributes(memory);
    done = attributes.query;
    *found = attributes.is_pageable();
  };
  look(copy.srcPtr.ptr, cudaMemcpyDeviceToHost);
  look(copy.dstPtr.ptr, cudaMemcpyHostToDevice);
  return done;
}

}  // namespace

// The calls that make conditional nodes, for one recording.
class ConditionalCalls {
 public:
  explicit ConditionalCalls(Recording& recording) : r_(recording) {}

  void enqueue(cudaStream_t stream, const Conditional& node);

 private:
  class BodyCapture;
  struct Parts;
  // A conditional node that was captured.
  struct Added {
    cudaGraphNode_t node = nullptr;
    cudaGraph_t* bodies = nullptr;  // The graphs of the node's bodies.
    std::size_t number = 0;         // Index in the capture's conditional nodes.
    cudaGraphConditionalHandle handle = 0;
    const unsigned* condition = nullptr;
    void* kept = nullptr;  // Where the node's first kernel stores `condition`, or null if the pointer is constant.
    cudaKernel_t set = nullptr, set_kept = nullptr;
  };

  // The body that is being captured, or null.
  BodyCapture* body();
  bool find_condition(const Conditional& node, const unsigned** at);
  void run_bodies(cudaStream_t stream, const Conditional& node);
  void capture_bodies(cudaStream_t stream, const Conditional& node);
  bool add_conditional(cudaStream_t stream, const Conditional& node, Added* added);
  CallResult add_node(cudaStream_t stream, const Conditional& node, cudaGraphConditionalNodeType type, Added* added);
  void set_condition(cudaStream_t stream, cudaKernel_t kernel, const ArgView* args, std::size_t count);
  void set_again(cudaStream_t stream, const Added& added);
  bool capture_body(const Conditional& node, const Added& added, unsigned index);

  Recording& r_;
};

// What the outermost recording has of its bodies until its capture is over.
struct ConditionalCalls::Parts {
  explicit Parts(const Recording& of) : recording(of), captured_on(of.capture_stream_), capture_id(of.capture_id_) {}
  ~Parts() {
    if (is_fatal(cuda_error(recording.status_)) || is_fatal(cuda_error(recording.refused_))) {
      for (OwnedGraph& graph : graphs) graph.release();  // Handles are dropped, not destroyed.
      for (OwnedStream& stream : streams) stream.release();
    }
  }
  Parts(const Parts&) = delete;

  const Recording& recording;
  const cudaStream_t captured_on;  // By the outermost capture.
  const unsigned long long capture_id;
  BodyCapture* open = nullptr;  // The body that is being captured, or null.
  std::vector<OwnedGraph> graphs;
  std::vector<OwnedStream> streams;
};

// The capture of a body on a stream of its own, which is ended when the scope is left. If a capture straight into a
// body's graph breaks, the driver frees that graph and later crashes on the node (docs/semantics.md). So each part of a
// body, up to the next conditional node in it, is captured as a separate graph and becomes a child graph of the body.
class ConditionalCalls::BodyCapture {
 public:
  BodyCapture(Recording& recording, const Added& added, unsigned index)
      : recording_(recording),
        outermost_(recording.outermost()),
        parts_(parts_of(outermost_)),
        around_(parts_.open),
        around_stream_(outermost_.capture_stream_),
        around_id_(outermost_.capture_id_),
        number_(added.number),
        index_(index),
        graph_(added.bodies[index]) {
    LastErrorGuard last_error;
    const DeviceGuard current(recording.setter_.device());
    CallResult done = current.result();
    if (done.error == cudaSuccess) {
      RelaxedCaptureMode relaxed;  // allows the creation of a stream
      OwnedStream& own = parts_.streams.emplace_back();
      done = make_stream(cudaStreamNonBlocking, &own);
      stream = own.get();
    }
    if (done.error == cudaSuccess) {
      prepare();
      begin_part();
    } else {
      refuse(done);
    }
    outermost_.capture_stream_ = stream;
    parts_.open = this;  // Nothing below throws.
  }
  ~BodyCapture() {
    if (is_open_ && end_capture()) {
      // It threw. `fn` may go on, and its graph would lack work. If memory runs out, the text is missing.
      outermost_.refuse_capture(
          with_more(absl::FailedPreconditionError(""), "", "the body of a conditional node threw an exception"));
    }
    parts_.open = around_;
    outermost_.capture_stream_ = around_stream_;
    outermost_.capture_id_ = around_id_;
  }
  BodyCapture(const BodyCapture&) = delete;
  BodyCapture& operator=(const BodyCapture&) = delete;

  cudaGraph_t graph() const { return graph_; }
  // The node that the body's next node depends on, or null.
  const cudaGraphNode_t* last() const { return last_ != nullptr ? &last_ : nullptr; }
  void append(cudaGraphNode_t node) { last_ = node; }

  // Whether the outermost capture goes on. If it has broken, the node and the graphs of its bodies are gone.
  bool goes_on() {
    LastErrorGuard last_error;
    CaptureInfo info;
    const CallResult done{"cudaStreamGetCaptureInfo", capture_info(parts_.captured_on, &info)};
    if (done.error != cudaSuccess) return refuse(done);
    if (info.status == cudaStreamCaptureStatusActive && info.id == parts_.capture_id) return true;
    outermost_.refuse_capture(absl::FailedPreconditionError("the capture around the body of a conditional node broke"));
    return false;
  }

  // Reserves a place for the next part's graph, because memory may run out later.
  void prepare() {
    next_part_ = parts_.graphs.size();
    parts_.graphs.emplace_back();
  }

  // Work enqueued in the body must not run now, so a failed begin is tried once more.
  bool begin_part() {
    LastErrorGuard last_error;
    part_ = next_part_;
    const cudaStreamCaptureMode mode = recording_.setter_.mode();
    CallResult done{"cudaStreamBeginCapture", cudaStreamBeginCapture(stream, mode)};
    if (done.error != cudaSuccess) {
      refuse(done);
      if (is_fatal(done.error) || cudaStreamBeginCapture(stream, mode) != cudaSuccess) return false;
    }
    is_open_ = true;
    CaptureInfo info;
    done = {"cudaStreamGetCaptureInfo", capture_info(stream, &info)};
    if (done.error != cudaSuccess) return refuse(done);
    outermost_.capture_id_ = info.id;
    return true;
  }

  bool end_part() {
    bool done = false;
    recording_.or_fail([&] { done = is_open_ && add_part(); });
    return done;
  }

  cudaStream_t stream = nullptr;

 private:
  static Parts& parts_of(Recording& recording) {
    if (recording.parts_ == nullptr) recording.parts_ = std::make_shared<Parts>(recording);
    return *static_cast<Parts*>(recording.parts_.get());
  }
  bool add_part() {
    LastErrorGuard last_error;
    if (!end_capture() || !goes_on()) return false;
    const cudaGraph_t part = parts_.graphs[part_].get();
    std::vector<cudaGraphNode_t> nodes;
    CallResult done = list_nodes(part, &nodes);
    if (done.error != cudaSuccess) return refuse(done);
    if (nodes.empty()) return true;
    if (!may_hold(nodes)) return false;
    cudaGraphNode_t child = nullptr;
    done = {"cudaGraphAddChildGraphNode",
            cudaGraphAddChildGraphNode(&child, graph_, last(), last() != nullptr ? 1 : 0, part)};
    if (done.error != cudaSuccess) return refuse(done);
    append(child);
    cudaGraph_t embedded = nullptr;
    done = {"cudaGraphChildGraphNodeGetGraph", cudaGraphChildGraphNodeGetGraph(child, &embedded)};
    if (done.error == cudaSuccess) done = list_nodes(embedded, &nodes);
    if (done.error != cudaSuccess) return refuse(done);
    outermost_.captured_.content.node_count += nodes.size();
    outermost_.captured_.graph.inner.push_back(
        {absl::StrCat("condition ", number_, ", body ", index_), std::move(nodes)});
    return true;
  }

  // The graph is kept until the outermost capture has ended (law 9).
  bool end_capture() {
    is_open_ = false;
    LastErrorGuard last_error;
    cudaGraph_t part = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream, &part);
    if (error == cudaSuccess) {
      parts_.graphs[part_] = OwnedGraph(part);
      return true;
    }
    outermost_.has_broken_part_ = true;
    outermost_.refuse_capture(
        failure_of_fn("the capture of the body of a conditional node, cudaStreamEndCapture", error, false));
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
  Parts& parts_;
  BodyCapture* const around_;
  const cudaStream_t around_stream_;
  const unsigned long long around_id_;
  const std::size_t number_;
  const unsigned index_;
  const cudaGraph_t graph_;  // The graph of the node's body.
  // Indices in the outermost recording's graphs of the part that is being captured and of the next part.
  std::size_t part_ = 0, next_part_ = 0;
  bool is_open_ = false;
  cudaGraphNode_t last_ = nullptr;
};

ConditionalCalls::BodyCapture* ConditionalCalls::body() {
  const std::shared_ptr<void>& parts = r_.outermost().parts_;
  return parts != nullptr ? static_cast<Parts*>(parts.get())->open : nullptr;
}

void ConditionalCalls::enqueue(cudaStream_t stream, const Conditional& node) {
  if (!r_.may_enqueue(stream, name_of(node.kind)) || node.count == 0) return;
  if (r_.mode_ == Recording::Mode::kDirect) {
    run_bodies(stream, node);
  } else {
    capture_bodies(stream, node);
  }
}

// Finds the address of the condition in this run. Returns false if it is a slot of another run, or no memory that the
// device can read.
bool ConditionalCalls::find_condition(const Conditional& node, const unsigned** at) {
  bool found = false;
  r_.or_fail([&] {
    SlotNode none = r_.slots_.begin(sizeof(void*));
    r_.take(none, node.condition, none.fields);
    *at = r_.slots_.as<const unsigned*>(none);
    found = r_.status_.ok() && r_.reaches(name_of(node.kind), *at);
  });
  return found;
}

// Reads the condition on the host, which waits for the stream.
void ConditionalCalls::run_bodies(cudaStream_t stream, const Conditional& node) {
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
        return r_.or_fail(
            [&] { r_.fail(cuda_failure(absl::StrCat(name_of(node.kind), ", ", done.call), done.error)); });
      }
    }
    const unsigned index = node.kind == ConditionalKind::kSwitch ? value : value == 0;
    if (index >= node.count) return;
    const bool around = std::exchange(r_.in_part_, true);
    const absl::Cleanup leave = [&] { r_.in_part_ = around; };
    Body body(&r_, stream);
    node.call(node.bodies, body, index);
    // A loop whose work is not enqueued would not end.
  } while (node.kind == ConditionalKind::kWhile && r_.status_.ok() && r_.errors_->caused() == cudaSuccess);
}

void ConditionalCalls::capture_bodies(cudaStream_t stream, const Conditional& node) {
  Added added;
  bool is_added = false;
  r_.or_fail([&] { is_added = add_conditional(stream, node, &added); });
  if (!is_added) return;
  // Work of the capture that the node is in must be before or after the node. Returns false if that capture is over.
  LastErrorGuard last_error;
  CaptureInfo info;
  const auto count_nodes = [&](std::size_t* count) {
    CallResult done{"cudaStreamGetCaptureInfo", capture_info(stream, &info)};
    const bool is_active = done.error == cudaSuccess && info.status == cudaStreamCaptureStatusActive;
    if (is_active) done = {"cudaGraphGetNodes", cudaGraphGetNodes(info.graph, nullptr, count)};
    if (done.error != cudaSuccess) r_.outermost().refuse_capture(cuda_failure(done.call, done.error));
    return is_active && done.error == cudaSuccess;  // The end of a broken capture reports more.
  };
  std::size_t before = 0, behind = 0;
  if (!count_nodes(&before)) return;
  for (unsigned i = 0; i < node.count; ++i) {
    if (!capture_body(node, added, i)) return;
  }
  if (!count_nodes(&behind)) return;
  const bool is_last =
      body() != nullptr ? info.dependency_count == 0 : info.dependency_count == 1 && info.dependencies[0] == added.node;
  if (!is_last || before != behind) {
    r_.or_fail([&] {
      r_.fail_as_misused(absl::InvalidArgumentError(
          absl::StrCat(name_of(node.kind),
                       ": its body enqueued work on the stream that the node is on, or on a fork of "
                       "it: use Body::stream(), and fork from that")));
    });
  }
  r_.calls_.end();
}

// Adds a node with empty bodies, preceded by the kernel that sets its condition. If CUDA refuses this, a direct run may
// still work.
bool ConditionalCalls::add_conditional(cudaStream_t stream, const Conditional& node, Added* added) {
  LastErrorGuard last_error;
  Recording& outer = r_.outermost();
  const auto refused = [&](const CallResult& result) {
    outer.refuse_capture(cuda_failure(absl::StrCat(name_of(node.kind), ", ", result.call), result.error));
    return false;
  };
  const auto wrong = [&](const char* what) {
    r_.fail_as_misused(absl::InvalidArgumentError(absl::StrCat(name_of(node.kind), what)));
    return false;
  };
  if (r_.mode_ == Recording::Mode::kInlined && active_recording == nullptr) {
    return wrong(" was called in a capture by other code: the cache cannot know how long its graph will be launched");
  }
  if (body() != nullptr && stream != body()->stream) {
    return wrong(" was called in a body, but on a stream other than the body's: join that stream first");
  }
  const std::optional<cudaGraphConditionalNodeType> type = type_of(node);
  if (!type) return refused({"which needs CUDA 12.8", cudaErrorNotSupported});
  const DeviceGuard current(r_.setter_.device());
  if (current.result().error != cudaSuccess) return refused(current.result());
  std::shared_ptr<void> code;
  Setter& kernels = r_.setter_;
  CallResult done = kernels.find(condition_image, condition::kSetName, &added->set, &code);
  if (done.error == cudaSuccess) done = kernels.find(condition_image, condition::kSetKeptName, &added->set_kept, &code);
  if (done.error != cudaSuccess) return refused(done);
  r_.need(std::move(code));

  CaptureInfo info;
  done = {"cudaStreamGetCaptureInfo", capture_info(stream, &info)};
  if (done.error != cudaSuccess) return refused(done);
  if (info.status != cudaStreamCaptureStatusActive) return false;  // The end of the capture reports more.
  if (body() != nullptr && !body()->goes_on()) return false;
  const cudaGraph_t graph = body() != nullptr ? body()->graph() : info.graph;
  done = {"cudaGraphConditionalHandleCreate", cudaGraphConditionalHandleCreate(&added->handle, graph, 0, 0)};
  if (done.error != cudaSuccess) return refused(done);
  if (node.kind == ConditionalKind::kWhile && node.condition.is_slot() && r_.mode_ == Recording::Mode::kCapture) {
    DeviceMemory::Block kept;
    done = r_.setter_.memory().take(sizeof(void*), &kept);
    if (done.error != cudaSuccess) return refused(done);
    added->kept = kept.get();
    r_.need(std::move(kept));
  }
  if (!find_condition(node, &added->condition)) return false;
  const Arg<cudaGraphConditionalHandle> handle(added->handle);
  const Arg<void*> kept(added->kept);
  const ArgView args[] = {handle.view(), node.condition, kept.view()};
  set_condition(stream, added->set, args, 3);
  if (!r_.status_.ok()) return false;

  done = add_node(stream, node, *type, added);
  if (done.error != cudaSuccess) return refused(done);
  if (body() != nullptr) ++outer.captured_.content.conditional_count;
  added->number = outer.captured_.graph.handles.size();
  outer.captured_.graph.inner.push_back({absl::StrCat("condition ", added->number, ", ", name_of(node.kind)), {}});
  outer.captured_.graph.handles.push_back(added->handle);
  return outer.refused().ok() && r_.status_.ok();
}

CallResult ConditionalCalls::add_node(cudaStream_t stream, const Conditional& node, cudaGraphConditionalNodeType type,
                                      Added* added) {
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = added->handle;
  params.conditional.type = type;
  params.conditional.size = node.count;
  BodyCapture* const around = body();
  CallResult done;
  if (around == nullptr) {
    CaptureInfo info;
    done = {"cudaStreamGetCaptureInfo", capture_info(stream, &info)};
    if (done.error != cudaSuccess) return done;
    done = {"cudaGraphAddNode",
            graphcache::add_node(&added->node, info.graph, info.dependencies, info.dependency_count, &params)};
    if (done.error != cudaSuccess) return done;
    done = {"cudaStreamUpdateCaptureDependencies", set_capture_dependency(stream, added->node)};
  } else {
    around->prepare();
    if (around->end_part()) {
      done = {"cudaGraphAddNode", graphcache::add_node(&added->node, around->graph(), around->last(), 1, &params)};
      if (done.error == cudaSuccess) around->append(added->node);
    } else {
      done = {"cudaGraphAddNode", cudaErrorMemoryAllocation};  // A broken capture has been recorded already.
    }
    around->begin_part();
  }
  added->bodies = params.conditional.phGraph_out;
  return done;
}

void ConditionalCalls::set_condition(cudaStream_t stream, cudaKernel_t kernel, const ArgView* args, std::size_t count) {
  r_.launch(stream, reinterpret_cast<const void*>(kernel), /*of_library=*/true, {1, 1}, args, count);
}

// Returns false if the recording cannot be used any more.
bool ConditionalCalls::capture_body(const Conditional& node, const Added& added, unsigned index) {
  const auto is_useful = [&] { return r_.status_.ok() && r_.outermost().refused().ok(); };
  std::optional<BodyCapture> capture;
  r_.or_fail([&] { capture.emplace(r_, added, index); });
  if (!is_useful()) return false;
  {
    const bool around = std::exchange(r_.in_part_, true);
    const absl::Cleanup leave = [&] { r_.in_part_ = around; };
    Body body(&r_, capture->stream);
    node.call(node.bodies, body, index);
  }
  r_.or_fail([&] {
    if (node.kind == ConditionalKind::kWhile && is_useful()) set_again(capture->stream, added);
    capture->end_part();
  });
  return is_useful();
}

// Sets the condition for the next round of a loop.
void ConditionalCalls::set_again(cudaStream_t stream, const Added& added) {
  LastErrorGuard last_error;  // The recorder reports errors.
  const Arg<cudaGraphConditionalHandle> handle(added.handle);
  const Arg<const void*> nothing(nullptr);
  if (added.kept != nullptr) {
    const Arg<const void*> kept(added.kept);
    const ArgView args[] = {handle.view(), kept.view()};
    set_condition(stream, added.set_kept, args, 2);
  } else {
    const Arg<const void*> condition(static_cast<const void*>(added.condition));
    const ArgView args[] = {handle.view(), condition.view(), nothing.view()};
    set_condition(stream, added.set, args, 3);
  }
}

void add_conditional(Recording* recording, cudaStream_t stream, const Conditional& node) {
  ConditionalCalls(*recording).enqueue(graphcache::name_of(stream), node);
}

}  // namespace detail
}  // namespace graphcache
