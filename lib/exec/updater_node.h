// The updater node of a device-updated executable: it writes all slots of a run into the other nodes, on the device, so
// that a run patches one node, whatever their number; and with a table, what another member of the family differs in,
// so that a switch does no more (updater.h, docs/design.md).
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
#include "graphcache/cache.h"

namespace graphcache {

// Used as its executable is: by one thread at a time.
class UpdaterNode {
 public:
  ~UpdaterNode();

  // Whether a node's values can be written by the device: those of a kernel's arguments and grid.
  static bool can_write(const Slots& slots, const SlotNode& node);

  // How many of the nodes that can be.
  static std::size_t writable_nodes(const Slots& slots);

  // At most so much device memory does one with a table take, with the first sets of ParameterTable::kBlock bytes.
  static std::size_t estimated_device_bytes(const Content& content);

  // Makes the slot nodes of `graph`, which has the content's nodes and belongs to this updater node alone,
  // device-updatable, for a table the other kernel nodes, too, and adds a node before its roots. The stream is one to
  // enqueue copies on. After a failure the graph is of no use.
  static CallResult add(Updater& updater, const Template& graph, std::shared_ptr<const Content> content,
                        bool with_table, cudaStream_t stream, std::unique_ptr<UpdaterNode>* out);

  // The slot nodes that it leaves to the host, by their place among the content's.
  const std::vector<std::uint32_t>& others() const { return others_; }

  // Null without one.
  ParameterTable* table() { return table_.get(); }
  const ParameterTable* table() const { return table_.get(); }

  // Later launches write the call's values, over what the content has, which is the base's or has a set; nothing is
  // done if they are those of the last call. Adds to `patched_nodes` how many nodes that changes. Through the driver if
  // that can be used now.
  CallResult patch(cudaGraphExec_t executable, const Content& content, const detail::Call& call, bool by_driver,
                   int device, std::size_t* patched_nodes);

  // Takes note of values that the host has written into the nodes, so that only a later change is one.
  CallResult hold(const unsigned char* values) {
    bool changed = false;
    return write(values, &changed);
  }

  // What the device answered to an update of a launch that has run: the values of that launch were not those of its
  // run. Told once.
  cudaError_t take_error() {
    auto* const word = static_cast<volatile int*>(error_.get());
    const auto found = static_cast<cudaError_t>(*word);
    if (found != cudaSuccess) *word = cudaSuccess;
    return found;
  }

 private:
  struct Source {
    std::uint32_t offset;  // Where it is in the run's values.
    std::uint32_t size;    // How many bytes the argument has.
    detail::Convert convert;
    std::uint32_t at;  // Where the kernel's parameter has it.
    bool is_grid;
  };

  explicit UpdaterNode(Updater& updater) : code_(updater.code()), memory_(updater.memory()) {}
  void take_kernel(const Updater::Kernels& kernels);
  bool plan_slots(const Slots& slots, const SlotNode& node, std::vector<updater::Update>* updates);
  bool find_source(const Binding& binding, bool is_grid, std::uint32_t* at);
  CallResult upload(const std::vector<updater::Piece>& pieces, const std::vector<updater::Update>& updates,
                    cudaStream_t stream);
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
  std::uint32_t size_ = 0;  // Of the values.
  std::vector<std::uint32_t> others_;
  std::size_t written_ = 0;  // Nodes that hold slots which it writes.
  std::uint64_t holds_ = 0;  // The id of the content whose set the next launch brings.
  cudaGraphNode_t node_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
  CUcontext context_ = nullptr;                 // That the executable is of.
  std::unique_ptr<unsigned char[]> parameter_;  // updater::Values of any size.
  DeviceMemory::Block plan_, error_;
  std::unique_ptr<ParameterTable> table_;
};

}  // namespace graphcache
