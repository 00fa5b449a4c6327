// An executable that the device updates. Its updater node writes all slots of a run into the other nodes on the device,
// so a run patches one node whatever their number. With a table it also writes what another member of the family has
// different, so a switch patches one node as well (updater.h, docs/design.md).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/device_memory.h"
#include "exec/device.h"
#include "exec/executable.h"
#include "exec/parameter_table.h"
#include "exec/updater.h"
#include "exec/updater_code.h"

namespace graphcache {

class UpdatedExecutable final : public Executable {
 public:
  // The number of nodes for which device_can_write() is true.
  static std::size_t writable_nodes(const Slots& slots);

  // An upper bound of the device memory of an updater node with a table. The first chunk of sets counts, and each set
  // counts beside it.
  static std::size_t estimated_device_bytes(const Content& content);

  // Instantiates a clone of `from`, which is unchanged.
  static CallResult instantiate(Template& from, std::shared_ptr<const Content> content, bool with_table,
                                unsigned long long flags, Device& device, std::unique_ptr<Executable>* out);
  ~UpdatedExecutable() override;

  UpdatedExecutable* updated() override { return this; }
  // Null if it shares nothing.
  ParameterTable* table() { return table_.get(); }

  // Launches may write to its nodes once these are in place. The driver puts the nodes of a new executable into device
  // memory later than its stream suggests, but before the first launch runs them (docs/semantics.md). Until then the
  // host sets all nodes.
  //
  // Switches the executable to the set of `to`, which its table has, and to the call's values. REQUIRES: is_in_place().
  // After a failure it must not be launched again.
  BroughtOver switch_set(std::shared_ptr<const Content> to, const detail::Call& call);

  // Marks the end of the copies that the updater node and its table need, for get_ready().
  CallResult mark_ready() { return memory_->mark(&ready_); }

  // The error of a device-side update in a launch that has run with wrong values. Each error is returned once.
  cudaError_t take_device_error() override;
  // Does nothing if set and values are those of the last call. Else adds to `patched_nodes` the number of nodes that
  // change.
  CallResult patch(const detail::Call& call, std::size_t* patched_nodes) override;
  void abandon() override;

 private:
  struct Source {
    Binding binding;
    std::uint32_t at;  // Offset in the kernel's parameter.
    bool is_grid;
  };

  explicit UpdatedExecutable(Device& device) : Executable(device.scratch), memory_(device.memory) {}
  CallResult add_updater_node(Updater& updater, bool with_table);
  CallResult make_updatable(Updater& updater, bool with_table, WrittenNodes* out, CUlaunchAttributeValue* highest);
  CallResult add_to_base(const WrittenNodes& written, const CUlaunchAttributeValue& highest);
  bool plan_slots(const SlotNode& node, std::vector<updater::Update>* updates);
  bool find_source(const Binding& binding, bool is_grid, std::uint32_t residue, std::uint32_t* at);
  CallResult upload_plan(const WrittenNodes& written);
  CallResult write(const unsigned char* values, bool* changed);
  // The kernel's parameter. Its last member may be longer.
  using Parameter = updater::Values<updater::kSmall>;
  Parameter& parameter() const { return *reinterpret_cast<Parameter*>(parameter_.get()); }
  unsigned blocks() const { return (parameter().plan.piece_count + updater::kThreads - 1) / updater::kThreads; }

  std::shared_ptr<void> code_;
  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<Source> sources_;
  std::uint32_t parameter_size_ = 0;   // Size of the values in the kernel's parameter.
  std::vector<std::uint32_t> others_;  // Indices of the slot nodes that the host sets.
  cudaGraphNode_t node_ = nullptr;     // The updater node.
  cudaKernel_t kernel_ = nullptr;
  CUcontext context_ = nullptr;                 // The context of the executable.
  std::unique_ptr<unsigned char[]> parameter_;  // An updater::Values of some size.
  DeviceMemory::Block plan_, error_;
  std::unique_ptr<ParameterTable> table_;
};

}  // namespace graphcache
