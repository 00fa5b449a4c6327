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
  // Switches the executable to the set of `to`, whose graph this is and which its table has, and to the call's values.
  // REQUIRES: is_in_place(). After a failure it must not be launched again, unless it is whole.
  BroughtOver switch_set(const Template& graph, std::shared_ptr<const Content> to, const detail::Call& call);

  // Adds the set of `of` to the table. The next launch follows its copy.
  CallResult add_set(const Content& of, const ParameterTable::Set& set);

  // Does nothing if set and values are those of the last call. Else adds to `patched_nodes` the number of nodes that
  // change.
  CallResult patch(const detail::Call& call, std::size_t* patched_nodes) override;

 private:
  struct Source {
    Binding binding;
    std::uint32_t at;  // Offset in the kernel's parameter.
    bool is_grid;
  };

  explicit UpdatedExecutable(Device& device) : Executable(*device.memory) {}
  CallResult add_updater_node(Device& device, bool with_table);
  CallResult make_updatable(cudaKernel_t plain, bool with_table, WrittenNodes* out);
  CallResult add_to_base(const WrittenNodes& written);
  bool plan_slots(const SlotNode& node, std::vector<updater::Update>* updates);
  bool find_source(const Binding& binding, bool is_grid, std::uint32_t residue, std::uint32_t* at);
  CallResult upload_plan(const WrittenNodes& written);
  CallResult write(const unsigned char* values, bool* changed);
  // The kernel's parameter. Its last member may be longer.
  using Parameter = updater::Values<updater::kSmall>;
  Parameter& parameter() const { return *reinterpret_cast<Parameter*>(parameter_.get()); }
  unsigned blocks() const { return (parameter().plan.piece_count + updater::kThreads - 1) / updater::kThreads; }

  std::shared_ptr<void> code_;
  std::vector<Source> sources_;
  std::uint32_t parameter_size_ = 0;   // Size of the values in the kernel's parameter.
  std::vector<std::uint32_t> others_;  // Indices of the slot nodes that the host sets.
  cudaGraphNode_t node_ = nullptr;     // The updater node.
  CUDA_KERNEL_NODE_PARAMS node_params_ = {};
  std::unique_ptr<unsigned char[]> parameter_;  // An updater::Values of some size.
  void* arguments_[1] = {};                     // What the node's parameters refer to: `parameter_`.
  DeviceMemory::Block plan_;
  std::unique_ptr<ParameterTable> table_;
};

}  // namespace graphcache
