// An executable and what it holds: changing its values, bringing it over to a sibling's graph, and launching it.
#pragma once

#include <absl/types/span.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_memory.h"
#include "graph/template.h"
#include "graphcache/detail/call.h"

namespace graphcache {

// The result of bringing an executable over to a sibling's graph.
struct BroughtOver {
  CallResult result;
  bool updated = false;           // Whether cudaGraphExecUpdate has succeeded.
  bool is_whole = false;          // Whether the executable is as it was before.
  std::string refusal;            // Why the runtime refused the update, or empty.
  std::size_t patched_nodes = 0;  // Number of nodes whose parameters were set.
};

class UpdatedExecutable;  // exec/updated_executable.h

// An executable and what it holds: a content and values of slots. This one is plain: the host sets its nodes.
//
// Not thread-safe: the caller holds the lock of the entry that has the executable, from the patch to the launch (law
// 6).
class Executable {
 public:
  virtual ~Executable() = default;

  // Instantiates `base`, a graph of the device of `memory`. The executable keeps the base, because only the base's
  // node handles can patch it (fact 12). On failure `base` is unchanged.
  static CallResult instantiate(Template& base, std::shared_ptr<const Content> content, unsigned long long flags,
                                DeviceMemory& memory, std::unique_ptr<Executable>* out);

  // This executable if the device updates it, else null.
  virtual UpdatedExecutable* updated() { return nullptr; }

  // What contents keep that it has held before the present one, since formers() was last emptied. Launches of theirs
  // may be in flight; these are over when a launch of the present content is.
  Objects& formers() { return formers_; }
  // Whether its nodes are in device memory, or will be before the next launch's work.
  bool is_in_place() const { return in_place_; }

  // The error of a device-side update in a launch that has run with wrong values. Each error is returned once.
  cudaError_t take_device_error();
  bool holds(const detail::Call& call) const {
    // Lists of one entry may have several sizes.
    if (!is_of_values_ || has_unknown_copies_ || values_.size() != call.values_size) return false;
    return call.values_size == 0 || std::memcmp(values_.data(), call.values, call.values_size) == 0;
  }

  // Sets the slot nodes to the call's values and adds the number of patched nodes to `patched_nodes`. Values are
  // compared as bytes. Only later launches are affected (fact 14). After an error some nodes hold new values and some
  // old ones, and the executable must not be launched again. REQUIRES: has_context(), here and below.
  virtual CallResult patch(const detail::Call& call, std::size_t* patched_nodes);

  // Sets all copies of a graph anew, and sets with slots, to the call's values. Memory of earlier runs may have been
  // freed, and other memory may have its address: an instantiation of such a graph, or an update from it, may crash
  // (docs/semantics.md). After a failure, the graph must be renewed before it is used.
  static CallResult renew(Template* graph, const Content& content, const detail::Call& call, DeviceMemory& memory);
  // Whether the memory of copies is that which they were set with, where other memory would lose the context
  // (docs/semantics.md), unless these values, if any, change it. Other memory of a slot does not count if the next
  // patch can set the copy anew: it does so then.
  bool has_its_memory(const unsigned char* values);
  // Whether that must be asked before each launch.
  bool asks_for_memory() const { return asks_for_memory_ || has_unknown_copies_; }

  // Updates a plain executable to a sibling's content, whose graph this is, and to the call's values. After a failure
  // it must not be launched again, unless it is whole.
  BroughtOver bring_over(const Template& graph, std::shared_ptr<const Content> to, const detail::Call& call);

  // Behind the copies that the executable needs. Later launches follow this one and need nothing more (fact 15).
  CallResult launch(const LaunchStream& stream);
  // Uploads an executable that was never launched, and waits for that and for earlier copies on the stream.
  CallResult put_in_place(cudaStream_t stream);
  // The upload runs after the executable's launches, whatever their streams (docs/semantics.md).
  CallResult upload(cudaStream_t stream) { return {"cudaGraphUpload", cudaGraphUpload(exec_.get(), stream)}; }
  // The stream of the last launch. Launches of one executable follow each other whatever their streams (fact 15).
  LaunchStream stream() const { return stream_; }

  // The handle and the values that it holds, for hits.
  cudaGraphExec_t exec() const { return exec_.get(); }
  const unsigned char* values() const { return values_.data(); }

  // The executable must not be patched or updated any more if its base is moved away.
  Template& base() { return base_; }

  // Drops the handles without destroying the CUDA objects.
  void abandon();

