// An executable that the device updates.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "exec/executable.h"
#include "exec/updater_node.h"

namespace graphcache {

// Its updater node writes the slots of kernel nodes. With a table it also writes what siblings have different
// (updater_node.h).
class UpdatedExecutable final : public Executable {
 public:
  // Instantiates a clone of `from`, which is unchanged.
  static CallResult instantiate(Template& from, std::shared_ptr<const Content> content, bool with_table,
                                unsigned long long flags, Scratch& scratch, Updater& updater,
                                std::unique_ptr<Executable>* out);
  ~UpdatedExecutable() override { exec_ = {}; }  // Before what its launches use.

  UpdatedExecutable* updated() override { return this; }
  // Null if it shares nothing.
  ParameterTable* table() { return updater_node_->table(); }

  // Whether launches may write to its nodes. The first launch must not, unless put_in_place() was called. The driver
  // puts the nodes of a new executable into device memory later than its stream suggests, but before that launch runs
  // them (docs/semantics.md). Until then the host sets all nodes.
  bool may_write() const { return in_place_; }
  // Switches the executable to the set of `to`, which its table has, and to the call's values. REQUIRES: may_write().
  // After a failure it must not be launched again.
  BroughtOver switch_set(std::shared_ptr<const Content> to, const detail::Call& call);

  // mark_ready() marks the end of the copies that the updater node needs, and get_ready() orders the next launch behind
  // the mark. Later launches follow that one and need nothing more (fact 15).
  CallResult mark_ready() { return updater_node_->mark_copies(&ready_); }
  CallResult get_ready(cudaStream_t stream) override;

  cudaError_t take_device_error() override { return updater_node_->take_error(); }
  CallResult patch(const detail::Call& call, std::size_t* patched_nodes) override;
  cudaError_t launch(const LaunchStream& stream) override;
  CallResult put_in_place(cudaStream_t stream) override;
  void abandon() override;

 private:
  using Executable::Executable;

  std::unique_ptr<UpdaterNode> updater_node_;
  Event ready_;  // Behind the copies that the next launch must follow, or empty.
};

}  // namespace graphcache
