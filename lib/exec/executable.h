// An executable and what it is programmed with: bringing it to other values or to a sibling's graph, and launching it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/mutex.h"
#include "exec/updater_node.h"
#include "graph/signature.h"
#include "graph/template.h"
#include "graphcache/cache.h"

namespace graphcache {

// Memory where copies and sets of no bytes write one, of each device that a node's own is of, or of the host and pinned
// (docs/semantics.md).
// Disabling their nodes instead would be wrong: a disabled set does not keep what follows it behind what comes before
// it (tried: docs/semantics.md). Thread-safe.
class Scratch {
 public:
  explicit Scratch(int device) : device_(device) {}

  // Two bytes of a device, or of the host (kHostMemory), made at the first call for it and freed by the destructor.
  CallResult bytes(int device, unsigned char** out) ABSL_LOCKS_EXCLUDED(mutex_);
  int device() const { return device_; }
  // After a fatal error: drops the handles.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const int device_;
  Mutex mutex_;
  Owned<void*, cudaFreeHost> of_host_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int, Owned<void*, cudaFree>> of_devices_ ABSL_GUARDED_BY(mutex_);
};

struct Grave;  // exec/graveyard.h

// What became of an attempt to bring an executable over to a sibling's graph.
struct BroughtOver {
  CallResult result;
  bool whole = false;                       // After a failure: whether the executable is what it was.
  std::optional<UpdateRefusal> refusal;     // After a failure: why the runtime refused the update, if it did.
  std::optional<std::size_t> refused_node;  // The index of the node in the sibling's graph that this is about.
  int updates = 0;                          // Calls of cudaGraphExecUpdate that succeeded.
  std::size_t patched_nodes = 0;            // Nodes whose parameters were set.
};

// An executable, and what it is programmed with: a content and values of slots.
//
// Not thread-safe: whoever uses it holds the lock of the entry that has it, from the patch to the launch (law 6).
class Executable {
 public:
  ~Executable();

  // Instantiates `base`, of the device of `scratch`, which stays as long as the executable: only its node handles can
  // patch it (fact 12). On failure `base` is unchanged.
  static cudaError_t instantiate(Template& base, std::shared_ptr<const Content> content, unsigned long long flags,
                                 Scratch& scratch, std::unique_ptr<Executable>* out);

  // The same from a clone of `from`, which is unchanged, with an updater node that writes the slots of kernel nodes,
  // and with a table what siblings differ in (updater_node.h). The stream is one to enqueue copies on.
  static CallResult instantiate_updated(Template& from, std::shared_ptr<const Content> content, bool with_table,
                                        unsigned long long flags, Scratch& scratch, Updater& updater,
                                        cudaStream_t stream, std::unique_ptr<Executable>* out);

  // Whether the device updates it.
  bool has_updater_node() const { return updater_node_ != nullptr; }
  // Whether it can be brought over to siblings at all: by updates or patches if it is plain, by a set of its table if
  // it has one.
  bool can_switch() const { return updater_node_ == nullptr || table() != nullptr; }
  ParameterTable* table() { return updater_node_ == nullptr ? nullptr : updater_node_->table(); }
  const ParameterTable* table() const {
    return updater_node_ == nullptr ? nullptr : std::as_const(*updater_node_).table();
  }

  const Content& content() const { return *content_; }
  // Whether launches may write to its nodes. The first launch must not, unless put_in_place() was called: the driver
  // puts the nodes of a new executable into device memory later than its stream says, but before that launch runs them
  // (docs/semantics.md). Until then the host sets all nodes.
  bool is_in_place() const { return in_place_; }
  bool device_may_write() const { return updater_node_ != nullptr && in_place_; }

  // What the device could not write in a launch that has run.
  cudaError_t take_device_error() { return updater_node_ == nullptr ? cudaSuccess : updater_node_->take_error(); }
  bool holds(const detail::Call& call) const {
    return call.values_size == 0 || std::memcmp(values_.data(), call.values, call.values_size) == 0;
  }

  // Brings the slot nodes to the call's values, compared bit by bit, and adds the number of those that were patched to
  // `patched_nodes`. Later launches only are affected (fact 14). After an error some nodes hold new values and some old
  // ones: the executable must not be launched again.
  CallResult patch(const detail::Call& call, std::size_t* patched_nodes);

