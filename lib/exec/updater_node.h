// The updater node of a device-updated executable. It writes all slots of a run into the other nodes on the device, so
// a run patches one node whatever their number. With a table it also writes what another member of the family has
// different, so a switch patches one node as well (updater.h, docs/design.md).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "exec/parameter_table.h"
#include "exec/updater.h"
#include "exec/updater_code.h"
#include "graph/template.h"
#include "graphcache/detail/call.h"

namespace graphcache {

// Like its executable, it is used by one thread at a time.
class UpdaterNode {
 public:
  ~UpdaterNode();

  // The number of nodes for which device_can_write() is true.
  static std::size_t writable_nodes(const Slots& slots);

  // An upper bound of the device memory of a node with a table, with the first block of sets (ParameterTable::kBlock).
  static std::size_t estimated_device_bytes(const Content& content);

  // Makes the slot nodes of `graph` device-updatable (with a table, the other kernel nodes as well) and adds the
  // updater node. `graph` has the content's nodes and belongs to this updater node alone. After a failure the graph is
  // unusable.
  static CallResult add(Updater& updater, const Template& graph, std::shared_ptr<const Content> content,
                        bool with_table, std::unique_ptr<UpdaterNode>* out);

  // Indices of the content's slot nodes that the host sets.
  const std::vector<std::uint32_t>& others() const { return others_; }

  // What it and its table have copied to the device is there after this event.
  CallResult mark_copies(Event* end) { return memory_->mark(end); }

  // Null without a table.
  ParameterTable* table() { return table_.get(); }
  const ParameterTable* table() const { return table_.get(); }

  // Makes later launches write the call's values over the content's set; the content must be the base or have a set.
  // Does nothing if both are those of the last call. Adds to `patched_nodes` the number of nodes that change. Uses the
  // driver if `by_driver`.
  CallResult patch(cudaGraphExec_t executable, const Content& content, const detail::Call& call, bool by_driver,
                   int device, std::size_t* patched_nodes);

  // Records values that the host has written into the nodes, so that only a later change counts.
  CallResult hold(const unsigned char* values) {
    bool changed = false;
    return write(values, &changed);
  }

  // The error of a device-side update in a launch that has run with wrong values. Each error is returned once.
  cudaError_t take_error() {
    auto* const word = static_cast<volatile int*>(error_.get());
    const auto found = static_cast<cudaError_t>(*word);
    if (found != cudaSuccess) *word = cudaSuccess;
    return found;
  }
  // Drops the error, because the context is lost: its word may be gone.
  void abandon() { error_ = nullptr; }

 private:
  struct Source {
    Binding binding;
    std::uint32_t at;  // Offset in the kernel's parameter.
    bool is_grid;
  };

  explicit UpdaterNode(Updater& updater) : code_(updater.code()), memory_(updater.memory()) {}
  struct WrittenNodes;
  CallResult make_updatable(Updater& updater, const Template& graph, const Content& content, bool with_table,
                            WrittenNodes* out);
  static CallResult make_updatable(cudaGraphNode_t node, cudaGraphDeviceNode_t* handle,
                                   CUlaunchAttributeValue* highest);
  CallResult add_to(const Template& graph, cudaGraphNode_t behind, const std::vector<cudaGraphNode_t>& before,
                    const CUlaunchAttributeValue& highest);
  void take_kernel(const Updater::Kernels& kernels);
  bool plan_slots(const Slots& slots, const SlotNode& node, std::vector<updater::Update>* updates);
  bool find_source(const Binding& binding, bool is_grid, std::uint32_t residue, std::uint32_t* at);
  CallResult upload(const std::vector<updater::Piece>& pieces, const std::vector<updater::Update>& updates);
  CallResult write(const unsigned char* values, bool* changed);
  cudaKernelNodeParams node_params(void** arguments) const;
  CallResult set(cudaGraphExec_t executable, bool by_driver, int device);
  updater::Plan& plan() const { return *reinterpret_cast<updater::Plan*>(parameter_.get()); }
  updater::ParameterSet& held_set() const {
    return *reinterpret_cast<updater::ParameterSet*>(parameter_.get() + kSetAt);
  }
  unsigned& token() const { return *reinterpret_cast<unsigned*>(parameter_.get() + kTokenAt); }
  unsigned char* bytes() const { return parameter_.get() + kBytesAt; }
  unsigned blocks() const { return (plan().piece_count + updater::kThreads - 1) / updater::kThreads; }

  static constexpr std::size_t kSetAt = offsetof(updater::Values<updater::kLarge>, set);
  static constexpr std::size_t kTokenAt = offsetof(updater::Values<updater::kLarge>, token);
  static constexpr std::size_t kBytesAt = offsetof(updater::Values<updater::kLarge>, bytes);

  const std::shared_ptr<void> code_;
  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<Source> sources_;
  std::uint32_t size_ = 0;  // Size of the values in bytes.
  std::vector<std::uint32_t> others_;
  std::size_t written_ = 0;  // Number of slot nodes that it writes.
  std::uint64_t holds_ = 0;  // The id of the content whose set the next launch writes.
  cudaGraphNode_t node_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
  CUcontext context_ = nullptr;                 // The context of the executable.
  std::unique_ptr<unsigned char[]> parameter_;  // An updater::Values of some size.
  DeviceMemory::Block plan_, error_;
  std::unique_ptr<ParameterTable> table_;
};

}  // namespace graphcache
