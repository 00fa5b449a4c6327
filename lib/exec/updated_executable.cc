#include "exec/updated_executable.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/compat.h"
#include "cuda/errors.h"

namespace graphcache {

CallResult UpdatedExecutable::instantiate(Template& from, std::shared_ptr<const Content> content, bool with_table,
                                          unsigned long long flags, Scratch& scratch, Updater& updater,
                                          std::unique_ptr<Executable>* out) {
  std::unique_ptr<UpdatedExecutable> executable(new UpdatedExecutable(scratch));
  executable->hold(std::move(content));
  Template& base = executable->base_;
  CallResult done = from.clone(&base);
  if (done.error == cudaSuccess) {
    done = UpdaterNode::add(updater, base, executable->content_, with_table, &executable->updater_node_);
  }
  if (done.error == cudaSuccess) {
    // Without this flag a grid that the device has written is lost when the next launch is on a stream of another
    // priority (docs/semantics.md).
    done = {"cudaGraphInstantiate",
            graphcache::instantiate(base.graph, flags | cudaGraphInstantiateFlagUseNodePriority, &executable->exec_)};
  }
  if (done.error == cudaSuccess) done = executable->mark_ready();
  if (done.error == cudaSuccess) {
    *out = std::move(executable);
  } else if (is_fatal(done.error)) {
    executable->abandon();
  }
  return done;
}

CallResult UpdatedExecutable::patch(const detail::Call& call, std::size_t* patched_nodes) {
  if (!may_write()) {
    const CallResult by_host = Executable::patch(call, patched_nodes);
    return by_host.error != cudaSuccess ? by_host : updater_node_->hold(call.values);
  }
  std::optional<bool> driver_usable;
  for (const std::uint32_t i : updater_node_->others()) {
    const CallResult result = patch_node(slots_.nodes[i], call, driver_usable, patched_nodes);
    if (result.error != cudaSuccess) return result;
  }
  const CallResult result =
      updater_node_->patch(exec_.get(), *content_, call, by_driver(driver_usable), scratch_.device(), patched_nodes);
  if (result.error != cudaSuccess) return result;
  values_.assign(call.values, call.values + call.values_size);
  return {};
}

BroughtOver UpdatedExecutable::switch_set(std::shared_ptr<const Content> to, const detail::Call& call) {
  BroughtOver brought;
  Slots before = to->slots;  // Copied first, because this may throw.
  std::vector<unsigned char> values = to->values;
  std::swap(before, slots_);
  values_.swap(values);
  replace_content(std::move(to));
  // Nodes that only the host sets: their captured parameters may differ as well.
  std::optional<bool> driver_usable;
  for (const std::uint32_t i : updater_node_->others()) {
    const SlotNode& node = slots_.nodes[i];
    update_fields(node, call.values);
    if (std::memcmp(before.fields.data() + node.fields, slots_.fields.data() + node.fields, node.fields_size) == 0)
      continue;
    brought.result = set_node(node, driver_usable);
    if (brought.result.error != cudaSuccess) return brought;
    ++brought.patched_nodes;
  }
  brought.result = patch(call, &brought.patched_nodes);
  return brought;
}

CallResult UpdatedExecutable::get_ready(cudaStream_t stream) {
  if (ready_.get() == nullptr) return {};
  return {"cudaStreamWaitEvent", cudaStreamWaitEvent(stream, ready_.get(), 0)};
}

cudaError_t UpdatedExecutable::launch(const LaunchStream& stream) {
  const cudaError_t error = Executable::launch(stream);
  if (error == cudaSuccess && ready_.get() != nullptr) ready_ = {};
  return error;
}

CallResult UpdatedExecutable::put_in_place(cudaStream_t stream) {
  const CallResult done = Executable::put_in_place(stream);
  if (done.error == cudaSuccess) ready_ = {};
  return done;
}

void UpdatedExecutable::abandon() {
  ready_.release();
  if (updater_node_ != nullptr) updater_node_->abandon();
  Executable::abandon();
}

}  // namespace graphcache