  // Brings the executable, which has a table with a set of `to`, over to that and the call's values.
  // REQUIRES: device_may_write(). After a failure it must not be launched again.
  BroughtOver switch_set(std::shared_ptr<const Content> to, const detail::Call& call);

  // Brings the executable, a plain one, over to a sibling's content and the call's values, by the way that
  // `difference`, from its own content to that, found to be the cheaper one. The graphs are those of the two contents.
  // After a failure the executable is brought back to what it was; where that fails, too, it must not be launched
  // again.
  BroughtOver bring_over(const Template& from_graph, const Template& to_graph, std::shared_ptr<const Content> to,
                         const Difference& difference, const detail::Call& call);

  cudaError_t launch(cudaStream_t stream) {
    const cudaError_t error = cudaGraphLaunch(exec_.get(), stream);
    if (error != cudaSuccess) return error;
    in_place_ = true;
    stream_ = LaunchStream::of(stream);
    if (ready_.get() != nullptr) ready_ = {};
    return error;
  }
  // For one that was never launched: uploads it, and waits for that and for what was copied on the stream before.
  CallResult put_in_place(cudaStream_t stream);
  // The upload comes behind the launches of the executable, whatever their stream (docs/semantics.md).
  CallResult upload(cudaStream_t stream) { return {"cudaGraphUpload", cudaGraphUpload(exec_.get(), stream)}; }
  // What an updater node reads is copied on the stream of the run that makes it. The next launch may be on another, if
  // that run comes to none: get_ready(), called before each launch, puts it behind what mark_ready() was called after,
  // and uploads what was never launched. Launches that follow that one need no more (fact 15).
  CallResult mark_ready(cudaStream_t stream);
  CallResult get_ready(cudaStream_t stream) { return ready_.get() == nullptr ? CallResult{} : wait_and_upload(stream); }
  // The last launch's: those of one executable follow each other whatever their streams (fact 15).
  LaunchStream stream() const { return stream_; }

  // The handle, and the values that it holds: for hits.
  cudaGraphExec_t exec() const { return exec_.get(); }
  const unsigned char* values() const { return values_.data(); }

  Template& base() { return base_; }
  // Gives the base up. The executable must not be patched or updated any more.
  Template take_base() { return std::exchange(base_, {}); }

  // Where it is to wait for its destruction: prepared when memory could still be had, taken once.
  std::list<Grave> take_grave();

  // Drops the handles without destroying what they stand for.
  void abandon();

 private:
  friend class Verifier;

  explicit Executable(Scratch& scratch);

  void hold(std::shared_ptr<const Content> content);
  CallResult wait(cudaStream_t stream);
  CallResult wait_and_upload(cudaStream_t stream);
  CallResult patch_node(const SlotNode& node, const detail::Call& call, std::optional<bool>& driver_usable,
                        std::size_t* patched_nodes);
  bool update_fields(const SlotNode& node, const unsigned char* values);

  CallResult update_to(const Template& graph, std::shared_ptr<const Content> to, const detail::Call& call,
                       BroughtOver* brought);
  // Needs the driver. After an error the shadow is wrong, until an update has made it right.
  CallResult patch_to(const std::shared_ptr<const Content>& to, const Difference& difference, const detail::Call& call,
                      std::size_t* patched_nodes);
  // Whether nodes are set by the driver. `driver_usable` is found out by the first node that asks.
  bool by_driver(std::optional<bool>& driver_usable);
  CallResult set_kernel(const Content& content, std::uint32_t index);
  CallResult set_node(const SlotNode& node, std::optional<bool>& driver_usable);
  CallResult set_kernel(const SlotNode& node, std::optional<bool>& driver_usable);
  CallResult set_memcpy(const SlotNode& node);
  CallResult set_memset(const SlotNode& node);

  Scratch& scratch_;
  Template base_;
  std::unique_ptr<UpdaterNode> updater_node_;  // Null unless the device updates the executable.
  GraphExec exec_;                             // Destroyed before its base (law 8).
  LaunchStream stream_;
  bool in_place_ = false;  // Whether all of it is in device memory, or will be before the next launch's work.
  Event ready_;
  std::list<Grave> grave_;

  // The shadow of what the executable holds: it has no getters, and setting a node's parameters sets all of them (fact
  // 13).
  std::shared_ptr<const Content> content_;
  Slots slots_;  // The content's slots with the fields that `values_` gives, except what an updater node writes.
  std::vector<unsigned char> values_;
};

}  // namespace graphcache