 protected:
  friend class StructureChecker;

  explicit Executable(DeviceMemory& memory) : memory_(memory) {}

  // A copy as it was set last.
  struct HeldCopy {
    struct End {
      const void* at = nullptr;  // Null for an array.
      // Its memory: pageable if CUDA does not know it, of an unknown device if the graph allocates it.
      cudaMemoryType type = cudaMemoryTypeUnregistered;
      int device = kUnknownMemory;
      // The id of its allocation, kPageable if there is none, or 0 if it is not asked for.
      std::uint64_t id = 0;

      bool is_pageable() const { return at != nullptr && type == cudaMemoryTypeUnregistered; }
      bool is_of_another_device(const End& before) const {
        return type == cudaMemoryTypeDevice && (before.type != type || before.device != device);
      }
    };
    static constexpr std::uint64_t kPageable = UINT64_MAX;

    std::uint32_t node = 0;     // Its index: see Template::each_copy().
    bool is_of_device = false;  // By the memory at the instantiation, for good.
    End dst, src;
    // If not, the next patch sets it again and asks for its memory: a patch has moved it without that, because most
    // copies that move do so in each run, or other memory is there.
    bool is_known = true;

    bool has_ids() const { return dst.id != 0 || src.id != 0; }
    bool is_fit() const { return !is_of_device || (!dst.is_pageable() && !src.is_pageable()); }
    // Whether an executable that holds `before` can have this copy in its place. CUDA refuses memory of another device,
    // except where nothing else changes, and then the launch loses the context (docs/semantics.md).
    bool can_follow(const HeldCopy& before) const {
      const bool stays = dst.at == before.dst.at && src.at == before.src.at;
      return is_fit() && (!stays || (!dst.is_of_another_device(before.dst) && !src.is_of_another_device(before.src)));
    }
  };
  static std::uint64_t id_at(const void* end);
  static HeldCopy::End end_at(const Content& content, const void* at);
  // Asks for the ids of its allocations, where these count.
  static void ask(const Content& content, HeldCopy* copy);
  // This one, asked for anew at these addresses.
  static HeldCopy again(const Content& content, const HeldCopy& copy, const void* dst, const void* src);
  void note_copies();  // Sets what is known of all of `copies_`.
  HeldCopy* held_copy(const SlotNode& node);
  CallResult copies_of(const Template& graph, const Content& content, std::vector<HeldCopy>* out) const;
  // The first of these copies that the executable cannot have, or null.
  const HeldCopy* unfit(const std::vector<HeldCopy>& copies) const {
    for (std::size_t i = 0; i < copies.size(); ++i) {
      if (!copies[i].can_follow(copies_[i])) return &copies[i];
    }
    return nullptr;
  }

  // Takes a content, as its graph is now or, without a graph, as captured. Returns the former slots.
  Slots hold(std::shared_ptr<const Content> content, absl::Span<const unsigned char> of_graph = {});
  void take_values(const detail::Call& call) {
    values_.assign(call.values, call.values + call.values_size);
    is_of_values_ = true;
    note_copies();  // A patch may have moved them.
  }
  CallResult patch_node(const SlotNode& node, const detail::Call& call, std::size_t* patched_nodes);
  CallResult set_node(const SlotNode& node);
  CallResult set_kernel(cudaGraphNode_t node, const CUDA_KERNEL_NODE_PARAMS& params);

  DeviceMemory& memory_;
  Template base_;
  DeviceMemory::Block error_;  // The word of host memory that an updater node writes errors to, or null.
  GraphExec exec_;             // Destroyed before its base (law 8).
  Event ready_;                // Behind the copies that the next launch must follow, or empty.
  LaunchStream stream_;
  bool in_place_ = false;

  // A copy of what the executable holds. CUDA has no getters for it, and setting a node's parameters sets all of them
  // (fact 13).
  std::shared_ptr<const Content> content_;
  std::shared_ptr<Objects> kept_;  // What the content keeps.
  Objects formers_;
  // The content's slots with fields made from `values_`, except those that an updater node writes.
  Slots slots_;
  std::vector<HeldCopy> copies_;
  bool asks_for_memory_ = false, has_unknown_copies_ = false;
  std::vector<unsigned char> values_;
  bool is_of_values_ = true;  // If not, copies and sets have other values: those of their graph.

 private:
  CallResult set_kernel(const SlotNode& node);
  CallResult set_memcpy(const SlotNode& node);
};

}  // namespace graphcache
