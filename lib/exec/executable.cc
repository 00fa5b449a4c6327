#include "exec/executable.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/driver.h"
#include "cuda/errors.h"
#include "graph/fields.h"
#include "graph/inspect.h"
#include "graph/outside.h"

namespace graphcache {
namespace {

// Why the runtime refused an update.
const char* reason(cudaGraphExecUpdateResult result) {
  switch (result) {
    case cudaGraphExecUpdateErrorTopologyChanged:
      return "nodes or edges differ";
    case cudaGraphExecUpdateErrorNodeTypeChanged:
      return "the type of the node differs";
    case cudaGraphExecUpdateErrorFunctionChanged:
    case cudaGraphExecUpdateErrorUnsupportedFunctionChange:
      return "the kernel cannot take the other one's place";
    case cudaGraphExecUpdateErrorParametersChanged:
      return "a parameter differs that an update cannot change";
    case cudaGraphExecUpdateErrorAttributesChanged:
      return "a launch attribute differs that an update cannot change";
    case cudaGraphExecUpdateErrorNotSupported:
      return "the runtime does not support this update";
    default:
      return "the runtime gave no reason";
  }
}

// Whether an update that failed with this error has left the executable unchanged (fact 20, docs/semantics.md).
bool applies_nothing(cudaError_t error) {
  return error == cudaErrorGraphExecUpdateFailure || error == cudaErrorNotSupported || error == cudaErrorInvalidValue;
}

constexpr const char *kSetsCopy = "cudaGraphExecMemcpyNodeSetParams1D", *kSetsSet = "cudaGraphExecMemsetNodeSetParams";

// Whether an instantiation makes a copy between such memory one of the device's (docs/semantics.md). Such a copy must
// never be one of pageable memory. Any other must not be launched once other memory is at its addresses.
bool becomes_devices(cudaMemoryType to, cudaMemoryType from, cudaMemcpyKind kind) {
  const auto any_is = [&](cudaMemoryType type) { return to == type || from == type; };
  const auto is_kind = [&](cudaMemcpyKind a, cudaMemcpyKind b) { return kind == a || kind == b; };
  if (any_is(cudaMemoryTypeUnregistered)) return false;  // Or an array.
  if (from == cudaMemoryTypeManaged && is_kind(cudaMemcpyHostToDevice, cudaMemcpyHostToHost)) return false;
  if (to == cudaMemoryTypeManaged && is_kind(cudaMemcpyDeviceToHost, cudaMemcpyHostToHost)) return false;
  return any_is(cudaMemoryTypeManaged) || !any_is(cudaMemoryTypeHost);
}

struct Copy {
  void* dst;
  const void* src;
  std::size_t bytes;
  cudaMemcpyKind kind;
};

// The parameters of a copy or set. CUDA does not accept 0 bytes (header: "Zero-length operations are not supported"),
// so the node gets one byte of scratch memory instead.
CallResult take(Slots& slots, const SlotNode& node, DeviceMemory& memory, Copy* out) {
  const cudaMemcpy3DParms& copy = slots.as<cudaMemcpy3DParms>(node);
  *out = {copy.dstPtr.ptr, copy.srcPtr.ptr, copy.extent.width, copy.kind};
  if (out->bytes > kMostBytes) return {kSetsCopy, cudaErrorInvalidValue};
  if (out->bytes == 0) {
    unsigned char *to = nullptr, *from = nullptr;
    if (const CallResult made = memory.scratch(node.dst_device, &to); made.error != cudaSuccess) return made;
    if (const CallResult made = memory.scratch(node.src_device, &from); made.error != cudaSuccess) return made;
    *out = {to, from + 1, 1, copy.kind};
  }
  return {};
}

CallResult take(Slots& slots, const SlotNode& node, DeviceMemory& memory, cudaMemsetParams* out) {
  *out = slots.as<cudaMemsetParams>(node);
  if (out->width > kMostBytes) return {kSetsSet, cudaErrorInvalidValue};
  if (out->elementSize == 1) out->value = static_cast<unsigned char>(out->value);
  if (out->width == 0) {
    unsigned char* dst = nullptr;
    if (const CallResult made = memory.scratch(node.dst_device, &dst); made.error != cudaSuccess) return made;
    out->dst = dst;
    out->width = 1;
  }
  return {};
}

}  // namespace

CallResult Executable::instantiate(Template& base, std::shared_ptr<const Content> content, unsigned long long flags,
                                   DeviceMemory& memory, std::unique_ptr<Executable>* out) {
  // Allocated first, because this may throw.
  std::unique_ptr<Executable> executable(new Executable(memory));
  CallResult done = executable->copies_of(base, *content, &executable->copies_);
  if (done.error != cudaSuccess) return done;
  executable->note_copies();
  executable->hold(std::move(content), base.values);
  done = {"cudaGraphInstantiate", graphcache::instantiate(base.graph, flags, &executable->exec_)};
  if (done.error != cudaSuccess) return done;
  executable->base_ = std::exchange(base, {});
  *out = std::move(executable);
  return done;
}

// The id of the allocation at an address, or HeldCopy::kPageable if there is none.
std::uint64_t Executable::id_at(const void* end) {
  const std::uint64_t id = allocation_at(reinterpret_cast<std::uintptr_t>(end)).id;
  return id != 0 ? id : HeldCopy::kPageable;
}

// Memory of the graph is the device's to the driver. The runtime does not know it until a launch has allocated it.
Executable::HeldCopy::End Executable::end_at(const Content& content, const void* at) {
  if (at == nullptr) return {};
  if (content.allocates(at)) return {at, cudaMemoryTypeDevice};
  const PointerAttributes memory(at);
  const bool is_known = memory.query.error == cudaSuccess;
  return {at, is_known ? memory.type : cudaMemoryTypeUnregistered, memory.device};
}

// The device's copies within one device keep no mapping of their memory.
void Executable::ask(const Content& content, HeldCopy* copy) {
  const bool is_of_host = copy->dst.type == cudaMemoryTypeHost || copy->src.type == cudaMemoryTypeHost;
  if (copy->is_of_device && copy->is_fit() && copy->dst.device == copy->src.device && !is_of_host) return;
  for (HeldCopy::End* const end : {&copy->dst, &copy->src}) {
    if (end->at != nullptr && !content.allocates(end->at)) end->id = id_at(end->at);
  }
}

Executable::HeldCopy Executable::again(const Content& content, const HeldCopy& copy, const void* dst, const void* src) {
  HeldCopy again{copy.node, copy.is_of_device, end_at(content, dst), end_at(content, src)};
  ask(content, &again);
  return again;
}

// Copies of an update keep what counts of those at the instantiation.
CallResult Executable::copies_of(const Template& graph, const Content& content, std::vector<HeldCopy>* out) const {
  return graph.each_copy(content, [&](cudaGraphNode_t node, std::uint32_t index) {
    cudaMemcpy3DParms copy = {};
    const CallResult read{"cudaGraphMemcpyNodeGetParams", cudaGraphMemcpyNodeGetParams(node, &copy)};
    HeldCopy held{index, false, end_at(content, copy.dstPtr.ptr), end_at(content, copy.srcPtr.ptr)};
    const std::size_t i = out->size();
    held.is_of_device =
        i < copies_.size() ? copies_[i].is_of_device : becomes_devices(held.dst.type, held.src.type, copy.kind);
    ask(content, &held);
    out->push_back(held);
    return read;
  });
}

void Executable::note_copies() {
  asks_for_memory_ = std::ranges::any_of(copies_, &HeldCopy::has_ids);
  has_unknown_copies_ = !std::ranges::all_of(copies_, &HeldCopy::is_known);
}

Executable::HeldCopy* Executable::held_copy(const SlotNode& node) {
  const auto found = std::ranges::lower_bound(copies_, node.index, {}, &HeldCopy::node);
  return found != copies_.end() && found->node == node.index ? &*found : nullptr;
}

bool Executable::has_its_memory(const unsigned char* values) {
  if (!asks_for_memory_) return true;
  const auto is_there = [](const HeldCopy::End& end) { return end.id == 0 || id_at(end.at) == end.id; };
  return std::ranges::all_of(copies_, [&](HeldCopy& copy) {
    const SlotNode* const node = copy.has_ids() ? slots_.node(copy.node) : nullptr;
    if (node != nullptr && values != nullptr && slots_.differs(*node, values)) return true;
    if (is_there(copy.dst) && is_there(copy.src)) return true;
    if (node == nullptr || copy.is_of_device) return false;
    if (!again(*content_, copy, copy.dst.at, copy.src.at).can_follow(copy)) return false;
    copy.is_known = false;
    has_unknown_copies_ = true;
    return true;
  });
}

Slots Executable::hold(std::shared_ptr<const Content> content, absl::Span<const unsigned char> of_graph) {
  if (kept_ != nullptr) formers_.push_back(std::move(kept_));
  content_ = std::move(content);
  kept_ = content_->kept.lock();
  Slots before = std::exchange(slots_, content_->slots);
  values_ = content_->values;
  is_of_values_ = of_graph.empty();
  for (const SlotNode& node : slots_.nodes) {
    if (!is_of_values_ && node.type != cudaGraphNodeTypeKernel) slots_.update_fields(node, of_graph.data());
  }
  return before;
}

CallResult Executable::patch(const detail::Call& call, std::size_t* patched_nodes) {
  for (const SlotNode& node : slots_.nodes) {
    const CallResult result = patch_node(node, call, patched_nodes);
    if (result.error != cudaSuccess) return result;
  }
  take_values(call);
  return {};
}

CallResult Executable::patch_node(const SlotNode& node, const detail::Call& call, std::size_t* patched_nodes) {
  const bool changes = slots_.update_fields(node, call.values);
  const HeldCopy* const copy = has_unknown_copies_ ? held_copy(node) : nullptr;
  if (!changes && (copy == nullptr || copy->is_known)) return {};
  const CallResult result = set_node(node);
  if (result.error == cudaSuccess && changes) ++*patched_nodes;
  return result;
}

CallResult Executable::renew(Template* graph, const Content& content, const detail::Call& call, DeviceMemory& memory) {
  const RelaxedCaptureMode relaxed;
  CallResult done = graph->each_copy(content, [&](cudaGraphNode_t node, std::uint32_t index) -> CallResult {
    if (content.slots.node(index) != nullptr) return {};
    // What the runtime's getter gives of a 2-D copy is another copy to cudaGraphExecUpdate (docs/semantics.md).
    CUDA_MEMCPY3D copy;
    cudaError_t error = driver().copy_params(node, &copy);
    if (error == cudaSuccess) error = driver().set_copy_params(node, &copy);
    return {"cudaGraphMemcpyNodeSetParams, by the driver", error};
  });
  const auto is_kernel = [](const SlotNode& node) { return node.type == cudaGraphNodeTypeKernel; };
  if (std::ranges::all_of(content.slots.nodes, is_kernel)) return done;
  std::vector<unsigned char> values(call.values, call.values + call.values_size);
  Slots slots = content.slots;
  for (const SlotNode& node : slots.nodes) {
    if (done.error != cudaSuccess) return done;
    if (is_kernel(node)) continue;
    slots.update_fields(node, call.values);
    const cudaGraphNode_t at = graph->nodes[node.index];
    Copy copy;
    cudaMemsetParams set;
    const bool is_copy = node.type == cudaGraphNodeTypeMemcpy;
    done = is_copy ? take(slots, node, memory, &copy) : take(slots, node, memory, &set);
    if (done.error == cudaSuccess && is_copy) {
      done = {"cudaGraphMemcpyNodeSetParams1D",
              cudaGraphMemcpyNodeSetParams1D(at, copy.dst, copy.src, copy.bytes, copy.kind)};
    } else if (done.error == cudaSuccess) {
      done = {"cudaGraphMemsetNodeSetParams", cudaGraphMemsetNodeSetParams(at, &set)};
    }
  }
  if (done.error == cudaSuccess) graph->values = std::move(values);
  return done;
}

BroughtOver Executable::bring_over(const Template& graph, std::shared_ptr<const Content> to, const detail::Call& call) {
  BroughtOver brought;
  const auto refuse = [&](std::size_t node, const char* why) {
    brought.is_whole = true;
    // "node 12, kernel add(float*): the type of the node differs".
    if (node < to->nodes.size()) brought.refusal = absl::StrCat("node ", node, ", ", kind_of(to->nodes[node]), ": ");
    brought.refusal += why;
    return std::move(brought);
  };
  std::vector<HeldCopy> copies;
  brought.result = copies_of(graph, *to, &copies);
  brought.is_whole = brought.result.error != cudaSuccess;
  if (brought.is_whole) return brought;
  if (const HeldCopy* const copy = unfit(copies)) {
    brought.result = {"cudaGraphExecUpdate", cudaErrorInvalidValue};
    if (to->slots.node(copy->node) == nullptr) return refuse(copy->node, "other memory cannot take its place");
    brought.is_whole = true;  // Other values may be fit.
    return brought;
  }
  cudaGraphExecUpdateResultInfo info = {};
  brought.result = {"cudaGraphExecUpdate", cudaGraphExecUpdate(exec_.get(), graph.graph.get(), &info)};
  if (const cudaError_t error = brought.result.error; error != cudaSuccess) {
    if (!applies_nothing(error)) return brought;
    const auto refused = std::find(graph.nodes.begin(), graph.nodes.end(), info.errorNode);
    return refuse(static_cast<std::size_t>(refused - graph.nodes.begin()), reason(info.result));
  }
  brought.updated = true;
  copies_ = std::move(copies);
  note_copies();
  hold(std::move(to), graph.values);
  brought.result = patch(call, &brought.patched_nodes);
  return brought;
}

CallResult Executable::set_node(const SlotNode& node) {
  if (node.type == cudaGraphNodeTypeKernel) return set_kernel(node);
  if (node.type == cudaGraphNodeTypeMemcpy) return set_memcpy(node);
  cudaMemsetParams set;
  if (const CallResult taken = take(slots_, node, memory_, &set); taken.error != cudaSuccess) return taken;
  return {kSetsSet, cudaGraphExecMemsetNodeSetParams(exec_.get(), base_.nodes[node.index], &set)};
}

CallResult Executable::set_kernel(cudaGraphNode_t node, const CUDA_KERNEL_NODE_PARAMS& params) {
  return {"cudaGraphExecKernelNodeSetParams, by the driver", driver().set_kernel_node(exec_.get(), node, &params)};
}

CallResult Executable::set_kernel(const SlotNode& node) {
  const KernelFields& fields = slots_.as<KernelFields>(node);
  if (fields.shared_bytes > std::numeric_limits<unsigned>::max()) {
    return {"cudaGraphExecKernelNodeSetParams", cudaErrorInvalidValue};
  }
  ArgumentPointers arguments = slots_.pointers_to_arguments(node);
  CUDA_KERNEL_NODE_PARAMS params =
      driver_params(fields.grid, fields.block, static_cast<unsigned>(fields.shared_bytes), arguments.data());
  if (node.foreign != nullptr) {
    params.kern = node.foreign;
    params.ctx = node.context;
  } else {
    params.func = node.function;
  }
  return set_kernel(base_.nodes[node.index], params);
}

CallResult Executable::set_memcpy(const SlotNode& node) {
  Copy copy;
  if (const CallResult taken = take(slots_, node, memory_, &copy); taken.error != cudaSuccess) return taken;
  HeldCopy& held = *held_copy(node);
  const bool moves = held.dst.at != copy.dst || held.src.at != copy.src;
  const bool asks = moves ? held.is_of_device || memory_.has_other_devices() : !held.is_known || held.has_ids();
  HeldCopy now{node.index, held.is_of_device, {copy.dst}, {copy.src}, /*is_known=*/asks};
  if (asks) {
    now = again(*content_, held, copy.dst, copy.src);
    // The call would succeed, and the launch would destroy the context (docs/semantics.md).
    if (!(held.is_known ? now.can_follow(held) : now.is_fit())) return {kSetsCopy, cudaErrorInvalidValue};
  }
  if (moves || asks) held = now;
  return {kSetsCopy, cudaGraphExecMemcpyNodeSetParams1D(exec_.get(), base_.nodes[node.index], copy.dst, copy.src,
                                                        copy.bytes, copy.kind)};
}

CallResult Executable::launch(const LaunchStream& stream) {
  CallResult done;
  if (ready_ != nullptr) done = {"cudaStreamWaitEvent", cudaStreamWaitEvent(stream.handle, ready_.get(), 0)};
  if (done.error == cudaSuccess) done = {"cudaGraphLaunch", cudaGraphLaunch(exec_.get(), stream.handle)};
  if (done.error != cudaSuccess) return done;
  in_place_ = true;
  ready_ = {};
  stream_.follow(stream);
  return done;
}

CallResult Executable::put_in_place(cudaStream_t stream) {
  RelaxedCaptureMode relaxed;
  if (const CallResult uploaded = upload(stream); uploaded.error != cudaSuccess) return uploaded;
  stream_ = LaunchStream(stream);  // If the host cannot wait, the graveyard does.
  const cudaError_t error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return {"cudaStreamSynchronize", error};
  in_place_ = true;
  ready_ = {};
  stream_ = {};  // Nothing of it is in flight.
  return {};
}

cudaError_t Executable::take_device_error() {
  if (error_ == nullptr) return cudaSuccess;
  auto* const word = static_cast<volatile int*>(error_.get());
  const auto found = static_cast<cudaError_t>(*word);
  if (found != cudaSuccess) *word = cudaSuccess;
  return found;
}

void Executable::abandon() {
  error_ = nullptr;  // Its word may be gone.
  exec_.release();
  ready_.release();
  base_.graph.release();
}

}  // namespace graphcache
